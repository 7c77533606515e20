//! What GC remembers about segments between rounds.

use std::collections::BTreeSet;

use super::sit::Sit;
use crate::disk::SegNo;

#[derive(Default)]
pub(super) struct GcState {
    /// The section being cleaned: nothing is allocated in it.
    pub victim: Option<u32>,
    /// Where the last greedy search ended, of GC and of SSR.
    pub greedy_cursor: u32,
    /// Where the last cost-benefit search ended.
    pub benefit_cursor: u32,
    /// Sections that background GC has begun and not emptied (`victim_secmap`).
    pub bg_victims: BTreeSet<u32>,
    /// The one of these at which it continues, with the first segment that is not cleaned.
    pub unfinished: Option<(u32, SegNo)>,
    /// Sections with blocks of pinned files, which GC does not move.
    pub pinned: BTreeSet<u32>,
}

impl GcState {
    /// Forgets begun sections without a valid block: what is written to them later was not chosen.
    pub fn forget_empty(&mut self, sit: &Sit) {
        self.bg_victims.retain(|section| sit.valid_in(*section) > 0);
    }
}
