//! Remount: changes options, makes a writable volume read-only and back; freeze, thaw and shutdown.

use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{Queue, QueueOptions};
use steadfs_cache::CacheSizes;
use steadfs_rt::{now, sleep};
use steadfs_vfs::{Cx, FsError, OpenGuard, Result};

use crate::checkpoint;
use crate::disk::superblock::StopReason;
use crate::fs::F2fs;
use crate::mount::{MountReport, check_size, read_only_reasons};
use crate::options::{MountOptions, Unusable};

/// Maximum wait of a remount for unlinked files to be freed: the kernel's FORGET comes after the reply to the unlink or
/// close.
const UNLINKED_WAIT_MAX: Duration = Duration::from_millis(500);
const UNLINKED_POLL: Duration = Duration::from_millis(5);
/// Memory for the mount that recovers, in bytes.
const RECOVERY_CACHE_BYTES: u64 = 32 << 20;

impl F2fs {
    /// Takes `remount_lock` shared: the volume does not become read-only, writable or frozen meanwhile. Each call that
    /// may change the volume takes it, before any other lock.
    ///
    /// # Errors
    /// `Busy`: the volume is frozen. (A call that waited would block the thread that could thaw the volume.)
    pub(crate) fn open_to_changes(&self) -> Result<OpenGuard<'_>> {
        let open = self.remount.hold_open();
        if self.is_frozen() {
            return Err(FsError::Busy);
        }
        Ok(open)
    }

    /// The current options; with `ro` also if an error has made the volume read-only.
    pub(crate) fn effective_options(&self) -> MountOptions {
        let mut options = self.options.read().clone();
        options.common.read_only = self.stop_state.is_read_only();
        options
    }

    /// Applies options to the mounted volume. An error leaves everything unchanged.
    pub(crate) fn change_options(&self, cx: &Cx, list: &str) -> Result<()> {
        let _one = self.remount.begin();
        self.check_open()?;
        if self.is_frozen() {
            return Err(FsError::Busy);
        }
        let asked = self.options.read().common.read_only;
        let old = self.effective_options();
        let mut new = old.remounted(list)?;
        new.settle(self.space.counts().user_blocks);
        new.check_features(self.superblock.features())?;
        match (old.common.read_only, new.common.read_only) {
            (true, false) if asked => self.become_writable(&old, &new),
            (true, false) => Err(FsError::Stopped(self.why_stopped())),
            (false, true) => self.become_read_only(cx, &new),
            (false, false) => {
                let before = self.start_tasks(&new)?;
                // Most data is written while changes continue. Checkpoints are enabled in spite of files that cannot be written.
                let synced = self.sync_volume_unmerged(cx);
                let switched = match self.is_cp_disabled() && new.checkpoint_off.is_none() {
                    true => Ok(()),
                    false => synced,
                };
                let switched =
                    switched.and_then(|()| self.switch_checkpoints(new.checkpoint_off, cx));
                if let Err(error) = switched {
                    self.join_tasks_except(before);
                    return Err(error);
                }
                let wanted = self.tasks_for(&new);
                self.apply(new);
                self.apply_log_options();
                self.join_tasks_except(wanted);
                Ok(())
            }
            (true, true) => {
                // A volume that corruption made read-only stays one that was mounted to be written: its tasks run, and
                // only an unmount ends that.
                new.common.read_only = asked;
                self.apply(new);
                Ok(())
            }
        }
    }

    fn why_stopped(&self) -> String {
        let cause = self.abort_cause();
        cause.unwrap_or_else(|| {
            "the volume is corrupt; unmount it and repair it with fsck.f2fs".to_owned()
        })
    }

    /// Disables or enables checkpoints, if the options change that.
    fn switch_checkpoints(&self, off: Option<Unusable>, cx: &Cx) -> Result<()> {
        match (self.is_cp_disabled(), off) {
            (false, Some(allowed)) => {
                self.clean_before_disable(allowed, cx.tag)?;
                let _alone = self.remount.exclude_changes();
                self.disable_checkpoints(allowed, cx)
            }
            (true, None) => {
                let _alone = self.remount.exclude_changes();
                self.enable_checkpoints(cx)
            }
            _ => Ok(()),
        }
    }

    /// Writes everything and the checkpoint of an unmount. Fails while unlinked files are in use, because they could
    /// not be freed later. (The kernel also refuses while files are open for writing, which a server does not know.)
    fn become_read_only(&self, cx: &Cx, new: &MountOptions) -> Result<()> {
        let until = now() + UNLINKED_WAIT_MAX;
        while !self.orphans.all().is_empty() && !until.since(now()).is_zero() {
            sleep(UNLINKED_POLL);
        }
        // The tasks are not joined yet: if this fails, the volume needs them and they might not be startable again. The
        // flusher is parked; the others change nothing while `remount_lock` is held.
        let _held = self.writeback.park();
        let settled = {
            let _alone = self.remount.exclude_changes();
            self.check_writable().and_then(|()| {
                if !self.orphans.all().is_empty() {
                    return Err(FsError::Busy);
                }
                self.daemon.flush(self);
                if self.is_cp_disabled() {
                    // `ro` is refused unless the same remount enables checkpoints.
                    self.enable_checkpoints(cx)?;
                }
                self.write_unmount_checkpoint()?;
                self.apply(new.clone());
                Ok(())
            })
        };
        if settled.is_ok() || self.check_writable().is_err() {
            self.join_tasks();
        }
        settled
    }

    /// Does what a mount for writing does.
    fn become_writable(&self, old: &MountOptions, new: &MountOptions) -> Result<()> {
        let _alone = self.remount.exclude_changes();
        if self.abort_cause().is_some() {
            return Err(FsError::Stopped(self.why_stopped()));
        }
        let refuse = |why: &str| Err(FsError::BadOption(why.to_owned()));
        let why = read_only_reasons(&self.superblock);
        if !why.is_empty() {
            return Err(FsError::OnlyReadable(why.join("; ")));
        }
        // The threads of the flusher and of the tasks.
        let threads = 1 + self.tasks_for(new).count();
        steadfs_rt::check_thread_limit(threads).map_err(FsError::no_thread)?;
        check_size(&self.superblock, &self.queue)?;
        let device = self.queue.device();
        device.make_writable().map_err(FsError::BadOption)?;
        // Recovery uses another queue, so data read ahead in this one would become stale.
        self.queue.drain_read_ahead();
        let below = Arc::new(Queue::new(Arc::clone(device), QueueOptions::default()));
        let now = checkpoint::load(&below, &self.layout)?.for_writing()?;
        if now.checkpoint != self.checkpoints.last() {
            return refuse(
                "another program has changed the volume since it was mounted; unmount and mount again",
            );
        }
        if self.recovered().files() > 0 {
            self.recovery.run(|| {
                self.recover_for_good()?;
                self.recovery.record_recovered();
                Ok(())
            })?;
        }
        if !self.stop_state.become_writable() {
            return Err(FsError::Stopped(self.why_stopped()));
        }
        self.apply(new.clone());
        let begun = self.start_writable(&mut MountReport::default());
        if begun.is_err() {
            self.stop_state.become_read_only();
            self.apply(old.clone());
            self.join_tasks();
        }
        begun
    }

    /// Recovers the overlay into the volume through a second, private mount, then reloads all state. The caller holds
    /// `remount_lock` exclusively.
    fn recover_for_good(&self) -> Result<()> {
        let overlay = self.recovery.overlay();
        let exclusive = overlay.write();
        let options = MountOptions::parse("background_gc=off,nodiscard,nocheckpoint_merge")?;
        let device = Arc::clone(self.queue.device());
        let sizes = CacheSizes::of(RECOVERY_CACHE_BYTES);
        let (other, report) = F2fs::open(device, options, sizes)?;
        other.unmount_private()?;
        drop(other);
        tracing::info!(
            files = report.recovered_files,
            "recovered what fsync wrote after the checkpoint"
        );
        let below = Arc::new(Queue::new(
            Arc::clone(self.queue.device()),
            QueueOptions::default(),
        ));
        let now = checkpoint::load(&below, &self.layout)?;
        self.inodes.drop_unused();
        self.nodes.drop_unused();
        self.meta.invalidate_all();
        self.nat.reload(&now.checkpoint, now.nat_journal);
        self.space.reload(&self.layout, &now.checkpoint);
        self.orphans.reload(now.orphans);
        self.checkpoints.reload(now.checkpoint, now.pack);
        overlay.retire(&exclusive);
        Ok(())
    }

    /// Freezes the volume: writes everything, and refuses changes until [`F2fs::thaw`].
    ///
    /// # Errors
    /// The volume has aborted, or something could not be written; it is not frozen then.
    pub(crate) fn freeze(&self, cx: &Cx) -> Result<()> {
        let _one = self.remount.begin();
        if let Some(cause) = self.abort_cause() {
            return Err(FsError::Stopped(cause));
        }
        if self.stop_state.is_read_only() || self.is_frozen() {
            return Ok(());
        }
        // Most data is written while changes continue.
        self.sync_volume_unmerged(cx)?;
        let alone = self.remount.exclude_changes();
        self.daemon.flush(self);
        self.sync_volume_unmerged(cx)?;
        self.remount.freeze(&alone);
        self.discards.suspend(true);
        Ok(())
    }

    /// Allows changes again, and frees unlinked files whose last reference was dropped while frozen.
    pub(crate) fn thaw(&self) {
        if !self.is_frozen() {
            return;
        }
        let _one = self.remount.begin();
        {
            let alone = self.remount.exclude_changes();
            self.remount.thaw(&alone);
            self.discards.suspend(false);
        }
        self.evict_deferred();
    }

    /// Whether the volume is frozen: tasks write nothing.
    pub(crate) fn is_frozen(&self) -> bool {
        self.remount.is_frozen()
    }

    /// Aborts the volume as a power cut would, after writing what `mode` requires.
    pub(crate) fn shut_down(&self, cx: &Cx, mode: steadfs_vfs::ShutdownMode) -> Result<()> {
        use steadfs_vfs::{SHUT_DOWN, ShutdownMode};
        // No thaw in between: what is written then is not yet durable.
        let _one = self.remount.begin();
        let written = match mode {
            // A frozen volume is written already.
            ShutdownMode::Sync | ShutdownMode::FlushLog if self.is_frozen() => Ok(()),
            ShutdownMode::NeedCheck if self.is_frozen() => return Err(FsError::Busy),
            ShutdownMode::Sync => self.sync_volume_unmerged(cx),
            ShutdownMode::FlushLog => self.checkpoint(checkpoint::Reason::Sync, cx.tag),
            // Metadata is written by checkpoints only.
            ShutdownMode::NoFlush | ShutdownMode::MetaFlush => Ok(()),
            ShutdownMode::NeedCheck => {
                self.errors.require_fsck();
                return self.checkpoint(checkpoint::Reason::Mount, cx.tag);
            }
        };
        self.abort(StopReason::SHUTDOWN, SHUT_DOWN);
        written
    }

    /// Sets the options, and the values that other modules keep copies of.
    pub(crate) fn apply(&self, new: MountOptions) {
        self.space.set_root_reserved(new.reserve_root.into());
        *self.options.write() = new;
        self.enforce_limits();
    }
}

#[cfg(test)]
mod tests;
