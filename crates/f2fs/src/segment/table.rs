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
//! While checkpoints are switched off (`paused`) the third does not hold, for nothing of what was written since is
//! recovered: a block that loses its owner can be written again at once, unless the last checkpoint has it.
//!
//! The second and third are one bitmap here, `durable`, with a second one, `next`, while a checkpoint
//! is being written. Both are kept only for segments that changed since (`Touched`): in all others
//! they equal the map of valid blocks. And that map is kept only where it is neither empty nor full,
//! so a large volume costs 24 bytes a segment.

use std::collections::{BTreeMap, BTreeSet};

use super::map::{BitSet, Map};
use super::states::{Standing, State, States};
use crate::disk::{
    DiskError, Layout, LogType, SEGMENT_BLOCKS, SegNo, SitEntry, Structure, sit::MAP_SIZE,
};

struct Segment {
    /// Valid blocks, where some but not all are.
    map: Option<Box<Map>>,
    mtime: u64,
    valid: u16,
    kind: LogType,
    state: State,
}

/// What keeps blocks of a segment from being written, beside being valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Touched {
    durable: Map,
    next: Map,
    claimed: Map,
}

/// All segments of a volume.
pub struct Table {
    segments: Vec<Segment>,
    touched: BTreeMap<u32, Touched>,
    /// Segments whose entry on disk is another one.
    changed: BTreeSet<u32>,
    /// A checkpoint is being written.
    under_way: bool,
    /// Checkpoints are switched off: a crash brings back the last one, and nothing written since.
    paused: bool,
    states: States,
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

impl Table {
    /// A table without a valid block.
    pub fn new(layout: &Layout) -> Self {
        let count = layout.main_segments;
        let segment = || Segment {
            map: None,
            mtime: 0,
            valid: 0,
            kind: LogType::HotData,
            state: State::Free,
        };
        Self {
            segments: std::iter::repeat_with(segment)
                .take(count as usize)
                .collect(),
            touched: BTreeMap::new(),
            changed: BTreeSet::new(),
            under_way: false,
            paused: false,
            states: States::new(count, layout.segments_per_section),
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
        self.states.add_valid(at, entry.valid.into());
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
        self.states.sections()
    }

    /// Segments in a section.
    pub const fn per_section(&self) -> u32 {
        self.states.per_section()
    }

    /// The section a segment lies in; the last one may be too short to be used.
    pub const fn section_of(&self, at: SegNo) -> u32 {
        self.states.section_of(at)
    }

    /// Valid blocks of a segment.
    pub fn valid(&self, at: SegNo) -> u32 {
        self.segments[at.0 as usize].valid.into()
    }

    /// Whether the last checkpoint, which an unmount or a crash brings back, has this block. Where
    /// checkpoints are written, nothing depends on that.
    pub fn is_kept(&self, at: SegNo, offset: u32) -> bool {
        self.paused && self.durable(at).get(offset)
    }

    /// Whether it has any block of this segment.
    pub fn keeps_any(&self, at: SegNo) -> bool {
        self.paused && !self.durable(at).is_empty()
    }

    fn durable(&self, at: SegNo) -> Map {
        let touched = self.touched.get(&at.0);
        touched.map_or_else(|| self.current(at), |t| t.durable)
    }

    /// Whether checkpoints are switched off.
    pub const fn is_paused(&self) -> bool {
        self.paused
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
    pub fn state(&self, at: SegNo) -> State {
        self.segments[at.0 as usize].state
    }

    /// Number of segments in a state.
    pub const fn in_state(&self, state: State) -> u32 {
        self.states.in_state(state)
    }

    /// Sections with nothing in use.
    pub const fn free_sections(&self) -> &BitSet {
        self.states.free_sections()
    }

    /// Sections without a log in which some but not all blocks are valid.
    pub const fn dirty_sections(&self) -> &BitSet {
        self.states.dirty_sections()
    }

    /// The same, those with the fewest valid blocks first.
    pub fn emptiest(&self) -> impl Iterator<Item = u32> {
        self.states.emptiest()
    }

    /// Valid blocks of a section.
    pub fn valid_in(&self, section: u32) -> u32 {
        self.states.valid_in(section)
    }

    /// The segments of a section.
    pub fn segments_of(&self, section: u32) -> impl Iterator<Item = SegNo> + use<> {
        self.states.segments_of(section)
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
        self.states.dirty(kind)
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
        match self.touched.get(&at.0) {
            None => current,
            Some(t) => {
                let held = current.or(t.durable).or(t.claimed);
                if self.under_way {
                    held.or(t.next)
                } else {
                    held
                }
            }
        }
    }

    /// The blocks of a segment that are claimed.
    pub fn claimed(&self, at: SegNo) -> Map {
        self.touched.get(&at.0).map_or(Map::EMPTY, |t| t.claimed)
    }

    /// Whether a block lost its owner after the last checkpoint, which still has it, and nobody has claimed it.
    pub fn is_freed(&self, at: SegNo, offset: u32) -> bool {
        !self.current(at).get(offset)
            && !self.claimed(at).get(offset)
            && self.durable(at).get(offset)
    }

    fn touch(&mut self, at: SegNo) -> &mut Touched {
        let current = self.current(at);
        self.touched.entry(at.0).or_insert(Touched {
            durable: current,
            next: current,
            claimed: Map::EMPTY,
        })
    }

    /// Claims blocks that may be written.
    pub fn claim(&mut self, at: SegNo, blocks: std::ops::Range<u32>) {
        let busy = self.busy(at);
        let touched = self.touch(at);
        for offset in blocks {
            assert!(!busy.get(offset), "a block in use is claimed");
            touched.claimed.set(offset);
        }
        self.classify(at, false);
    }

    /// Ends the claim of a block that nobody names.
    pub fn release(&mut self, at: SegNo, offset: u32) {
        let touched = self.touch(at);
        assert!(touched.claimed.get(offset), "released, but not claimed");
        touched.claimed.clear(offset);
        self.settle(at);
    }

    /// Drops what is known of a segment beside its valid blocks when it says nothing more.
    fn settle(&mut self, at: SegNo) {
        let current = self.current(at);
        if let Some(t) = self.touched.get(&at.0) {
            let quiet = t.durable == current && (!self.under_way || t.next == current);
            if quiet && t.claimed.is_empty() {
                self.touched.remove(&at.0);
            }
        }
        self.classify(at, false);
    }

    /// Makes a block valid: one that was claimed, or that a crash left behind.
    pub fn set_valid(&mut self, at: SegNo, offset: u32, now: u64) {
        let (under_way, paused) = (self.under_way, self.paused);
        let touched = self.touch(at);
        touched.claimed.clear(offset);
        if under_way {
            touched.next.set(offset);
        } else if !paused {
            touched.durable.set(offset);
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
        let unusable = self.touch(at).durable.get(offset);
        map.clear(offset);
        self.invalidated.0 += 1;
        self.invalidated.1 += 1;
        self.store(at, map, -1, now);
        Ok(self.paused && unusable)
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
        self.states.add_valid(at, change);
        self.changed.insert(at.0);
        self.classify(at, false);
    }

    /// Opens a segment for a log of this type.
    pub fn open(&mut self, at: SegNo, kind: LogType) {
        assert!(self.state(at) != State::Open, "a segment has one log");
        let old = self.kind(at);
        if old != kind {
            let valid = u64::from(self.segments[at.0 as usize].valid);
            if self.state(at) == State::Dirty {
                self.states.retype_dirty(at, old, kind);
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
        assert!(self.state(at) == State::Open);
        self.enter(at, State::Free);
        self.settle(at);
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
        let new = if open || old == State::Open {
            State::Open
        } else if segment.valid == 0 {
            match self.touched.contains_key(&at.0) && !self.busy(at).is_empty() {
                true => State::Held,
                false => State::Free,
            }
        } else if u32::from(segment.valid) == SEGMENT_BLOCKS {
            State::Full
        } else {
            State::Dirty
        };
        if old != new {
            self.enter(at, new);
        }
    }

    /// A segment passes to another state.
    fn enter(&mut self, at: SegNo, state: State) {
        let segment = &mut self.segments[at.0 as usize];
        let old = std::mem::replace(&mut segment.state, state);
        self.states.pass(at, segment.kind, old, state);
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
        assert!(!self.under_way, "one checkpoint at a time");
        self.under_way = true;
        self.invalidated.1 = 0;
        let touched: Vec<u32> = self.touched.keys().copied().collect();
        for n in touched {
            let current = self.current(SegNo(n));
            self.touch(SegNo(n)).next = current;
        }
        std::mem::take(&mut self.changed)
    }

    /// The checkpoint is durable. Returns the blocks it made writable, by segment. `pauses`: it is the last
    /// one for now.
    pub fn end_checkpoint(&mut self, pauses: bool) -> Vec<(SegNo, Map)> {
        assert!(self.under_way, "a checkpoint was begun");
        self.under_way = false;
        self.paused = pauses;
        let touched: Vec<u32> = self.touched.keys().copied().collect();
        let mut freed = Vec::new();
        for n in touched {
            let t = self.touch(SegNo(n));
            let before = t.durable;
            t.durable = t.next;
            self.settle(SegNo(n));
            let blocks = before.without(self.busy(SegNo(n)));
            if !blocks.is_empty() {
                freed.push((SegNo(n), blocks));
            }
        }
        freed
    }

    /// The checkpoint failed: both it and the one before may be the volume's state.
    pub fn abandon_checkpoint(&mut self, entries: &BTreeSet<u32>) {
        assert!(self.under_way, "a checkpoint was begun");
        self.under_way = false;
        for t in self.touched.values_mut() {
            t.durable = t.durable.or(t.next);
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
                _ if segment.state == State::Open => State::Open,
                0 if self.busy(at).is_empty() => State::Free,
                0 => State::Held,
                SEGMENT_BLOCKS => State::Full,
                _ => State::Dirty,
            };
            assert_eq!(segment.state, expected, "segment {n}");
            let total = if segment.kind.is_node() {
                &mut totals.1
            } else {
                &mut totals.0
            };
            *total += u64::from(valid);
            if let Some(t) = self.touched.get(&n) {
                let clash = t.claimed.and(self.current(at).or(t.durable));
                assert!(clash.is_empty(), "segment {n}: claimed and in use");
            }
        }
        assert_eq!(totals, self.totals());
        self.states.check((0..self.len()).map(|n| Standing {
            at: SegNo(n),
            kind: self.kind(SegNo(n)),
            state: self.state(SegNo(n)),
            valid: self.valid(SegNo(n)),
        }));
    }
}
