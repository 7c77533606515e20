//! Handing the volume over to another server, which opens the same device.
//!
//! **Rule.** The device has a checkpoint of everything, as after a freeze, so that a successor that never comes is a
//! power cut without loss. Only the lookup counts are not on it. An unlinked inode that is in use stays an orphan.

use steadfs_vfs::{Cx, FsError, LookupCounts, Result};

use crate::fs::F2fs;

impl F2fs {
    /// Writes everything, stops the tasks and returns the lookup counts.
    ///
    /// # Errors
    /// As [`FileSystem::hand_over`](steadfs_vfs::FileSystem::hand_over); `NotSupported`: checkpoints are disabled; `Again`: an
    /// atomic write is in progress.
    pub(crate) fn close_for_successor(&self) -> Result<LookupCounts> {
        if self.stop_state.is_unmounting() || self.is_frozen() {
            return Err(FsError::Busy);
        }
        if self.is_cp_disabled() {
            return Err(FsError::NotSupported(
                "handing over a volume whose checkpoints are disabled",
            ));
        }
        if self.atomic_writes.any() {
            // A successor would not know of it, and its commit would succeed without an effect.
            return Err(FsError::Again("an atomic write is in progress"));
        }
        self.write_errors_now()?;
        self.freeze(&Cx::default())?;
        if !self.stop_state.begin_unmount() {
            return Err(FsError::Busy);
        }
        self.join_tasks();
        self.queue.set_read_ahead_limit(0);
        self.queue.drain_read_ahead();
        let lookups = self.inodes.lookups();
        self.stop_state.end_unmount();
        Ok(lookups)
    }
}
