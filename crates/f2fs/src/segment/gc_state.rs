//! What cleaning has to remember of segments.

use std::collections::BTreeSet;

use super::sit::Sit;
use crate::disk::SegNo;

/// What it has begun, where it goes on, and what it leaves alone.
#[derive(Default)]
pub(super) struct GcState {
    /// The section being cleaned: nothing is written to it.
    pub victim: Option<u32>,
    /// Where the last greedy search ended, for cleaning and for holes.
    pub greedy_cursor: u32,
    /// Where the last search by cost and benefit ended.
    pub benefit_cursor: u32,
    /// Sections that background cleaning has begun and not emptied.
    pub bg_victims: BTreeSet<u32>,
    /// The one of these in which it goes on, and its first segment that was not cleaned.
    pub unfinished: Option<(u32, SegNo)>,
    /// Sections with blocks of pinned files, which nothing moves.
    pub pinned: BTreeSet<u32>,
}

impl GcState {
    /// Sections without a valid block are free, or will be: what comes into them later is none of what
    /// was begun.
    pub fn forget_empty(&mut self, sit: &Sit) {
        self.bg_victims.retain(|section| sit.valid_in(*section) > 0);
    }
}
