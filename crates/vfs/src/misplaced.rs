//! Case-insensitive directories in which a kernel with other rules of folding may have left names.
//!
//! For some weeks of 2024 Linux kept code points in folded names that it had ignored before and ignores again since: what
//! was created meanwhile with such a code point lies where no hash leads to. Such a name is found only by reading the
//! whole directory.

use std::collections::BTreeSet;

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};

/// Directories that are remembered; more are read again.
const LIMIT: usize = 4096;

/// Directories that were read from end to end, and have each name where its hash leads to. New names get their right
/// places, so this stays true while the volume is mounted, also if another directory gets the number.
#[derive(Debug)]
pub struct OrderlyDirs(Mutex<BTreeSet<InodeNo>>);

impl Default for OrderlyDirs {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, BTreeSet::new()))
    }
}

impl OrderlyDirs {
    /// Whether the directory is one of them.
    pub fn contains(&self, dir: InodeNo) -> bool {
        self.0.lock().contains(&dir)
    }

    /// Remembers a directory.
    pub fn insert(&self, dir: InodeNo) {
        let mut dirs = self.0.lock();
        if dirs.len() >= LIMIT {
            dirs.clear();
        }
        dirs.insert(dir);
    }
}
