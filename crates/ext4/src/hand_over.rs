//! Handing the volume over to another server, which opens the same device.
//!
//! **Rule.** The device has everything, as after a freeze, so that a successor that never comes is a power cut without
//! loss. Only the lookup counts are not on it. An unlinked inode that is in use stays on the orphan list.

use steadfs_vfs::{FsError, LookupCounts, Result};

use crate::disk::superblock::STATE_ERROR;
use crate::fs::Ext4;

impl Ext4 {
    /// Writes everything, stops the tasks and returns the lookup counts.
    ///
    /// # Errors
    /// As [`FileSystem::hand_over`](steadfs_vfs::FileSystem::hand_over).
    pub(crate) fn close_for_successor(&self) -> Result<LookupCounts> {
        if self.stop_state.is_unmounting() || self.remount_state.is_frozen() {
            return Err(FsError::Busy);
        }
        // A mount leaves the orphans of such a volume to e2fsck.
        if self.sb.lock().state() & STATE_ERROR != 0 && !self.orphans.none_on_record() {
            return Err(FsError::NotSupported(
                "handing over a volume with recorded errors while unlinked files are in use",
            ));
        }
        self.freeze()?;
        if !self.stop_state.begin_unmount() {
            return Err(FsError::Busy);
        }
        self.join_tasks();
        self.leave_node_lock();
        self.queue.set_read_ahead_limit(0);
        self.queue.drain_read_ahead();
        self.stop_state.become_read_only();
        Ok(self.inodes.lookups())
    }
}
