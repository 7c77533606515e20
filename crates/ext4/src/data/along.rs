//! Files whose data goes along with another file's fsync.
//!
//! Who writes many small files and then calls fsync for each (package managers, mail servers, fs_mark's
//! modes 3 and 5) pays a commit for every file. As read-ahead does for reads, an fsync of a file that has
//! been dirty for a while takes neighbours along that have been dirty as long: their blocks lie side by
//! side and one commit names them all, so that their own fsync finds nothing left to do. How many is
//! learnt: the window doubles when a file that went along is asked for, and halves when none was.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_cache::{DirtyFile, Why};
use steadfs_rt::{Mutex, Rank};

use crate::disk::Ino;
use crate::fs::Ext4;
use crate::inode::Inode;

/// Files that go along with one fsync at most.
const MOST: usize = 64;
/// Dirty bytes of such a file at most: together they cost the fsync less than a commit does.
const SMALL: u64 = 32 << 10;
/// How long a file must have been dirty: who writes and calls fsync at once gains nothing here.
const SETTLED: Duration = Duration::from_millis(5);

/// How many files go along with the next fsync.
pub(crate) struct Along(Mutex<Window>);

struct Window {
    size: usize,
    /// Files asked for since the last time some went along.
    hits: usize,
}

impl Along {
    pub(crate) fn new() -> Self {
        let window = Window { size: 1, hits: 0 };
        Self(Mutex::new(Rank::Leaf, window))
    }

    /// A file that went along was asked for.
    fn hit(&self) {
        self.0.lock().hits += 1;
    }

    /// How many files may go along now.
    fn next(&self) -> usize {
        self.0.lock().size
    }

    /// Some went along.
    fn took(&self) {
        let mut window = self.0.lock();
        window.size = match std::mem::take(&mut window.hits) {
            0 => (window.size / 2).max(1),
            _ => (window.size * 2).min(MOST),
        };
    }
}

impl Ext4 {
    /// Before the data of `inode` is written for an fsync: writes it together with that of neighbours,
    /// where that promises to spare them their own. What fails is left dirty and is its file's error.
    pub(super) fn write_along(&self, inode: &Inode, tag: IoTag) {
        if inode.take_along() && inode.pages.is_empty() {
            self.along.hit();
        }
        if inode.pages.is_empty() || inode.pages.dirty_bytes() > SMALL || !self.txns.is_journaled()
        {
            return;
        }
        let file = DirtyFile(inode.ino().0.into());
        let near = self
            .writeback
            .neighbours(file, SETTLED, SMALL, self.along.next());
        if near.is_empty() || self.check_writable().is_err() {
            return;
        }
        self.along.took();
        let others = near.iter().chain([&file.0]);
        let known = others.filter_map(|&ino| self.inodes.get(Ino(u32::try_from(ino).ok()?)));
        let mut group: Vec<Arc<Inode>> = known.collect();
        // The order of their locks.
        group.sort_unstable_by_key(|inode| inode.ino());
        if let Err(error) = self.write_small(&group, Why::Sync, tag) {
            tracing::debug!(%error, "a file that went along with an fsync was not written");
        }
        for other in group.iter().filter(|other| other.ino() != inode.ino()) {
            other.mark_along();
        }
    }
}

#[cfg(test)]
mod tests;
