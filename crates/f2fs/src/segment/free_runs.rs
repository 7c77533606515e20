//! Free blocks that are allocated while they are being discarded, so that nothing is written to them.

use super::curseg::SegmentManager;
use super::seglists::SegmentState;
use super::{Run, Segments};
use crate::disk::{SEGMENT_BLOCKS, SegNo};

/// Free segments allocated at once, if more than `FREE_SECTIONS_PLENTY` sections are free.
const SEGMENTS_AT_ONCE: u32 = 16;
const FREE_SECTIONS_PLENTY: u32 = 1024;

impl Segments {
    /// Allocates the next run of at least `min` free blocks in a range of the main area, outside the cursegs; `None` at
    /// the end of the range. The caller [releases](Self::release) it.
    pub fn allocate_free_run(&self, range: std::ops::Range<u32>, min: u32) -> Option<Run> {
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        let mut at = range.start;
        let end = range.end.min(self.layout.main_blocks());
        let segments = min.div_ceil(SEGMENT_BLOCKS).max(1);
        while at < end {
            let (segment, offset) = (SegNo(at / SEGMENT_BLOCKS), at % SEGMENT_BLOCKS);
            let stop = (end - segment.0 * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS);
            let is_long = segments == 1 || manager.are_free(segment, segments, at..end);
            let found = match is_long {
                true => manager.allocate_in(segment, offset..stop, min.min(SEGMENT_BLOCKS)),
                false => None,
            };
            if let Some((first, len)) = found {
                let start = self.layout.block_in(segment, first);
                let whole = len == SEGMENT_BLOCKS;
                let more = if whole {
                    manager.allocate_free_after(segment, segments, end)
                } else {
                    0
                };
                let len = len + more * SEGMENT_BLOCKS;
                assert!(len > 0, "a run has blocks");
                return Some(Run { start, len });
            }
            at = (segment.0 + 1) * SEGMENT_BLOCKS;
        }
        None
    }
}

impl SegmentManager {
    /// Allocates the first free run in a part of a segment.
    fn allocate_in(
        &mut self,
        segment: SegNo,
        within: std::ops::Range<u32>,
        min: u32,
    ) -> Option<(u32, u32)> {
        if !matches!(
            self.sit.state(segment),
            SegmentState::Free | SegmentState::Dirty
        ) {
            return None;
        }
        assert!(within.end <= SEGMENT_BLOCKS, "a run is within its segment");
        let busy = self.sit.busy(segment);
        let mut at = within.start;
        while let Some(first) = busy.next_clear(at).filter(|first| *first < within.end) {
            let behind = busy.next_set(first).unwrap_or(SEGMENT_BLOCKS);
            let behind = behind.min(within.end);
            if behind - first >= min.max(1) {
                self.sit.allocate(segment, first..behind);
                return Some((first, behind - first));
            }
            at = behind;
        }
        None
    }

    /// Whether a number of segments from one on are free and within a range of blocks, and leave most of the free ones to
    /// those that write.
    fn are_free(&self, segment: SegNo, number: u32, within: std::ops::Range<u32>) -> bool {
        let last = segment.0.saturating_add(number);
        within.start == segment.0 * SEGMENT_BLOCKS
            && last.saturating_mul(SEGMENT_BLOCKS) <= within.end
            && self.sit.free_sections().count() / 4 >= number
            && (segment.0..last).all(|n| self.sit.state(SegNo(n)) == SegmentState::Free)
    }

    /// Allocates the free segments that follow one, with it at least `wanted`; returns their number.
    fn allocate_free_after(&mut self, segment: SegNo, wanted: u32, end: u32) -> u32 {
        assert!(
            self.sit.state(segment) != SegmentState::Free,
            "the first segment is allocated"
        );
        let mut more = 0;
        let may_grow = |manager: &Self, more: u32| {
            more + 1 < SEGMENTS_AT_ONCE
                && manager.sit.free_sections().count() > FREE_SECTIONS_PLENTY
        };
        while more + 1 < wanted || may_grow(self, more) {
            let next = SegNo(segment.0 + more + 1);
            let inside = (next.0 + 1).saturating_mul(SEGMENT_BLOCKS) <= end;
            if !inside || self.sit.state(next) != SegmentState::Free {
                break;
            }
            self.sit.allocate(next, 0..SEGMENT_BLOCKS);
            more += 1;
        }
        more
    }
}
