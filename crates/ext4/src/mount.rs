//! Opening a volume: superblock, journal, groups, orphans; and closing it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use steadfs_base::{Corruption, InodeNo, IoTag, Tid};
use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_cache::{Backing, CacheSizes, WritebackReason};
use steadfs_jbd2::{Journal, JournalError, Recover};
use steadfs_rt::wall_clock;
use steadfs_vfs::{AloneGuard, Cx, FileKind, FsError, Result};

use crate::disk::superblock::{JournalPlace, STATE_CLEAN, STATE_ERROR};
use crate::disk::{Ino, Superblock};
use crate::external_journal;
use crate::fs::Ext4;
use crate::io_error;
use crate::mode::{check_size, choose_mode};
use crate::node_lock::NodeLock;
use crate::options::MountOptions;
use crate::replay::{Replaying, may_have_log, replay};
use crate::report::MountReport;
use crate::source::{Source, journal_map};
use crate::superblock::{self, Chosen, SuperblockChoice};
use crate::tuning::{journal_config, warn_of_idle_threshold};
use crate::txn::journal_error;

impl MountOptions {
    /// The superblock that these options select.
    pub fn superblock_choice(&self) -> SuperblockChoice {
        SuperblockChoice {
            sb: self.sb,
            salvage: self.common.salvage,
        }
    }
}

/// The error for a task that cannot be started; without its tasks no volume is written.
pub(crate) fn no_thread(error: std::io::Error) -> FsError {
    FsError::no_thread(error)
}

impl Ext4 {
    /// Opens the volume on `device`: replays the journal, finishes orphans, starts the volume's tasks.
    pub fn open(
        device: Arc<dyn Device>,
        options: MountOptions,
        sizes: CacheSizes,
    ) -> Result<(Arc<Self>, MountReport)> {
        Self::open_handed_over(device, options, sizes, &[])
    }

    /// The same for a volume that another server handed over ([`FileSystem::hand_over`](steadfs_vfs::FileSystem)) with
    /// these lookup counts: orphans among these inodes stay in use.
    pub fn open_handed_over(
        device: Arc<dyn Device>,
        options: MountOptions,
        sizes: CacheSizes,
        lookups: &[(InodeNo, u64)],
    ) -> Result<(Arc<Self>, MountReport)> {
        let mut report = MountReport::default();
        let mut options = options;
        options.validate()?;
        let queue = Arc::new(Queue::new(device, QueueOptions::default()));
        let chosen = choose(&queue, &options, &mut report)?;
        let has_journal = !matches!(chosen.sb.journal(), JournalPlace::None);
        options = options.on(has_journal)?;
        options.check_features(chosen.sb.features())?;
        let lock = match options.common.read_only {
            true => None,
            false => NodeLock::take(&queue, &chosen.sb, &options.protection)?.map(Arc::new),
        };
        let chosen = match &lock {
            // Another node may have changed it before the lock was taken.
            Some(_) => choose(&queue, &options, &mut MountReport::default()),
            None => Ok(chosen),
        };
        let opened = chosen
            .and_then(|chosen| source_of(queue, &chosen, &options, &mut report))
            .and_then(|source| {
                Self::open_source(source, options, sizes, lookups, lock.as_ref(), &mut report)
            });
        match (opened, lock) {
            (Ok(fs), _) => Ok((fs, report)),
            (Err(error), lock) => {
                if let Some(Err(error)) = lock.map(|lock| lock.release()) {
                    tracing::error!(%error, "releasing the lock of this node failed");
                }
                Err(error)
            }
        }
    }

    /// Opens the volume of `source`, whose log is replayed.
    fn open_source(
        source: Source,
        options: MountOptions,
        sizes: CacheSizes,
        lookups: &[(InodeNo, u64)],
        lock: Option<&Arc<NodeLock>>,
        report: &mut MountReport,
    ) -> Result<Arc<Self>> {
        let (options, passed) =
            options.over(source.sb.default_mount_opts(), &source.sb.mount_opts());
        report.defaults_passed_over = passed;
        let journaled = !matches!(source.sb.journal(), JournalPlace::None);
        let fs = Self::assemble(source, options, sizes, journaled, report)?;
        fs.inodes.adopt_lookups(lookups);
        let files = fs.sb.lock().quota_inodes().map(|ino| ino.is_some());
        let missing = fs.options.read().common.warn_of_missing_limits(files);
        report.warnings.extend(missing);
        fs.check_root()?;
        if let Some(lock) = lock {
            fs.keep_node_lock(lock);
        }
        if !fs.stop_state.is_read_only() {
            match fs.begin_service() {
                Ok(orphans) => {
                    fs.super_origin.use_first();
                    report.orphans = orphans;
                    report.check_because = fs.why_check();
                }
                Err(error) => {
                    fs.join_tasks();
                    return Err(error);
                }
            }
        }
        Ok(fs)
    }

    /// Refuses a volume without a root directory.
    fn check_root(&self) -> Result<()> {
        let bad = |what: &str| {
            let root = Corruption::new(format!("the root inode {what}"));
            Err(root.in_inode(Ino::ROOT).into())
        };
        match self.inode(Ino::ROOT, IoTag::default()) {
            Ok(root) if root.kind() != FileKind::Directory => bad("is not a directory"),
            Ok(root) if root.size() == 0 => bad("is empty"),
            Ok(_) => Ok(()),
            Err(FsError::Stale) => bad("is not in use"),
            Err(error) => Err(error),
        }
    }

    /// Opens the journal, starts the tasks, marks the volume in use and processes orphans (returns their number). The
    /// volume is writable already. Nothing is written if a task cannot be started.
    pub(crate) fn begin_service(&self) -> Result<u64> {
        if self.txns.is_journaled() && self.txns.journal().is_none() {
            self.open_journal()?;
        }
        // The error state of the superblock replaces the journal's errno, as in the kernel.
        let aborted = self.txns.journal().and_then(|j| j.recorded_errno());
        if let Some(errno) = aborted {
            tracing::warn!(
                errno,
                "the journal was aborted: the volume should be checked"
            );
        }
        if !self.txns.is_journaled() {
            let me = self.me.clone();
            self.txns.on_half_done(Box::new(move |cause: &str| {
                if let Some(fs) = me.upgrade() {
                    fs.stop_and_mark(cause);
                }
            }));
        }
        if let Some(journal) = self.txns.journal() {
            journal.start_tasks().map_err(no_thread)?;
        }
        let backing: Weak<dyn Backing> = self.me.clone();
        self.writeback.start(backing).map_err(no_thread)?;
        let clean = self.sb.lock().state() & STATE_CLEAN != 0;
        self.was_clean.store(clean, Ordering::Release);
        self.mark_in_use(aborted.is_some())?;
        if let Some(journal) = self.txns.journal() {
            journal.clear_errno().map_err(journal_error)?;
        }
        self.open_quota()?;
        self.orphans.clean_up(self)
    }

    fn open_journal(&self) -> Result<()> {
        let (map, config) = {
            let sb = self.sb.lock();
            let external = self.options.read().external_journal;
            let map = journal_map(&self.queue, &sb, external)?;
            let config = journal_config(&sb, &self.options.read(), self.meta_budget);
            (map, config)
        };
        let journal = Journal::open(Arc::clone(&self.meta), map, config).map_err(journal_error)?;
        let asked = self.options.read().async_checkpoint;
        warn_of_idle_threshold(&journal, asked);
        let on_commit = self.me.clone();
        journal.on_commit(Box::new(move |tid: Tid| {
            if let Some(fs) = on_commit.upgrade() {
                fs.fast_commits.committed(tid);
                fs.alloc.committed(&fs, tid);
            }
        }));
        let on_abort = self.me.clone();
        journal.on_abort(Box::new(move |cause: &str| {
            if let Some(fs) = on_abort.upgrade() {
                fs.stop(cause);
            }
        }));
        self.txns.set_journal(journal);
        Ok(())
    }

    /// Ends and joins the volume's tasks. Nothing is written any more.
    pub(crate) fn join_tasks(&self) {
        self.writeback.stop();
        if let Some(journal) = self.txns.journal() {
            journal.join_tasks();
        }
    }

    /// Why e2fsck should check the volume, by the superblock at the mount for writing.
    pub(crate) fn why_check(&self) -> Option<&'static str> {
        if !self.was_clean.load(Ordering::Acquire) {
            Some("was not cleanly unmounted")
        } else if self.sb.lock().state() & STATE_ERROR != 0 {
            Some("is marked as having errors")
        } else {
            None
        }
    }

    /// Marks the volume as in use in the superblock, durably before any change.
    fn mark_in_use(&self, has_errors: bool) -> Result<()> {
        let at = self.options.read().mounted_on.clone();
        self.mark_open(|sb| {
            sb.note_mount(wall_clock(), at.as_deref());
            if has_errors {
                sb.set_state(sb.state() | STATE_ERROR);
            }
        })
    }

    /// Removes the clean mark, and applies `also` to the superblock.
    pub(crate) fn mark_open(&self, also: impl FnOnce(&mut Superblock)) -> Result<()> {
        let totals = self.alloc.totals();
        let journaled = self.txns.journal().is_some();
        self.write_super(|sb| {
            sb.set_free_blocks(totals.free << self.geo.cluster_bits);
            sb.set_free_inodes(totals.free_inodes as u32);
            also(sb);
            if journaled {
                sb.set_needs_recovery(true);
                sb.set_orphan_present(sb.orphan_file().is_some());
            } else {
                sb.set_state(sb.state() & !STATE_CLEAN);
            }
        })
    }

    /// Removes the clean mark where changes continue. If that fails, the volume stops.
    ///
    /// # Errors
    /// The superblock cannot be written.
    pub(crate) fn mark_open_or_stop(&self) -> Result<()> {
        let marked = self.mark_open(|_| ());
        if let Err(error) = &marked {
            self.shut_down(&format!("the superblock cannot be written: {error}"));
        }
        marked
    }

    /// Stops the volume and its journal, as a shutdown does: the next mount replays what the log has by now.
    pub(crate) fn shut_down(&self, cause: &str) {
        match self.txns.journal() {
            Some(journal) => journal.shutdown(cause),
            None => self.stop(cause),
        }
    }

    /// Aborts the journal, which records the failure, and stops the volume.
    pub(crate) fn abort(&self, cause: &str) {
        match self.txns.journal() {
            Some(journal) => journal.abort(cause),
            None => self.stop(cause),
        }
    }

    /// Stops a volume without a journal and records an error in its superblock: part of a change may be on the device,
    /// for e2fsck to repair.
    fn stop_and_mark(&self, cause: &str) {
        self.stop(cause);
        let marked = self.write_super(crate::corruption::record_half_done);
        if let Err(error) = marked {
            tracing::error!(%error, "marking the stopped volume failed");
        }
    }

    /// Writes the superblock in place and durably, outside any transaction. Only while no transaction holds its block.
    fn write_super(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let (block, at) = self.geo.superblock_place();
        let buf = self.block(block, IoTag::default())?;
        let durable = self.options.read().barrier;
        let content = || {
            let mut sb = self.sb.lock();
            change(&mut sb);
            let mut bytes = buf.lock();
            sb.seal_into(&mut bytes[at..at + 1024]);
            self.super_origin.set(bytes[at..at + 1024].to_vec());
            bytes.snapshot()
        };
        self.meta
            .write_alone(block, durable, IoTag::default(), content)
            .map_err(io_error)
    }

    /// Stops the volume until it is unmounted: the first cause is kept, and nothing is changed any more.
    pub(crate) fn stop(&self, cause: &str) {
        tracing::error!(cause, "the volume stops");
        self.stop_state.stop(cause);
    }

    /// Writes everything, marks the volume clean, stops its tasks.
    pub fn close(&self) -> Result<()> {
        if !self.stop_state.begin_unmount() {
            return Ok(());
        }
        let closed = self.close_volume();
        let released = self.release_node_lock();
        closed.and(released)
    }

    fn close_volume(&self) -> Result<()> {
        steadfs_rt::fault_point("close");
        self.writeback.stop();
        self.queue.set_read_ahead_limit(0);
        self.queue.drain_read_ahead();
        if let Some(cause) = self.stop_state.cause() {
            self.join_tasks();
            return Err(FsError::Stopped(cause));
        }
        if self.stop_state.is_read_only() {
            return Ok(());
        }
        if let Err(error) = self.thaw() {
            self.join_tasks();
            return Err(error);
        }
        // Calls that wait for this lock are refused afterwards.
        let alone = self.remount_state.exclude_changes();
        if let Err(error) = self.report_corruption(self.orphans.free_all(self)) {
            // They stay on the orphan list, for the next mount.
            tracing::warn!(%error, "freeing orphans failed");
        }
        let quiesced = self.quiesce(Shut::ReadOnly, &alone);
        self.stop_state.become_read_only();
        drop(alone);
        self.join_tasks();
        quiesced?;
        let lost = self.writeback.dirty_bytes();
        if lost > 0 {
            return Err(FsError::Io(format!(
                "{lost} bytes could not be written and are lost"
            )));
        }
        Ok(())
    }
}

impl Ext4 {
    /// Quiesces the volume: writes everything, empties the log and marks the volume clean, if it was. Changes are
    /// refused afterwards, as `shut` says; until then `alone` keeps them away.
    ///
    /// # Errors
    /// Not everything could be written: changes are possible as before, or the volume has stopped.
    pub(crate) fn quiesce(&self, shut: Shut, alone: &AloneGuard<'_>) -> Result<()> {
        self.report_corruption(self.sync_volume(&Cx::default()))?;
        if let Some(journal) = self.txns.journal() {
            // A read that finds damage, or a sync, may have begun to wait for a handle by now.
            let refusal = match shut {
                Shut::ReadOnly => JournalError::ReadOnly,
                Shut::Frozen => JournalError::Frozen,
            };
            let emptied = journal.close(refusal).map_err(journal_error);
            emptied.map_err(FsError::not_durable)?;
        }
        match shut {
            Shut::ReadOnly => self.stop_state.become_read_only(),
            Shut::Frozen => self.remount_state.freeze(alone),
        }
        let marked = self.mark_clean();
        if marked.is_err() {
            match shut {
                Shut::ReadOnly => {
                    self.stop_state.become_writable();
                }
                Shut::Frozen => self.remount_state.thaw(alone),
            }
            self.txns.reopen();
            // It is unknown whether the device has the clean mark. With it, no later change would survive a crash.
            let _ = self.mark_open_or_stop();
        }
        marked
    }

    /// Marks the volume clean, unless it was not clean when it was opened: it has not been checked since.
    fn mark_clean(&self) -> Result<()> {
        let clean = match self.was_clean.load(Ordering::Acquire) {
            true => STATE_CLEAN,
            false => 0,
        };
        let totals = self.alloc.totals();
        let orphans = !self.orphans.none_on_record();
        self.write_super(|sb| {
            sb.set_free_blocks((totals.free + totals.pending) << self.geo.cluster_bits);
            sb.set_free_inodes(totals.free_inodes as u32);
            sb.set_write_time(wall_clock());
            sb.set_needs_recovery(false);
            sb.set_orphan_present(orphans && sb.orphan_file().is_some());
            sb.set_state(sb.state() | clean);
        })
    }
}

/// How a volume refuses changes once it is quiesced.
#[derive(Clone, Copy)]
pub(crate) enum Shut {
    /// It is read-only.
    ReadOnly,
    /// It is frozen.
    Frozen,
}

impl Backing for Ext4 {
    fn panicked(&self) {
        self.shut_down(steadfs_rt::PANICKED);
    }

    fn write_out(&self, files: &[u64], why: WritebackReason) {
        steadfs_rt::fault_point("flusher");
        let _open = self.open_to_changes();
        if let Err(error) =
            self.report_corruption(self.write_out_files(files, why, IoTag::background()))
        {
            // Each file keeps its error for the next fsync; the data stays dirty.
            tracing::warn!(%error, "write-back failed");
        }
    }

    fn tick(&self) {
        let _open = self.open_to_changes();
        if self.check_writable().is_err() {
            return;
        }
        self.write_replaced();
        self.free_values();
        self.alloc.age_preallocs(self);
        for inode in self.inodes.dirty() {
            if let Err(error) = self.report_corruption(self.store_if_dirty(&inode)) {
                tracing::warn!(ino = %inode.ino(), %error, "storing an inode failed");
            }
        }
        if let Some(meta) = self.txns.direct()
            && let Err(error) = meta.write_dirty(IoTag::background())
        {
            tracing::warn!(%error, "writing metadata failed");
        }
    }
}

/// The hint for a journal that cannot be replayed.
const WITHOUT_JOURNAL: &str =
    "-o ro,noload leaves the journal out; steadfs ls, cat and extract do so themselves";

/// The superblock of a volume that these options can open.
fn choose(queue: &Arc<Queue>, options: &MountOptions, report: &mut MountReport) -> Result<Chosen> {
    let mut chosen = superblock::choose(queue, &options.superblock_choice())?;
    report.warnings.extend(chosen.warning.take());
    let sized = check_size(&chosen.sb, queue, options.external_journal);
    report.pass_over(sized, options.common.salvage)?;
    let device_read_only = queue.geometry().read_only;
    choose_mode(&chosen.sb, options, device_read_only, report)?;
    if let Some(area) = options.external_journal {
        let mapped = external_journal::map(queue, &chosen.sb, area).map(drop);
        // A corrupt one is passed over, but not the wrong one.
        let is_wrong = matches!(mapped, Err(FsError::BadOption(_)));
        report.pass_over(mapped, options.common.salvage && !is_wrong)?;
    }
    Ok(chosen)
}

/// Replays the journal, if it has anything to replay.
fn source_of(
    queue: Arc<Queue>,
    chosen: &Chosen,
    options: &MountOptions,
    report: &mut MountReport,
) -> Result<Source> {
    let mut source = Source::unreplayed(queue, chosen);
    if options.no_replay || !may_have_log(chosen, options.external_journal) {
        return Ok(source);
    }
    match replay_for(&source.queue, chosen, options, report) {
        Ok(replayed) => source = replayed,
        Err(error) if options.common.salvage => {
            let warning = files_may_be_older("the journal", &error);
            report.warnings.push(warning);
        }
        Err(error) => return Err(without_log(error, options)),
    }
    let left_out = source.unreplayed.take();
    let left_out = left_out.map(|error| files_may_be_older("fast commits", &error));
    report.warnings.extend(left_out);
    let device_read_only = source.queue.geometry().read_only;
    choose_mode(&source.sb, options, device_read_only, report)?;
    Ok(source)
}

/// Replays the journal for a mount with these options.
fn replay_for(
    queue: &Arc<Queue>,
    chosen: &Chosen,
    options: &MountOptions,
    report: &mut MountReport,
) -> Result<Source> {
    let salvage = options.common.salvage;
    // A mount that only reads does not take the lock of multiple-mount protection, so it must not write.
    let is_shared = options.common.read_only && chosen.sb.mmp_block().is_some();
    let how = match salvage || is_shared || queue.geometry().read_only {
        true => Recover::IntoMemory,
        false => Recover::ToDevice,
    };
    let device = Arc::clone(queue.device());
    let replaying = Replaying {
        how,
        salvage,
        external: options.external_journal,
    };
    replay(device, queue, chosen, replaying, report)
}

/// The warning about a part of the journal that cannot be replayed.
fn files_may_be_older(part: &str, error: &FsError) -> String {
    format!("{part} cannot be replayed ({error}): files may be older than what was written")
}

/// Adds the hint to the error of a journal that cannot be replayed.
fn without_log(error: FsError, options: &MountOptions) -> FsError {
    match error {
        FsError::Corrupt(corruption) if options.common.read_only => {
            corruption.with_hint(WITHOUT_JOURNAL).into()
        }
        FsError::Stopped(what) if options.common.read_only => {
            Corruption::new(what).with_hint(WITHOUT_JOURNAL).into()
        }
        error => error,
    }
}

#[cfg(test)]
mod tests;
