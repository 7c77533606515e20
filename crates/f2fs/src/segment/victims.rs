//! Victim selection of GC: which section is cleaned next.

use std::collections::BTreeSet;

use steadfs_rt::now;
use steadfs_vfs::{FsError, Result};

use super::Segments;
use super::curseg::SegmentManager;
use super::policy::Purpose;
use super::seglists::SegmentState;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};
use crate::victim::Scan;
use crate::victim::age::{self, AgeCandidate, AgeRules};

/// How candidates are compared (`gc_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimCost {
    Greedy,
    /// Few valid blocks, and old ones: old blocks are unlikely to become invalid by themselves.
    CostBenefit,
    /// Old, and few valid blocks (`atgc`).
    Age,
}

/// Parameters of a search for a victim.
#[derive(Clone, Copy, Debug)]
pub struct VictimSearch<'a> {
    pub cost: VictimCost,
    /// A writer waits for space: sections that background GC has begun are preferred.
    pub foreground: bool,
    /// Candidates examined at most; `None`: all.
    pub limit: Option<u32>,
    /// Sections that GC could not empty in this run.
    pub skip: &'a BTreeSet<u32>,
}

/// The space that a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceGoal {
    /// For the dirty blocks in memory, with the reserve left.
    Reserve,
    /// For a block of a user's data.
    Users,
}

/// A section chosen by a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    pub section: u32,
    pub valid: u32,
    /// Candidates examined.
    pub looked_at: u32,
    /// The segment at which an interrupted round continues; those before it are clean.
    pub resumed: Option<SegNo>,
}

/// Cost of cleaning a section: its reads and writes, against the blocks that it frees weighted by the age of the valid
/// ones. The section with the least cost is cleaned. `percent`: valid blocks; stamps in seconds of mounted time.
fn cost_benefit(percent: u64, stamp: u64, oldest: u64, newest: u64) -> u64 {
    assert!(percent <= 100, "at most all blocks are valid");
    let span = newest.saturating_sub(oldest);
    let since = stamp.clamp(oldest, newest.max(oldest)) - oldest;
    let age = match (100 * u128::from(since)).checked_div(u128::from(span)) {
        Some(young) => 100 - young as u64,
        None => 0,
    };
    u64::from(u32::MAX) - 100 * (100 - percent) * age / (100 + percent)
}

impl SegmentManager {
    /// Whether GC may empty a section now.
    fn may_clean(&self, section: u32) -> bool {
        // Allocated blocks become valid or are released soon.
        let allocated = |at: SegNo| !self.sit.allocated(at).is_empty();
        // While checkpoints are disabled, moving a block that the last one has frees nothing.
        let barred = |at: SegNo| allocated(at) || self.sit.has_checkpointed(at);
        self.gc.victim != Some(section) && !self.sit.segments_of(section).any(barred)
    }

    /// Whether a search may choose a section.
    fn is_candidate(&self, search: VictimSearch<'_>, section: u32) -> bool {
        !(search.skip.contains(&section)
            || self.gc.is_kept(section)
            || !search.foreground && self.gc.bg_victims.contains(&section))
            && self.may_clean(section)
    }

    /// The section that the last background round did not finish, if it is still a candidate.
    fn resume(&mut self, search: VictimSearch<'_>) -> Option<Victim> {
        let (section, next) = self.gc.unfinished.take()?;
        assert!(
            self.sit.section_of(next) == section,
            "a round goes on inside its victim"
        );
        let goes_on = self.gc.bg_victims.contains(&section)
            && self.sit.dirty_sections().get(section)
            && !search.skip.contains(&section)
            && !self.gc.is_kept(section)
            && self.may_clean(section);
        goes_on.then(|| Victim {
            section,
            valid: self.sit.valid_in(section),
            looked_at: 0,
            resumed: Some(next),
        })
    }

    fn pick(&mut self, search: VictimSearch<'_>, now: u64) -> Option<Victim> {
        if !search.foreground
            && let Some(victim) = self.resume(search)
        {
            return Some(victim);
        }
        if search.foreground {
            let bg_victims: Vec<u32> = self.gc.bg_victims.iter().copied().collect();
            for section in bg_victims {
                self.gc.bg_victims.remove(&section);
                let dirty = self.sit.dirty_sections().get(section);
                if dirty && !search.skip.contains(&section) && self.may_clean(section) {
                    let valid = self.sit.valid_in(section);
                    return Some(Victim {
                        section,
                        valid,
                        looked_at: 0,
                        resumed: None,
                    });
                }
            }
        }
        let found = match search.cost {
            VictimCost::Age => self.find_by_age(search, now),
            VictimCost::Greedy if search.limit.is_none() => self.find_emptiest(search),
            VictimCost::Greedy | VictimCost::CostBenefit => self.find_by_scan(search, now),
        };
        let (section, looked_at) = found?;
        assert!(self.sit.valid_in(section) > 0, "a victim has valid blocks");
        if !search.foreground {
            self.gc.bg_victims.insert(section);
        }
        Some(Victim {
            section,
            valid: self.sit.valid_in(section),
            looked_at,
            resumed: None,
        })
    }

    /// The section with the fewest valid blocks, from the index of the SIT: the same as a scan of all, up to ties. Like
    /// such a scan it leaves the cursor at the start.
    fn find_emptiest(&mut self, search: VictimSearch<'_>) -> Option<(u32, u32)> {
        self.gc.greedy_cursor = 0;
        let mut looked_at = 0;
        let mut emptiest = self.sit.emptiest();
        let found = emptiest.find(|section| {
            looked_at += 1;
            self.is_candidate(search, *section)
        });
        found.map(|section| (section, looked_at))
    }

    /// The best section by age and number of valid blocks; all candidates are examined.
    fn find_by_age(&self, search: VictimSearch<'_>, now: u64) -> Option<(u32, u32)> {
        let dirty = self.sit.dirty_sections();
        let mut candidates = Vec::new();
        let (mut at, mut looked_at) = (0, 0);
        while let Some(number) = dirty.next(at, self.sit.sections()) {
            at = number + 1;
            looked_at += 1;
            if self.is_candidate(search, number) {
                candidates.push(AgeCandidate {
                    stamp: self.sit.age_stamp(number),
                    number,
                    valid: self.sit.valid_in(number),
                });
            }
        }
        let size = self.sit.per_section() * SEGMENT_BLOCKS;
        let newest = self.sit.newest();
        let found = self.retried(now, |rules| {
            age::oldest(candidates.clone(), newest, size, rules)
        });
        found.map(|atgc| (atgc.number, looked_at))
    }

    /// A search by age; without its threshold if it found nothing and the volume has been mounted for less than that.
    pub(super) fn retried(
        &self,
        now: u64,
        mut search: impl FnMut(&AgeRules) -> Option<AgeCandidate>,
    ) -> Option<AgeCandidate> {
        let rules = self.age;
        let any_age = AgeRules {
            threshold: 0,
            ..rules
        };
        let found = search(&rules);
        match found {
            None if now < rules.threshold => search(&any_age),
            found => found,
        }
    }

    fn find_by_scan(&mut self, search: VictimSearch<'_>, now: u64) -> Option<(u32, u32)> {
        let cursor = match search.cost {
            VictimCost::CostBenefit => self.gc.benefit_cursor,
            _ => self.gc.greedy_cursor / self.sit.per_section(),
        };
        let (oldest, all) = (self.sit.oldest(), self.sit.per_section() * SEGMENT_BLOCKS);
        let rules = self.policy.rules;
        let found = rules.scan(
            Scan {
                candidates: self.sit.dirty_sections(),
                total: self.sit.sections(),
                unit: 1,
                cursor,
                from_cursor: true,
                limit: search.limit,
            },
            &mut |section| {
                if !self.is_candidate(search, section) {
                    return None;
                }
                let valid = self.sit.valid_in(section);
                match search.cost {
                    VictimCost::Greedy | VictimCost::Age => Some(valid.into()),
                    VictimCost::CostBenefit => {
                        let percent = u64::from(valid) * 100 / u64::from(all);
                        let stamp = self.sit.age_stamp(section);
                        // A section that frees nothing is never chosen.
                        let cost = cost_benefit(percent, stamp, oldest, now);
                        (cost < u64::from(u32::MAX)).then_some(cost)
                    }
                }
            },
        );
        match search.cost {
            VictimCost::CostBenefit => self.gc.benefit_cursor = found.cursor,
            _ => self.gc.greedy_cursor = found.cursor * self.sit.per_section(),
        }
        found.victim.map(|(section, _)| (section, found.looked_at))
    }
}

impl Segments {
    /// Begins to clean a given section; `None` if it has no valid block.
    ///
    /// # Errors
    /// `Busy`: a curseg is in it, blocks of it are allocated, or another section is being cleaned.
    pub fn begin_cleaning_of(&self, section: u32) -> Result<Option<Victim>> {
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        if section >= manager.sit.sections() || manager.sit.valid_in(section) == 0 {
            return Ok(None);
        }
        let mut all = manager.sit.segments_of(section);
        let open = all.any(|at| manager.sit.state(at) == SegmentState::Open);
        if open || manager.gc.victim.is_some() || !manager.may_clean(section) {
            return Err(FsError::Busy);
        }
        manager.gc.victim = Some(section);
        manager.gc.bg_victims.remove(&section);
        Ok(Some(Victim {
            section,
            valid: manager.sit.valid_in(section),
            looked_at: 1,
            resumed: None,
        }))
    }

    /// Chooses a victim; until [`Segments::end_cleaning`] nothing is allocated in it. `None` if there is no candidate,
    /// or another task is cleaning.
    pub fn begin_cleaning(&self, search: VictimSearch<'_>) -> Option<Victim> {
        let now = self.elapsed();
        let mut inner = self.inner.lock();
        if inner.manager.gc.victim.is_some() {
            return None;
        }
        let victim = inner.manager.pick(search, now)?;
        assert!(
            inner.manager.sit.dirty_sections().get(victim.section),
            "a victim has valid and invalid blocks, and no curseg"
        );
        inner.manager.gc.victim = Some(victim.section);
        Some(victim)
    }

    /// A background round ends before this segment of the victim; the next round continues there if the section is
    /// still a candidate.
    pub fn resume_at(&self, section: u32, next: SegNo) {
        let mut inner = self.inner.lock();
        assert!(
            inner.manager.gc.victim == Some(section)
                && inner.manager.sit.section_of(next) == section,
            "a round ends inside its victim"
        );
        inner.manager.gc.unfinished = Some((section, next));
    }

    /// Ends the cleaning of a section. Returns the number of blocks that are still valid.
    pub fn end_cleaning(&self, section: u32) -> u32 {
        let mut inner = self.inner.lock();
        assert!(
            inner.manager.gc.victim == Some(section),
            "only the victim's cleaning ends"
        );
        inner.manager.gc.victim = None;
        let left = inner.manager.sit.valid_in(section);
        if left == 0 {
            inner.manager.gc.bg_victims.remove(&section);
        }
        left
    }

    /// A section has blocks that GC must not move; [forgotten](Self::forget_pins) when there is no other victim.
    pub fn pin(&self, section: u32) {
        self.inner.lock().manager.gc.pinned.insert(section);
    }

    /// A section has something that cannot be read; [forgotten](Self::forget_pins) after some minutes. Returns whether
    /// that is new.
    pub fn leave_unreadable(&self, section: u32) -> bool {
        let unreadable = &mut self.inner.lock().manager.gc.unreadable;
        unreadable.insert(section, now()).is_none()
    }

    /// Forgets the pinned sections, because files may have been unpinned, and those that could not be read some minutes
    /// ago; returns whether there were any.
    pub fn forget_pins(&self) -> bool {
        self.inner.lock().manager.gc.forget_kept()
    }

    /// The segments of a section with their types.
    pub fn segments_of(&self, section: u32) -> Vec<(SegNo, LogType)> {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let of = sit.segments_of(section);
        of.map(|at| (at, sit.kind(at))).collect()
    }

    /// Whether there is this space, or will be with `more` additional free sections.
    pub fn has_space(&self, room: SpaceGoal, more: u32) -> bool {
        let mut inner = self.inner.lock();
        let manager = &mut inner.manager;
        let per_section = manager.sit.per_section();
        let free = manager.sit.free_sections().count() + more;
        match room {
            SpaceGoal::Reserve => {
                let left = |log: LogType| manager.left_in_section(log);
                !manager
                    .policy
                    .is_short(free, manager.demand, per_section, left)
            }
            SpaceGoal::Users => {
                let kept = manager.policy.kept_from_users(manager.demand, per_section);
                free > kept || manager.choose(LogType::WarmData, Purpose::User).is_some()
            }
        }
    }

    /// Blocks that became invalid since the mount.
    pub fn invalidated(&self) -> u64 {
        self.inner.lock().manager.sit.invalidated().0
    }

    /// Blocks that became invalid since the last snapshot: a checkpoint frees them.
    pub fn freed_by_checkpoint(&self) -> u64 {
        self.inner.lock().manager.sit.invalidated().1
    }

    pub fn valid_in_segment(&self, at: SegNo) -> u32 {
        self.inner.lock().manager.sit.valid(at)
    }
}

impl SegmentManager {
    /// Blocks that a log can still allocate in its section.
    fn left_in_section(&self, log: LogType) -> u32 {
        let curseg = &self.cursegs[log.index()];
        let in_segment = SEGMENT_BLOCKS - self.sit.busy(curseg.segment).count();
        let section = self.sit.section_of(curseg.segment);
        // A shorter last section ends with the last segment.
        let behind = |at: &SegNo| {
            at.0 > curseg.segment.0
                && at.0 < self.sit.len()
                && self.sit.state(*at) == SegmentState::Free
        };
        let free = self.sit.segments_of(section).filter(behind).count() as u32;
        let left = in_segment + free * SEGMENT_BLOCKS;
        assert!(
            left <= self.sit.per_section() * SEGMENT_BLOCKS,
            "a section has no more blocks than its size"
        );
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values computed by hand: (100 - u) * age * 100 / (100 + u), subtracted from the largest cost.
    #[test]
    fn cost_benefit_matches_values_computed_by_hand() {
        let most = u64::from(u32::MAX);
        assert_eq!(cost_benefit(50, 0, 0, 1000), most - 3333);
        assert_eq!(cost_benefit(50, 1000, 0, 1000), most, "the newest");
        assert_eq!(cost_benefit(100, 0, 0, 1000), most, "nothing to gain");
        assert_eq!(cost_benefit(0, 250, 0, 1000), most - 7500);
        assert_eq!(cost_benefit(10, 500, 100, 1100), most - 4909);
        assert_eq!(cost_benefit(10, 5, 5, 5), most, "all are of one age");
        // A time stamp outside the range is clamped.
        assert_eq!(cost_benefit(0, 9, 10, 20), most - 10_000);
        assert_eq!(cost_benefit(0, 30, 10, 20), most);
    }
}
