//! The six cursegs (open logs): where the next block of each type goes.
//!
//! **Rule.** A curseg's `next` is always a block that may be written: the last block of a segment is allocated only if
//! the curseg can move to another segment. So a checkpoint can always record a position for each log, and a node
//! always knows the position of its successor in the chain.
//!
//! LFS: blocks are appended to a free segment. SSR (slack space recycling, threaded log): they fill the invalid blocks
//! of a dirty segment.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::gc_state::GcState;
use super::policy::{AllocMode, Mode, Policy, Purpose, SECTIONS_KEPT_FROM_GC};
use super::rules::{Demand, ssr_types};
use super::seglists::SegmentState;
use super::sit::Sit;
use super::ssa::SegmentSummary;
use crate::disk::checkpoint::{ALLOC_LFS, ALLOC_SSR, CursegState};
use crate::disk::summary::Summary;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};
use crate::victim::Scan;
use crate::victim::age::AgeRules;

/// A run of blocks in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentRun {
    pub segment: SegNo,
    pub offset: u32,
    pub len: u32,
}

/// An open log (`curseg_info`).
pub(super) struct Curseg {
    pub segment: SegNo,
    /// The next block to allocate; it may be written.
    pub next: u32,
    /// Whether the segment was not free when it was opened (SSR), so blocks from `next` on may be in use.
    pub ssr: bool,
    pub summary: Box<SegmentSummary>,
}

/// Blocks allocated and segments opened since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CursegUsage {
    /// Blocks appended to segments that were free.
    pub lfs_blocks: u64,
    pub lfs_segments: u64,
    /// Blocks allocated in dirty segments.
    pub ssr_blocks: u64,
    pub ssr_segments: u64,
    /// Candidate segments examined for SSR.
    pub scanned: u64,
}

/// Everything behind the lock of [`super::Segments`]: SIT, cursegs, summaries, and the rules that choose segments.
pub(super) struct SegmentManager {
    pub sit: Sit,
    pub cursegs: [Curseg; 6],
    /// The seventh log, of data that GC moves by age.
    pub atgc: Option<Curseg>,
    /// How its segments are chosen.
    pub age: AgeRules,
    /// Summaries of closed segments that are newer than those in the SSA.
    pub closed: BTreeMap<u32, Box<SegmentSummary>>,
    /// Summaries that the checkpoint in progress is writing.
    pub writing: BTreeMap<u32, Arc<SegmentSummary>>,
    pub policy: Policy,
    pub demand: Demand,
    pub usage: CursegUsage,
    pub gc: GcState,
}

impl SegmentManager {
    /// Allocates up to `want` consecutive blocks at a curseg's end; `None` if no segment may be opened before space is
    /// freed.
    pub fn allocate(&mut self, kind: LogType, want: u32, purpose: Purpose) -> Option<SegmentRun> {
        assert!(want > 0);
        let i = kind.index();
        let (segment, offset, ssr) = {
            let curseg = &self.cursegs[i];
            (curseg.segment, curseg.next, curseg.ssr)
        };
        let busy = self.sit.busy(segment);
        assert!(!busy.get(offset), "a curseg's next block may be written");
        let end = (offset + want.min(SEGMENT_BLOCKS)).min(SEGMENT_BLOCKS);
        let end = busy.next_set(offset).map_or(end, |used| used.min(end));
        assert!(
            offset < end && end <= SEGMENT_BLOCKS,
            "an allocation is within its segment"
        );
        let mut len = end - offset;
        self.sit.allocate(segment, offset..end);
        match busy.next_clear(end) {
            Some(next) => self.cursegs[i].next = next,
            None if self.advance(kind, purpose) => {}
            None => {
                // The last block stays free, so that the curseg has a next block.
                self.sit.release(segment, end - 1);
                self.cursegs[i].next = end - 1;
                len -= 1;
                if len == 0 {
                    return None;
                }
            }
        }
        let blocks = if ssr {
            &mut self.usage.ssr_blocks
        } else {
            &mut self.usage.lfs_blocks
        };
        *blocks += u64::from(len);
        assert!(len <= want, "at most the wanted blocks are allocated");
        Some(SegmentRun {
            segment,
            offset,
            len,
        })
    }

    /// Moves a curseg to another segment; returns whether there was one.
    pub fn advance(&mut self, kind: LogType, purpose: Purpose) -> bool {
        let Some((segment, ssr)) = self.choose(kind, purpose) else {
            return false;
        };
        self.enter(kind, segment, ssr);
        true
    }

    fn enter(&mut self, kind: LogType, segment: SegNo, ssr: bool) {
        let curseg = self.opened(kind, segment, ssr);
        assert!(
            self.sit.kind(segment) == kind,
            "a curseg's segment has its type"
        );
        let old = std::mem::replace(&mut self.cursegs[kind.index()], curseg);
        let earlier = self.closed.insert(old.segment.0, old.summary);
        assert!(
            earlier.is_none(),
            "only the curseg has the summary of an open segment"
        );
        self.sit.close(old.segment);
        assert!(
            self.sit.in_state(SegmentState::Open) == self.open_segments(),
            "each curseg has one open segment"
        );
        if ssr {
            self.usage.ssr_segments += 1;
        } else {
            self.usage.lfs_segments += 1;
        }
    }

    /// Number of segments with a curseg.
    fn open_segments(&self) -> u32 {
        self.cursegs.len() as u32 + u32::from(self.atgc.is_some())
    }

    /// A curseg at the first block of a segment that may be written.
    pub fn opened(&mut self, kind: LogType, segment: SegNo, ssr: bool) -> Curseg {
        assert!(
            ssr || self.sit.valid(segment) == 0,
            "without SSR a curseg opens empty segments"
        );
        let summary = if ssr {
            self.known_summary(segment, kind)
        } else {
            Box::new(SegmentSummary::empty(kind))
        };
        self.closed.remove(&segment.0);
        self.sit.open(segment, kind);
        let next = self.sit.busy(segment).next_clear(0);
        Curseg {
            segment,
            next: next.expect("a segment with free blocks was chosen"),
            ssr,
            summary,
        }
    }

    /// The curseg in a segment.
    pub fn curseg_in(&mut self, at: SegNo) -> Option<&mut Curseg> {
        let mut all = self.cursegs.iter_mut().chain(&mut self.atgc);
        all.find(|curseg| curseg.segment == at)
    }

    /// The entries of a segment's summary that are in memory.
    pub fn known_summary(&self, segment: SegNo, kind: LogType) -> Box<SegmentSummary> {
        let mut open = self.cursegs.iter().chain(&self.atgc);
        if let Some(curseg) = open.find(|curseg| curseg.segment == segment) {
            return curseg.summary.clone();
        }
        let mut edit = match self.closed.get(&segment.0) {
            Some(edit) => edit.clone(),
            None => Box::new(SegmentSummary::unknown(kind)),
        };
        if let Some(earlier) = self.writing.get(&segment.0) {
            edit.merge(earlier);
        }
        edit
    }

    /// Chooses a curseg's next segment, and whether it is used by SSR.
    pub fn choose(&mut self, kind: LogType, purpose: Purpose) -> Option<(SegNo, bool)> {
        let curseg = &self.cursegs[kind.index()];
        let (old, in_ssr) = (curseg.segment, curseg.ssr);
        let following = SegNo(old.0 + 1);
        let per_section = self.sit.per_section();
        if !in_ssr
            && following.0 < self.sit.len()
            && self.sit.section_of(following) == self.sit.section_of(old)
            && self.sit.state(following) == SegmentState::Free
        {
            return Some((following, false));
        }
        let free = self.sit.free_sections().count();
        let cp_disabled = self.sit.is_cp_disabled() && self.policy.mode == Mode::Adaptive;
        let needs_ssr = cp_disabled || self.policy.needs_ssr(free, self.demand, per_section);
        let lfs_only = !cp_disabled && self.policy.rules.always_lfs(kind);
        if needs_ssr && !lfs_only {
            let types = self.policy.ssr_types(kind, free, self.demand, per_section);
            if let Some(segment) = self.find_ssr_segment(kind, types) {
                return Some((segment, true));
            }
        }
        let kept = match purpose {
            Purpose::User => self.policy.kept_from_users(self.demand, per_section),
            Purpose::Moved => SECTIONS_KEPT_FROM_GC,
            Purpose::Reserved => 0,
        };
        if free > kept {
            let section = self.sit.free_sections().next_around(self.hint(kind, old));
            return section.map(|section| (SegNo(section * per_section), false));
        }
        // SSR has examined all candidates: there is no segment.
        let looked = needs_ssr && !lfs_only && self.policy.rules.ssr_search_is_complete();
        if self.policy.mode == Mode::Lfs || looked && !cp_disabled {
            return None;
        }
        let segment = match cp_disabled {
            true => self.find_prefree_segment(kind),
            false => self.find_ssr_segment(kind, ssr_types(kind)),
        };
        segment.map(|segment| (segment, true))
    }

    /// While checkpoints are disabled: a segment without a valid block that is not free, but has blocks that may be
    /// written, of the kind that they had before: its summary block, which is overwritten, has the kind for all blocks, and
    /// a crash returns to the checkpoint that has some of them.
    fn find_prefree_segment(&self, kind: LogType) -> Option<SegNo> {
        assert!(
            self.sit.is_cp_disabled(),
            "prefree segments are used only while checkpoints are disabled"
        );
        let has_room = |at: &SegNo| {
            self.sit.state(*at) == SegmentState::Prefree
                && self.sit.kind(*at).is_node() == kind.is_node()
                && self.gc.victim != Some(self.sit.section_of(*at))
                && self.sit.busy(*at).count() < SEGMENT_BLOCKS
        };
        (0..self.sit.len()).map(SegNo).find(has_room)
    }

    /// The section at which the search for a free one begins.
    fn hint(&self, kind: LogType, old: SegNo) -> u32 {
        let small = kind == LogType::HotData || kind.is_node();
        if small || self.policy.alloc == AllocMode::Reuse {
            return 0;
        }
        let section = self.sit.section_of(old);
        if section < self.sit.sections() {
            section
        } else {
            0
        }
    }

    /// The segment with the fewest busy blocks that a curseg may fill by SSR.
    pub(super) fn find_ssr_segment(&mut self, kind: LogType, types: &[LogType]) -> Option<SegNo> {
        let rules = self.policy.rules;
        let small = kind == LogType::HotData || kind.is_node();
        let from_cursor = rules.ssr_from_cursor(small);
        for &other in types {
            let found = rules.scan(
                Scan {
                    candidates: self.sit.dirty(other),
                    total: self.sit.len(),
                    unit: 1,
                    cursor: self.gc.greedy_cursor,
                    from_cursor,
                    limit: Some(self.policy.max_search),
                },
                &mut |n| {
                    let at = SegNo(n);
                    if self.gc.victim == Some(self.sit.section_of(at)) {
                        return None;
                    }
                    let busy = self.sit.busy(at).count();
                    (busy < SEGMENT_BLOCKS).then_some(busy.into())
                },
            );
            self.gc.greedy_cursor = found.cursor;
            self.usage.scanned += u64::from(found.looked_at);
            if let Some((segment, _)) = found.victim {
                assert!(
                    self.sit.state(SegNo(segment)) == SegmentState::Dirty,
                    "SSR uses dirty segments"
                );
                return Some(SegNo(segment));
            }
        }
        None
    }

    /// Stores the owner of a block in its segment's summary.
    pub fn set_summary(&mut self, at: SegNo, offset: u32, owner: Summary) {
        assert!(
            self.sit.current(at).get(offset),
            "only valid blocks have an owner"
        );
        let kind = self.sit.kind(at);
        if let Some(curseg) = self.curseg_in(at) {
            curseg.summary.set(offset, owner);
        } else if let Some(edit) = self.closed.get_mut(&at.0) {
            edit.set(offset, owner);
        } else {
            let mut edit = self.known_summary(at, kind);
            edit.set(offset, owner);
            self.closed.insert(at.0, edit);
        }
    }

    /// A curseg as a checkpoint stores it.
    pub fn open_log(&self, kind: LogType) -> CursegState {
        let curseg = &self.cursegs[kind.index()];
        assert!(
            curseg.next < SEGMENT_BLOCKS,
            "a checkpoint stores a position inside the segment"
        );
        CursegState {
            segment: curseg.segment,
            offset: curseg.next as u16,
            alloc: if curseg.ssr { ALLOC_SSR } else { ALLOC_LFS },
        }
    }

    /// Number of summary entries that a checkpoint has to store for a curseg.
    pub fn summary_entries(&self, kind: LogType) -> u32 {
        let curseg = &self.cursegs[kind.index()];
        assert!(
            self.sit.state(curseg.segment) == SegmentState::Open,
            "a curseg's segment is open"
        );
        if curseg.ssr {
            SEGMENT_BLOCKS
        } else {
            curseg.next
        }
    }

    /// Moves each curseg past allocated blocks at or behind its position; returns whether all found a segment.
    pub fn skip_protected(&mut self) -> bool {
        LogType::ALL.into_iter().all(|kind| {
            let curseg = &self.cursegs[kind.index()];
            let (at, next) = (curseg.segment, curseg.next);
            if self.sit.allocated(at).next_set(next).is_none() {
                return true;
            }
            self.cursegs[kind.index()].ssr = true;
            match self.sit.busy(at).next_clear(next) {
                Some(next) => {
                    self.cursegs[kind.index()].next = next;
                    true
                }
                None => self.advance(kind, Purpose::Reserved),
            }
        })
    }

    /// Asserts all invariants of the cursegs.
    #[cfg(test)]
    pub fn check(&self) {
        self.sit.check();
        let open = (0..self.sit.len())
            .filter(|n| self.sit.state(SegNo(*n)) == SegmentState::Open)
            .count();
        let logs = self.open_segments() as usize;
        assert_eq!(open, logs, "each curseg has one open segment");
        for kind in LogType::ALL {
            let curseg = &self.cursegs[kind.index()];
            let at = curseg.segment;
            assert_eq!(self.sit.state(at), SegmentState::Open);
            assert_eq!(self.sit.kind(at), kind);
            assert!(!self.closed.contains_key(&at.0), "an open log's summary");
            let busy = self.sit.busy(at);
            assert!(
                !busy.get(curseg.next),
                "{kind:?}: the next block may be written"
            );
            if !curseg.ssr {
                let behind = busy.next_set(curseg.next);
                assert_eq!(behind, None, "{kind:?}: no block behind the end is in use");
            }
            let valid = self.sit.current(at);
            let known = self.known_summary(at, kind);
            let missing = known.unknown_of(valid);
            assert!(
                curseg.ssr || missing.is_empty(),
                "{kind:?}: the owners of all valid blocks are known"
            );
        }
    }
}
