//! Asserts the invariants of the table, for tests.

use super::Sit;
use crate::disk::{SEGMENT_BLOCKS, SegNo};
use crate::segment::seglists::{ListedSegment, SegmentState};

impl Sit {
    /// Asserts all invariants of the table.
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
                assert!(
                    clash.is_empty(),
                    "segment {n}: an allocated block is in use"
                );
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
