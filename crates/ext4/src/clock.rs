//! An inode's time stamps, with the range and precision of its size on disk.

use steadfs_base::Timestamp;

use crate::disk::{self, time};
use crate::fs::Ext4;
use crate::inode::Inode;

impl Ext4 {
    /// The current time, as an inode with these fields can store it.
    pub(crate) fn now(&self, core: &disk::Inode) -> Timestamp {
        time::clamp(self.clock.fine(), core.has_wide_times())
    }

    /// Sets the times of a write to the file's content; returns whether that changed anything. The caller stores the
    /// inode.
    pub(crate) fn stamp_write(&self, inode: &Inode, core: &mut disk::Inode) -> bool {
        let at = if inode.take_times_seen() {
            self.clock.fine()
        } else {
            self.clock.coarse()
        };
        let at = time::clamp(at, core.has_wide_times());
        let changed = (core.mtime, core.ctime) != (at, at);
        (core.mtime, core.ctime) = (at, at);
        changed
    }
}
