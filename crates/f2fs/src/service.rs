//! The service of a volume that is written: its beginning after a mount or a remount, its tasks, its end.

use std::sync::Weak;
use std::sync::atomic::Ordering;

use steadfs_base::IoTag;
use steadfs_cache::{Backing, Why};
use steadfs_rt::fault_point;
use steadfs_vfs::{Cx, FsError, Result};

use crate::checkpoint::{self, Reason};
use crate::fs::F2fs;
use crate::mount::{MountReport, was_paused};
use crate::segment::Segments;

/// Why a volume cannot be written without its flusher.
pub(crate) const NO_THREAD: &str = "the system refuses another thread";

impl F2fs {
    /// Reads what only a volume that is written needs, ends what was begun before a crash, starts the
    /// tasks. The volume counts as writable already.
    ///
    /// It always writes a checkpoint. Nodes that a session before this one wrote behind the last checkpoint
    /// carry its version; were new ones written among them, recovery could take old ones for new.
    ///
    /// # Errors
    /// Damage, no space for what recovery takes over, or the device.
    pub(crate) fn begin_service(&self, report: &mut MountReport) -> Result<()> {
        let tag = IoTag::default();
        self.recovering.store(true, Ordering::Release);
        let ended = self.end_what_was_begun(report, tag);
        self.recovering.store(false, Ordering::Release);
        ended?;
        let allowed = self.options.read().checkpoint_off;
        if let Some(allowed) = allowed {
            self.apply_log_options();
            self.prepare_pause(allowed, tag)?;
            self.pause(allowed, &Cx::default())?;
        }
        let backing: Weak<dyn Backing> = self.weak().clone();
        self.writeback
            .start(backing)
            .map_err(|_| FsError::Again(NO_THREAD))?;
        self.start_helpers();
        Ok(())
    }

    /// Frees orphans, makes what fsync wrote part of the volume, and writes the checkpoint of both.
    fn end_what_was_begun(&self, report: &mut MountReport, tag: IoTag) -> Result<()> {
        self.read_segments(tag)?;
        self.checkpoints.begin_mount();
        report.orphans = self.free_orphans(tag);
        let last = self.checkpoints.last();
        let applied = if self.options.read().no_recovery || was_paused(last.flags) {
            Default::default()
        } else {
            self.recover(tag)?
        };
        report.recovered_files = applied.files;
        report.recovered_nodes = applied.nodes;
        self.checkpoint(Reason::Mount, tag)?;
        self.end_recovery(applied);
        self.has_recovered.fetch_or(
            report.orphans > 0 || report.recovered_files > 0,
            Ordering::AcqRel,
        );
        Ok(())
    }

    /// Reads the segments, once.
    pub(crate) fn read_segments(&self, tag: IoTag) -> Result<()> {
        if self.segments.get().is_none() {
            let current = checkpoint::load(&self.queue, &self.layout)?;
            let segments = Segments::load(
                &self.layout,
                &current.checkpoint,
                current.pack,
                &current.sit_journal,
                &self.queue,
                tag,
            )?;
            let set = self.segments.set(segments);
            assert!(set.is_ok(), "one mount or remount at a time");
        }
        Ok(())
    }

    /// Starts the task that writes checkpoints for those who wait.
    pub(crate) fn start_merging(&self) {
        self.daemon.start(Weak::clone(self.weak()));
    }

    fn weak(&self) -> &Weak<Self> {
        self.me.get().expect("set by whoever made the volume")
    }

    /// Starts the tasks that make a volume faster; where the host refuses them it does without.
    pub(crate) fn start_helpers(&self) {
        self.start_or_stop_merging();
        self.gc.allow(true);
        self.adjust_cleaning();
    }

    /// Ends what [`F2fs::start_helpers`] starts; what is under way ends first.
    pub(crate) fn end_helpers(&self) {
        self.stop_cleaning();
        self.stop_discards();
        self.daemon.stop(self);
    }

    /// Ends the volume's tasks; what they have under way ends first.
    pub(crate) fn end_tasks(&self) {
        self.writeback.stop();
        self.end_helpers();
    }

    /// Writes everything, as an unmount does; the caller keeps changes away.
    pub(crate) fn settle_all(&self) -> Result<()> {
        self.settle_volume(&Cx::default())?;
        self.checkpoint(Reason::Unmount, IoTag::default())?;
        self.read_only.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the volume's service. Calls that come meanwhile are refused afterwards.
    ///
    /// # Errors
    /// Something could not be written and is lost.
    pub(crate) fn close(&self) -> Result<()> {
        self.close_by(|| {
            let _alone = self.service.write();
            self.end_service()
        })
    }

    /// The same for a volume that nobody else knows of.
    ///
    /// # Errors
    /// As [`F2fs::close`].
    pub(crate) fn close_alone(&self) -> Result<()> {
        self.close_by(|| self.end_service())
    }

    fn close_by(&self, end: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        fault_point("close");
        self.thaw();
        self.end_tasks();
        self.queue.limit_read_ahead(0);
        self.queue.end_read_ahead();
        let ended = end();
        let noted = self.store_notes_now();
        self.read_only.store(true, Ordering::Release);
        self.unmounted.store(true, Ordering::Release);
        ended.and(noted)
    }

    fn end_service(&self) -> Result<()> {
        if let Some(cause) = self.stopped_because() {
            return Err(FsError::Stopped(cause));
        }
        if self.read_only.load(Ordering::Acquire) {
            return Ok(());
        }
        for ino in self.orphans.all() {
            if let Ok(inode) = self.inodes.find(ino) {
                // Nobody can give them back any more.
                inode.drop_lookups(u64::MAX);
            }
        }
        self.free_orphans(IoTag::default());
        self.settle_all()?;
        if self.is_paused() {
            tracing::warn!("checkpoints were switched off: the volume is as it was then");
            return Ok(());
        }
        match self.writeback.dirty_bytes() {
            0 => Ok(()),
            lost => Err(FsError::Io(format!(
                "{lost} bytes could not be written and are lost"
            ))),
        }
    }
}

impl Backing for F2fs {
    fn panicked(&self) {
        self.stop_for_panic();
    }

    fn write_out(&self, files: &[u64], why: Why) {
        fault_point("flusher");
        if self.is_frozen() {
            return;
        }
        if let Err(error) = self.write_out_files(files, why, IoTag::background()) {
            // The mappings keep it for the next fsync; the data stays dirty.
            tracing::warn!(%error, "write-back failed");
        }
    }

    fn tick(&self) {
        self.store_notes();
        if !self.is_frozen() {
            self.background_checkpoint();
        }
    }
}
