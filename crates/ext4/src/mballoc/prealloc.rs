//! Prealloc behind files that grow.
//!
//! Problem: of several files that are appended to and synced by turns each gets the next free block, and
//! all of them lie in pieces of one block. Rule: whoever continues a file in small steps claims more than
//! he needs, up to what the file has already, and the rest is kept for the file's next blocks.
//!
//! What is kept is claimed like everything else, in memory only, so a crash knows nothing of it. It counts
//! as free in [`Totals`](super::Totals), promises included, and whoever finds no other block gets it all
//! back ([`Allocator::search_after_drop`]). The kernel tells us of no close; a file's room goes with its last
//! reference, its truncation, some time without use, or when too many others have some.

use std::sync::atomic::{AtomicUsize, Ordering};

use steadfs_base::{DevBlock, FileBlock, FixedMap};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Result;

use super::search::AllocRequest;
use super::{Allocator, Run};
use crate::disk::Ino;
use crate::fs::Ext4;

/// Most bytes kept for a file.
const PREALLOC_BYTES_MAX: u64 = 8 << 20;
/// Fewest blocks that a growing file claims at a time.
const PREALLOC_BLOCKS_MIN: u64 = 4;
/// Most files that have prealloc.
const PREALLOC_FILES_MAX: usize = 512;
/// Periods of the flusher after which unused room goes: a minute, unless the period was changed.
const PREALLOC_IDLE_PERIODS: u64 = 12;
/// Prealloc is only made where there is so many times as much free space.
const PREALLOC_FREE_FACTOR: u64 = 64;

/// What is kept for which file.
pub(super) struct PreallocTable {
    /// Held while room is made or given back, so that whoever finds no free block and then takes this
    /// has only to look again.
    moving: Mutex<()>,
    files: Mutex<PreallocMap>,
    /// How many files have prealloc: for a look without the lock.
    count: AtomicUsize,
}

#[derive(Default)]
struct PreallocMap {
    by_inode: FixedMap<Ino, Prealloc>,
    /// Counts up with each use.
    clock: u64,
    /// Counts the flusher's periods.
    period: u64,
}

/// Prealloc for a file from one block on.
struct Prealloc {
    at: FileBlock,
    run: Run,
    used: u64,
    period: u64,
}

impl PreallocTable {
    pub(super) fn new() -> Self {
        Self {
            moving: Mutex::new(Rank::Node, ()),
            files: Mutex::new(Rank::Leaf, PreallocMap::default()),
            count: AtomicUsize::new(0),
        }
    }

    fn change<R>(&self, f: impl FnOnce(&mut PreallocMap) -> R) -> R {
        let mut files = self.files.lock();
        let result = f(&mut files);
        self.count.store(files.by_inode.len(), Ordering::Release);
        result
    }

    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Takes up to `want` blocks of a file's room out, for its block `at`. Prealloc that is for other blocks is
    /// of no use any more and comes second.
    fn take(&self, ino: Ino, at: FileBlock, want: u32) -> (Option<Run>, Option<Run>) {
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

    /// Keeps a run for a file from its block `at` on. Returns what has to go for it.
    fn keep(&self, ino: Ino, at: FileBlock, run: Run) -> [Option<Run>; 2] {
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
            [before, oldest].map(|prealloc| prealloc.map(|prealloc| prealloc.run))
        })
    }
}

impl Run {
    /// The first `len` blocks, at least one, and the others.
    fn split(self, len: u32) -> (Self, Option<Self>) {
        let len = len.clamp(1, self.len);
        let first = Self { len, ..self };
        let rest = Self {
            start: self.start.plus(len.into()),
            len: self.len - len,
        };
        (first, (rest.len > 0).then_some(rest))
    }
}

impl Allocator {
    /// Claims up to `want` blocks for a file that grows from its block `at` on, as [`Allocator::allocate`] does,
    /// out of the room it has or with some more for what comes next.
    pub fn allocate_growing(
        &self,
        fs: &Ext4,
        (ino, at): (Ino, FileBlock),
        goal: DevBlock,
        want: u32,
    ) -> Result<Run> {
        let moving = self.prealloc.moving.lock();
        let (mine, useless) = self.prealloc.take(ino, at, want);
        self.release_prealloc(fs, useless);
        if let Some(run) = mine {
            self.with_totals(|t| t.free -= u64::from(run.len));
            return Ok(run);
        }
        let most = PREALLOC_BYTES_MAX >> fs.geo().block_size.bits();
        let window =
            at.0.clamp(PREALLOC_BLOCKS_MIN, most.max(PREALLOC_BLOCKS_MIN)) as u32;
        let plenty = self.with_totals(|t| t.spare(0)) / PREALLOC_FREE_FACTOR >= window.into();
        if window <= want || !plenty {
            drop(moving);
            return self.allocate(fs, goal, want);
        }
        let Ok(found) = self.search(fs, goal, AllocRequest::of(window)) else {
            drop(moving);
            return self.allocate(fs, goal, want);
        };
        let (run, rest) = found.split(want);
        if let Some(rest) = rest {
            self.with_totals(|t| t.free += u64::from(rest.len));
            for run in self.prealloc.keep(ino, at.plus(run.len.into()), rest) {
                self.release_prealloc(fs, run);
            }
        }
        Ok(run)
    }

    /// A file needs its room no longer.
    pub fn drop_prealloc(&self, fs: &Ext4, ino: Ino) {
        if !self.prealloc.is_empty() {
            let _moving = self.prealloc.moving.lock();
            let prealloc = self.prealloc.change(|files| files.by_inode.remove(&ino));
            self.release_prealloc(fs, prealloc.map(|prealloc| prealloc.run));
        }
    }

    /// A period of the flusher is over: who has not grown for long needs no prealloc.
    pub fn age_preallocs(&self, fs: &Ext4) {
        if self.prealloc.is_empty() {
            return;
        }
        let _moving = self.prealloc.moving.lock();
        let mut gone = Vec::new();
        self.prealloc.change(|files| {
            files.period += 1;
            let now = files.period;
            files.by_inode.retain(|_, prealloc| {
                let stays = now - prealloc.period <= PREALLOC_IDLE_PERIODS;
                if !stays {
                    gone.push(prealloc.run);
                }
                stays
            });
        });
        for run in gone {
            self.release_prealloc(fs, Some(run));
        }
    }

    /// Claims when no block was found: gives all files' room back and looks again.
    pub(super) fn search_after_drop(
        &self,
        fs: &Ext4,
        goal: DevBlock,
        want: AllocRequest,
    ) -> Result<Run> {
        let _moving = self.prealloc.moving.lock();
        self.release_all_preallocs(fs);
        self.search(fs, goal, want)
    }

    /// Gives all files' room back, for a look at what is free.
    pub(super) fn drop_all_preallocs(&self, fs: &Ext4) {
        let _moving = self.prealloc.moving.lock();
        self.release_all_preallocs(fs);
    }

    fn release_all_preallocs(&self, fs: &Ext4) {
        let by_inode = self
            .prealloc
            .change(|files| std::mem::take(&mut files.by_inode));
        for (_, prealloc) in by_inode {
            self.release_prealloc(fs, Some(prealloc.run));
        }
    }

    fn release_prealloc(&self, fs: &Ext4, run: Option<Run>) {
        if let Some(run) = run {
            // It never stopped counting as free.
            self.make_free(fs, run, false);
        }
    }

    /// Blocks that are kept for files.
    #[cfg(test)]
    pub(crate) fn preallocated_blocks(&self) -> u64 {
        let sum =
            |files: &mut PreallocMap| files.by_inode.values().map(|r| u64::from(r.run.len)).sum();
        self.prealloc.change(sum)
    }
}

#[cfg(test)]
mod tests;
