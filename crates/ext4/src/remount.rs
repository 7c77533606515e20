//! Remount: changing options, and between writable and read-only; freeze and thaw.

use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_jbd2::ReclaimPolicy;
use steadfs_rt::{now, sleep};
use steadfs_vfs::{AloneGuard, Cx, FsError, Result};

use crate::disk::Superblock;
use crate::disk::features::Incompat;
use crate::disk::superblock::SUPERBLOCK_OFFSET;
use crate::fs::Ext4;
use crate::mode::why_only_readable;
use crate::mount::{Shut, no_thread};
use crate::node_lock::{NodeLock, Protection};
use crate::options::MountOptions;
use crate::replay::{recover_to_device, replayed_superblock};
use crate::report::MountReport;
use crate::superblock::superblock_bytes;
use crate::tuning::{stripe, tuning, warn_of_idle_threshold};

/// How long a remount waits for unlinked files to be freed: the kernel's FORGET arrives after the reply to the unlink
/// or close that dropped the last reference.
const ORPHAN_WAIT_MAX: Duration = Duration::from_millis(500);
const ORPHAN_POLL: Duration = Duration::from_millis(5);

impl Ext4 {
    /// The current options, with `ro` if an error has made the volume read-only.
    pub(crate) fn effective_options(&self) -> MountOptions {
        let mut options = self.options.read().clone();
        options.common.read_only = self.stop_state.is_read_only();
        options
    }

    /// Applies options to the running volume. An error leaves everything as it was.
    pub(crate) fn change_options(&self, cx: &Cx, list: &str) -> Result<()> {
        let _one = self.remount_state.begin();
        if self.remount_state.is_frozen() {
            return Err(FsError::Busy);
        }
        let asked = self.options.read().common.read_only;
        let old = self.effective_options();
        let new = old.remounted(list)?.on(self.txns.is_journaled())?;
        new.check_features(self.sb.lock().features())?;
        if !old.common.read_only {
            self.report_corruption(self.sync_volume(cx))?;
        }
        match (old.common.read_only, new.common.read_only) {
            (true, false) if asked => self.become_writable(&old, &new),
            (true, false) => Err(FsError::Stopped(self.why_stopped())),
            (false, true) => self.become_read_only(&new),
            _ if old.common.limits() != new.common.limits() => self.change_limits(cx, new),
            _ => {
                self.apply(new);
                Ok(())
            }
        }
    }

    /// Applies options with other limits. Delayed data counts for the owners whose limits hold when it is written, so none
    /// is delayed meanwhile.
    fn change_limits(&self, cx: &Cx, new: MountOptions) -> Result<()> {
        let _alone = self.remount_state.exclude_changes();
        if self.check_writable().is_ok() {
            self.report_corruption(self.sync_volume(cx))?;
        }
        self.apply(new);
        Ok(())
    }

    /// Freezes the volume: writes everything, empties the log and marks the volume clean, so that the device can be
    /// copied. Until [`Ext4::thaw`] changes are refused, and unlinked files without references are not freed. Does
    /// nothing on a read-only volume.
    ///
    /// # Errors
    /// The volume has stopped, or something could not be written; it is not frozen then.
    pub(crate) fn freeze(&self) -> Result<()> {
        let _one = self.remount_state.begin();
        if self.stop_state.is_stopped() {
            return Err(FsError::Stopped(self.why_stopped()));
        }
        if self.stop_state.is_read_only() || self.remount_state.is_frozen() {
            return Ok(());
        }
        // Most of it while changes continue.
        self.report_corruption(self.sync_volume(&Cx::default()))?;
        let alone = self.remount_state.exclude_changes();
        self.check_writable()?;
        self.quiesce(Shut::Frozen, &alone)?;
        self.pause_node_lock();
        Ok(())
    }

    /// Ends [`Ext4::freeze`], and frees the unlinked files whose last reference was dropped meanwhile.
    ///
    /// # Errors
    /// The superblock cannot be written: the volume stops. Nothing is lost, as nothing was changed.
    pub(crate) fn thaw(&self) -> Result<()> {
        let _one = self.remount_state.begin();
        if !self.remount_state.is_frozen() {
            return Ok(());
        }
        {
            let alone = self.remount_state.exclude_changes();
            self.resume_node_lock();
            // A volume that has stopped meanwhile is not written any more.
            let stopped = self.stop_state.is_stopped();
            let marked = match stopped {
                true => Ok(()),
                false => self.mark_open_or_stop(),
            };
            self.remount_state.thaw(&alone);
            self.txns.reopen();
            marked?;
        }
        self.free_unlinked_while_frozen();
        Ok(())
    }

    fn free_unlinked_while_frozen(&self) {
        let _open = self.open_to_changes();
        for inode in self.remount_state.take_deferred() {
            if self.check_writable().is_ok()
                && let Err(error) = self.free_unlinked(&inode)
            {
                // It stays on the orphan list, and the next mount frees it.
                tracing::warn!(ino = %inode.ino(), %error, "freeing an unlinked inode failed");
            }
        }
    }

    fn why_stopped(&self) -> String {
        let cause = self.stop_state.cause();
        cause.unwrap_or_else(|| "corruption was found; unmount and repair with e2fsck".to_owned())
    }

    /// Applies new options, including those that journal and allocator keep a copy of.
    fn apply(&self, new: MountOptions) {
        if let Some(journal) = self.txns.journal() {
            journal.set_tuning(tuning(&new));
            journal.set_reclaim_policy(ReclaimPolicy {
                low_free_percent: new.async_checkpoint.percent(),
                ..journal.reclaim_policy()
            });
            warn_of_idle_threshold(journal, new.async_checkpoint);
        }
        self.alloc.set_discard(new.discard);
        let stripe = stripe(&self.sb.lock(), &new);
        self.alloc.set_stripe(&self.geo, stripe);
        *self.options.write() = new;
        self.enforce_limits();
    }

    /// Makes the volume read-only: writes everything and marks it clean. Refused while unlinked files are in use, as
    /// they could not be freed later. (The kernel itself refuses while files are open for writing.)
    fn become_read_only(&self, new: &MountOptions) -> Result<()> {
        let until = now() + ORPHAN_WAIT_MAX;
        while !self.orphans.is_empty() && !until.since(now()).is_zero() {
            sleep(ORPHAN_POLL);
        }
        // Before the lock is taken, as the flusher takes it, too. The flusher is only paused: starting another may
        // fail, and a volume that stays writable needs one.
        let _held = self.writeback.park();
        let quiesced = {
            let alone = self.remount_state.exclude_changes();
            self.quiesce_read_only(new, &alone)
        };
        if quiesced.is_ok() {
            self.join_tasks();
            if let Err(error) = self.release_node_lock() {
                tracing::error!(%error, "releasing the lock of this node failed");
            }
        }
        quiesced
    }

    fn quiesce_read_only(&self, new: &MountOptions, alone: &AloneGuard<'_>) -> Result<()> {
        self.check_writable()?;
        if !self.orphans.is_empty() {
            return Err(FsError::Busy);
        }
        self.quiesce(Shut::ReadOnly, alone)?;
        self.apply(new.clone());
        Ok(())
    }

    /// Makes the volume writable as a mount does: opens the device for writing, replays the journal, processes orphans.
    fn become_writable(&self, old: &MountOptions, new: &MountOptions) -> Result<()> {
        let begun = self.try_to_become_writable(old, new);
        if begun.is_err()
            && let Err(error) = self.release_node_lock()
        {
            tracing::error!(%error, "releasing the lock of this node failed");
        }
        begun
    }

    fn try_to_become_writable(&self, old: &MountOptions, new: &MountOptions) -> Result<()> {
        let _alone = self.remount_state.exclude_changes();
        if self.stop_state.is_stopped() {
            return Err(FsError::Stopped(self.why_stopped()));
        }
        if let Some(why) = &self.unwritable {
            return Err(FsError::BadOption(format!(
                "{why}; the volume stays read-only: repair it with e2fsck"
            )));
        }
        let why = why_only_readable(&self.sb.lock(), new);
        if !why.is_empty() {
            return Err(FsError::OnlyReadable(why.join("; ")));
        }
        // The tasks of the journal, the flusher and that of multiple-mount protection.
        steadfs_rt::check_thread_limit(4).map_err(no_thread)?;
        self.take_device(&new.protection)?;
        self.apply(new.clone());
        if !self.stop_state.become_writable() {
            return Err(FsError::Stopped(self.why_stopped()));
        }
        self.txns.reopen();
        let begun = self.begin_service();
        if let Err(error) = &begun {
            // Without an open journal nothing was written. Otherwise it is unknown what the device has, and a replay
            // below an open journal would change the log that it relies on.
            if !self.txns.is_journaled() || self.txns.journal().is_some() {
                self.shut_down(&format!("it could not become writable: {error}"));
            }
            self.stop_state.become_read_only();
            self.apply(old.clone());
            self.join_tasks();
        }
        begun.map(drop)?;
        self.super_origin.use_first();
        Ok(())
    }

    /// Makes the device writable, and replays into it what the overlay holds.
    fn take_device(&self, protection: &Protection) -> Result<()> {
        let device: &Arc<dyn Device> = match &self.overlay {
            Some(overlay) => overlay.inner(),
            None => self.queue.device(),
        };
        device.make_writable().map_err(FsError::BadOption)?;
        // A replay below does not pass through this volume's queue.
        self.queue.drain_read_ahead();
        let below = Arc::new(Queue::new(Arc::clone(device), QueueOptions::default()));
        let before = self.sb.lock().clone();
        if let Some(lock) = NodeLock::take(&below, &before, protection)? {
            self.keep_node_lock(&Arc::new(lock));
        }
        let at = self.super_origin.at();
        let bytes = superblock_bytes(&below, at)?;
        if !self.super_origin.is(&bytes) {
            return Err(FsError::BadOption(
                "another program has changed the volume since it was mounted; unmount and mount again"
                    .to_owned(),
            ));
        }
        let sb = Superblock::parse(&bytes)?;
        let is_copy = at != SUPERBLOCK_OFFSET;
        let dirty = sb.features().incompat.contains(Incompat::NEEDS_RECOVERY);
        if self.txns.is_journaled() && (dirty || is_copy) {
            // What the overlay has of the fast commits is on the device then.
            let changed = self.overlay.as_ref().map(|over| over.overlay().in_memory());
            let changed = changed.filter(|blocks| !blocks.is_empty());
            let external = self.options.read().external_journal;
            let mut report = MountReport::default();
            let leave_log = || {
                if let Some(overlay) = &self.overlay {
                    overlay.leave_log();
                }
            };
            recover_to_device(&below, (&sb, external), changed, leave_log, &mut report)?;
            // The same superblock that the overlay has had since the mount.
            let sb = replayed_superblock(&below, &sb, external, is_copy)?;
            let bytes = superblock_bytes(&below, SUPERBLOCK_OFFSET)?;
            self.super_origin.set(bytes.to_vec());
            *self.sb.lock() = sb;
        }
        if let Some(overlay) = &self.overlay {
            overlay.disable_overlay();
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
