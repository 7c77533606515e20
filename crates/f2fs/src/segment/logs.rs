//! The six open logs: where the next block of each kind goes.
//!
//! **Rule.** A log always stands on a block that may be written: the last block of a segment is given
//! away only when the log has another place to go to. So a checkpoint always has a place to note, and
//! a node always has a place for its successor.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cleaning::Cleaning;
use super::policy::{
    AllocMode, Demand, GcPolicy, KEPT_FROM_CLEANING, Mode, Policy, Purpose, hole_types,
};
use super::states::State;
use super::summary::Edit;
use super::table::Table;
use crate::disk::checkpoint::{ALLOC_HOLES, ALLOC_LOG, OpenLog};
use crate::disk::summary::Summary;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};
use crate::victim::age::AgeRules;
use crate::victim::{self, Scan};

/// A run of blocks in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub segment: SegNo,
    pub offset: u32,
    pub len: u32,
}

/// An open log.
pub(super) struct Log {
    pub segment: SegNo,
    /// The next block to be written; it may be.
    pub next: u32,
    /// Whether blocks before `next` are all that the log has in this segment.
    pub holes: bool,
    pub summary: Box<Edit>,
}

/// Blocks and segments that logs used, by the way in which they did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks written one after the other into free segments.
    pub log_blocks: u64,
    /// Free segments opened.
    pub log_segments: u64,
    /// Blocks written into holes.
    pub hole_blocks: u64,
    /// Segments opened for their holes.
    pub hole_segments: u64,
    /// Candidates looked at for that.
    pub scanned: u64,
}

/// Logs, table, and the summaries that are to be written.
pub(super) struct Logs {
    pub table: Table,
    pub logs: [Log; 6],
    /// The log of what is moved by age.
    pub aged: Option<Log>,
    /// By what is chosen there.
    pub age: AgeRules,
    /// Summaries of closed segments that the summary area does not have.
    pub closed: BTreeMap<u32, Box<Edit>>,
    /// Those that the checkpoint under way is writing.
    pub writing: BTreeMap<u32, Arc<Edit>>,
    pub policy: Policy,
    pub demand: Demand,
    pub usage: Usage,
    /// What cleaning has to remember.
    pub cleaning: Cleaning,
}

impl Logs {
    /// Claims up to `want` blocks, one after the other, at a log's end; `None` when there is no room
    /// before space is made.
    pub fn claim(&mut self, kind: LogType, want: u32, purpose: Purpose) -> Option<Place> {
        assert!(want > 0);
        let i = kind.index();
        let (segment, offset, holes) = {
            let log = &self.logs[i];
            (log.segment, log.next, log.holes)
        };
        let busy = self.table.busy(segment);
        assert!(!busy.get(offset), "a log stands on a block it may write");
        let end = (offset + want.min(SEGMENT_BLOCKS)).min(SEGMENT_BLOCKS);
        let end = busy.next_set(offset).map_or(end, |used| used.min(end));
        let mut len = end - offset;
        self.table.claim(segment, offset..end);
        match busy.next_clear(end) {
            Some(next) => self.logs[i].next = next,
            None if self.advance(kind, purpose) => {}
            None => {
                // The last block stays, so that the log has a place.
                self.table.release(segment, end - 1);
                self.logs[i].next = end - 1;
                len -= 1;
                if len == 0 {
                    return None;
                }
            }
        }
        let blocks = if holes {
            &mut self.usage.hole_blocks
        } else {
            &mut self.usage.log_blocks
        };
        *blocks += u64::from(len);
        Some(Place {
            segment,
            offset,
            len,
        })
    }

    /// Moves a log to another segment; whether there was one.
    pub fn advance(&mut self, kind: LogType, purpose: Purpose) -> bool {
        let Some((segment, holes)) = self.choose(kind, purpose) else {
            return false;
        };
        self.enter(kind, segment, holes);
        true
    }

    fn enter(&mut self, kind: LogType, segment: SegNo, holes: bool) {
        let log = self.opened(kind, segment, holes);
        let old = std::mem::replace(&mut self.logs[kind.index()], log);
        self.closed.insert(old.segment.0, old.summary);
        self.table.close(old.segment);
        if holes {
            self.usage.hole_segments += 1;
        } else {
            self.usage.log_segments += 1;
        }
    }

    /// A log at the first block of a segment that it may write.
    pub fn opened(&mut self, kind: LogType, segment: SegNo, holes: bool) -> Log {
        let summary = if holes {
            self.known_summary(segment, kind)
        } else {
            Box::new(Edit::empty(kind))
        };
        self.closed.remove(&segment.0);
        self.table.open(segment, kind);
        let next = self.table.busy(segment).next_clear(0);
        Log {
            segment,
            next: next.expect("a segment is chosen for its free blocks"),
            holes,
            summary,
        }
    }

    /// The log that is in a segment.
    pub fn log_in(&mut self, at: SegNo) -> Option<&mut Log> {
        let mut all = self.logs.iter_mut().chain(&mut self.aged);
        all.find(|log| log.segment == at)
    }

    /// What is known here of a segment's summary.
    pub fn known_summary(&self, segment: SegNo, kind: LogType) -> Box<Edit> {
        let mut open = self.logs.iter().chain(&self.aged);
        if let Some(log) = open.find(|log| log.segment == segment) {
            return log.summary.clone();
        }
        let mut edit = match self.closed.get(&segment.0) {
            Some(edit) => edit.clone(),
            None => Box::new(Edit::unknown(kind)),
        };
        if let Some(earlier) = self.writing.get(&segment.0) {
            edit.learn_from(earlier);
        }
        edit
    }

    /// Where a log goes on: a segment, and whether in its holes.
    pub fn choose(&mut self, kind: LogType, purpose: Purpose) -> Option<(SegNo, bool)> {
        let log = &self.logs[kind.index()];
        let (old, in_holes) = (log.segment, log.holes);
        let following = SegNo(old.0 + 1);
        let per_section = self.table.per_section();
        if !in_holes
            && following.0 < self.table.len()
            && self.table.section_of(following) == self.table.section_of(old)
            && self.table.state(following) == State::Free
        {
            return Some((following, false));
        }
        let free = self.table.free_sections().count();
        let paused = self.table.is_paused() && self.policy.mode == Mode::Adaptive;
        let wants_holes = paused || self.policy.wants_holes(free, self.demand, per_section);
        let at_end = !paused && self.policy.always_at_end(kind);
        if wants_holes && !at_end {
            let types = self.policy.hole_types(kind, free, self.demand, per_section);
            if let Some(segment) = self.find_holes(kind, types) {
                return Some((segment, true));
            }
        }
        let kept = match purpose {
            Purpose::User => self.policy.kept_from_users(self.demand, per_section),
            Purpose::Moved => KEPT_FROM_CLEANING,
            Purpose::Reserved => 0,
        };
        if free > kept {
            let section = self.table.free_sections().next_around(self.hint(kind, old));
            return section.map(|section| (SegNo(section * per_section), false));
        }
        // Where all holes were looked at, there is no place.
        let looked = wants_holes && !at_end && self.policy.rules == GcPolicy::Linux618;
        if self.policy.mode == Mode::Lfs || looked && !paused {
            return None;
        }
        let segment = match paused {
            true => self.find_emptied(),
            false => self.find_holes(kind, hole_types(kind)),
        };
        segment.map(|segment| (segment, true))
    }

    /// A segment without a valid block that would be free if checkpoints were written, and has blocks that may
    /// be.
    fn find_emptied(&self) -> Option<SegNo> {
        let has_room = |at: &SegNo| {
            self.table.state(*at) == State::Held
                && self.cleaning.victim != Some(self.table.section_of(*at))
                && self.table.busy(*at).count() < SEGMENT_BLOCKS
        };
        (0..self.table.len()).map(SegNo).find(has_room)
    }

    /// The section from which on a free one is looked for.
    fn hint(&self, kind: LogType, old: SegNo) -> u32 {
        let small = kind == LogType::HotData || kind.is_node();
        if small || self.policy.alloc == AllocMode::Reuse {
            return 0;
        }
        let section = self.table.section_of(old);
        if section < self.table.sections() {
            section
        } else {
            0
        }
    }

    /// The segment with the fewest busy blocks that a log may fill.
    pub(super) fn find_holes(&mut self, kind: LogType, types: &[LogType]) -> Option<SegNo> {
        let rules = self.policy.rules;
        let small = kind == LogType::HotData || kind.is_node();
        let from_cursor = rules == GcPolicy::Linux2013 || !small;
        for &other in types {
            let found = victim::scan(
                Scan {
                    candidates: self.table.dirty(other),
                    total: self.table.len(),
                    unit: 1,
                    cursor: self.cleaning.greedy_cursor,
                    from_cursor,
                    limit: Some(self.policy.max_search),
                    rules,
                },
                |n| {
                    let at = SegNo(n);
                    if self.cleaning.victim == Some(self.table.section_of(at)) {
                        return None;
                    }
                    let busy = self.table.busy(at).count();
                    (busy < SEGMENT_BLOCKS).then_some(busy.into())
                },
            );
            self.cleaning.greedy_cursor = found.cursor;
            self.usage.scanned += u64::from(found.looked_at);
            if let Some((segment, _)) = found.victim {
                return Some(SegNo(segment));
            }
        }
        None
    }

    /// Notes who points at a block.
    pub fn note_owner(&mut self, at: SegNo, offset: u32, owner: Summary) {
        let kind = self.table.kind(at);
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
    pub fn open_log(&self, kind: LogType) -> OpenLog {
        let log = &self.logs[kind.index()];
        OpenLog {
            segment: log.segment,
            offset: log.next as u16,
            alloc: if log.holes { ALLOC_HOLES } else { ALLOC_LOG },
        }
    }

    /// The number of a log's entries that a checkpoint has to keep.
    pub fn entries_of(&self, kind: LogType) -> u32 {
        let log = &self.logs[kind.index()];
        if log.holes { SEGMENT_BLOCKS } else { log.next }
    }

    /// Moves each log behind claimed blocks that lie where it would go on; whether all have a place.
    pub fn step_over(&mut self) -> bool {
        LogType::ALL.into_iter().all(|kind| {
            let log = &self.logs[kind.index()];
            let (at, next) = (log.segment, log.next);
            if self.table.claimed(at).next_set(next).is_none() {
                return true;
            }
            self.logs[kind.index()].holes = true;
            match self.table.busy(at).next_clear(next) {
                Some(next) => {
                    self.logs[kind.index()].next = next;
                    true
                }
                None => self.advance(kind, Purpose::Reserved),
            }
        })
    }

    /// Asserts everything that is always true of the logs.
    pub fn check(&self) {
        self.table.check();
        let open = (0..self.table.len())
            .filter(|n| self.table.state(SegNo(*n)) == State::Open)
            .count();
        let logs = self.logs.len() + usize::from(self.aged.is_some());
        assert_eq!(open, logs, "a segment for each log");
        for kind in LogType::ALL {
            let log = &self.logs[kind.index()];
            let at = log.segment;
            assert_eq!(self.table.state(at), State::Open);
            assert_eq!(self.table.kind(at), kind);
            assert!(!self.closed.contains_key(&at.0), "an open log's summary");
            let busy = self.table.busy(at);
            assert!(!busy.get(log.next), "{kind:?} stands on a free block");
            if !log.holes {
                let behind = busy.next_set(log.next);
                assert_eq!(behind, None, "{kind:?} has blocks behind its end");
            }
            let valid = self.table.current(at);
            let known = self.known_summary(at, kind);
            let missing = known.missing(valid);
            assert!(log.holes || missing.is_empty(), "{kind:?} knows its owners");
        }
    }
}
