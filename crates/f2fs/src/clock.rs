//! Timestamps of inodes.

use std::sync::atomic::Ordering;

use steadfs_base::Timestamp;

use crate::disk;
use crate::fs::F2fs;
use crate::inode::Inode;

impl F2fs {
    /// The current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.fine()
    }

    /// Updates the times of a content write. Returns whether they changed. The caller has marked the inode dirty.
    pub(crate) fn stamp_write(&self, inode: &Inode, core: &mut disk::Inode) -> bool {
        let at = if inode.take_times_seen() {
            self.clock.fine()
        } else {
            self.clock.coarse()
        };
        let changed = (core.mtime, core.ctime) != (at, at);
        (core.mtime, core.ctime) = (at, at);
        changed
    }
}

impl Inode {
    /// Returns whether the times were read since the last call.
    fn take_times_seen(&self) -> bool {
        self.times_seen.load(Ordering::Acquire) && self.times_seen.swap(false, Ordering::AcqRel)
    }
}
