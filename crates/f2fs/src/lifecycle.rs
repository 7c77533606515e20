//! The service of a volume that is written: its beginning after a mount or a remount, its tasks, its end.

use std::io;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use steadfs_base::IoTag;
use steadfs_cache::{Backing, WritebackReason};
use steadfs_rt::fault_point;
use steadfs_vfs::{Cx, FsError, Result};

use crate::checkpoint::{self, Reason};
use crate::fs::F2fs;
use crate::mount::{MountReport, was_cp_disabled};
use crate::options::{BackgroundGc, MountOptions};
use crate::segment::Segments;

/// The tasks that options ask for, besides the flusher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeTasks {
    /// `f2fs_ckpt`.
    merging: bool,
    /// `f2fs_gc`.
    cleaning: bool,
    /// `f2fs_discard`.
    discarding: bool,
}

impl VolumeTasks {
    pub(crate) const NONE: Self = Self {
        merging: false,
        cleaning: false,
        discarding: false,
    };

    /// How many threads they are.
    pub(crate) fn count(self) -> usize {
        usize::from(self.merging) + usize::from(self.cleaning) + usize::from(self.discarding)
    }
}

impl F2fs {
    /// Reads what only a volume that is written needs, ends what was begun before a crash, starts the
    /// tasks. The volume counts as writable already.
    ///
    /// It always writes a checkpoint. Nodes that a session before this one wrote behind the last checkpoint
    /// carry its version; were new ones written among them, recovery could take old ones for new.
    ///
    /// # Errors
    /// Damage, no space for what recovery takes over, or the device.
    pub(crate) fn start_writable(&self, report: &mut MountReport) -> Result<()> {
        let tag = IoTag::default();
        let options = self.options.read().clone();
        // Those of the flusher and its helpers: before anything is changed.
        let threads = 1 + self.tasks_for(&options).count();
        steadfs_rt::check_thread_limit(threads).map_err(FsError::no_thread)?;
        self.recovering.store(true, Ordering::Release);
        let ended = self.recover_after_mount(report, tag);
        self.recovering.store(false, Ordering::Release);
        ended?;
        self.apply_log_options();
        if let Some(allowed) = options.checkpoint_off {
            self.clean_before_disable(allowed, tag)?;
            self.disable_checkpoints(allowed, &Cx::default())?;
        }
        let backing: Weak<dyn Backing> = self.weak().clone();
        self.writeback.start(backing).map_err(FsError::no_thread)?;
        self.gc.allow(true);
        self.start_tasks(&options)?;
        Ok(())
    }

    /// Frees orphans, makes what fsync wrote part of the volume, and writes the checkpoint of both.
    fn recover_after_mount(&self, report: &mut MountReport, tag: IoTag) -> Result<()> {
        self.read_segments(tag)?;
        self.checkpoints.begin_mount();
        report.orphans = self.free_orphans(tag);
        let last = self.checkpoints.last();
        let applied = if self.options.read().no_recovery || was_cp_disabled(last.flags) {
            Default::default()
        } else {
            self.recover(tag)?
        };
        report.recovered_files = applied.files;
        report.recovered_nodes = applied.nodes;
        self.checkpoint(Reason::Mount, tag)?;
        self.finish_recovery(applied);
        self.has_recovered.fetch_or(
            report.orphans > 0 || report.recovered_files > 0,
            Ordering::AcqRel,
        );
        Ok(())
    }

    /// Reads the segments, once.
    pub(crate) fn read_segments(&self, tag: IoTag) -> Result<()> {
        if self.segments.get().is_none() {
            let current = checkpoint::load(&self.queue, &self.layout)?.for_writing()?;
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

    pub(crate) fn weak(&self) -> &Weak<Self> {
        self.weak_self
            .get()
            .expect("set by whoever made the volume")
    }

    /// The tasks that these options ask for.
    pub(crate) fn tasks_for(&self, options: &MountOptions) -> VolumeTasks {
        VolumeTasks {
            merging: options.checkpoint_merge && options.checkpoint_off.is_none(),
            cleaning: options.background_gc != BackgroundGc::Off || options.gc_merge,
            discarding: self.wants_discards(options),
        }
    }

    /// Those that run.
    pub(crate) fn running_tasks(&self) -> VolumeTasks {
        VolumeTasks {
            merging: self.daemon.is_running(),
            cleaning: self.has_gc_task(),
            discarding: self.is_discarding(),
        }
    }

    /// Starts the tasks that these options ask for and that are not there yet; those that were there.
    ///
    /// # Errors
    /// `NoThread`: all is as it was.
    pub(crate) fn start_tasks(&self, options: &MountOptions) -> Result<VolumeTasks> {
        let (before, wanted) = (self.running_tasks(), self.tasks_for(options));
        let start = || {
            if wanted.merging {
                self.daemon.start(Weak::clone(self.weak()))?;
            }
            if wanted.cleaning {
                self.start_gc_task()?;
            }
            if wanted.discarding {
                self.start_discards()?;
            }
            Ok(before)
        };
        start().map_err(|error: io::Error| {
            self.join_tasks_except(before);
            FsError::no_thread(error)
        })
    }

    /// Ends the tasks that are not among these; what they have under way ends first. The caller holds no lock.
    pub(crate) fn join_tasks_except(&self, kept: VolumeTasks) {
        if !kept.cleaning {
            self.stop_gc_task();
        }
        if !kept.discarding {
            self.stop_discards();
        }
        if !kept.merging {
            self.daemon.stop(self);
        }
    }

    /// Ends the volume's tasks; what they have under way ends first.
    pub(crate) fn join_tasks(&self) {
        self.writeback.stop();
        self.join_tasks_except(VolumeTasks::NONE);
    }

    /// Writes everything, as an unmount does; the caller keeps changes away.
    pub(crate) fn write_unmount_checkpoint(&self) -> Result<()> {
        self.sync_volume_unmerged(&Cx::default())?;
        self.checkpoint(Reason::Unmount, IoTag::default())?;
        self.read_only.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends the volume's service. Calls that come meanwhile are refused afterwards.
    ///
    /// # Errors
    /// Something could not be written and is lost.
    pub(crate) fn close(&self) -> Result<()> {
        self.unmount_with(|| {
            let _alone = self.remount_lock.write();
            self.finish_writable()
        })
    }

    /// The same for a volume that nobody else knows of.
    ///
    /// # Errors
    /// As [`F2fs::close`].
    pub(crate) fn unmount_private(&self) -> Result<()> {
        self.unmount_with(|| self.finish_writable())
    }

    fn unmount_with(&self, end: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.closing.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        fault_point("close");
        self.thaw();
        self.join_tasks();
        self.queue.set_read_ahead_limit(0);
        self.queue.drain_read_ahead();
        let ended = end();
        let noted = self.store_notes_now();
        self.read_only.store(true, Ordering::Release);
        self.unmounted.store(true, Ordering::Release);
        ended.and(noted)
    }

    fn finish_writable(&self) -> Result<()> {
        if let Some(cause) = self.abort_cause() {
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
        self.write_unmount_checkpoint()?;
        if self.is_cp_disabled() {
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
        self.abort_for_panic();
    }

    fn write_out(&self, files: &[u64], why: WritebackReason) {
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
