//! Preallocation for growing files (inode preallocation).
//!
//! **Problem.** If several files are appended to and synced alternately, each append gets the next free block, and
//! every file consists of extents of one block.
//!
//! **Rule.** An append in small steps allocates more blocks than it needs, up to the file's current length (at least 4
//! blocks, at most 8 MiB), and the rest is kept for the file's next blocks.
//!
//! Preallocated blocks are allocated in memory only, so a crash leaves no trace of them. They count as free in
//! [`Totals`](super::Totals), and an allocation that finds no other block releases all of them
//! ([`Allocator::search_after_drop`]). FUSE does not report a close; a preallocation ends with the file's last
//! reference, its truncation, 12 idle periods of the flusher, or when more than 512 files have one.

use steadfs_base::FileBlock;
use steadfs_vfs::Result;

use super::Allocator;
use super::run::Run;
use super::search::{AllocRequest, Goal};
use crate::disk::Ino;
use crate::fs::Ext4;

/// Most bytes preallocated for a file.
const PREALLOC_BYTES_MAX: u64 = 8 << 20;
/// Fewest blocks that a growing file allocates at a time.
const PREALLOC_BLOCKS_MIN: u64 = 4;
/// Idle periods of the flusher after which a preallocation is released: a minute by default.
const PREALLOC_IDLE_PERIODS: u64 = 12;
/// Blocks are preallocated only if unreserved free space is at least this many times as large.
const PREALLOC_FREE_FACTOR: u64 = 64;

impl Allocator {
    /// Allocates the clusters of up to `want` blocks for a file that grows from its block `at` on, which begins a cluster, as
    /// [`Allocator::allocate`] does: from the file's preallocation, or together with a new one.
    pub(crate) fn allocate_growing(
        &self,
        fs: &Ext4,
        (ino, at): (Ino, FileBlock),
        goal: impl Into<Goal>,
        want: u32,
    ) -> Result<Run> {
        let goal = goal.into();
        assert!(want > 0, "an allocation has at least one block");
        let geo = fs.geo();
        let want = want.next_multiple_of(geo.blocks_per_cluster());
        let moving = self.prealloc.moving.lock();
        let (mine, useless) = self.prealloc.take(ino, at, want);
        self.release_prealloc(fs, useless);
        if let Some(run) = mine {
            assert!(run.len <= want, "no more blocks than requested");
            self.with_totals(|t| t.free -= u64::from(geo.clusters_for(run.len)));
            return Ok(run);
        }
        let most = PREALLOC_BYTES_MAX >> geo.block_size.bits();
        let window =
            at.0.clamp(PREALLOC_BLOCKS_MIN, most.max(PREALLOC_BLOCKS_MIN)) as u32;
        let clusters = geo.clusters_for(window);
        let plenty = self.with_totals(|t| t.spare(0)) / PREALLOC_FREE_FACTOR >= clusters.into();
        if window <= want || !plenty {
            drop(moving);
            return self.allocate(fs, goal, want);
        }
        let Ok(found) = self.search(fs, goal, AllocRequest::of(geo, window)) else {
            drop(moving);
            return self.allocate(fs, goal, want);
        };
        let (run, rest) = found.split(want);
        if let Some(rest) = rest {
            self.with_totals(|t| t.free += u64::from(geo.clusters_for(rest.len)));
            for run in self.prealloc.keep(ino, at.plus(run.len.into()), rest) {
                self.release_prealloc(fs, run);
            }
        }
        Ok(run)
    }

    /// Releases a file's preallocation.
    pub fn drop_prealloc(&self, fs: &Ext4, ino: Ino) {
        if !self.prealloc.is_empty() {
            let _moving = self.prealloc.moving.lock();
            let prealloc = self.prealloc.change(|files| files.by_inode.remove(&ino));
            self.release_prealloc(fs, prealloc.map(|prealloc| prealloc.run));
        }
    }

    /// Called at the end of each flusher period: releases preallocations that were idle for too long.
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

    /// Releases all preallocations and searches again, after a search that found no block.
    pub(super) fn search_after_drop(
        &self,
        fs: &Ext4,
        goal: Goal,
        want: AllocRequest,
    ) -> Result<Run> {
        let _moving = self.prealloc.moving.lock();
        self.release_all_preallocs(fs);
        self.search(fs, goal, want)
    }

    /// Releases all preallocations, so that a trim sees their blocks as free.
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
            // Preallocated blocks count as free all the time.
            self.make_free(fs, run, false);
        }
    }

    /// Blocks that are preallocated.
    #[cfg(test)]
    pub(crate) fn preallocated_blocks(&self) -> u64 {
        let sum = |files: &mut super::prealloc_table::PreallocMap| {
            files.by_inode.values().map(|r| u64::from(r.run.len)).sum()
        };
        self.prealloc.change(sum)
    }
}

#[cfg(test)]
mod tests;
