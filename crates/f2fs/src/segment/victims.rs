//! Which section is cleaned next.

use std::collections::BTreeSet;

use steadfs_vfs::{FsError, Result};

use super::Segments;
use super::curseg::SegmentManager;
use super::policy::Purpose;
use super::seglists::SegmentState;
use crate::disk::{LogType, SEGMENT_BLOCKS, SegNo};
use crate::victim::age::{self, AgeCandidate, AgeRules};
use crate::victim::{self, Scan};

/// What a section to be cleaned is judged by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VictimCost {
    /// The fewest valid blocks.
    Greedy,
    /// Few valid blocks, and old ones: what is old will not become invalid by itself.
    CostBenefit,
    /// Old, and few valid blocks (`atgc`).
    Age,
}

/// How a section to be cleaned is looked for.
#[derive(Clone, Copy, Debug)]
pub struct VictimSearch<'a> {
    /// What counts.
    pub cost: VictimCost,
    /// A writer waits for space: sections that background cleaning has begun come first.
    pub foreground: bool,
    /// Candidates looked at; `None`: all.
    pub limit: Option<u32>,
    /// Sections that were tried in vain.
    pub skip: &'a BTreeSet<u32>,
}

/// What there may be room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceGoal {
    /// For what is in memory, with the volume's reserve left.
    Reserve,
    /// For a block of users' data.
    Users,
}

/// A section chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// Its number.
    pub section: u32,
    /// Its valid blocks.
    pub valid: u32,
    /// Candidates looked at.
    pub looked_at: u32,
    /// The segment that an earlier round did not come to: those before it were cleaned by then.
    pub resumed: Option<SegNo>,
}

/// The cost of cleaning a section by what it costs (reading it all, writing what is valid) and what
/// that brings (its free blocks, for as long as the valid ones are old): the less, the better.
/// `percent`: valid blocks; the stamps in seconds of mounted time.
fn cost_benefit(percent: u64, stamp: u64, oldest: u64, newest: u64) -> u64 {
    let span = newest.saturating_sub(oldest);
    let since = stamp.clamp(oldest, newest.max(oldest)) - oldest;
    let age = match (100 * u128::from(since)).checked_div(u128::from(span)) {
        Some(young) => 100 - young as u64,
        None => 0,
    };
    u64::from(u32::MAX) - 100 * (100 - percent) * age / (100 + percent)
}

impl SegmentManager {
    /// Whether a section may be cleaned at all.
    fn may_clean(&self, section: u32) -> bool {
        // Blocks under way get their names soon; then it is worth a look.
        let allocated = |at: SegNo| !self.sit.allocated(at).is_empty();
        // While checkpoints are switched off, moving what the last one has makes nothing free.
        let barred = |at: SegNo| allocated(at) || self.sit.has_checkpointed(at);
        self.gc.victim != Some(section) && !self.sit.segments_of(section).any(barred)
    }

    /// Whether a search may choose a section.
    fn is_candidate(&self, search: VictimSearch<'_>, section: u32) -> bool {
        !(search.skip.contains(&section)
            || self.gc.pinned.contains(&section)
            || !search.foreground && self.gc.bg_victims.contains(&section))
            && self.may_clean(section)
    }

    /// The section in which the last round in the background did not come to the end, if that is worth
    /// going on.
    fn resume(&mut self, search: VictimSearch<'_>) -> Option<Victim> {
        let (section, next) = self.gc.unfinished.take()?;
        let goes_on = self.gc.bg_victims.contains(&section)
            && self.sit.dirty_sections().get(section)
            && !search.skip.contains(&section)
            && !self.gc.pinned.contains(&section)
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

    /// The section with the fewest valid blocks, from the table's index: what a scan of all would find, up
    /// to ties. It ends such a scan's way, with the cursor at the beginning.
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

    /// The section that age and emptiness are for; all are looked at.
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

    /// A search by age, without its threshold where it found nothing and the volume has not been mounted for
    /// that long.
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
        let found = victim::scan(
            Scan {
                candidates: self.sit.dirty_sections(),
                total: self.sit.sections(),
                unit: 1,
                cursor,
                from_cursor: true,
                limit: search.limit,
                rules: self.policy.rules,
            },
            |section| {
                if !self.is_candidate(search, section) {
                    return None;
                }
                let valid = self.sit.valid_in(section);
                match search.cost {
                    VictimCost::Greedy | VictimCost::Age => Some(valid.into()),
                    VictimCost::CostBenefit => {
                        let percent = u64::from(valid) * 100 / u64::from(all);
                        let stamp = self.sit.age_stamp(section);
                        // What brings nothing is never chosen.
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
    /// The same for a section that was asked for; `None` where it has no valid block.
    ///
    /// # Errors
    /// `Busy`: a log is in it, blocks of it are being written, or another one is being cleaned.
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

    /// Chooses the section to be cleaned; until [`Segments::end_cleaning`] nothing is written to it.
    /// `None` where nothing can be gained, or somebody is cleaning.
    pub fn begin_cleaning(&self, search: VictimSearch<'_>) -> Option<Victim> {
        let now = self.elapsed();
        let mut inner = self.inner.lock();
        if inner.manager.gc.victim.is_some() {
            return None;
        }
        let victim = inner.manager.pick(search, now)?;
        inner.manager.gc.victim = Some(victim.section);
        Some(victim)
    }

    /// A round in the background ends before this segment of the section being cleaned; the next one goes
    /// on there, if the section is still worth it.
    pub fn resume_at(&self, section: u32, next: SegNo) {
        self.inner.lock().manager.gc.unfinished = Some((section, next));
    }

    /// The end of cleaning a section. Returns the blocks in it that are still valid.
    pub fn end_cleaning(&self, section: u32) -> u32 {
        let mut inner = self.inner.lock();
        assert!(inner.manager.gc.victim == Some(section));
        inner.manager.gc.victim = None;
        let left = inner.manager.sit.valid_in(section);
        if left == 0 {
            inner.manager.gc.bg_victims.remove(&section);
        }
        left
    }

    /// A section has blocks that nothing may move; [forgotten](Self::forget_pins) when nothing else is
    /// left to be cleaned.
    pub fn pin(&self, section: u32) {
        self.inner.lock().manager.gc.pinned.insert(section);
    }

    /// Forgets what is pinned, as files may be unpinned by now; whether anything was.
    pub fn forget_pins(&self) -> bool {
        let mut inner = self.inner.lock();
        !std::mem::take(&mut inner.manager.gc.pinned).is_empty()
    }

    /// The segments of a section, and what they hold.
    pub fn segments_of(&self, section: u32) -> Vec<(SegNo, LogType)> {
        let inner = self.inner.lock();
        let sit = &inner.manager.sit;
        let of = sit.segments_of(section);
        of.map(|at| (at, sit.kind(at))).collect()
    }

    /// Whether there is this room, or will be when so many sections more are free.
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

    /// Blocks that have become invalid since the mount.
    pub fn invalidated(&self) -> u64 {
        self.inner.lock().manager.sit.invalidated().0
    }

    /// Blocks that have become invalid since the last checkpoint's snapshot: a checkpoint frees them.
    pub fn freed_by_checkpoint(&self) -> u64 {
        self.inner.lock().manager.sit.invalidated().1
    }

    /// Valid blocks of a segment.
    pub fn valid_in_segment(&self, at: SegNo) -> u32 {
        self.inner.lock().manager.sit.valid(at)
    }
}

impl SegmentManager {
    /// Blocks that a log can still write in its section.
    fn left_in_section(&self, log: LogType) -> u32 {
        let log = &self.cursegs[log.index()];
        let in_segment = SEGMENT_BLOCKS - self.sit.busy(log.segment).count();
        let section = self.sit.section_of(log.segment);
        let behind = |at: &SegNo| at.0 > log.segment.0 && self.sit.state(*at) == SegmentState::Free;
        let free = self.sit.segments_of(section).filter(behind).count() as u32;
        in_segment + free * SEGMENT_BLOCKS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: (100 - u) * age * 100 / (100 + u), taken from the largest cost.
    #[test]
    fn costs_and_benefits() {
        let most = u64::from(u32::MAX);
        assert_eq!(cost_benefit(50, 0, 0, 1000), most - 3333);
        assert_eq!(cost_benefit(50, 1000, 0, 1000), most, "the newest");
        assert_eq!(cost_benefit(100, 0, 0, 1000), most, "nothing to gain");
        assert_eq!(cost_benefit(0, 250, 0, 1000), most - 7500);
        assert_eq!(cost_benefit(10, 500, 100, 1100), most - 4909);
        assert_eq!(cost_benefit(10, 5, 5, 5), most, "all are of one age");
        // A clock that moved widens nothing here.
        assert_eq!(cost_benefit(0, 9, 10, 20), most - 10_000);
        assert_eq!(cost_benefit(0, 30, 10, 20), most);
    }
}
