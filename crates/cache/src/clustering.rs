//! Fsync clustering: which small dirty files an fsync writes along with its own.
//!
//! Problem: programs that write many small files and then call fsync for each (package managers, mail servers,
//! fs_mark's modes 3 and 5) pay one commit per file. Rule: an fsync of a small file that has been dirty for
//! [`SETTLED_AGE`] also writes other small files that have been dirty as long and whose numbers are close. Their
//! blocks are allocated side by side and one commit maps them all, so their own fsync has nothing left to do.
//!
//! The number of files is learned, as a read-ahead window is: the window doubles (up to `fsync_cluster_files`) if
//! fsync was called for a file of an earlier cluster, and halves if it was not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::FsError;

use crate::{DirtyFile, Writeback};

/// Most files that one fsync writes along with its own, unless it is set (`fsync_cluster_files`).
const CLUSTER_FILES: usize = 64;
/// Largest value of `fsync_cluster_files`.
const CLUSTER_FILES_MAX: usize = 1024;
/// Most dirty bytes of a file in a cluster: writing it must cost less than the commit that it saves.
const CLUSTER_FILE_BYTES_MAX: u64 = 32 << 10;
/// How long a file must have been dirty. A program that calls fsync directly after each write gains nothing.
const SETTLED_AGE: Duration = Duration::from_millis(5);

/// A file's mark that an fsync of another file wrote its data.
#[derive(Debug, Default)]
pub struct ClusterMark(AtomicBool);

impl ClusterMark {
    /// Records that it happened.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether it happened since the last call.
    pub fn take(&self) -> bool {
        self.0.load(Ordering::Acquire) && self.0.swap(false, Ordering::AcqRel)
    }
}

/// The learned window of a volume: how many files the next fsync writes along with its own.
pub struct FsyncClustering(Mutex<ClusterWindow>);

struct ClusterWindow {
    size: usize,
    /// Largest size; 0: no clustering.
    max: usize,
    /// Fsync calls for files of a cluster since the last cluster was written.
    hits: usize,
}

impl Default for FsyncClustering {
    fn default() -> Self {
        let window = ClusterWindow {
            size: 1,
            max: CLUSTER_FILES,
            hits: 0,
        };
        Self(Mutex::new(Rank::Leaf, window))
    }
}

impl FsyncClustering {
    /// Most files that one fsync writes along with its own; 0: no clustering.
    pub fn max_files(&self) -> usize {
        self.0.lock().max
    }

    /// How many files the next fsync makes durable along with its own, as learned.
    pub fn files(&self) -> usize {
        let window = self.0.lock();
        window.size.min(window.max)
    }

    /// Sets the largest number of them.
    pub fn set_max_files(&self, max: usize) {
        self.0.lock().max = max;
    }

    /// Records that fsync was called for a file that an earlier cluster had written.
    pub fn record_hit(&self) {
        self.0.lock().hits += 1;
    }

    /// The files to write along with an fsync of `file`, which has `dirty` dirty bytes.
    pub fn candidates(&self, writeback: &Writeback, file: DirtyFile, dirty: u64) -> Vec<u64> {
        if dirty == 0 || dirty > CLUSTER_FILE_BYTES_MAX {
            return Vec::new();
        }
        writeback.close_files(file, SETTLED_AGE, CLUSTER_FILE_BYTES_MAX, self.files())
    }

    /// Records that a cluster is written, and adapts the window.
    pub fn record_run(&self) {
        let mut window = self.0.lock();
        window.size = match std::mem::take(&mut window.hits) {
            0 => window.size / 2,
            _ => (window.size * 2).min(window.max),
        };
        window.size = window.size.max(1);
    }
}

/// Parses a value of `fsync_cluster_files`.
///
/// # Errors
/// [`FsError::BadOption`]: it is not a number from 0 to 1024.
pub fn parse_cluster_files(text: &str) -> Result<usize, FsError> {
    let number = text.trim().parse().ok();
    let number = number.filter(|number| *number <= CLUSTER_FILES_MAX);
    number.ok_or_else(|| {
        let most = CLUSTER_FILES_MAX;
        FsError::BadOption(format!(
            "fsync_cluster_files: is from 0 (no clustering) to {most}"
        ))
    })
}
