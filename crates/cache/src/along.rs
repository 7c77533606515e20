//! Files whose data goes along with another file's fsync.
//!
//! Who writes many small files and then calls fsync for each (package managers, mail servers, fs_mark's
//! modes 3 and 5) pays a commit for every file. As read-ahead does for reads, an fsync of a file that has
//! been dirty for a while takes neighbours along that have been dirty as long: their blocks lie side by
//! side and one commit names them all, so that their own fsync finds nothing left to do. How many is
//! learnt: the window doubles when a file that went along is asked for, and halves when none was.

use std::time::Duration;

use steadfs_rt::{Mutex, Rank};

use crate::{DirtyFile, Writeback};

/// Files that go along with one fsync at most.
const MOST: usize = 64;
/// Dirty bytes of such a file at most: together they cost the fsync less than a commit does.
const SMALL: u64 = 32 << 10;
/// How long a file must have been dirty: who writes and calls fsync at once gains nothing here.
const SETTLED: Duration = Duration::from_millis(5);

/// How many files go along with the next fsync.
pub struct Along(Mutex<Window>);

struct Window {
    size: usize,
    /// Files asked for since the last time some went along.
    hits: usize,
}

impl Default for Along {
    fn default() -> Self {
        let window = Window { size: 1, hits: 0 };
        Self(Mutex::new(Rank::Leaf, window))
    }
}

impl Along {
    /// A file that went along was asked for.
    pub fn hit(&self) {
        self.0.lock().hits += 1;
    }

    /// The files that go along with an fsync of `file`, which has so many dirty bytes.
    pub fn company(&self, writeback: &Writeback, file: DirtyFile, dirty: u64) -> Vec<u64> {
        if dirty == 0 || dirty > SMALL {
            return Vec::new();
        }
        let count = self.0.lock().size;
        writeback.neighbours(file, SETTLED, SMALL, count)
    }

    /// Some went along.
    pub fn took(&self) {
        let mut window = self.0.lock();
        window.size = match std::mem::take(&mut window.hits) {
            0 => (window.size / 2).max(1),
            _ => (window.size * 2).min(MOST),
        };
    }
}
