//! Fsync clustering: which small dirty files an fsync writes along with its own.
//!
//! Problem: programs that write many small files and then call fsync for each (package managers, mail servers,
//! fs_mark's modes 3 and 5) pay one commit per file. Rule: an fsync of a small file that has been dirty for
//! [`SETTLED_AGE`] also writes other small files that have been dirty as long and whose numbers are close. Their
//! blocks are allocated side by side and one commit maps them all, so their own fsync has nothing left to do.
//!
//! The number of files is learned, as a read-ahead window is: the window doubles (up to [`CLUSTER_FILES_MAX`]) if
//! fsync was called for a file of an earlier cluster, and halves if it was not.

use std::time::Duration;

use steadfs_rt::{Mutex, Rank};

use crate::{DirtyFile, Writeback};

/// Most files that one fsync writes along with its own.
const CLUSTER_FILES_MAX: usize = 64;
/// Most dirty bytes of a file in a cluster: writing it must cost less than the commit that it saves.
const CLUSTER_FILE_BYTES_MAX: u64 = 32 << 10;
/// How long a file must have been dirty. A program that calls fsync directly after each write gains nothing.
const SETTLED_AGE: Duration = Duration::from_millis(5);

/// The learned window of a volume: how many files the next fsync writes along with its own.
pub struct FsyncClustering(Mutex<ClusterWindow>);

struct ClusterWindow {
    size: usize,
    /// Fsync calls for files of a cluster since the last cluster was written.
    hits: usize,
}

impl Default for FsyncClustering {
    fn default() -> Self {
        let window = ClusterWindow { size: 1, hits: 0 };
        Self(Mutex::new(Rank::Leaf, window))
    }
}

impl FsyncClustering {
    /// Records that fsync was called for a file that an earlier cluster had written.
    pub fn record_hit(&self) {
        self.0.lock().hits += 1;
    }

    /// The files to write along with an fsync of `file`, which has `dirty` dirty bytes.
    pub fn candidates(&self, writeback: &Writeback, file: DirtyFile, dirty: u64) -> Vec<u64> {
        if dirty == 0 || dirty > CLUSTER_FILE_BYTES_MAX {
            return Vec::new();
        }
        let count = self.0.lock().size;
        writeback.close_files(file, SETTLED_AGE, CLUSTER_FILE_BYTES_MAX, count)
    }

    /// Records that a cluster is written, and adapts the window.
    pub fn record_run(&self) {
        let mut window = self.0.lock();
        window.size = match std::mem::take(&mut window.hits) {
            0 => (window.size / 2).max(1),
            _ => (window.size * 2).min(CLUSTER_FILES_MAX),
        };
    }
}
