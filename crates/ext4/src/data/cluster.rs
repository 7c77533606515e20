//! Files whose data goes along with another file's fsync ([`steadfs_cache::FsyncClustering`]).

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_cache::{DirtyFile, WritebackReason};

use crate::disk::Ino;
use crate::fs::Ext4;
use crate::inode::Inode;

impl Ext4 {
    /// Before the data of `inode` is written for an fsync: writes it together with that of neighbours,
    /// where that promises to spare them their own. What fails is left dirty and is its file's error.
    pub(super) fn write_cluster(&self, inode: &Inode, tag: IoTag) {
        if inode.take_clustered() && inode.pages.is_empty() {
            self.fsync_clustering.record_hit();
        }
        if !self.txns.is_journaled() {
            return;
        }
        let file = DirtyFile(inode.ino().0.into());
        let dirty = inode.pages.dirty_bytes();
        let near = self
            .fsync_clustering
            .candidates(&self.writeback, file, dirty);
        if near.is_empty() || self.check_writable().is_err() {
            return;
        }
        self.fsync_clustering.record_run();
        let others = near.iter().chain([&file.0]);
        let known = others.filter_map(|&ino| self.inodes.get(Ino(u32::try_from(ino).ok()?)));
        let mut group: Vec<Arc<Inode>> = known.collect();
        // The order of their locks.
        group.sort_unstable_by_key(|inode| inode.ino());
        if let Err(error) = self.write_small(&group, WritebackReason::Sync, tag) {
            tracing::debug!(%error, "a file that went along with an fsync was not written");
        }
        for other in group.iter().filter(|other| other.ino() != inode.ino()) {
            other.mark_clustered();
        }
    }
}

#[cfg(test)]
mod tests;
