//! Starting and ending work on a writable volume. Which function does what:
//!
//! | function | effect |
//! |---|---|
//! | `start_writable` | after a mount or a remount `rw`: recovery, a checkpoint, then the tasks |
//! | `start_tasks`, `join_tasks_except` | starts or ends `f2fs_ckpt`, `f2fs_gc`, `f2fs_discard`, as options require |
//! | `join_tasks` | ends all tasks, the flusher included; each finishes its current work |
//! | `write_unmount_checkpoint` | writes everything and a checkpoint with the unmount flag; read-only afterwards |
//! | `close` | unmount: joins the tasks, writes the last checkpoint, reports what was lost; later calls fail |
//! | `unmount_private` | the same for a volume that no caller knows of (recovery of a remount) |
//! | `freeze`, `thaw` (`remount`) | writes everything and refuses changes until the thaw |
//! | `shut_down` (`remount`) | aborts on request (`F2FS_IOC_SHUTDOWN`), after writing what its mode requires |
//! | `abort` (`corruption`) | the first error ends all changes; both superblocks record the cause |
//! | `abort_for_panic` (`corruption`) | the same after a panic, without writing anything |
//! | `disable_checkpoints`, `enable_checkpoints` (`checkpoint/disable`) | `checkpoint=disable`, `checkpoint=enable` |

use std::io;
use std::sync::Weak;

use steadfs_base::IoTag;
use steadfs_cache::{Backing, WritebackReason};
use steadfs_rt::fault_point;
use steadfs_vfs::{Cx, FsError, Result};

use crate::checkpoint::{self, Reason};
use crate::fs::F2fs;
use crate::mount::{MountReport, was_cp_disabled};
use crate::options::{BackgroundGc, MountOptions};
use crate::segment::Segments;

/// The tasks that depend on options, without the flusher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeTasks {
    /// `f2fs_ckpt`.
    ckpt: bool,
    /// `f2fs_gc`.
    gc: bool,
    /// `f2fs_discard`.
    discard: bool,
}

impl VolumeTasks {
    pub(crate) const NONE: Self = Self {
        ckpt: false,
        gc: false,
        discard: false,
    };

    /// Number of threads.
    pub(crate) fn count(self) -> usize {
        usize::from(self.ckpt) + usize::from(self.gc) + usize::from(self.discard)
    }
}

impl F2fs {
    /// Reads what only a writable volume needs, completes what a crash interrupted, starts the tasks. The volume counts
    /// as writable already.
    ///
    /// It always writes a checkpoint. Nodes that an earlier session wrote after the last checkpoint carry its version;
    /// if new nodes with that version followed, roll-forward could take old nodes for new ones.
    ///
    /// # Errors
    /// Corruption, no space for recovery, or a device error.
    pub(crate) fn start_writable(&self, report: &mut MountReport) -> Result<()> {
        let tag = IoTag::default();
        let options = self.options.read().clone();
        // The threads of the flusher and of the tasks: checked before anything changes.
        let threads = 1 + self.tasks_for(&options).count();
        steadfs_rt::check_thread_limit(threads).map_err(FsError::no_thread)?;
        self.recovery
            .run(|| self.recover_after_mount(report, tag))?;
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

    /// Frees orphans, recovers what fsync wrote, and writes a checkpoint with both.
    fn recover_after_mount(&self, report: &mut MountReport, tag: IoTag) -> Result<()> {
        self.read_segments(tag)?;
        self.checkpoints.begin_mount();
        self.open_quota()?;
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
        if report.orphans > 0 || report.recovered_files > 0 {
            self.recovery.record_recovered();
        }
        Ok(())
    }

    /// Loads the segment manager, unless it is loaded.
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
            .expect("set when the volume was opened")
    }

    /// The tasks that these options require.
    pub(crate) fn tasks_for(&self, options: &MountOptions) -> VolumeTasks {
        VolumeTasks {
            ckpt: options.checkpoint_merge && options.checkpoint_off.is_none(),
            gc: options.background_gc != BackgroundGc::Off || options.gc_merge,
            discard: self.wants_discards(options),
        }
    }

    pub(crate) fn running_tasks(&self) -> VolumeTasks {
        VolumeTasks {
            ckpt: self.daemon.is_running(),
            gc: self.gc.has_task(),
            discard: self.discards.is_running(),
        }
    }

    /// Starts the tasks that these options require and that do not run; returns those that ran before.
    ///
    /// # Errors
    /// `NoThread`: the same tasks run as before.
    pub(crate) fn start_tasks(&self, options: &MountOptions) -> Result<VolumeTasks> {
        let (before, wanted) = (self.running_tasks(), self.tasks_for(options));
        let start = || {
            if wanted.ckpt {
                self.daemon.start(Weak::clone(self.weak()))?;
            }
            if wanted.gc {
                self.start_gc_task()?;
            }
            if wanted.discard {
                self.start_discards()?;
            }
            Ok(before)
        };
        start().map_err(|error: io::Error| {
            self.join_tasks_except(before);
            FsError::no_thread(error)
        })
    }

    /// Ends all tasks but these; each finishes its current work. The caller holds no lock.
    pub(crate) fn join_tasks_except(&self, kept: VolumeTasks) {
        if !kept.gc {
            self.gc.stop_task();
        }
        if !kept.discard {
            self.discards.stop();
        }
        if !kept.ckpt {
            self.daemon.stop(self);
        }
    }

    /// Ends all tasks, the flusher included; each finishes its current work.
    pub(crate) fn join_tasks(&self) {
        self.writeback.stop();
        self.join_tasks_except(VolumeTasks::NONE);
    }

    /// Writes everything and the checkpoint of an unmount. The caller holds `remount_lock` exclusively.
    pub(crate) fn write_unmount_checkpoint(&self) -> Result<()> {
        self.sync_volume_unmerged(&Cx::default())?;
        self.checkpoint(Reason::Unmount, IoTag::default())?;
        self.stop_state.become_read_only();
        Ok(())
    }

    /// Unmounts the volume. Later calls fail.
    ///
    /// # Errors
    /// Something could not be written and is lost.
    pub(crate) fn close(&self) -> Result<()> {
        self.unmount_with(|| {
            let _alone = self.remount.exclude_changes();
            self.finish_writable()
        })
    }

    /// The same for a volume that no other caller knows of.
    ///
    /// # Errors
    /// As [`F2fs::close`].
    pub(crate) fn unmount_private(&self) -> Result<()> {
        self.unmount_with(|| self.finish_writable())
    }

    fn unmount_with(&self, end: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.stop_state.begin_unmount() {
            return Ok(());
        }
        fault_point("close");
        self.thaw();
        self.join_tasks();
        self.queue.set_read_ahead_limit(0);
        self.queue.drain_read_ahead();
        let ended = end();
        let noted = self.write_errors_now();
        self.stop_state.end_unmount();
        ended.and(noted)
    }

    fn finish_writable(&self) -> Result<()> {
        if let Some(cause) = self.abort_cause() {
            return Err(FsError::Stopped(cause));
        }
        if self.stop_state.is_read_only() {
            return Ok(());
        }
        self.drop_all_staged();
        for ino in self.orphans.all() {
            if let Ok(inode) = self.inodes.find(ino) {
                // No caller can forget it any more.
                inode.drop_lookups(u64::MAX);
            }
        }
        self.free_orphans(IoTag::default());
        self.write_unmount_checkpoint()?;
        if self.is_cp_disabled() {
            tracing::warn!(
                "checkpoints were disabled: the volume is in the state of its last checkpoint"
            );
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
            // The data stays dirty, and the mapping reports the error to the next fsync.
            tracing::warn!(%error, "write-back failed");
        }
    }

    fn tick(&self) {
        self.write_errors();
        if !self.is_frozen() {
            self.background_checkpoint();
        }
    }
}
