//! The six open logs: where the next block of each kind goes.
//!
//! **Rule.** A log always stands on a block that may be written: the last block of a segment is given
//! away only when the log has another place to go to. So a checkpoint always has a place to note, and
//! a node always has a place for its successor.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::gc_state::GcState;
use super::policy::{
    AllocMode, Demand, GcPolicy, Mode, Policy, Purpose, SECTIONS_KEPT_FROM_GC, ssr_types,
};
use super::seglists::SegmentState;
use super::sit::Sit;
use super::ssa::SegmentSummary;
use crate::disk::checkpoint::{ALLOC_LFS, ALLOC_SSR, CursegState};
use crate::disk::summary::Summary;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};
use crate::victim::age::AgeRules;
use crate::victim::{self, Scan};

/// A run of blocks in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentRun {
    pub segment: SegNo,
    pub offset: u32,
    pub len: u32,
}

/// An open log.
pub(super) struct Curseg {
    pub segment: SegNo,
    /// The next block to be written; it may be.
    pub next: u32,
    /// Whether blocks before `next` are all that the log has in this segment.
    pub ssr: bool,
    pub summary: Box<SegmentSummary>,
}

/// Blocks and segments that logs used, by the way in which they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CursegUsage {
    /// Blocks written one after the other into free segments.
    pub lfs_blocks: u64,
    /// Free segments opened.
    pub lfs_segments: u64,
    /// Blocks written into holes.
    pub ssr_blocks: u64,
    /// Segments opened for their holes.
    pub ssr_segments: u64,
    /// Candidates looked at for that.
    pub scanned: u64,
}

/// Logs, table, and the summaries that are to be written.
pub(super) struct SegmentManager {
    pub sit: Sit,
    pub cursegs: [Curseg; 6],
    /// The log of what is moved by age.
    pub atgc: Option<Curseg>,
    /// By what is chosen there.
    pub age: AgeRules,
    /// Summaries of closed segments that the summary area does not have.
    pub closed: BTreeMap<u32, Box<SegmentSummary>>,
    /// Those that the checkpoint under way is writing.
    pub writing: BTreeMap<u32, Arc<SegmentSummary>>,
    pub policy: Policy,
    pub demand: Demand,
    pub usage: CursegUsage,
    /// What cleaning has to remember.
    pub gc: GcState,
}

impl SegmentManager {
    /// Claims up to `want` blocks, one after the other, at a log's end; `None` when there is no room
    /// before space is made.
    pub fn allocate(&mut self, kind: LogType, want: u32, purpose: Purpose) -> Option<SegmentRun> {
        assert!(want > 0);
        let i = kind.index();
        let (segment, offset, ssr) = {
            let log = &self.cursegs[i];
            (log.segment, log.next, log.ssr)
        };
        let busy = self.sit.busy(segment);
        assert!(!busy.get(offset), "a log stands on a block it may write");
        let end = (offset + want.min(SEGMENT_BLOCKS)).min(SEGMENT_BLOCKS);
        let end = busy.next_set(offset).map_or(end, |used| used.min(end));
        let mut len = end - offset;
        self.sit.allocate(segment, offset..end);
        match busy.next_clear(end) {
            Some(next) => self.cursegs[i].next = next,
            None if self.advance(kind, purpose) => {}
            None => {
                // The last block stays, so that the log has a place.
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
        Some(SegmentRun {
            segment,
            offset,
            len,
        })
    }

    /// Moves a log to another segment; whether there was one.
    pub fn advance(&mut self, kind: LogType, purpose: Purpose) -> bool {
        let Some((segment, ssr)) = self.choose(kind, purpose) else {
            return false;
        };
        self.enter(kind, segment, ssr);
        true
    }

    fn enter(&mut self, kind: LogType, segment: SegNo, ssr: bool) {
        let log = self.opened(kind, segment, ssr);
        let old = std::mem::replace(&mut self.cursegs[kind.index()], log);
        self.closed.insert(old.segment.0, old.summary);
        self.sit.close(old.segment);
        if ssr {
            self.usage.ssr_segments += 1;
        } else {
            self.usage.lfs_segments += 1;
        }
    }

    /// A log at the first block of a segment that it may write.
    pub fn opened(&mut self, kind: LogType, segment: SegNo, ssr: bool) -> Curseg {
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
            next: next.expect("a segment is chosen for its free blocks"),
            ssr,
            summary,
        }
    }

    /// The log that is in a segment.
    pub fn log_in(&mut self, at: SegNo) -> Option<&mut Curseg> {
        let mut all = self.cursegs.iter_mut().chain(&mut self.atgc);
        all.find(|log| log.segment == at)
    }

    /// What is known here of a segment's summary.
    pub fn known_summary(&self, segment: SegNo, kind: LogType) -> Box<SegmentSummary> {
        let mut open = self.cursegs.iter().chain(&self.atgc);
        if let Some(log) = open.find(|log| log.segment == segment) {
            return log.summary.clone();
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

    /// Where a log goes on: a segment, and whether in its holes.
    pub fn choose(&mut self, kind: LogType, purpose: Purpose) -> Option<(SegNo, bool)> {
        let log = &self.cursegs[kind.index()];
        let (old, in_ssr) = (log.segment, log.ssr);
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
        let lfs_only = !cp_disabled && self.policy.always_lfs(kind);
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
        // Where all holes were looked at, there is no place.
        let looked = needs_ssr && !lfs_only && self.policy.rules == GcPolicy::Linux618;
        if self.policy.mode == Mode::Lfs || looked && !cp_disabled {
            return None;
        }
        let segment = match cp_disabled {
            true => self.find_prefree_segment(),
            false => self.find_ssr_segment(kind, ssr_types(kind)),
        };
        segment.map(|segment| (segment, true))
    }

    /// A segment without a valid block that would be free if checkpoints were written, and has blocks that may
    /// be.
    fn find_prefree_segment(&self) -> Option<SegNo> {
        let has_room = |at: &SegNo| {
            self.sit.state(*at) == SegmentState::Prefree
                && self.gc.victim != Some(self.sit.section_of(*at))
                && self.sit.busy(*at).count() < SEGMENT_BLOCKS
        };
        (0..self.sit.len()).map(SegNo).find(has_room)
    }

    /// The section from which on a free one is looked for.
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

    /// The segment with the fewest busy blocks that a log may fill.
    pub(super) fn find_ssr_segment(&mut self, kind: LogType, types: &[LogType]) -> Option<SegNo> {
        let rules = self.policy.rules;
        let small = kind == LogType::HotData || kind.is_node();
        let from_cursor = rules == GcPolicy::Linux2013 || !small;
        for &other in types {
            let found = victim::scan(
                Scan {
                    candidates: self.sit.dirty(other),
                    total: self.sit.len(),
                    unit: 1,
                    cursor: self.gc.greedy_cursor,
                    from_cursor,
                    limit: Some(self.policy.max_search),
                    rules,
                },
                |n| {
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
                return Some(SegNo(segment));
            }
        }
        None
    }

    /// Notes who points at a block.
    pub fn set_summary(&mut self, at: SegNo, offset: u32, owner: Summary) {
        let kind = self.sit.kind(at);
        if let Some(log) = self.log_in(at) {
            log.summary.set(offset, owner);
        } else if let Some(edit) = self.closed.get_mut(&at.0) {
            edit.set(offset, owner);
        } else {
            let mut edit = self.known_summary(at, kind);
            edit.set(offset, owner);
            self.closed.insert(at.0, edit);
        }
    }

    /// A log as a checkpoint notes it.
    pub fn open_log(&self, kind: LogType) -> CursegState {
        let log = &self.cursegs[kind.index()];
        CursegState {
            segment: log.segment,
            offset: log.next as u16,
            alloc: if log.ssr { ALLOC_SSR } else { ALLOC_LFS },
        }
    }

    /// The number of a log's entries that a checkpoint has to keep.
    pub fn summary_entries(&self, kind: LogType) -> u32 {
        let log = &self.cursegs[kind.index()];
        if log.ssr { SEGMENT_BLOCKS } else { log.next }
    }

    /// Moves each log behind claimed blocks that lie where it would go on; whether all have a place.
    pub fn skip_protected(&mut self) -> bool {
        LogType::ALL.into_iter().all(|kind| {
            let log = &self.cursegs[kind.index()];
            let (at, next) = (log.segment, log.next);
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

    /// Asserts everything that is always true of the logs.
    pub fn check(&self) {
        self.sit.check();
        let open = (0..self.sit.len())
            .filter(|n| self.sit.state(SegNo(*n)) == SegmentState::Open)
            .count();
        let logs = self.cursegs.len() + usize::from(self.atgc.is_some());
        assert_eq!(open, logs, "a segment for each log");
        for kind in LogType::ALL {
            let log = &self.cursegs[kind.index()];
            let at = log.segment;
            assert_eq!(self.sit.state(at), SegmentState::Open);
            assert_eq!(self.sit.kind(at), kind);
            assert!(!self.closed.contains_key(&at.0), "an open log's summary");
            let busy = self.sit.busy(at);
            assert!(!busy.get(log.next), "{kind:?} stands on a free block");
            if !log.ssr {
                let behind = busy.next_set(log.next);
                assert_eq!(behind, None, "{kind:?} has blocks behind its end");
            }
            let valid = self.sit.current(at);
            let known = self.known_summary(at, kind);
            let unknown_of = known.unknown_of(valid);
            assert!(
                log.ssr || unknown_of.is_empty(),
                "{kind:?} knows its owners"
            );
        }
    }
}
