//! The block and inode allocator.
//!
//! **Problem.** Committed metadata must never map a block whose data was not written, and a crash between allocation
//! and mapping must not leak blocks.
//!
//! **Rule.** Allocation has two steps (delayed allocation). A block is *allocated* in memory first; then the data is
//! written; then a handle *marks it used*: it sets the bit in the on-disk bitmap in the same transaction as the extent
//! that maps the block. A crash or a failed write between the steps leaks nothing, as the allocation exists only in
//! memory.
//!
//! **Freed blocks** are cleared on disk by the transaction that frees them, but stay busy in memory until that
//! transaction is durable. Otherwise a crash would restore the old file, which would then map whatever had been
//! written to the block since.
//!
//! So a bit of a group's `busy` bitmap is set if the block is in use on disk, or allocated in memory, or freed by a
//! transaction that is not durable.
//!
//! **Tables** of files without extents have numbers of 32 bits: these files, and their tables, get blocks of the groups that
//! such numbers reach ([`Goal`]), as in Linux.
//!
//! **Clusters** (`bigalloc`). A bit of a bitmap and all counts here stand for a cluster of blocks; without the feature a
//! cluster is one block. Runs are in blocks. [`clusters`] has what differs.

mod blocks;
mod clusters;
mod corrupt;
mod given;
mod inodes;
mod load;
mod prealloc;
mod prealloc_table;
mod run;
mod search;
mod totals;
mod trim;
mod zones;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use steadfs_base::{Corruption, DevBlock, Tid};
use steadfs_jbd2::JournalMap;
use steadfs_rt::{Mutex, MutexGuard};
use steadfs_vfs::{FsError, Result};

use crate::disk::group_desc::GroupDesc;
use crate::disk::{Geometry, GroupNo};

use clusters::HeldClusters;
use corrupt::CorruptGroups;
pub(crate) use given::pieces;
pub(crate) use load::Descriptors;
use prealloc_table::PreallocTable;
pub use run::Run;
pub(crate) use search::{Goal, table_groups};
pub use totals::{RESERVE_PER_BLOCK_EXTENT, RESERVE_PER_BLOCK_INDIRECT, Totals};
use zones::Zones;

/// A group's allocation state.
struct Group {
    /// The descriptor as handles have changed it.
    desc: GroupDesc,
    /// In use on disk, allocated, or freed and not durable; loaded on first use.
    busy: Option<Box<[u8]>>,
    /// Clear bits of `busy` (before loading: the descriptor's count).
    free: u32,
    /// No run of free clusters is longer than this.
    longest: u32,
    /// One of its bitmaps is corrupt, and that was reported.
    is_corrupt: bool,
}

/// All groups of a volume.
pub struct Allocator {
    groups: Vec<Mutex<Group>>,
    /// Groups with a loaded bitmap, the number above which some are unloaded, and the group that is tried next.
    loaded: AtomicU32,
    loaded_max: AtomicU32,
    next_unloaded: AtomicU32,
    inode_tables: Vec<DevBlock>,
    zones: Zones,
    totals: Mutex<Totals>,
    /// Freed by transactions that are not durable yet.
    pending: Mutex<Vec<(Tid, Run)>>,
    /// Allocated clusters that are not mapped yet (with `bigalloc`).
    held: HeldClusters,
    /// Preallocated for growing files.
    prealloc: PreallocTable,
    /// Group counter for new directories in the root directory.
    next_top_dir: AtomicU32,
    /// Incremented when discarded blocks are free again.
    trimmed: AtomicU64,
    /// Number of [`Shortage`](crate::freeing::Shortage)s.
    shortages: AtomicU32,
    discard: AtomicBool,
    /// Long allocations are aligned to multiples of this number of clusters; 1: no alignment.
    stripe: AtomicU32,
    corrupt_groups: CorruptGroups,
}

impl Allocator {
    /// Adds the journal's blocks to those that no file may own.
    pub fn add_journal(&mut self, journal: &JournalMap) -> Result<()> {
        let mut runs = journal.runs();
        if runs.all(|(start, len)| self.zones.add(start, len)) {
            return Ok(());
        }
        Err(Corruption::new("the journal overlaps other metadata").into())
    }

    /// Keeps files from owning the block of multiple-mount protection.
    pub fn add_mount_protection(&mut self, block: DevBlock) -> Result<()> {
        match self.zones.add(block, 1) {
            true => Ok(()),
            false => {
                let what = "the block of multiple-mount protection overlaps other metadata";
                Err(Corruption::new(what).in_block(block).into())
            }
        }
    }

    /// Whether a run of blocks may belong to a file: within the volume, and outside the journal and the groups' own
    /// metadata.
    pub fn may_own(&self, geo: &Geometry, start: DevBlock, len: u64) -> bool {
        if !geo.is_data_range(start, len) {
            return false;
        }
        // A file's cluster is freed as a whole.
        let (start, len) = geo.whole_clusters(start, len);
        !self.zones.overlaps(start, len)
    }

    /// Whether freed blocks are discarded.
    pub fn set_discard(&self, discard: bool) {
        self.discard.store(discard, Ordering::Relaxed);
    }

    /// Aligns long allocations to multiples of `blocks`; 1: no alignment. A stripe that is no multiple of a cluster is
    /// ignored, as in Linux.
    pub fn set_stripe(&self, geo: &Geometry, blocks: u32) {
        assert!(blocks > 0, "a stripe has at least one block");
        let clusters = match blocks.is_multiple_of(geo.blocks_per_cluster()) {
            true => blocks >> geo.cluster_bits,
            false => 1,
        };
        self.stripe.store(clusters, Ordering::Relaxed);
    }

    /// Blocks of the volume's own metadata.
    pub fn own_blocks(&self) -> u64 {
        self.zones.total()
    }

    /// Counts of the whole volume.
    pub fn totals(&self) -> Totals {
        self.totals.lock().clone()
    }

    /// Changes the counts.
    pub(crate) fn with_totals<R>(&self, f: impl FnOnce(&mut Totals) -> R) -> R {
        f(&mut self.totals.lock())
    }

    fn group(&self, group: GroupNo) -> MutexGuard<'_, Group> {
        self.groups[group.0 as usize].lock()
    }

    /// Turns corruption of group `no` into `None`, so that the search continues. `first_error` keeps the first
    /// corruption, which is the result if no other group has space.
    pub(super) fn skip_corrupt<T>(
        &self,
        no: GroupNo,
        found: Result<Option<T>>,
        first_error: &mut Option<FsError>,
    ) -> Result<Option<T>> {
        let Err(FsError::Corrupt(what)) = found else {
            return found;
        };
        let mut group = self.group(no);
        if !std::mem::replace(&mut group.is_corrupt, true) {
            self.corrupt_groups.record((*what).clone());
        }
        first_error.get_or_insert(FsError::Corrupt(what));
        Ok(None)
    }

    /// Queues corruption that was skipped in a handle, for the end of the call.
    pub(crate) fn record_corruption(&self, what: Corruption) {
        self.corrupt_groups.record(what);
    }

    /// Takes the corruption found since the last call.
    #[inline]
    pub(crate) fn take_corruption(&self) -> Vec<Corruption> {
        self.corrupt_groups.take()
    }

    /// Allocation goal for a file's first block: its inode's group.
    pub fn goal_for(&self, geo: &Geometry, ino: crate::disk::Ino) -> DevBlock {
        let (group, _) = geo.group_of_inode(ino);
        geo.first_block_of(group)
    }

    /// The next group for a directory in the root directory.
    fn next_top_group(&self, geo: &Geometry) -> GroupNo {
        GroupNo(self.next_top_dir.fetch_add(1, Ordering::Relaxed) % geo.group_count)
    }
}

#[cfg(test)]
mod tests;
