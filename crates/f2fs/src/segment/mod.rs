//! Segments: which blocks are valid, where the next ones go, and what of that a checkpoint writes.
//!
//! **Rule.** No block is written that the volume's state after a crash may need (see [`sit`] for what
//! that is). A block's way: free → *claimed* for a log → written → *named* (valid; something refers to
//! it) → *invalid* → free again when a checkpoint without it is durable. A claim is memory only, so a
//! crash or a failed write before the name leaks nothing.
//!
//! **Checkpoint.** [`Segments::snapshot`] takes, while nothing changes, everything a checkpoint says of
//! segments: the table's changed blocks, the logs, the summaries. It is pure computing; entries of
//! summaries that only the device has are read later ([`SegmentSnapshot::complete`]). Then
//! [`Segments::committed`] or [`Segments::abandoned`].
//!
//! One lock (rank `Group`) covers it all; nothing waits inside it.

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
use steadfs_rt::{Instant, Mutex, now};
use steadfs_vfs::{FsError, Result};

pub use curseg::CursegUsage;
use curseg::{SegmentManager, SegmentRun};
pub use map::Map;
pub use policy::{AllocMode, Demand, GcPolicy, Mode, Policy, Purpose};
pub use seglists::SegmentState;
use sit::Sit;
pub use snapshot::SegmentSnapshot;
use ssa::SegmentSummary;
pub use victims::{SpaceGoal, Victim, VictimCost, VictimSearch};

use crate::disk::checkpoint::CursegState;
pub use crate::disk::summary::Summary as Owner;
use crate::disk::summary::SummaryBlock;
use crate::disk::{BLOCK_SIZE, BlockAddr, DiskError, Layout, LogType, Nid, SegNo, Structure};
use crate::fs::io_error;
use crate::victim::age::AgeRules;

/// Consecutive blocks of the main area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub start: BlockAddr,
    /// How many, at least one.
    pub len: u32,
}

impl Run {
    /// Each of its blocks.
    pub fn blocks(self) -> impl Iterator<Item = BlockAddr> {
        (0..self.len).map(move |n| self.start.plus(n))
    }
}

/// What a block of the main area is for whoever refers to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// A file's or a directory's.
    Data,
    /// A node.
    Node,
}

/// A place given to a block that is valid at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedBlock {
    /// Where it goes.
    pub addr: BlockAddr,
    /// Where the next block of the same log will go, if nothing else happens to the log.
    pub next: BlockAddr,
}

/// Numbers of segments and sections, as they are at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Segments of the main area.
    pub segments: u32,
    /// Sections that can be used.
    pub sections: u32,
    /// Sections with nothing in use.
    pub free_sections: u32,
    /// Segments with nothing in use.
    pub free: u32,
    /// Segments without a valid block that a checkpoint (or the end of writes under way) makes free.
    pub prefree: u32,
    /// Segments in which some blocks are valid, and no log is.
    pub dirty: u32,
    /// Segments in which all blocks are valid, and no log is.
    pub full: u32,
    /// Valid blocks of data and of nodes.
    pub valid: (u64, u64),
}

/// A log, and the segments of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursegRow {
    /// Where it goes on.
    pub open: CursegState,
    /// Segments with some valid blocks.
    pub dirty: u32,
    /// Segments with nothing but valid blocks.
    pub full: u32,
    /// Valid blocks, the log's included.
    pub valid: u64,
}

struct Inner {
    manager: SegmentManager,
    /// Segments whose entries the last durable checkpoint has in its journal.
    journaled: BTreeSet<u32>,
    /// For each block of the table whether the second copy is the current one, as on disk.
    sit_bitmap: Vec<u8>,
}

/// All segments of a volume that is being written.
pub struct Segments {
    layout: Layout,
    inner: Mutex<Inner>,
    /// Seconds for which the volume had been mounted before.
    elapsed_before: u64,
    mounted: Instant,
}

fn outside(addr: BlockAddr) -> DiskError {
    DiskError::address(Structure::Sit, addr, "outside the main area")
}

impl Segments {
    /// Claims up to `want` consecutive blocks at the end of a log, for data that is then written and
    /// named, or [released](Self::release).
    ///
    /// # Errors
    /// [`FsError::NoSpace`]: no segment may be opened before cleaning or a checkpoint made room.
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

    /// Gives up claimed blocks that nothing names.
    pub fn release(&self, run: Run) {
        let mut inner = self.inner.lock();
        for addr in run.blocks() {
            let (segment, offset) = self.own(addr);
            inner.manager.sit.release(segment, offset);
        }
    }

    /// A claimed block has been written and is now referred to by `owner`.
    pub fn set_valid(&self, addr: BlockAddr, owner: Owner) {
        self.set_valid_at(addr, owner, self.elapsed());
    }

    fn set_valid_at(&self, addr: BlockAddr, owner: Owner, now: u64) {
        let (segment, offset) = self.own(addr);
        let mut inner = self.inner.lock();
        assert!(
            inner.manager.sit.allocated(segment).get(offset),
            "only claimed blocks are named"
        );
        inner.manager.sit.set_valid(segment, offset, now);
        inner.manager.set_summary(segment, offset, owner);
    }

    /// A place for a node, valid at once.
    ///
    /// # Errors
    /// As [`Segments::allocate`].
    pub fn place_node(&self, log: LogType, nid: Nid) -> Result<PlacedBlock> {
        assert!(log.is_node());
        let (version, slot) = (0, 0);
        self.place(log, Owner { nid, version, slot })
    }

    /// A place for a block that is valid at once: a node, or a directory's in a checkpoint.
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
        Ok(PlacedBlock {
            addr: self.layout.block_in(segment, offset),
            next: self.layout.block_in(open.segment, open.next),
        })
    }

    /// Nothing refers to this block any more. Whether it stays unusable until checkpoints are switched on
    /// again.
    ///
    /// # Errors
    /// The address, which a structure of the volume had, is not that of a valid block with this content.
    pub fn invalidate(&self, addr: BlockAddr, content: BlockKind) -> Result<bool, DiskError> {
        let now = self.elapsed();
        let (segment, offset) = self.layout.place(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let sit = &mut inner.manager.sit;
        // Not even a damaged file takes a node from its owner, or what a file has from it as a node.
        holds(sit, segment, content).map_err(|e| e.in_block(addr))?;
        let cleared = sit.clear_valid(segment, offset, now);
        cleared.map_err(|e| e.in_block(addr))
    }

    /// Keeps a block from being written until it is [released](Self::release) or
    /// [adopted](Self::adopt), as recovery needs what it holds; `false` if it is in use already.
    /// Recovery keeps every block it is going to need before anything is claimed, then lets the logs
    /// [step over](Self::step_over) them: a log that moved earlier could open a segment in which others
    /// are still to be kept.
    ///
    /// # Errors
    /// The address is none of a block.
    pub fn protect(&self, addr: BlockAddr) -> Result<bool> {
        let (segment, offset) = self.layout.place(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let sit = &mut inner.manager.sit;
        if sit.busy(segment).get(offset) {
            return Ok(false);
        }
        sit.allocate(segment, offset..offset + 1);
        Ok(true)
    }

    /// Moves the logs behind blocks that are kept; they fill holes from then on.
    ///
    /// # Errors
    /// `NoSpace`: a log has no place left.
    pub fn skip_protected(&self) -> Result<()> {
        match self.inner.lock().manager.skip_protected() {
            true => Ok(()),
            false => Err(FsError::NoSpace),
        }
    }

    /// Takes over a block that was written before a crash and is [kept](Self::keep): recovery found
    /// that `owner` refers to it.
    ///
    /// # Errors
    /// The block is in use, or lies in a segment that holds another kind of blocks.
    pub fn recover_block(
        &self,
        addr: BlockAddr,
        owner: Owner,
        log: LogType,
    ) -> Result<(), DiskError> {
        let now = self.elapsed();
        let (segment, offset) = self.layout.place(addr).ok_or_else(|| outside(addr))?;
        let refuse = |rule| {
            let error = DiskError::entry(Structure::Sit, segment.0, rule);
            Err(error.in_block(addr))
        };
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        if !manager.sit.allocated(segment).get(offset) {
            return refuse("has a block in use that recovery found referred to again");
        }
        let open = manager.sit.state(segment) == SegmentState::Open;
        if manager.sit.valid(segment) == 0 && !open {
            manager.sit.set_kind_of_empty(segment, log);
            let fresh = Box::new(SegmentSummary::empty(log));
            manager.closed.insert(segment.0, fresh);
        } else if manager.sit.kind(segment).is_node() != log.is_node() {
            return refuse("holds another kind of blocks than recovery found in it");
        }
        manager.sit.set_valid(segment, offset, now);
        manager.set_summary(segment, offset, owner);
        Ok(())
    }

    /// Whether the checkpoint has this block for an owner who has lost it since, and nobody else has it.
    pub fn is_freed(&self, addr: BlockAddr) -> bool {
        self.layout.place(addr).is_some_and(|(segment, offset)| {
            let inner = self.inner.lock();
            inner.manager.sit.is_freed(segment, offset)
        })
    }

    /// Takes over a block that the checkpoint has for another owner, who has lost it since: what it holds is as it
    /// was then, for nothing may write it.
    ///
    /// # Errors
    /// The block is in use, was not in the checkpoint, or lies among nodes.
    pub fn recover_freed_block(&self, addr: BlockAddr, owner: Owner) -> Result<(), DiskError> {
        let now = self.elapsed();
        let (segment, offset) = self.layout.place(addr).ok_or_else(|| outside(addr))?;
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        if !manager.sit.is_freed(segment, offset) || manager.sit.kind(segment).is_node() {
            let rule = "has a block in use that recovery found referred to again";
            let error = DiskError::entry(Structure::Sit, segment.0, rule);
            return Err(error.in_block(addr));
        }
        manager.sit.set_valid(segment, offset, now);
        manager.set_summary(segment, offset, owner);
        Ok(())
    }

    /// Refuses blocks of which one is not valid, or not among those with this content: who refers to it is
    /// damaged, and may neither write there nor count on what is there.
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
            let (segment, offset) = self.layout.place(addr).ok_or_else(|| outside(addr))?;
            holds(sit, segment, content).map_err(|e| e.in_block(addr))?;
            if !sit.current(segment).get(offset) {
                let rule = "has a block that is referred to, but not valid";
                let error = DiskError::entry(Structure::Sit, segment.0, rule);
                return Err(error.in_block(addr));
            }
        }
        Ok(())
    }

    /// Whether something refers to this block.
    pub fn is_valid(&self, addr: BlockAddr) -> bool {
        self.layout.place(addr).is_some_and(|(segment, offset)| {
            let inner = self.inner.lock();
            inner.manager.sit.current(segment).get(offset)
        })
    }

    /// How many blocks from `start` on, of `len` valid ones, may be written over where they lie: up to the
    /// first that a checkpoint needs while checkpoints are switched off.
    pub fn may_overwrite(&self, start: BlockAddr, len: u32) -> u32 {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        if !sit.is_cp_disabled() {
            return len;
        }
        let kept = |n: &u32| match self.layout.place(start.plus(*n)) {
            Some((segment, offset)) => sit.is_in_checkpoint(segment, offset),
            None => true,
        };
        (0..len).find(kept).unwrap_or(len)
    }

    /// The valid blocks of a segment and who points at them, for cleaning. Owners are what the summary
    /// says, which on a damaged volume means nothing.
    ///
    /// # Errors
    /// The device fails, or the summary is none.
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
            // What was written meanwhile is newer than what was read.
            (valid, edit) = known();
            edit.fill_from(&block);
        }
        let owner = |offset| Some((offset, edit.get(offset)?));
        Ok(valid.ones().filter_map(owner).collect())
    }

    /// How many segments are what at the moment.
    pub fn counts(&self) -> Counts {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        Counts {
            segments: sit.len(),
            sections: sit.sections(),
            free_sections: sit.free_sections().count(),
            free: sit.in_state(SegmentState::Free),
            prefree: sit.in_state(SegmentState::Prefree),
            dirty: sit.in_state(SegmentState::Dirty),
            full: sit.in_state(SegmentState::Full),
            valid: sit.totals(),
        }
    }

    /// The logs, and the segments of each one's type.
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
        curseg_rows
    }

    /// How much sections are either full or empty (100: all are; the kernel's BDF), and the valid blocks
    /// of those that are neither, on average.
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

    /// Sections with nothing in use.
    pub fn free_sections(&self) -> u32 {
        self.inner.lock().manager.sit.free_sections().count()
    }

    /// What logs have used so far.
    pub fn usage(&self) -> CursegUsage {
        self.inner.lock().manager.usage
    }

    /// Changes what decides where logs go on.
    pub fn set_policy(&self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.inner.lock().manager.policy);
    }

    /// What decides where logs go on.
    pub fn policy(&self) -> Policy {
        self.inner.lock().manager.policy
    }

    /// Says how what is old is chosen and where it goes (`atgc_*`).
    pub fn set_age_rules(&self, rules: AgeRules) {
        self.inner.lock().manager.age = rules;
    }

    /// Seconds for which the volume had been mounted before this mount.
    pub const fn elapsed_before(&self) -> u64 {
        self.elapsed_before
    }

    /// Tells what in memory will need a place.
    pub fn set_demand(&self, demand: Demand) {
        self.inner.lock().manager.demand = demand;
    }

    /// Seconds for which the volume has been mounted in its life: the time that segments' ages are
    /// measured in, and what a checkpoint notes.
    pub fn elapsed(&self) -> u64 {
        let here = now().since(self.mounted).as_secs();
        self.elapsed_before.saturating_add(here)
    }

    /// Takes what a checkpoint says of segments; nothing may change meanwhile.
    pub fn snapshot(&self) -> SegmentSnapshot {
        let elapsed = self.elapsed();
        let mut inner = self.inner.lock();
        snapshot::take(&self.layout, &mut inner, elapsed)
    }

    /// The checkpoint is durable. Returns the blocks that may be written (and discarded) now. `disables_cp`: it
    /// is the last one until checkpoints are switched on again.
    pub fn committed(&self, snapshot: &SegmentSnapshot, disables_cp: bool) -> Vec<(SegNo, Map)> {
        let mut inner = self.inner.lock();
        snapshot::committed(&mut inner, snapshot, disables_cp)
    }

    /// The checkpoint failed; perhaps it is what a mount will find, perhaps not.
    pub fn abandoned(&self, snapshot: &SegmentSnapshot) {
        let mut inner = self.inner.lock();
        snapshot::abandoned(&mut inner, snapshot);
    }

    /// Asserts everything that is always true, for tests.
    pub fn check(&self) {
        self.inner.lock().manager.check();
    }

    /// The place of a block that this program itself has claimed.
    fn own(&self, addr: BlockAddr) -> (SegNo, u32) {
        let place = self.layout.place(addr);
        place.expect("claims lie in the main area")
    }
}

/// Refuses a segment that holds other blocks.
fn holds(sit: &Sit, segment: SegNo, content: BlockKind) -> Result<(), DiskError> {
    let rule = match (content, sit.kind(segment).is_node()) {
        (BlockKind::Data, true) => "holds nodes, and a file refers to one as to its data",
        (BlockKind::Node, false) => "holds data, and a block of it is referred to as a node",
        _ => return Ok(()),
    };
    Err(DiskError::entry(Structure::Sit, segment.0, rule))
}

/// The edit behind a shared handle, to be changed.
fn summary_mut(edit: &mut Arc<SegmentSummary>) -> &mut SegmentSummary {
    Arc::make_mut(edit)
}
