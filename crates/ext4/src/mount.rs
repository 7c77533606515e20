//! Opening a volume: superblock, journal, groups, orphans; and closing it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use steadfs_base::{IoTag, Tid};
use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_cache::{Along, Backing, CacheSizes, MetaCache, Why, Writeback, WritebackOptions};
use steadfs_jbd2::{Journal, JournalMap, Overlay, OverlayDevice, Recover};
use steadfs_rt::{Mutex, Rank, RwLock, wall_clock};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{Clock, Cx, FileKind, Freeing, FsError, Result};

use crate::disk::features::{Incompat, RoCompat};
use crate::disk::superblock::{JournalPlace, STATE_CLEAN, STATE_ERROR, SUPERBLOCK_OFFSET};
use crate::disk::{Ino, Superblock};
use crate::fs::{Ext4, io_error};
use crate::inode::InodeTable;
use crate::mballoc::Allocator;
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::tuning::{journal_config, stripe, warn_of_idle_threshold};
use crate::txn::{Txns, journal_error};

mod mode;

use mode::choose_mode;
pub(crate) use mode::why_only_readable;

/// What opening a volume found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountReport {
    /// Journal blocks written home (or, on a read-only device, laid over it in memory).
    pub replayed_blocks: u64,
    /// Transactions replayed.
    pub replayed_transactions: u64,
    /// Unlinked or half-truncated inodes finished.
    pub orphans: u64,
    /// Why the volume is read-only although writing was asked for.
    pub read_only_because: Vec<String>,
    /// Options that the superblock asks for and does not get, with the reason.
    pub defaults_passed_over: Vec<String>,
    /// Why e2fsck should look at a volume that is mounted for writing.
    pub check_because: Option<&'static str>,
}

/// Reads and validates the superblock.
pub fn read_superblock(queue: &Queue) -> Result<Superblock> {
    let bytes = superblock_bytes(queue)?;
    if Superblock::is_external_journal(&bytes) {
        return Err(FsError::BadOption(
            "unsupported features: journal_dev; this is the journal of another volume".to_owned(),
        ));
    }
    Ok(Superblock::parse(&bytes)?)
}

/// The 1024 bytes where the superblock lies.
pub(crate) fn superblock_bytes(queue: &Queue) -> Result<Vec<u8>> {
    let size = queue.geometry().size;
    if size < SUPERBLOCK_OFFSET + 1024 {
        return Err(FsError::Corrupt(format!(
            "{size} bytes are too few for an ext volume"
        )));
    }
    let unit = u64::from(queue.geometry().logical_block).max(1024);
    let start = SUPERBLOCK_OFFSET / unit * unit;
    let len = (SUPERBLOCK_OFFSET + 1024 - start).next_multiple_of(unit);
    let data = queue
        .read(start, len as usize, IoTag::default())
        .map_err(io_error)?;
    let at = (SUPERBLOCK_OFFSET - start) as usize;
    Ok(data[at..at + 1024].to_vec())
}

/// Without its tasks no volume is written.
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
        let mut report = MountReport::default();
        let mut options = options;
        options.validate()?;
        let mut queue = Arc::new(Queue::new(Arc::clone(&device), QueueOptions::default()));
        let seen = superblock_bytes(&queue)?;
        let mut sb = Superblock::parse(&seen)?;
        check_size(&sb, &queue)?;
        choose_mode(&sb, &options, queue.geometry().read_only, &mut report)?;
        let needs_recovery = sb.features().incompat.contains(Incompat::NEEDS_RECOVERY);
        let has_journal = !matches!(sb.journal(), JournalPlace::None);
        options = options.on(has_journal)?;
        options.check_features(sb.features())?;
        let mut overlay = None;
        if needs_recovery && has_journal && !options.no_replay {
            if queue.geometry().read_only {
                let over = lay_over(device, &queue, &sb, &mut report)?;
                queue = Arc::new(Queue::new(Arc::clone(&over) as _, QueueOptions::default()));
                overlay = Some(over);
            } else {
                recover_to_device(&queue, &sb, &mut report)?;
            }
            sb = replayed_superblock(&queue, &sb)?;
            choose_mode(&sb, &options, queue.geometry().read_only, &mut report)?;
        }
        // Where the device is read, it is still as it was.
        let seen = if overlay.is_some() {
            seen
        } else {
            superblock_bytes(&queue)?
        };
        let (options, passed) = options.over(sb.default_mount_opts(), &sb.mount_opts());
        report.defaults_passed_over = passed;
        let fs = Self::assemble(queue, (sb, seen), overlay, options, sizes)?;
        fs.check_root()?;
        if !fs.read_only.load(Ordering::Acquire) {
            match fs.begin_service() {
                Ok(orphans) => {
                    report.orphans = orphans;
                    report.check_because = fs.why_check();
                }
                Err(error) => {
                    fs.end_tasks();
                    return Err(error);
                }
            }
        }
        Ok((fs, report))
    }

    fn assemble(
        queue: Arc<Queue>,
        (sb, seen): (Superblock, Vec<u8>),
        overlay: Option<Arc<OverlayDevice>>,
        options: MountOptions,
        sizes: CacheSizes,
    ) -> Result<Arc<Self>> {
        let geo = sb.geometry().clone();
        let meta_budget = usize::try_from(sizes.metadata).unwrap_or(usize::MAX);
        let meta = Arc::new(MetaCache::new(
            Arc::clone(&queue),
            geo.block_size,
            meta_budget,
        ));
        let mut alloc = Allocator::load(&geo, &meta, options.discard)?;
        alloc.set_stripe(stripe(&sb, &options));
        let journaled = !matches!(sb.journal(), JournalPlace::None);
        if journaled && let Ok(map) = journal_map(&queue, &sb) {
            alloc.add_journal(&map)?;
        }
        let overhead = geo.first_data_block.0 + alloc.own_blocks();
        let txns = Txns::new(Arc::clone(&meta), journaled);
        let meta_budget = sizes.metadata;
        let limits = WritebackOptions::for_cache(sizes.dirty_data);
        queue.limit_read_ahead(sizes.read_ahead);
        let read_only = options.read_only;
        let large_file = sb.features().ro_compat.contains(RoCompat::LARGE_FILE);
        let hidden = sb.own_files();
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            geo,
            queue,
            meta,
            txns,
            writeback: Arc::new(Writeback::new(limits)),
            inodes: InodeTable::new(),
            alloc,
            orphans: Orphans::new(),
            freeing: Freeing::new(),
            verities: VerityFiles::default(),
            replaced: Mutex::new(Rank::Leaf, BTreeSet::new()),
            options: RwLock::new(Rank::Leaf, options),
            along: Along::default(),
            clock: Clock::default(),
            rename: Mutex::new(Rank::Rename, ()),
            sb: Mutex::new(Rank::Super, sb),
            large_file: AtomicBool::new(large_file),
            hidden,
            overhead,
            read_only: AtomicBool::new(read_only),
            frozen: AtomicBool::new(false),
            left: Mutex::new(Rank::Leaf, Vec::new()),
            meta_budget,
            remounting: Mutex::with_key(Rank::Mount, 0, ()),
            gate: RwLock::with_key(Rank::Mount, 1, ()),
            overlay,
            seen: Mutex::new(Rank::Leaf, seen),
            stopped: Mutex::new(Rank::Leaf, None),
            data_error: Mutex::new(Rank::Leaf, None),
            unmounted: AtomicBool::new(false),
            was_clean: AtomicBool::new(true),
        }))
    }

    /// A volume without a tree is of no use, and where its root should be may be something else.
    fn check_root(&self) -> Result<()> {
        let bad = |what: &str| Err(FsError::Corrupt(format!("the root directory {what}")));
        match self.inode(Ino::ROOT, IoTag::default()) {
            Ok(root) if root.kind() != FileKind::Directory => bad("is none"),
            Ok(root) if root.size() == 0 => bad("is empty"),
            Ok(_) => Ok(()),
            Err(FsError::Stale) => bad("is not in use"),
            Err(error) => Err(error),
        }
    }

    /// Opens the journal, marks the volume in use, finishes orphans, of which it returns the number,
    /// starts the tasks. The volume counts as writable already.
    pub(crate) fn begin_service(&self) -> Result<u64> {
        if self.txns.is_journaled() && self.txns.journal().is_none() {
            self.open_journal()?;
        }
        // The volume's own note replaces the journal's, as in the kernel.
        let aborted = self.txns.journal().and_then(|j| j.recorded_errno());
        if let Some(errno) = aborted {
            tracing::warn!(
                errno,
                "the journal was aborted: the volume should be checked"
            );
        }
        let clean = self.sb.lock().state() & STATE_CLEAN != 0;
        self.was_clean.store(clean, Ordering::Release);
        self.mark_in_use(aborted.is_some())?;
        if !self.txns.is_journaled() {
            let me = self.me.clone();
            self.txns.on_half_done(Box::new(move |cause: &str| {
                if let Some(fs) = me.upgrade() {
                    fs.stop_marked(cause);
                }
            }));
        }
        if let Some(journal) = self.txns.journal() {
            journal.clear_errno().map_err(journal_error)?;
            journal.start().map_err(no_thread)?;
        }
        let orphans = self.orphans.clean_up(self)?;
        let backing: Weak<dyn Backing> = self.me.clone();
        self.writeback.start(backing).map_err(no_thread)?;
        Ok(orphans)
    }

    fn open_journal(&self) -> Result<()> {
        let (map, config) = {
            let sb = self.sb.lock();
            let map = journal_map(&self.queue, &sb)?;
            (
                map,
                journal_config(&sb, &self.options.read(), self.meta_budget),
            )
        };
        let journal = Journal::open(Arc::clone(&self.meta), map, config).map_err(journal_error)?;
        let asked = self.options.read().async_checkpoint;
        warn_of_idle_threshold(&journal, asked);
        let on_commit = self.me.clone();
        journal.on_commit(Box::new(move |tid: Tid| {
            if let Some(fs) = on_commit.upgrade() {
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

    /// Stops the volume's tasks. Nothing is written any more.
    pub(crate) fn end_tasks(&self) {
        self.writeback.stop();
        if let Some(journal) = self.txns.journal() {
            journal.stop();
        }
    }

    /// What the volume said when it was opened for writing that e2fsck should look at.
    pub(crate) fn why_check(&self) -> Option<&'static str> {
        if !self.was_clean.load(Ordering::Acquire) {
            Some("was not cleanly unmounted")
        } else if self.sb.lock().state() & STATE_ERROR != 0 {
            Some("is marked as one with errors")
        } else {
            None
        }
    }

    /// The superblock says from now on that the volume is in use; durable before any change is.
    fn mark_in_use(&self, has_errors: bool) -> Result<()> {
        let at = self.options.read().mounted_on.clone();
        self.mark_open(|sb| {
            sb.note_mount(wall_clock(), at.as_deref());
            if has_errors {
                sb.set_state(sb.state() | STATE_ERROR);
            }
        })
    }

    /// Takes the clean mark away, and notes what `also` does.
    pub(crate) fn mark_open(&self, also: impl FnOnce(&mut Superblock)) -> Result<()> {
        let totals = self.alloc.totals();
        let journaled = self.txns.journal().is_some();
        self.write_super(|sb| {
            sb.set_free_blocks(totals.free);
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

    /// Takes the clean mark away where changes go on. A volume that cannot be marked stops.
    ///
    /// # Errors
    /// The superblock cannot be written.
    pub(crate) fn mark_open_or_stop(&self) -> Result<()> {
        let marked = self.mark_open(|_| ());
        if let Err(error) = &marked {
            self.stop_all(&format!("the superblock cannot be written: {error}"));
        }
        marked
    }

    /// Stops the volume and its journal: what is in the log by now is for the next mount.
    pub(crate) fn stop_all(&self, cause: &str) {
        match self.txns.journal() {
            Some(journal) => journal.shutdown(cause),
            None => self.stop(cause),
        }
    }

    /// Stops the volume and its journal, which notes that it failed.
    pub(crate) fn halt(&self, cause: &str) {
        match self.txns.journal() {
            Some(journal) => journal.abort(cause),
            None => self.stop(cause),
        }
    }

    /// Stops a volume without a journal and marks its superblock: part of a change may be on the device already,
    /// for e2fsck to repair.
    fn stop_marked(&self, cause: &str) {
        self.stop(cause);
        let marked = self.write_super(crate::damage::record_half_done);
        if let Err(error) = marked {
            tracing::error!(%error, "marking the stopped volume failed");
        }
    }

    /// Writes the superblock in place and makes it durable, outside any transaction. Only while no
    /// transaction holds its block.
    fn write_super(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let (block, at) = self.geo.superblock_place();
        let buf = self.block(block, IoTag::default())?;
        let data = {
            let mut sb = self.sb.lock();
            change(&mut sb);
            let mut bytes = buf.lock();
            sb.seal_into(&mut bytes[at..at + 1024]);
            *self.seen.lock() = bytes[at..at + 1024].to_vec();
            bytes.snapshot()
        };
        let offset = self.geo.block_size.offset_of(block);
        let mut bio = steadfs_block::Bio::write(offset, vec![data]);
        if self.options.read().barrier {
            bio = bio.preflush_and_fua();
        }
        self.queue
            .submit(bio, IoTag::default())
            .wait()
            .map_err(io_error)
    }

    /// Stops the volume for good: the first cause is kept, nothing is changed any more.
    pub(crate) fn stop(&self, cause: &str) {
        tracing::error!(cause, "the volume stops");
        self.stopped.lock().get_or_insert_with(|| cause.to_owned());
        self.read_only.store(true, Ordering::Release);
    }

    /// Writes everything, marks the volume clean, stops its tasks.
    pub fn close(&self) -> Result<()> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        steadfs_rt::fault_point("close");
        self.writeback.stop();
        self.queue.limit_read_ahead(0);
        self.queue.end_read_ahead();
        let stopped = self.stopped.lock().clone();
        if let Some(cause) = stopped {
            self.end_tasks();
            return Err(FsError::Stopped(cause));
        }
        if self.read_only.load(Ordering::Acquire) {
            return Ok(());
        }
        if let Err(error) = self.thaw() {
            self.end_tasks();
            return Err(error);
        }
        // What comes meanwhile is refused afterwards.
        let alone = self.gate.write();
        if let Err(error) = self.judge(self.orphans.free_all(self)) {
            // They stay on record, for the next mount.
            tracing::warn!(%error, "freeing orphans failed");
        }
        let settled = self.settle(&self.read_only);
        self.read_only.store(true, Ordering::Release);
        drop(alone);
        self.end_tasks();
        settled?;
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
    /// Writes everything, empties the log and marks the volume clean, if it was; `shut` keeps changes away from then on,
    /// the caller until then.
    ///
    /// # Errors
    /// Not everything could be written: the volume is as open to changes as before, or it has stopped.
    pub(crate) fn settle(&self, shut: &AtomicBool) -> Result<()> {
        self.judge(self.sync_volume(&Cx::default()))?;
        if let Some(journal) = self.txns.journal() {
            let emptied = journal.flush_all().map_err(journal_error);
            emptied.map_err(FsError::not_durable)?;
        }
        let before = shut.swap(true, Ordering::AcqRel);
        let marked = self.mark_clean();
        if marked.is_err() {
            shut.store(before, Ordering::Release);
            // Whether the device has the mark nobody knows; below it no change would survive a crash.
            let _ = self.mark_open_or_stop();
        }
        marked
    }

    /// A volume that was not clean when it was opened is as unclean afterwards: nobody has looked for what its
    /// last user left.
    fn mark_clean(&self) -> Result<()> {
        let clean = match self.was_clean.load(Ordering::Acquire) {
            true => STATE_CLEAN,
            false => 0,
        };
        let totals = self.alloc.totals();
        let orphans = !self.orphans.none_on_record();
        self.write_super(|sb| {
            sb.set_free_blocks(totals.free + totals.pending);
            sb.set_free_inodes(totals.free_inodes as u32);
            sb.set_write_time(wall_clock());
            sb.set_needs_recovery(false);
            sb.set_orphan_present(orphans && sb.orphan_file().is_some());
            sb.set_state(sb.state() | clean);
        })
    }
}

impl Backing for Ext4 {
    fn panicked(&self) {
        self.stop_all(steadfs_rt::PANICKED);
    }

    fn write_out(&self, files: &[u64], why: Why) {
        steadfs_rt::fault_point("flusher");
        let _open = self.open_to_changes();
        if let Err(error) = self.judge(self.write_out_files(files, why, IoTag::background())) {
            // The mappings keep it for the next fsync; the data stays dirty.
            tracing::warn!(%error, "write-back failed");
        }
    }

    fn tick(&self) {
        let _open = self.open_to_changes();
        if self.check_writable().is_err() {
            return;
        }
        self.write_replaced();
        self.alloc.age_growing(self);
        for inode in self.inodes.dirty() {
            if let Err(error) = self.judge(self.store_if_dirty(&inode)) {
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

fn check_size(sb: &Superblock, queue: &Queue) -> Result<()> {
    let geo = sb.geometry();
    let needed = geo.blocks_count.checked_mul(geo.block_size.bytes_u64());
    if needed.is_none_or(|n| n > queue.geometry().size) {
        return Err(FsError::Corrupt(format!(
            "the volume has {} blocks of {} bytes, the device only {} bytes",
            geo.blocks_count,
            geo.block_size.bytes(),
            queue.geometry().size
        )));
    }
    Ok(())
}

pub(crate) fn recover_to_device(
    queue: &Arc<Queue>,
    sb: &Superblock,
    report: &mut MountReport,
) -> Result<()> {
    let map = journal_map(queue, sb)?;
    crate::journal_inode::check_apart(queue, sb, &map)?;
    recover_journal(queue, sb, &map, Recover::ToDevice, report)?;
    Ok(())
}

/// The volume as it will be after replay, without writing the device.
fn lay_over(
    device: Arc<dyn Device>,
    queue: &Arc<Queue>,
    sb: &Superblock,
    report: &mut MountReport,
) -> Result<Arc<OverlayDevice>> {
    let map = journal_map(queue, sb)?;
    crate::journal_inode::check_apart(queue, sb, &map)?;
    let overlay = recover_journal(queue, sb, &map, Recover::IntoMemory, report)?;
    let size = sb.geometry().block_size;
    Ok(Arc::new(OverlayDevice::new(device, size, overlay)))
}

/// A view of the volume on `device` as the next mount would find it, for who only reads: what the
/// journal holds is laid over it in memory.
///
/// # Errors
/// The superblock cannot be read, or the journal not replayed.
pub fn replayed_view(device: Arc<dyn Device>) -> Result<(Arc<Queue>, MountReport)> {
    let mut report = MountReport::default();
    let queue = Arc::new(Queue::new(Arc::clone(&device), QueueOptions::default()));
    let sb = read_superblock(&queue)?;
    check_size(&sb, &queue)?;
    let dirty = sb.features().incompat.contains(Incompat::NEEDS_RECOVERY);
    if !dirty || !matches!(sb.journal(), JournalPlace::Inode(_)) {
        return Ok((queue, report));
    }
    let view = lay_over(device, &queue, &sb, &mut report)?;
    let queue = Arc::new(Queue::new(view, QueueOptions::default()));
    replayed_superblock(&queue, &sb)?;
    Ok((queue, report))
}

/// The superblock that a replay may have brought, judged as one that was always there. It is of the volume that
/// the log was found in: a resize makes that larger, but nothing moves what has its place.
pub(crate) fn replayed_superblock(queue: &Queue, before: &Superblock) -> Result<Superblock> {
    let sb = read_superblock(queue)?;
    check_size(&sb, queue)?;
    let (old, new) = (before.geometry(), sb.geometry());
    let other = match new.places_differ(old) {
        None if sb.journal() != before.journal() => Some("place of the journal"),
        None if new.blocks_count < old.blocks_count => Some("number of blocks"),
        other => other,
    };
    match other {
        None => Ok(sb),
        Some(what) => Err(FsError::Corrupt(format!(
            "the superblock in the journal has another {what} than the one that led to it"
        ))),
    }
}

fn recover_journal(
    queue: &Arc<Queue>,
    sb: &Superblock,
    map: &JournalMap,
    how: Recover,
    report: &mut MountReport,
) -> Result<Overlay> {
    let size = sb.geometry().block_size;
    let recovered = steadfs_jbd2::recover(queue, size, map, how, IoTag::default());
    let recovered = recovered.map_err(journal_error)?;
    report.replayed_blocks = recovered.summary.blocks;
    report.replayed_transactions = recovered.summary.transactions.into();
    Ok(recovered.overlay)
}

/// Where the journal's blocks lie. Read straight from the device: the journal inode is never part of
/// a transaction, so it is right before replay as after.
fn journal_map(queue: &Arc<Queue>, sb: &Superblock) -> Result<JournalMap> {
    let JournalPlace::Inode(ino) = sb.journal() else {
        return Err(FsError::Corrupt("the volume has no journal".to_owned()));
    };
    crate::journal_inode::map(queue, sb, ino)
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod tests;
