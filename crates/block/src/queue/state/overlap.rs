//! Detects concurrent changes of the same bytes: their order is undefined.

use std::collections::BTreeMap;

use crate::{Bio, Op};

/// The ranges being changed: end by start.
#[derive(Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

fn changes(op: Op, len: u64) -> bool {
    len > 0 && matches!(op, Op::Write | Op::Discard | Op::WriteZeroes)
}

impl Ranges {
    pub(super) fn begin(&mut self, bio: &Bio) {
        if !changes(bio.op, bio.len) {
            return;
        }
        let before = self.0.range(..bio.end()).next_back();
        if let Some((start, end)) = before {
            assert!(
                *end <= bio.offset,
                "{:?} of bytes {}..{} overlaps one of {start}..{end} that has not ended",
                bio.op,
                bio.offset,
                bio.end(),
            );
        }
        self.0.insert(bio.offset, bio.end());
    }

    pub(super) fn end(&mut self, op: Op, offset: u64, len: u64) {
        if changes(op, len) {
            self.0.remove(&offset);
        }
    }
}
