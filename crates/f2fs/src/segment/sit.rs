//! The segment information table (SIT) in memory: which blocks are valid, and which may be written.
//!
//! **Rule.** A block may be written only if
//!
//! 1. it is not valid now,
//! 2. it was not valid at the last durable checkpoint, nor in the one being written: a crash returns to that one,
//! 3. it did not become valid since: an fsync's node chain may lead to it, and roll-forward follows the chain even
//!    where newer blocks have replaced it,
//! 4. it is not allocated.
//!
//! While checkpoints are disabled (`cp_disabled`) condition 3 does not apply, because roll-forward ignores everything
//! written since: an invalidated block may be written again at once, unless the last checkpoint has it.
//!
//! Conditions 2 and 3 are one bitmap, `ckpt_valid` (the kernel's `ckpt_valid_map`), plus a second one, `next`, while a
//! checkpoint is being written. Both exist only for segments that changed since (`CkptMaps`); in all others they equal
//! the bitmap of valid blocks. That bitmap is stored only where it is neither empty nor full, so a segment costs
//! 24 bytes.

#[cfg(test)]
mod check;

use std::collections::{BTreeMap, BTreeSet};

use super::map::{BitSet, BlockBitmap};
use super::seglists::{SegmentLists, SegmentState};
use crate::disk::{
    DiskError, Layout, LogType, SEGMENT_BLOCKS, SegNo, SitEntry, Structure, sit::MAP_SIZE,
};

struct Segment {
    /// Valid blocks; `None` where none or all are valid.
    map: Option<Box<BlockBitmap>>,
    mtime: u64,
    valid: u16,
    kind: LogType,
    state: SegmentState,
}

/// Bitmaps that keep blocks of a segment from being written, in addition to the valid ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CkptMaps {
    ckpt_valid: BlockBitmap,
    next: BlockBitmap,
    allocated: BlockBitmap,
}

/// SIT entries of all segments, with what follows from them.
pub struct Sit {
    segments: Vec<Segment>,
    ckpt_maps: BTreeMap<u32, CkptMaps>,
    /// Segments whose entry differs from the one on disk.
    changed: BTreeSet<u32>,
    /// A checkpoint is being written.
    cp_in_progress: bool,
    /// Checkpoints are disabled: a crash returns to the last one and recovers nothing written since.
    cp_disabled: bool,
    lists: SegmentLists,
    valid_data: u64,
    valid_nodes: u64,
    oldest: u64,
    newest: u64,
    /// Blocks that became invalid, since the mount and since the last snapshot.
    invalidated: (u64, u64),
}

fn corrupt(segment: SegNo, rule: &'static str) -> DiskError {
    DiskError::entry(Structure::Sit, segment.0, rule)
}

impl Sit {
    /// A table in which no block is valid.
    pub fn new(layout: &Layout) -> Self {
        let count = layout.main_segments;
        let segment = || Segment {
            map: None,
            mtime: 0,
            valid: 0,
            kind: LogType::HotData,
            state: SegmentState::Free,
        };
        Self {
            segments: std::iter::repeat_with(segment)
                .take(count as usize)
                .collect(),
            ckpt_maps: BTreeMap::new(),
            changed: BTreeSet::new(),
            cp_in_progress: false,
            cp_disabled: false,
            lists: SegmentLists::new(count, layout.segments_per_section),
            valid_data: 0,
            valid_nodes: 0,
            oldest: u64::MAX,
            newest: 0,
            invalidated: (0, 0),
        }
    }

    /// Stores a segment's entry while the SIT is being read.
    pub fn load(&mut self, at: SegNo, entry: &SitEntry) {
        let segment = &mut self.segments[at.0 as usize];
        assert!(segment.valid == 0, "each entry is read once");
        assert!(
            segment.state == SegmentState::Free,
            "the SIT is read before segments are used"
        );
        segment.valid = entry.valid;
        segment.kind = entry.kind;
        segment.mtime = entry.mtime;
        if entry.valid > 0 && u32::from(entry.valid) < SEGMENT_BLOCKS {
            segment.map = Some(Box::new(BlockBitmap::from_disk(&entry.map)));
        }
        *self.valid_of(entry.kind) += u64::from(entry.valid);
        if entry.valid > 0 {
            self.oldest = self.oldest.min(entry.mtime);
            self.newest = self.newest.max(entry.mtime);
        }
        self.lists.add_valid(at, entry.valid.into());
        self.classify(at, false);
    }

    /// Marks all entries as equal to those on disk, after the SIT has been read.
    pub fn loaded(&mut self) {
        assert!(
            self.ckpt_maps.is_empty() && !self.cp_in_progress,
            "no block is allocated before the SIT was read"
        );
        self.changed.clear();
    }

    const fn valid_of(&mut self, kind: LogType) -> &mut u64 {
        if kind.is_node() {
            &mut self.valid_nodes
        } else {
            &mut self.valid_data
        }
    }

    pub fn len(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Whole sections; a shorter last one is not counted.
    pub const fn sections(&self) -> u32 {
        self.lists.sections()
    }

    pub const fn per_section(&self) -> u32 {
        self.lists.per_section()
    }

    /// The section of a segment; the last one may be too short to be used.
    pub const fn section_of(&self, at: SegNo) -> u32 {
        self.lists.section_of(at)
    }

    /// Number of valid blocks of a segment.
    pub fn valid(&self, at: SegNo) -> u32 {
        self.segments[at.0 as usize].valid.into()
    }

    /// Whether checkpoints are disabled and the last one, to which an unmount or a crash returns, has this block.
    pub fn is_in_checkpoint(&self, at: SegNo, offset: u32) -> bool {
        self.cp_disabled && self.ckpt_valid(at).get(offset)
    }

    /// The same for any block of a segment.
    pub fn has_checkpointed(&self, at: SegNo) -> bool {
        self.cp_disabled && !self.ckpt_valid(at).is_empty()
    }

    fn ckpt_valid(&self, at: SegNo) -> BlockBitmap {
        let ckpt_maps = self.ckpt_maps.get(&at.0);
        ckpt_maps.map_or_else(|| self.current(at), |t| t.ckpt_valid)
    }

    pub const fn is_cp_disabled(&self) -> bool {
        self.cp_disabled
    }

    /// Valid blocks of data and of nodes.
    pub const fn totals(&self) -> (u64, u64) {
        (self.valid_data, self.valid_nodes)
    }

    /// The type of blocks in a segment.
    pub fn kind(&self, at: SegNo) -> LogType {
        self.segments[at.0 as usize].kind
    }

    pub fn state(&self, at: SegNo) -> SegmentState {
        self.segments[at.0 as usize].state
    }

    pub const fn in_state(&self, state: SegmentState) -> u32 {
        self.lists.in_state(state)
    }

    pub const fn free_sections(&self) -> &BitSet {
        self.lists.free_sections()
    }

    /// Sections without a curseg that have valid and invalid blocks.
    pub const fn dirty_sections(&self) -> &BitSet {
        self.lists.dirty_sections()
    }

    /// The same sections, those with the fewest valid blocks first.
    pub fn emptiest(&self) -> impl Iterator<Item = u32> {
        self.lists.emptiest()
    }

    pub fn valid_in(&self, section: u32) -> u32 {
        self.lists.valid_in(section)
    }

    pub fn segments_of(&self, section: u32) -> impl Iterator<Item = SegNo> + use<> {
        self.lists.segments_of(section)
    }

    /// Mean time at which the blocks of a section were written, in seconds of mounted time.
    pub fn age_stamp(&self, section: u32) -> u64 {
        debug_assert!(
            section < self.sections(),
            "only whole sections are cleaned by age"
        );
        let stamps = self
            .segments_of(section)
            .map(|at| self.segments[at.0 as usize].mtime);
        stamps.fold(0u64, u64::saturating_add) / u64::from(self.per_section())
    }

    /// Mean time at which the blocks of a segment were written, in seconds of mounted time.
    pub fn stamp(&self, at: SegNo) -> u64 {
        self.segments[at.0 as usize].mtime
    }

    /// The latest of these times.
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The earliest of these times.
    pub const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Blocks that became invalid, since the mount and since the last snapshot.
    pub const fn invalidated(&self) -> (u64, u64) {
        self.invalidated
    }

    /// Segments in state `Dirty` of this type.
    pub fn dirty(&self, kind: LogType) -> &BitSet {
        self.lists.dirty(kind)
    }

    /// The valid blocks of a segment (`cur_valid_map`).
    pub fn current(&self, at: SegNo) -> BlockBitmap {
        let segment = &self.segments[at.0 as usize];
        debug_assert!(
            segment.map.is_some() == (1..SEGMENT_BLOCKS).contains(&u32::from(segment.valid)),
            "a segment has a bitmap if some of its blocks are valid, not all"
        );
        match &segment.map {
            Some(map) => **map,
            None if segment.valid == 0 => BlockBitmap::EMPTY,
            None => BlockBitmap::FULL,
        }
    }

    /// The blocks of a segment that must not be written.
    pub fn busy(&self, at: SegNo) -> BlockBitmap {
        let current = self.current(at);
        match self.ckpt_maps.get(&at.0) {
            None => current,
            Some(t) => {
                let prefree = current.or(t.ckpt_valid).or(t.allocated);
                if self.cp_in_progress {
                    prefree.or(t.next)
                } else {
                    prefree
                }
            }
        }
    }

    /// The allocated blocks of a segment.
    pub fn allocated(&self, at: SegNo) -> BlockBitmap {
        self.ckpt_maps
            .get(&at.0)
            .map_or(BlockBitmap::EMPTY, |t| t.allocated)
    }

    /// Whether a block became invalid after the last checkpoint, which has it, and is not allocated.
    pub fn is_freed(&self, at: SegNo, offset: u32) -> bool {
        !self.current(at).get(offset)
            && !self.allocated(at).get(offset)
            && self.ckpt_valid(at).get(offset)
    }

    fn ckpt_maps_of(&mut self, at: SegNo) -> &mut CkptMaps {
        let current = self.current(at);
        let ckpt_maps = self.ckpt_maps.entry(at.0).or_insert(CkptMaps {
            ckpt_valid: current,
            next: current,
            allocated: BlockBitmap::EMPTY,
        });
        debug_assert!(
            ckpt_maps.allocated.without(current) == ckpt_maps.allocated,
            "an allocated block is not valid"
        );
        ckpt_maps
    }

    /// Allocates blocks that may be written.
    pub fn allocate(&mut self, at: SegNo, blocks: std::ops::Range<u32>) {
        debug_assert!(!blocks.is_empty(), "an allocation has blocks");
        let busy = self.busy(at);
        let ckpt_maps = self.ckpt_maps_of(at);
        for offset in blocks {
            assert!(
                !busy.get(offset),
                "only blocks that may be written are allocated"
            );
            ckpt_maps.allocated.set(offset);
        }
        self.classify(at, false);
        debug_assert!(
            !matches!(self.state(at), SegmentState::Free | SegmentState::Full),
            "a segment with an allocated block is neither free nor full"
        );
    }

    /// Returns an allocated block that did not become valid.
    pub fn release(&mut self, at: SegNo, offset: u32) {
        let ckpt_maps = self.ckpt_maps_of(at);
        assert!(
            ckpt_maps.allocated.get(offset),
            "only allocated blocks are released"
        );
        ckpt_maps.allocated.clear(offset);
        self.drop_if_unneeded(at);
    }

    /// Drops a segment's `CkptMaps` once they equal its valid blocks.
    fn drop_if_unneeded(&mut self, at: SegNo) {
        let current = self.current(at);
        if let Some(t) = self.ckpt_maps.get(&at.0) {
            let quiet = t.ckpt_valid == current && (!self.cp_in_progress || t.next == current);
            if quiet && t.allocated.is_empty() {
                self.ckpt_maps.remove(&at.0);
            }
        }
        self.classify(at, false);
    }

    /// Makes a block valid that was allocated, or that roll-forward found.
    pub fn set_valid(&mut self, at: SegNo, offset: u32, now: u64) {
        let (cp_in_progress, cp_disabled) = (self.cp_in_progress, self.cp_disabled);
        let ckpt_maps = self.ckpt_maps_of(at);
        ckpt_maps.allocated.clear(offset);
        if cp_in_progress {
            ckpt_maps.next.set(offset);
        } else if !cp_disabled {
            ckpt_maps.ckpt_valid.set(offset);
        }
        let mut map = self.current(at);
        assert!(!map.get(offset), "only an invalid block becomes valid");
        map.set(offset);
        self.store(at, map, 1, now);
    }

    /// Makes a block invalid. Returns whether it stays unusable until checkpoints are enabled.
    ///
    /// # Errors
    /// It is not valid: a structure of the volume refers to a free block, or two structures refer to one block.
    pub fn clear_valid(&mut self, at: SegNo, offset: u32, now: u64) -> Result<bool, DiskError> {
        let mut map = self.current(at);
        if !map.get(offset) {
            return Err(corrupt(
                at,
                "has a block that is referred to, but not valid",
            ));
        }
        let unusable = self.ckpt_maps_of(at).ckpt_valid.get(offset);
        map.clear(offset);
        self.invalidated.0 += 1;
        self.invalidated.1 += 1;
        self.store(at, map, -1, now);
        debug_assert!(
            !unusable || self.busy(at).get(offset),
            "a block that the last checkpoint needs stays busy"
        );
        Ok(self.cp_disabled && unusable)
    }

    fn store(&mut self, at: SegNo, map: BlockBitmap, change: i32, now: u64) {
        debug_assert!(
            change == 1 || change == -1,
            "one block becomes valid or invalid"
        );
        let segment = &mut self.segments[at.0 as usize];
        let before = u64::from(segment.valid);
        debug_assert!(
            before > 0 || change > 0,
            "a segment without valid blocks loses none"
        );
        segment.mtime = if segment.mtime == 0 {
            now
        } else {
            (segment.mtime.saturating_mul(before).saturating_add(now)) / (before + 1)
        };
        self.oldest = self.oldest.min(segment.mtime);
        self.newest = self.newest.max(segment.mtime);
        let after = before.saturating_add_signed(change.into());
        assert!(
            after <= u64::from(SEGMENT_BLOCKS),
            "a segment has at most 512 valid blocks"
        );
        debug_assert_eq!(
            u64::from(map.count()),
            after,
            "the count is that of the bitmap"
        );
        segment.valid = after as u16;
        segment.map = match after {
            0 => None,
            _ if after == u64::from(SEGMENT_BLOCKS) => None,
            _ => match segment.map.take() {
                Some(mut old) => {
                    *old = map;
                    Some(old)
                }
                None => Some(Box::new(map)),
            },
        };
        let kind = segment.kind;
        let total = self.valid_of(kind);
        debug_assert!(*total >= before, "the total includes each segment");
        *total = total.saturating_add_signed(change.into());
        self.lists.add_valid(at, change);
        self.changed.insert(at.0);
        self.classify(at, false);
    }

    /// Opens a segment for a curseg of this type.
    pub fn open(&mut self, at: SegNo, kind: LogType) {
        assert!(
            self.state(at) != SegmentState::Open,
            "a segment has at most one curseg"
        );
        let old = self.kind(at);
        if old != kind {
            let valid = u64::from(self.segments[at.0 as usize].valid);
            if self.state(at) == SegmentState::Dirty {
                self.lists.retype_dirty(at, old, kind);
            }
            assert!(
                *self.valid_of(old) >= valid,
                "the total includes each segment"
            );
            *self.valid_of(old) -= valid;
            *self.valid_of(kind) += valid;
            self.segments[at.0 as usize].kind = kind;
            self.changed.insert(at.0);
        }
        self.classify(at, true);
    }

    /// A curseg leaves a segment.
    pub fn close(&mut self, at: SegNo) {
        assert!(
            self.state(at) == SegmentState::Open,
            "a curseg leaves an open segment"
        );
        self.enter(at, SegmentState::Free);
        self.drop_if_unneeded(at);
    }

    /// Sets the type of a segment without valid blocks.
    pub fn set_kind_of_empty(&mut self, at: SegNo, kind: LogType) {
        assert!(
            self.valid(at) == 0,
            "valid blocks keep the type of their segment"
        );
        assert!(
            self.state(at) != SegmentState::Open,
            "an open segment has the type of its log"
        );
        self.segments[at.0 as usize].kind = kind;
    }

    /// Derives a segment's state from its bitmaps; `open`: a curseg enters it now.
    fn classify(&mut self, at: SegNo, open: bool) {
        let segment = &self.segments[at.0 as usize];
        let old = segment.state;
        let new = if open || old == SegmentState::Open {
            SegmentState::Open
        } else if segment.valid == 0 {
            match self.ckpt_maps.contains_key(&at.0) && !self.busy(at).is_empty() {
                true => SegmentState::Prefree,
                false => SegmentState::Free,
            }
        } else if u32::from(segment.valid) == SEGMENT_BLOCKS {
            SegmentState::Full
        } else {
            SegmentState::Dirty
        };
        if old != new {
            self.enter(at, new);
        }
    }

    /// Changes a segment's state.
    fn enter(&mut self, at: SegNo, state: SegmentState) {
        let segment = &mut self.segments[at.0 as usize];
        let old = std::mem::replace(&mut segment.state, state);
        self.lists.change_state(at, segment.kind, old, state);
    }

    /// A segment's entry as it is stored.
    pub fn entry(&self, at: SegNo) -> SitEntry {
        let segment = &self.segments[at.0 as usize];
        let map: [u8; MAP_SIZE] = self.current(at).to_disk();
        SitEntry {
            kind: segment.kind,
            valid: segment.valid,
            map,
            mtime: segment.mtime,
        }
    }

    /// A checkpoint begins: the blocks that are valid now are those it refers to. Returns the segments whose entries it
    /// has to write.
    pub fn begin_checkpoint(&mut self) -> BTreeSet<u32> {
        assert!(!self.cp_in_progress, "one checkpoint at a time");
        self.cp_in_progress = true;
        self.invalidated.1 = 0;
        let ckpt_maps: Vec<u32> = self.ckpt_maps.keys().copied().collect();
        for n in ckpt_maps {
            let current = self.current(SegNo(n));
            self.ckpt_maps_of(SegNo(n)).next = current;
        }
        std::mem::take(&mut self.changed)
    }

    /// The checkpoint is durable. Returns the blocks that it freed, by segment. `disables_cp`: it is the last one until
    /// checkpoints are enabled.
    pub fn end_checkpoint(&mut self, disables_cp: bool) -> Vec<(SegNo, BlockBitmap)> {
        assert!(self.cp_in_progress, "a checkpoint was begun");
        self.cp_in_progress = false;
        self.cp_disabled = disables_cp;
        let ckpt_maps: Vec<u32> = self.ckpt_maps.keys().copied().collect();
        let mut freed = Vec::new();
        for n in ckpt_maps {
            let t = self.ckpt_maps_of(SegNo(n));
            let before = t.ckpt_valid;
            t.ckpt_valid = t.next;
            self.drop_if_unneeded(SegNo(n));
            let blocks = before.without(self.busy(SegNo(n)));
            debug_assert!(
                blocks.without(self.current(SegNo(n))) == blocks,
                "a valid block is never discarded"
            );
            if !blocks.is_empty() {
                freed.push((SegNo(n), blocks));
            }
        }
        freed
    }

    /// The checkpoint failed: a mount may find it or the one before, so the blocks of both are kept.
    pub fn abandon_checkpoint(&mut self, entries: &BTreeSet<u32>) {
        assert!(self.cp_in_progress, "a checkpoint was begun");
        self.cp_in_progress = false;
        for t in self.ckpt_maps.values_mut() {
            t.ckpt_valid = t.ckpt_valid.or(t.next);
        }
        self.changed.extend(entries);
    }
}
