//! The segment manager: which blocks are valid, where the next ones go, and what of that a checkpoint writes.
//!
//! **Problem.** A log-structured volume writes to free places only. A crash returns it to its last checkpoint, so a
//! block that this checkpoint refers to must keep its content although it is no longer in use.
//!
//! **Rule.** No block is written that the volume needs after a crash (see [`sit`] for the exact condition). Life of a
//! block: free → *allocated* at the end of a curseg → written → *valid* (a node or inode refers to it) → *invalid* →
//! free again when a checkpoint without it is durable. An allocation is in memory only, so a crash or a failed write
//! before the block becomes valid leaks nothing.
//!
//! **Checkpoint.** [`Segments::snapshot`] copies, while nothing changes, everything that a checkpoint stores about
//! segments: the changed SIT blocks, the cursegs, the summaries. It does no I/O; [`SegmentSnapshot::complete`] later
//! reads summary entries that only the device has. Then [`Segments::committed`] or [`Segments::abandoned`] follows.
//!
//! Names are the kernel's: SIT, SSA, curseg, `free_segmap` and `dirty_seglist` (`seglists`), SSR, ATGC.
//! One lock (rank `Group`) covers all of it; no task waits for I/O while it holds the lock.

mod atgc;
mod by_valid;
mod capacity;
mod curseg;
mod free_runs;
mod gc_state;
mod load;
pub mod map;
mod pinned;
pub mod policy;
pub mod rules;
mod seglists;
mod sit;
mod snapshot;
mod ssa;
mod victims;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::Queue;
use steadfs_f2fs_format::io_error;
use steadfs_rt::{Instant, Mutex, now};
use steadfs_vfs::{FsError, Result};

pub use curseg::CursegUsage;
use curseg::{SegmentManager, SegmentRun};
pub use map::BlockBitmap;
pub use policy::{AllocMode, Policy, Purpose};
pub use rules::Demand;
pub use seglists::SegmentState;
use sit::Sit;
pub use snapshot::SegmentSnapshot;
use ssa::SegmentSummary;
pub use victims::{SpaceGoal, Victim, VictimCost, VictimSearch};

use crate::disk::checkpoint::CursegState;
pub use crate::disk::summary::Summary as Owner;
use crate::disk::summary::SummaryBlock;
use crate::disk::{BLOCK_SIZE, BlockAddr, DiskError, Layout, LogType, Nid, SegNo, Structure};
use crate::victim::age::AgeRules;

/// Consecutive blocks of the main area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    pub start: BlockAddr,
    /// Number of blocks, at least one.
    pub len: u32,
}

impl Run {
    pub fn blocks(self) -> impl Iterator<Item = BlockAddr> {
        debug_assert!(self.len > 0, "a run has blocks");
        (0..self.len).map(move |n| self.start.plus(n))
    }
}

/// What the structure that refers to a block takes it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// Data of a file or a directory.
    Data,
    Node,
}

/// A block that was allocated and made valid in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBlock {
    pub addr: BlockAddr,
    /// The block that the same curseg will use next, unless the curseg moves.
    pub next: BlockAddr,
}

/// Numbers of segments and sections at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Segments of the main area.
    pub segments: u32,
    /// Whole sections; a shorter last one is not counted.
    pub sections: u32,
    pub free_sections: u32,
    pub free: u32,
    /// Segments without a valid block that become free with the next checkpoint, or when writes in flight end.
    pub prefree: u32,
    /// Segments with valid and invalid blocks, without a curseg.
    pub dirty: u32,
    /// Segments with valid blocks only, without a curseg.
    pub full: u32,
    /// Valid blocks of data and of nodes.
    pub valid: (u64, u64),
}

/// A curseg and the segments of its type, as `status` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursegRow {
    pub open: CursegState,
    /// Segments with valid and invalid blocks.
    pub dirty: u32,
    /// Segments with valid blocks only.
    pub full: u32,
    /// Valid blocks, those in the curseg included.
    pub valid: u64,
}

struct Inner {
    manager: SegmentManager,
    /// Segments whose SIT entries are in the journal of the last durable checkpoint.
    journaled: BTreeSet<u32>,
    /// One bit for each SIT block: whether its second copy is current, as on disk.
    sit_bitmap: Vec<u8>,
}

/// The segment manager of a volume mounted for writing.
pub struct Segments {
    layout: Layout,
    inner: Mutex<Inner>,
    /// Seconds for which the volume was mounted before this mount.
    elapsed_before: u64,
    mounted: Instant,
}

fn outside(addr: BlockAddr) -> DiskError {
    DiskError::address(Structure::Sit, addr, "outside the main area")
}

impl Segments {
    /// Allocates up to `want` consecutive blocks at the end of a curseg. The caller writes them and makes them
    /// [valid](Self::set_valid), or [releases](Self::release) them.
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: no segment may be opened before GC or a checkpoint frees some.
    pub fn allocate(&self, log: LogType, want: u32, purpose: Purpose) -> Result<Run> {
        let mut inner = self.inner.lock();
        let place = inner.manager.allocate(log, want, purpose);
        let SegmentRun {
            segment,
            offset,
            len,
        } = place.ok_or(FsError::NoSpace)?;
        let start = self.layout.block_in(segment, offset);
        Ok(Run { start, len })
    }

    /// Returns allocated blocks that did not become valid.
    pub fn release(&self, run: Run) {
        let mut inner = self.inner.lock();
        for addr in run.blocks() {
            let (segment, offset) = self.own(addr);
            inner.manager.sit.release(segment, offset);
        }
    }

    /// An allocated block has been written and `owner` refers to it.
    pub fn set_valid(&self, addr: BlockAddr, owner: Owner) {
        self.set_valid_at(addr, owner, self.elapsed());
    }

    fn set_valid_at(&self, addr: BlockAddr, owner: Owner, now: u64) {
        let (segment, offset) = self.own(addr);
        let mut inner = self.inner.lock();
        assert!(
            inner.manager.sit.allocated(segment).get(offset),
            "a block is allocated before it becomes valid"
        );
        inner.manager.sit.set_valid(segment, offset, now);
        inner.manager.set_summary(segment, offset, owner);
    }

    /// Allocates a block for a node and makes it valid.
    ///
    /// # Errors
    /// As [`Segments::allocate`].
    pub fn place_node(&self, log: LogType, nid: Nid) -> Result<PlacedBlock> {
        assert!(log.is_node(), "nodes are in node logs");
        let (version, slot) = (0, 0);
        self.place(log, Owner { nid, version, slot })
    }

    /// Allocates a block and makes it valid: for a node, or for a directory's block in a checkpoint.
    ///
    /// # Errors
    /// As [`Segments::allocate`].
    pub fn place(&self, log: LogType, owner: Owner) -> Result<PlacedBlock> {
        let now = self.elapsed();
        let mut inner = self.inner.lock();
        let place = inner.manager.allocate(log, 1, Purpose::Reserved);
        let SegmentRun {
            segment, offset, ..
        } = place.ok_or(FsError::NoSpace)?;
        inner.manager.sit.set_valid(segment, offset, now);
        inner.manager.set_summary(segment, offset, owner);
        let open = &inner.manager.cursegs[log.index()];
        let placed = PlacedBlock {
            addr: self.layout.block_in(segment, offset),
            next: self.layout.block_in(open.segment, open.next),
        };
        debug_assert!(
            placed.addr != placed.next,
            "no block is its own successor in the log"
        );
        Ok(placed)
    }

    /// Makes a block invalid. Returns whether it stays unusable until checkpoints are enabled again.
    ///
    /// # Errors
    /// The address, which a structure of the volume holds, is not that of a valid block of this kind.
    pub fn invalidate(&self, addr: BlockAddr, content: BlockKind) -> Result<bool, DiskError> {
        let now = self.elapsed();
        let (segment, offset) = self.layout.segment_of(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let sit = &mut inner.manager.sit;
        // A corrupt file must not free a node, nor a corrupt node address a file's data.
        holds(sit, segment, content).map_err(|e| e.in_block(addr))?;
        let cleared = sit.clear_valid(segment, offset, now);
        cleared.map_err(|e| e.in_block(addr))
    }

    /// Keeps a block from being written until it is [released](Self::release) or [recovered](Self::recover_block),
    /// because roll-forward needs its content. Returns `false` if the block is in use.
    ///
    /// Recovery protects every block that it will need before it allocates any, then moves the cursegs
    /// [past](Self::skip_protected) them: a curseg that moved earlier could open a segment with blocks that are not
    /// protected yet.
    ///
    /// # Errors
    /// The address is outside the main area.
    pub fn protect(&self, addr: BlockAddr) -> Result<bool> {
        let (segment, offset) = self.layout.segment_of(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let sit = &mut inner.manager.sit;
        if sit.busy(segment).get(offset) {
            return Ok(false);
        }
        sit.allocate(segment, offset..offset + 1);
        Ok(true)
    }

    /// Moves the cursegs past protected blocks; they use SSR from then on.
    ///
    /// # Errors
    /// `NoSpace`: a curseg has no segment to move to.
    pub fn skip_protected(&self) -> Result<()> {
        match self.inner.lock().manager.skip_protected() {
            true => Ok(()),
            false => Err(FsError::NoSpace),
        }
    }

    /// Makes a [protected](Self::protect) block valid that was written before a crash: roll-forward found that `owner`
    /// refers to it.
    ///
    /// # Errors
    /// The block is in use, or its segment holds the other kind of blocks.
    pub fn recover_block(
        &self,
        addr: BlockAddr,
        owner: Owner,
        log: LogType,
    ) -> Result<(), DiskError> {
        let now = self.elapsed();
        let (segment, offset) = self.layout.segment_of(addr).ok_or_else(|| outside(addr))?;
        let refuse = |rule| {
            let error = DiskError::entry(Structure::Sit, segment.0, rule);
            Err(error.in_block(addr))
        };
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        if !manager.sit.allocated(segment).get(offset) {
            return refuse("has a block that is in use, and a recovered node refers to it");
        }
        let open = manager.sit.state(segment) == SegmentState::Open;
        if manager.sit.valid(segment) == 0 && !open {
            manager.sit.set_kind_of_empty(segment, log);
            let fresh = Box::new(SegmentSummary::empty(log));
            manager.closed.insert(segment.0, fresh);
        } else if manager.sit.kind(segment).is_node() != log.is_node() {
            return refuse(
                "is of the other kind of blocks, and a recovered node refers to one of them",
            );
        }
        manager.sit.set_valid(segment, offset, now);
        manager.set_summary(segment, offset, owner);
        Ok(())
    }

    /// Whether the last checkpoint has this block and its owner has lost it since, so that it is free to recover.
    pub fn is_freed(&self, addr: BlockAddr) -> bool {
        self.layout
            .segment_of(addr)
            .is_some_and(|(segment, offset)| {
                let inner = self.inner.lock();
                inner.manager.sit.is_freed(segment, offset)
            })
    }

    /// Makes a block valid again that the checkpoint has for another owner, which has lost it since. Its content is
    /// that of the checkpoint, because nothing may overwrite it.
    ///
    /// # Errors
    /// The block is in use, was not in the checkpoint, or is in a node segment.
    pub fn recover_freed_block(&self, addr: BlockAddr, owner: Owner) -> Result<(), DiskError> {
        let now = self.elapsed();
        let (segment, offset) = self.layout.segment_of(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        if !manager.sit.is_freed(segment, offset) || manager.sit.kind(segment).is_node() {
            let rule = "has a block that is in use, and a recovered node refers to it";
            let error = DiskError::entry(Structure::Sit, segment.0, rule);
            return Err(error.in_block(addr));
        }
        manager.sit.set_valid(segment, offset, now);
        manager.set_summary(segment, offset, owner);
        Ok(())
    }

    /// A valid data block passes from an orphan to another owner.
    ///
    /// # Errors
    /// The address, which a structure of the volume holds, is not that of a valid block of data.
    pub fn change_owner(&self, addr: BlockAddr, owner: Owner) -> Result<(), DiskError> {
        let (segment, offset) = self.layout.segment_of(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        holds(&manager.sit, segment, BlockKind::Data).map_err(|e| e.in_block(addr))?;
        if !manager.sit.current(segment).get(offset) {
            let rule = "does not have a block as valid that an orphan maps";
            let error = DiskError::entry(Structure::Sit, segment.0, rule);
            return Err(error.in_block(addr));
        }
        manager.set_summary(segment, offset, owner);
        Ok(())
    }

    /// Verifies that each of these blocks is valid and in a segment of this kind. A structure that refers to another
    /// block is corrupt: the caller must neither write nor read there.
    ///
    /// # Errors
    /// The first such block.
    pub fn check_owned(
        &self,
        start: BlockAddr,
        len: u32,
        content: BlockKind,
    ) -> Result<(), DiskError> {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        for addr in (0..len).map(|n| start.plus(n)) {
            let (segment, offset) = self.layout.segment_of(addr).ok_or_else(|| outside(addr))?;
            holds(sit, segment, content).map_err(|e| e.in_block(addr))?;
            if !sit.current(segment).get(offset) {
                let rule = "has a block that is referred to, but not valid";
                let error = DiskError::entry(Structure::Sit, segment.0, rule);
                return Err(error.in_block(addr));
            }
        }
        Ok(())
    }

    /// Whether a block is valid.
    pub fn is_valid(&self, addr: BlockAddr) -> bool {
        self.layout
            .segment_of(addr)
            .is_some_and(|(segment, offset)| {
                let inner = self.inner.lock();
                inner.manager.sit.current(segment).get(offset)
            })
    }

    /// How many of `len` valid blocks from `start` on may be overwritten in place (IPU): those before the first that
    /// the last checkpoint needs while checkpoints are disabled.
    pub fn may_overwrite(&self, start: BlockAddr, len: u32) -> u32 {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        if !sit.is_cp_disabled() {
            return len;
        }
        let kept = |n: &u32| match self.layout.segment_of(start.plus(*n)) {
            Some((segment, offset)) => sit.is_in_checkpoint(segment, offset),
            None => true,
        };
        (0..len).find(kept).unwrap_or(len)
    }

    /// The valid blocks of a segment with their owners, for GC. Owners come from the summary, which may be wrong on a
    /// corrupt volume.
    ///
    /// # Errors
    /// The device fails, or the summary block does not verify.
    pub fn owners(&self, at: SegNo, queue: &Queue, tag: IoTag) -> Result<Vec<(u32, Owner)>> {
        let known = || {
            let inner = self.inner.lock();
            let kind = inner.manager.sit.kind(at);
            let valid = inner.manager.sit.current(at);
            (valid, inner.manager.known_summary(at, kind))
        };
        let (mut valid, mut edit) = known();
        if !edit.unknown_of(valid).is_empty() {
            let place = self.layout.summary_block(at);
            let offset = u64::from(place.0) * BLOCK_SIZE as u64;
            let bytes = queue.read(offset, BLOCK_SIZE, tag).map_err(io_error)?;
            let block = SummaryBlock::parse(&bytes).map_err(|e| e.in_block(place))?;
            // What changed in memory meanwhile is newer than what was read.
            (valid, edit) = known();
            edit.fill_from(&block);
        }
        assert!(
            edit.unknown_of(valid).is_empty(),
            "each owner is known once the SSA block was read"
        );
        let owner = |offset| Some((offset, edit.get(offset)?));
        Ok(valid.ones().filter_map(owner).collect())
    }

    pub fn counts(&self) -> Counts {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let counts = Counts {
            segments: sit.len(),
            sections: sit.sections(),
            free_sections: sit.free_sections().count(),
            free: sit.in_state(SegmentState::Free),
            prefree: sit.in_state(SegmentState::Prefree),
            dirty: sit.in_state(SegmentState::Dirty),
            full: sit.in_state(SegmentState::Full),
            valid: sit.totals(),
        };
        let closed = counts.free + counts.prefree + counts.dirty + counts.full;
        assert!(
            closed + sit.in_state(SegmentState::Open) == counts.segments,
            "each segment is in one state"
        );
        counts
    }

    pub fn curseg_rows(&self) -> [CursegRow; 6] {
        let inner = self.inner.lock();
        let mut curseg_rows = LogType::ALL.map(|log| CursegRow {
            open: inner.manager.open_log(log),
            dirty: 0,
            full: 0,
            valid: 0,
        });
        let sit = &inner.manager.sit;
        for at in (0..sit.len()).map(SegNo) {
            let row = &mut curseg_rows[sit.kind(at).index()];
            row.dirty += u32::from(sit.state(at) == SegmentState::Dirty);
            row.full += u32::from(sit.state(at) == SegmentState::Full);
            row.valid += u64::from(sit.valid(at));
        }
        let (data, nodes) = sit.totals();
        assert!(
            curseg_rows.iter().map(|row| row.valid).sum::<u64>() == data + nodes,
            "the totals are the sums over all segments"
        );
        curseg_rows
    }

    /// The kernel's BDF, from 0 (each section is half full) to 100 (each is full or empty), and the mean number of
    /// valid blocks of sections that are neither full nor empty.
    pub fn distribution(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let size = u64::from(sit.per_section()) * u64::from(crate::disk::SEGMENT_BLOCKS);
        let half = size / 2;
        let (mut spread, mut partly, mut count) = (0u64, 0u64, 0u64);
        for section in 0..sit.sections() {
            let valid = u64::from(sit.valid_in(section));
            spread = spread.saturating_add(valid.abs_diff(half).saturating_pow(2));
            if valid > 0 && valid < size {
                partly += valid;
                count += 1;
            }
        }
        let all = u64::from(sit.sections()).saturating_mul(half.saturating_pow(2)) / 100;
        let bimodal = spread.checked_div(all).unwrap_or(0);
        (bimodal, partly.checked_div(count).unwrap_or(0))
    }

    pub fn free_sections(&self) -> u32 {
        self.inner.lock().manager.sit.free_sections().count()
    }

    /// Blocks and segments that cursegs have used since the mount.
    pub fn usage(&self) -> CursegUsage {
        self.inner.lock().manager.usage
    }

    pub fn set_policy(&self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.inner.lock().manager.policy);
    }

    pub fn policy(&self) -> Policy {
        self.inner.lock().manager.policy
    }

    /// Sets the rules of `atgc`.
    pub fn set_age_rules(&self, rules: AgeRules) {
        self.inner.lock().manager.age = rules;
    }

    /// Seconds for which the volume was mounted before this mount.
    pub const fn elapsed_before(&self) -> u64 {
        self.elapsed_before
    }

    /// Sets the number of blocks in memory that will be allocated later.
    pub fn set_demand(&self, demand: Demand) {
        self.inner.lock().manager.demand = demand;
    }

    /// Seconds for which the volume has been mounted in its life: the clock of segment ages (`elapsed_time`).
    pub fn elapsed(&self) -> u64 {
        let here = now().since(self.mounted).as_secs();
        self.elapsed_before.saturating_add(here)
    }

    /// Copies what a checkpoint stores about segments. The caller holds `cp_lock` exclusively.
    pub fn snapshot(&self) -> SegmentSnapshot {
        let elapsed = self.elapsed();
        let mut inner = self.inner.lock();
        snapshot::take(&self.layout, &mut inner, elapsed)
    }

    /// The checkpoint is durable. Returns the blocks that may be written and discarded now. `disables_cp`: it is the
    /// last one until checkpoints are enabled again.
    pub fn committed(
        &self,
        snapshot: &SegmentSnapshot,
        disables_cp: bool,
    ) -> Vec<(SegNo, BlockBitmap)> {
        let mut inner = self.inner.lock();
        snapshot::committed(&mut inner, snapshot, disables_cp)
    }

    /// The checkpoint failed; a mount may find it or the one before.
    pub fn abandoned(&self, snapshot: &SegmentSnapshot) {
        let mut inner = self.inner.lock();
        snapshot::abandoned(&mut inner, snapshot);
    }

    /// Asserts all invariants.
    #[cfg(test)]
    pub fn check(&self) {
        self.inner.lock().manager.check();
    }

    /// The position of a block that this module allocated.
    fn own(&self, addr: BlockAddr) -> (SegNo, u32) {
        let place = self.layout.segment_of(addr);
        place.expect("allocated blocks are in the main area")
    }
}

/// Fails if a segment holds the other kind of blocks.
fn holds(sit: &Sit, segment: SegNo, content: BlockKind) -> Result<(), DiskError> {
    let rule = match (content, sit.kind(segment).is_node()) {
        (BlockKind::Data, true) => "is a node segment, and a file refers to a block of it as data",
        (BlockKind::Node, false) => "is a data segment, and a block of it is referred to as a node",
        _ => return Ok(()),
    };
    Err(DiskError::entry(Structure::Sit, segment.0, rule))
}

/// The summary behind a shared handle, copied if it is shared.
fn summary_mut(edit: &mut Arc<SegmentSummary>) -> &mut SegmentSummary {
    Arc::make_mut(edit)
}
