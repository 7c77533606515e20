//! The preallocations of a volume, by inode: which blocks are kept for which file.

use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_base::{FileBlock, FixedMap};
use steadfs_rt::{Mutex, Rank};

use super::run::Run;
use crate::disk::Ino;

/// Most files with a preallocation.
const PREALLOC_FILES_MAX: usize = 512;
/// Preallocations by inode.
pub(super) struct PreallocTable {
    /// Held while blocks are preallocated or released: a task that found no free block takes it and needs to search
    /// only once more.
    pub(super) moving: Mutex<()>,
    files: Mutex<PreallocMap>,
    /// Number of entries, read without the lock.
    count: AtomicUsize,
}

#[derive(Default)]
pub(super) struct PreallocMap {
    pub(super) by_inode: FixedMap<Ino, Prealloc>,
    /// Incremented with each use.
    clock: u64,
    /// Counts the flusher's periods.
    pub(super) period: u64,
}

/// Blocks preallocated for a file from its block `at` on.
pub(super) struct Prealloc {
    at: FileBlock,
    pub(super) run: Run,
    used: u64,
    pub(super) period: u64,
}

impl PreallocTable {
    pub(super) fn new() -> Self {
        Self {
            moving: Mutex::new(Rank::Node, ()),
            files: Mutex::new(Rank::Leaf, PreallocMap::default()),
            count: AtomicUsize::new(0),
        }
    }

    pub(super) fn change<R>(&self, f: impl FnOnce(&mut PreallocMap) -> R) -> R {
        let mut files = self.files.lock();
        let result = f(&mut files);
        self.count.store(files.by_inode.len(), Ordering::Release);
        result
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes up to `want` preallocated blocks for the file's block `at`. A preallocation for another file block is
    /// useless and is returned second, to be released.
    pub(super) fn take(&self, ino: Ino, at: FileBlock, want: u32) -> (Option<Run>, Option<Run>) {
        if self.is_empty() {
            return (None, None);
        }
        self.change(|files| {
            let Some(mut prealloc) = files.by_inode.remove(&ino) else {
                return (None, None);
            };
            if prealloc.at != at {
                return (None, Some(prealloc.run));
            }
            let (first, rest) = prealloc.run.split(want);
            if let Some(rest) = rest {
                files.clock += 1;
                prealloc.at = at.plus(first.len.into());
                prealloc.run = rest;
                prealloc.used = files.clock;
                prealloc.period = files.period;
                files.by_inode.insert(ino, prealloc);
            }
            (Some(first), None)
        })
    }

    /// Keeps a run for a file from its block `at` on. Returns the preallocations to release: the file's old one, and
    /// the least recently used one if there are too many.
    pub(super) fn keep(&self, ino: Ino, at: FileBlock, run: Run) -> [Option<Run>; 2] {
        assert!(run.len > 0, "a preallocation has at least one block");
        self.change(|files| {
            files.clock += 1;
            let prealloc = Prealloc {
                at,
                run,
                used: files.clock,
                period: files.period,
            };
            let before = files.by_inode.insert(ino, prealloc);
            let mut oldest = None;
            if files.by_inode.len() > PREALLOC_FILES_MAX {
                let found = files
                    .by_inode
                    .iter()
                    .min_by_key(|(_, prealloc)| prealloc.used);
                let found = found.map(|(&ino, _)| ino);
                oldest = found.and_then(|ino| files.by_inode.remove(&ino));
            }
            assert!(
                files.by_inode.len() <= PREALLOC_FILES_MAX,
                "the oldest is removed"
            );
            [before, oldest].map(|prealloc| prealloc.map(|prealloc| prealloc.run))
        })
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::DevBlock;

    use super::*;

    fn run(start: u64, len: u32) -> Run {
        Run {
            start: DevBlock(start),
            len,
        }
    }

    #[test]
    fn preallocated_blocks_are_for_the_files_next_block_only() {
        let table = PreallocTable::new();
        let (ino, other) = (Ino(12), Ino(13));
        assert!(table.is_empty());
        assert_eq!(table.take(ino, FileBlock(0), 1), (None, None));
        assert_eq!(table.keep(ino, FileBlock(10), run(500, 8)), [None, None]);
        assert!(!table.is_empty());
        assert_eq!(table.take(other, FileBlock(10), 1), (None, None));
        let taken = table.take(ino, FileBlock(10), 3);
        assert_eq!(taken, (Some(run(500, 3)), None));
        // The rest is for the block behind those taken.
        let taken = table.take(ino, FileBlock(13), 4);
        assert_eq!(taken, (Some(run(503, 4)), None));
        let useless = table.take(ino, FileBlock(18), 1);
        assert_eq!(useless, (None, Some(run(507, 1))));
        assert!(table.is_empty());
    }

    #[test]
    fn a_new_preallocation_replaces_the_old_one() {
        let table = PreallocTable::new();
        assert_eq!(table.keep(Ino(12), FileBlock(1), run(100, 4)), [None; 2]);
        let gone = table.keep(Ino(12), FileBlock(9), run(200, 4));
        assert_eq!(gone, [Some(run(100, 4)), None]);
    }

    #[test]
    fn the_least_recently_used_of_too_many_preallocations_ends() {
        let table = PreallocTable::new();
        let of = |n: usize| run(1000 + 10 * n as u64, 4);
        for n in 0..PREALLOC_FILES_MAX {
            let gone = table.keep(Ino(100 + n as u32), FileBlock(4), of(n));
            assert_eq!(gone, [None, None], "file {n}");
        }
        // The oldest file goes on, so the second one is now the least recently used.
        let (taken, _) = table.take(Ino(100), FileBlock(4), 1);
        assert_eq!(taken, Some(run(1000, 1)));
        let gone = table.keep(Ino(99), FileBlock(4), run(9, 1));
        assert_eq!(gone, [None, Some(of(1))]);
        assert_eq!(table.take(Ino(101), FileBlock(4), 1), (None, None));
        let (taken, _) = table.take(Ino(100), FileBlock(5), 9);
        assert_eq!(taken, Some(run(1001, 3)));
    }
}
