//! The kernel's `free_segmap` and `dirty_seglist`: segments and sections by their state, so that no search looks at
//! each one: how many are in a state, which are free or dirty, and which have the fewest valid blocks.
//!
//! **Rule.** Everything here follows from each segment's state, type and number of valid blocks. [`Sit`] owns these
//! and reports each change.
//!
//! [`Sit`]: super::sit::Sit

use super::by_valid::ByValid;
use super::map::BitSet;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};

/// State of a segment; each segment has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Each block may be written; no curseg is in it.
    Free,
    /// No block is valid, but some must not be written before the next checkpoint is durable, or are allocated.
    Prefree,
    /// Some blocks are valid, not all.
    Dirty,
    /// All blocks are valid.
    Full,
    /// A curseg is in it.
    Open,
}

const STATES: usize = 5;

/// Counts of one section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct SectionContent {
    /// Segments that are not free.
    used: u32,
    /// Segments with a curseg.
    open: u32,
    valid: u32,
}

/// What the SIT knows of a segment and these lists depend on.
#[cfg(test)]
pub(super) struct ListedSegment {
    pub at: SegNo,
    pub kind: LogType,
    pub state: SegmentState,
    pub valid: u32,
}

/// The lists of all segments and sections.
pub(super) struct SegmentLists {
    per_section: u32,
    /// Whole sections.
    sections: u32,
    /// Counts of each section, a shorter last one included.
    in_section: Vec<SectionContent>,
    free_sections: BitSet,
    /// Sections without a curseg that have valid and invalid blocks (`dirty_secmap`).
    dirty_sections: BitSet,
    /// The same sections, by the number of valid blocks.
    by_valid: ByValid,
    /// Segments in state `Dirty`, by type (`dirty_segmap`).
    dirty: [BitSet; 6],
    by_state: [u32; STATES],
}

impl SegmentLists {
    /// Lists for this number of segments, all of them free.
    pub fn new(segments: u32, per_section: u32) -> Self {
        assert!(per_section > 0, "a section has segments");
        let sections = segments / per_section;
        let mut free_sections = BitSet::new(sections);
        for section in 0..sections {
            free_sections.put(section, true);
        }
        let mut by_state = [0; STATES];
        by_state[SegmentState::Free as usize] = segments;
        Self {
            per_section,
            sections,
            in_section: vec![SectionContent::default(); segments.div_ceil(per_section) as usize],
            free_sections,
            dirty_sections: BitSet::new(sections),
            by_valid: ByValid::new(sections, per_section * SEGMENT_BLOCKS),
            dirty: std::array::from_fn(|_| BitSet::new(segments)),
            by_state,
        }
    }

    pub const fn sections(&self) -> u32 {
        self.sections
    }

    pub const fn per_section(&self) -> u32 {
        self.per_section
    }

    pub const fn section_of(&self, at: SegNo) -> u32 {
        at.0 / self.per_section
    }

    pub fn segments_of(&self, section: u32) -> impl Iterator<Item = SegNo> + use<> {
        let first = section * self.per_section;
        (first..first + self.per_section).map(SegNo)
    }

    pub const fn in_state(&self, state: SegmentState) -> u32 {
        self.by_state[state as usize]
    }

    pub const fn free_sections(&self) -> &BitSet {
        &self.free_sections
    }

    pub const fn dirty_sections(&self) -> &BitSet {
        &self.dirty_sections
    }

    pub fn emptiest(&self) -> impl Iterator<Item = u32> {
        self.by_valid.iter()
    }

    pub fn valid_in(&self, section: u32) -> u32 {
        self.in_section[section as usize].valid
    }

    pub fn dirty(&self, kind: LogType) -> &BitSet {
        &self.dirty[kind.index()]
    }

    fn content(&mut self, at: SegNo) -> &mut SectionContent {
        let section = self.section_of(at);
        &mut self.in_section[section as usize]
    }

    /// The number of valid blocks of a segment changes by `change`.
    pub fn add_valid(&mut self, at: SegNo, change: i32) {
        let content = self.content(at);
        content.valid = content
            .valid
            .checked_add_signed(change)
            .expect("a section's valid blocks are the sum of its segments'");
        self.reclassify_section(at);
    }

    /// A segment of this type changes its state.
    pub fn change_state(&mut self, at: SegNo, kind: LogType, old: SegmentState, new: SegmentState) {
        assert!(old != new, "a segment enters another state");
        assert!(
            self.by_state[old as usize] > 0,
            "a segment is counted in its state"
        );
        assert!(
            self.dirty[kind.index()].get(at.0) == (old == SegmentState::Dirty),
            "the list of dirty segments of a type has the dirty ones and no others"
        );
        if old == SegmentState::Dirty {
            self.dirty[kind.index()].put(at.0, false);
        }
        if new == SegmentState::Dirty {
            self.dirty[kind.index()].put(at.0, true);
        }
        let content = self.content(at);
        content.used = content.used + u32::from(new != SegmentState::Free)
            - u32::from(old != SegmentState::Free);
        content.open = content.open + u32::from(new == SegmentState::Open)
            - u32::from(old == SegmentState::Open);
        self.reclassify_section(at);
        self.by_state[old as usize] -= 1;
        self.by_state[new as usize] += 1;
    }

    /// A segment in state `Dirty` changes its type.
    pub fn retype_dirty(&mut self, at: SegNo, old: LogType, new: LogType) {
        assert!(
            self.dirty[old.index()].get(at.0),
            "a dirty segment is listed by its type"
        );
        assert!(
            !self.dirty[new.index()].get(at.0),
            "a dirty segment is in one list"
        );
        self.dirty[old.index()].put(at.0, false);
        self.dirty[new.index()].put(at.0, true);
    }

    /// Updates a section's lists after one of its segments changed.
    fn reclassify_section(&mut self, at: SegNo) {
        let section = self.section_of(at);
        if section < self.sections {
            let content = self.in_section[section as usize];
            let all = self.per_section * SEGMENT_BLOCKS;
            assert!(
                content.open <= content.used && content.used <= self.per_section,
                "open segments are in use, and used ones are in the section"
            );
            assert!(
                content.valid <= all,
                "a section has at most its size of valid blocks"
            );
            let dirty = content.open == 0 && content.valid > 0 && content.valid < all;
            self.free_sections.put(section, content.used == 0);
            self.dirty_sections.put(section, dirty);
            self.by_valid.put(section, dirty.then_some(content.valid));
        }
    }

    /// Asserts that all lists follow from these segments, which are all there are.
    #[cfg(test)]
    pub fn check(&self, segments: impl Iterator<Item = ListedSegment>) {
        let mut by_state = [0; STATES];
        let mut dirty: [u32; 6] = [0; 6];
        let mut sections = vec![SectionContent::default(); self.in_section.len()];
        for segment in segments {
            let n = segment.at.0;
            by_state[segment.state as usize] += 1;
            for kind in LogType::ALL {
                let listed = self.dirty[kind.index()].get(n);
                let is = segment.state == SegmentState::Dirty && segment.kind == kind;
                assert_eq!(listed, is, "segment {n} in the list of {kind:?}");
                dirty[kind.index()] += u32::from(is);
            }
            let content = &mut sections[self.section_of(segment.at) as usize];
            content.used += u32::from(segment.state != SegmentState::Free);
            content.open += u32::from(segment.state == SegmentState::Open);
            content.valid += segment.valid;
        }
        assert_eq!(by_state, self.by_state, "each segment has one state");
        assert_eq!(dirty, LogType::ALL.map(|kind| self.dirty(kind).count()));
        assert_eq!(sections, self.in_section);
        self.check_sections(&sections);
    }

    #[cfg(test)]
    fn check_sections(&self, sections: &[SectionContent]) {
        self.by_valid.check();
        let listed: Vec<u32> = self.emptiest().collect();
        assert!(listed.is_sorted_by_key(|section| self.valid_in(*section)));
        assert_eq!(listed.len(), self.dirty_sections.count() as usize);
        for section in 0..self.sections {
            let content = sections[section as usize];
            let free = content.used == 0;
            assert_eq!(self.free_sections.get(section), free, "section {section}");
            let partly = content.valid > 0 && content.valid < self.per_section * SEGMENT_BLOCKS;
            let dirty = partly && content.open == 0;
            assert_eq!(self.dirty_sections.get(section), dirty, "section {section}");
        }
    }
}
