//! The segment information table in memory: which blocks are valid, and which may be written.
//!
//! **A block may be written** when nobody needs what is in it:
//!
//! - it is not valid now;
//! - it was not valid at the last durable checkpoint, nor in the one under way: a crash would bring
//!   that one back;
//! - it did not become valid since: fsync's chain of nodes may lead to it, and recovery follows that
//!   chain although newer blocks have taken over;
//! - nobody has claimed it.
//!
//! While checkpoints are switched off (`cp_disabled`) the third does not hold, for nothing of what was written since is
//! recovered: a block that loses its owner can be written again at once, unless the last checkpoint has it.
//!
//! The second and third are one bitmap here, `ckpt_valid`, with a second one, `next`, while a checkpoint
//! is being written. Both are kept only for segments that changed since (`CkptMaps`): in all others
//! they equal the map of valid blocks. And that map is kept only where it is neither empty nor full,
//! so a large volume costs 24 bytes a segment.

use std::collections::{BTreeMap, BTreeSet};

use super::map::{BitSet, Map};
use super::seglists::{ListedSegment, SegmentLists, SegmentState};
use crate::disk::{
    DiskError, Layout, LogType, SEGMENT_BLOCKS, SegNo, SitEntry, Structure, sit::MAP_SIZE,
};

struct Segment {
    /// Valid blocks, where some but not all are.
    map: Option<Box<Map>>,
    mtime: u64,
    valid: u16,
    kind: LogType,
    state: SegmentState,
}

/// What keeps blocks of a segment from being written, beside being valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CkptMaps {
    ckpt_valid: Map,
    next: Map,
    allocated: Map,
}

/// All segments of a volume.
pub struct Sit {
    segments: Vec<Segment>,
    ckpt_maps: BTreeMap<u32, CkptMaps>,
    /// Segments whose entry on disk is another one.
    changed: BTreeSet<u32>,
    /// A checkpoint is being written.
    cp_in_progress: bool,
    /// Checkpoints are switched off: a crash brings back the last one, and nothing written since.
    cp_disabled: bool,
    lists: SegmentLists,
    valid_data: u64,
    valid_nodes: u64,
    oldest: u64,
    newest: u64,
    /// Blocks that became invalid, in all and since the last snapshot.
    invalidated: (u64, u64),
}

fn damaged(segment: SegNo, rule: &'static str) -> DiskError {
    DiskError::entry(Structure::Sit, segment.0, rule)
}

impl Sit {
    /// A table without a valid block.
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

    /// Takes a segment's entry while the table is being read.
    pub fn load(&mut self, at: SegNo, entry: &SitEntry) {
        let segment = &mut self.segments[at.0 as usize];
        assert!(segment.valid == 0, "each entry is read once");
        segment.valid = entry.valid;
        segment.kind = entry.kind;
        segment.mtime = entry.mtime;
        if entry.valid > 0 && u32::from(entry.valid) < SEGMENT_BLOCKS {
            segment.map = Some(Box::new(Map::from_disk(&entry.map)));
        }
        *self.valid_of(entry.kind) += u64::from(entry.valid);
        if entry.valid > 0 {
            self.oldest = self.oldest.min(entry.mtime);
            self.newest = self.newest.max(entry.mtime);
        }
        self.lists.add_valid(at, entry.valid.into());
        self.classify(at, false);
    }

    /// Forgets that anything differs from the device, as after reading the table.
    pub fn loaded(&mut self) {
        self.changed.clear();
    }

    const fn valid_of(&mut self, kind: LogType) -> &mut u64 {
        if kind.is_node() {
            &mut self.valid_nodes
        } else {
            &mut self.valid_data
        }
    }

    /// Number of segments.
    pub fn len(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Number of sections that can be used.
    pub const fn sections(&self) -> u32 {
        self.lists.sections()
    }

    /// Segments in a section.
    pub const fn per_section(&self) -> u32 {
        self.lists.per_section()
    }

    /// The section a segment lies in; the last one may be too short to be used.
    pub const fn section_of(&self, at: SegNo) -> u32 {
        self.lists.section_of(at)
    }

    /// Valid blocks of a segment.
    pub fn valid(&self, at: SegNo) -> u32 {
        self.segments[at.0 as usize].valid.into()
    }

    /// Whether the last checkpoint, which an unmount or a crash brings back, has this block. Where
    /// checkpoints are written, nothing depends on that.
    pub fn is_in_checkpoint(&self, at: SegNo, offset: u32) -> bool {
        self.cp_disabled && self.ckpt_valid(at).get(offset)
    }

    /// Whether it has any block of this segment.
    pub fn has_checkpointed(&self, at: SegNo) -> bool {
        self.cp_disabled && !self.ckpt_valid(at).is_empty()
    }

    fn ckpt_valid(&self, at: SegNo) -> Map {
        let ckpt_maps = self.ckpt_maps.get(&at.0);
        ckpt_maps.map_or_else(|| self.current(at), |t| t.ckpt_valid)
    }

    /// Whether checkpoints are switched off.
    pub const fn is_cp_disabled(&self) -> bool {
        self.cp_disabled
    }

    /// Blocks of data and of nodes that are valid.
    pub const fn totals(&self) -> (u64, u64) {
        (self.valid_data, self.valid_nodes)
    }

    /// What kind of blocks a segment holds.
    pub fn kind(&self, at: SegNo) -> LogType {
        self.segments[at.0 as usize].kind
    }

    /// What a segment is.
    pub fn state(&self, at: SegNo) -> SegmentState {
        self.segments[at.0 as usize].state
    }

    /// Number of segments in a state.
    pub const fn in_state(&self, state: SegmentState) -> u32 {
        self.lists.in_state(state)
    }

    /// Sections with nothing in use.
    pub const fn free_sections(&self) -> &BitSet {
        self.lists.free_sections()
    }

    /// Sections without a log in which some but not all blocks are valid.
    pub const fn dirty_sections(&self) -> &BitSet {
        self.lists.dirty_sections()
    }

    /// The same, those with the fewest valid blocks first.
    pub fn emptiest(&self) -> impl Iterator<Item = u32> {
        self.lists.emptiest()
    }

    /// Valid blocks of a section.
    pub fn valid_in(&self, section: u32) -> u32 {
        self.lists.valid_in(section)
    }

    /// The segments of a section.
    pub fn segments_of(&self, section: u32) -> impl Iterator<Item = SegNo> + use<> {
        self.lists.segments_of(section)
    }

    /// When the blocks of a section were written, on average.
    pub fn age_stamp(&self, section: u32) -> u64 {
        let stamps = self
            .segments_of(section)
            .map(|at| self.segments[at.0 as usize].mtime);
        stamps.fold(0u64, u64::saturating_add) / u64::from(self.per_section())
    }

    /// When the blocks of a segment were written, on average.
    pub fn stamp(&self, at: SegNo) -> u64 {
        self.segments[at.0 as usize].mtime
    }

    /// The latest time stamp of a segment with valid blocks so far.
    pub const fn newest(&self) -> u64 {
        self.newest
    }

    /// The least time stamp of a segment with valid blocks so far.
    pub const fn oldest(&self) -> u64 {
        self.oldest
    }

    /// Blocks that became invalid, since the table was read and since the last snapshot.
    pub const fn invalidated(&self) -> (u64, u64) {
        self.invalidated
    }

    /// Segments in state `Dirty` that hold this type.
    pub fn dirty(&self, kind: LogType) -> &BitSet {
        self.lists.dirty(kind)
    }

    /// The valid blocks of a segment.
    pub fn current(&self, at: SegNo) -> Map {
        let segment = &self.segments[at.0 as usize];
        match &segment.map {
            Some(map) => **map,
            None if segment.valid == 0 => Map::EMPTY,
            None => Map::FULL,
        }
    }

    /// The blocks of a segment that must not be written.
    pub fn busy(&self, at: SegNo) -> Map {
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

    /// The blocks of a segment that are claimed.
    pub fn allocated(&self, at: SegNo) -> Map {
        self.ckpt_maps
            .get(&at.0)
            .map_or(Map::EMPTY, |t| t.allocated)
    }

    /// Whether a block lost its owner after the last checkpoint, which still has it, and nobody has claimed it.
    pub fn is_freed(&self, at: SegNo, offset: u32) -> bool {
        !self.current(at).get(offset)
            && !self.allocated(at).get(offset)
            && self.ckpt_valid(at).get(offset)
    }

    fn ckpt_maps_of(&mut self, at: SegNo) -> &mut CkptMaps {
        let current = self.current(at);
        self.ckpt_maps.entry(at.0).or_insert(CkptMaps {
            ckpt_valid: current,
            next: current,
            allocated: Map::EMPTY,
        })
    }

    /// Claims blocks that may be written.
    pub fn allocate(&mut self, at: SegNo, blocks: std::ops::Range<u32>) {
        let busy = self.busy(at);
        let ckpt_maps = self.ckpt_maps_of(at);
        for offset in blocks {
            assert!(!busy.get(offset), "a block in use is claimed");
            ckpt_maps.allocated.set(offset);
        }
        self.classify(at, false);
    }

    /// Ends the claim of a block that nobody names.
    pub fn release(&mut self, at: SegNo, offset: u32) {
        let ckpt_maps = self.ckpt_maps_of(at);
        assert!(ckpt_maps.allocated.get(offset), "released, but not claimed");
        ckpt_maps.allocated.clear(offset);
        self.drop_if_unneeded(at);
    }

    /// Drops what is known of a segment beside its valid blocks when it says nothing more.
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

    /// Makes a block valid: one that was claimed, or that a crash left behind.
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
        assert!(!map.get(offset), "a block becomes valid once");
        map.set(offset);
        self.store(at, map, 1, now);
    }

    /// Makes a block invalid. Whether it cannot be used before checkpoints are written again.
    ///
    /// # Errors
    /// It is not valid: a structure of the volume refers to a block that the table says is free, or
    /// two structures refer to one block.
    pub fn clear_valid(&mut self, at: SegNo, offset: u32, now: u64) -> Result<bool, DiskError> {
        let mut map = self.current(at);
        if !map.get(offset) {
            return Err(damaged(
                at,
                "has a block that is referred to, but not valid",
            ));
        }
        let unusable = self.ckpt_maps_of(at).ckpt_valid.get(offset);
        map.clear(offset);
        self.invalidated.0 += 1;
        self.invalidated.1 += 1;
        self.store(at, map, -1, now);
        Ok(self.cp_disabled && unusable)
    }

    fn store(&mut self, at: SegNo, map: Map, change: i32, now: u64) {
        let segment = &mut self.segments[at.0 as usize];
        let before = u64::from(segment.valid);
        segment.mtime = if segment.mtime == 0 {
            now
        } else {
            (segment.mtime.saturating_mul(before).saturating_add(now)) / (before + 1)
        };
        self.oldest = self.oldest.min(segment.mtime);
        self.newest = self.newest.max(segment.mtime);
        let after = before.saturating_add_signed(change.into());
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
        *total = total.saturating_add_signed(change.into());
        self.lists.add_valid(at, change);
        self.changed.insert(at.0);
        self.classify(at, false);
    }

    /// Opens a segment for a log of this type.
    pub fn open(&mut self, at: SegNo, kind: LogType) {
        assert!(
            self.state(at) != SegmentState::Open,
            "a segment has one log"
        );
        let old = self.kind(at);
        if old != kind {
            let valid = u64::from(self.segments[at.0 as usize].valid);
            if self.state(at) == SegmentState::Dirty {
                self.lists.retype_dirty(at, old, kind);
            }
            *self.valid_of(old) -= valid;
            *self.valid_of(kind) += valid;
            self.segments[at.0 as usize].kind = kind;
            self.changed.insert(at.0);
        }
        self.classify(at, true);
    }

    /// Ends a log's use of a segment.
    pub fn close(&mut self, at: SegNo) {
        assert!(self.state(at) == SegmentState::Open);
        self.enter(at, SegmentState::Free);
        self.drop_if_unneeded(at);
    }

    /// Says what kind of blocks a segment without valid ones is going to hold.
    pub fn set_kind_of_empty(&mut self, at: SegNo, kind: LogType) {
        assert!(self.valid(at) == 0);
        self.segments[at.0 as usize].kind = kind;
    }

    /// Finds out what a segment is; `open`: a log is in it from now on.
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

    /// A segment passes to another state.
    fn enter(&mut self, at: SegNo, state: SegmentState) {
        let segment = &mut self.segments[at.0 as usize];
        let old = std::mem::replace(&mut segment.state, state);
        self.lists.change_state(at, segment.kind, old, state);
    }

    /// A segment's entry as it is now.
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

    /// A checkpoint begins: what is valid now is what it will refer to. Returns the segments whose
    /// entries it has to write.
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

    /// The checkpoint is durable. Returns the blocks it made writable, by segment. `disables_cp`: it is the last
    /// one for now.
    pub fn end_checkpoint(&mut self, disables_cp: bool) -> Vec<(SegNo, Map)> {
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
            if !blocks.is_empty() {
                freed.push((SegNo(n), blocks));
            }
        }
        freed
    }

    /// The checkpoint failed: both it and the one before may be the volume's state.
    pub fn abandon_checkpoint(&mut self, entries: &BTreeSet<u32>) {
        assert!(self.cp_in_progress, "a checkpoint was begun");
        self.cp_in_progress = false;
        for t in self.ckpt_maps.values_mut() {
            t.ckpt_valid = t.ckpt_valid.or(t.next);
        }
        self.changed.extend(entries);
    }

    /// Asserts everything that is always true of the table.
    pub fn check(&self) {
        let mut totals = (0, 0);
        for n in 0..self.len() {
            let at = SegNo(n);
            let segment = &self.segments[n as usize];
            let valid = self.current(at).count();
            assert_eq!(
                valid,
                u32::from(segment.valid),
                "segment {n}: count and map"
            );
            let partly = valid > 0 && valid < SEGMENT_BLOCKS;
            assert_eq!(segment.map.is_some(), partly, "segment {n}: map kept");
            let expected = match valid {
                _ if segment.state == SegmentState::Open => SegmentState::Open,
                0 if self.busy(at).is_empty() => SegmentState::Free,
                0 => SegmentState::Prefree,
                SEGMENT_BLOCKS => SegmentState::Full,
                _ => SegmentState::Dirty,
            };
            assert_eq!(segment.state, expected, "segment {n}");
            let total = if segment.kind.is_node() {
                &mut totals.1
            } else {
                &mut totals.0
            };
            *total += u64::from(valid);
            if let Some(t) = self.ckpt_maps.get(&n) {
                let clash = t.allocated.and(self.current(at).or(t.ckpt_valid));
                assert!(clash.is_empty(), "segment {n}: claimed and in use");
            }
        }
        assert_eq!(totals, self.totals());
        self.lists.check((0..self.len()).map(|n| ListedSegment {
            at: SegNo(n),
            kind: self.kind(SegNo(n)),
            state: self.state(SegNo(n)),
            valid: self.valid(SegNo(n)),
        }));
    }
}
