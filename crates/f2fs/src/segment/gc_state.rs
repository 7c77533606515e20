//! What GC remembers about segments between rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use steadfs_rt::Instant;

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
    /// Sections with something that could not be read, and when that was found.
    pub unreadable: BTreeMap<u32, Instant>,
}

/// How long GC does not try again to read what a section has: a bad sector may keep its reader waiting for many seconds.
const UNREADABLE_TIME: Duration = Duration::from_secs(600);

impl GcState {
    /// Whether GC leaves a section alone.
    pub fn is_kept(&self, section: u32) -> bool {
        self.pinned.contains(&section) || self.unreadable.contains_key(&section)
    }

    /// Forgets what may have changed since; returns whether there was something.
    pub fn forget_kept(&mut self) -> bool {
        let before = self.pinned.len() + self.unreadable.len();
        self.pinned.clear();
        self.unreadable
            .retain(|_, since| since.elapsed() < UNREADABLE_TIME);
        self.unreadable.len() < before
    }

    /// Forgets begun sections without a valid block: what is written to them later was not chosen.
    pub fn forget_empty(&mut self, sit: &Sit) {
        self.bg_victims.retain(|section| sit.valid_in(*section) > 0);
    }
}
