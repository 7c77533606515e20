//! Each search for a victim or an SSR segment, compared with a search that examines all of them: whatever index or
//! cursor is used, the result must be among the cheapest.

use std::time::Duration;

use super::*;
use crate::disk::SEGMENT_BLOCKS;
use crate::segment::curseg::SegmentManager;
use crate::segment::rules::{GcRules, Linux618, Linux2013, ssr_types};
use crate::segment::victims::{VictimCost, VictimSearch};
use crate::victim::age::{self, AgeCandidate, AgeRules};

/// Every kind of search for a section.
const SEARCHES: [(VictimCost, Option<u32>); 5] = [
    (VictimCost::Greedy, None),
    (VictimCost::Greedy, Some(u32::MAX)),
    (VictimCost::CostBenefit, None),
    (VictimCost::CostBenefit, Some(u32::MAX)),
    (VictimCost::Age, None),
];

/// Dirty sections in which nothing is allocated.
fn sections(logs: &SegmentManager) -> Vec<AgeCandidate> {
    let sit = &logs.sit;
    let all = sit.per_section() * SEGMENT_BLOCKS;
    let mut found = Vec::new();
    for number in 0..sit.len() / sit.per_section() {
        let first = number * sit.per_section();
        let of = || (first..first + sit.per_section()).map(SegNo);
        let valid: u32 = of().map(|at| sit.current(at).count()).sum();
        let taken =
            of().any(|at| sit.state(at) == SegmentState::Open || !sit.allocated(at).is_empty());
        if !taken && valid > 0 && valid < all {
            let stamps: u64 = of().map(|at| sit.stamp(at)).sum();
            let stamp = stamps / u64::from(sit.per_section());
            found.push(AgeCandidate {
                stamp,
                number,
                valid,
            });
        }
    }
    found
}

/// The cost by cost-benefit; none if cleaning frees nothing.
fn cost_benefit(one: &AgeCandidate, size: u32, oldest: u64, now: u64) -> Option<u64> {
    let percent = u64::from(one.valid) * 100 / u64::from(size);
    let (stamp, span) = (
        one.stamp.clamp(oldest, now.max(oldest)),
        now.saturating_sub(oldest),
    );
    let age = match span {
        0 => 0,
        span => 100 - (stamp - oldest) * 100 / span,
    };
    let benefit = 100 * (100 - percent) * age / (100 + percent);
    (benefit > 0).then(|| u64::from(u32::MAX) - benefit)
}

/// By age; without the threshold if no section is that old and the volume is younger than it.
fn by_age(
    rules: AgeRules,
    now: u64,
    find: impl Fn(&AgeRules) -> Option<AgeCandidate>,
) -> Option<AgeCandidate> {
    let any = AgeRules {
        threshold: 0,
        ..rules
    };
    find(&rules).or_else(|| (now < rules.threshold).then(|| find(&any))?)
}

/// The sections that a search may choose.
fn due(logs: &SegmentManager, search: VictimSearch<'_>, now: u64) -> Vec<u32> {
    let mut candidates = sections(logs);
    candidates.retain(|one| !search.skip.contains(&one.number));
    let bg_victims = |one: &AgeCandidate| logs.gc.bg_victims.contains(&one.number);
    if search.foreground
        && let Some(first) = candidates.iter().find(|one| bg_victims(one))
    {
        return vec![first.number];
    }
    candidates.retain(|one| !logs.gc.pinned.contains(&one.number));
    candidates.retain(|one| search.foreground || !bg_victims(one));
    let size = logs.sit.per_section() * SEGMENT_BLOCKS;
    let cost = |one: &AgeCandidate| match search.cost {
        VictimCost::Greedy | VictimCost::Age => Some(one.valid.into()),
        VictimCost::CostBenefit => cost_benefit(one, size, logs.sit.oldest(), now),
    };
    if search.cost == VictimCost::Age {
        let newest = logs.sit.newest();
        let found = by_age(logs.age, now, |rules| {
            age::oldest(candidates.clone(), newest, size, rules)
        });
        return found.into_iter().map(|one| one.number).collect();
    }
    let least = candidates.iter().filter_map(cost).min();
    let cheapest = |one: &&AgeCandidate| least.is_some() && cost(one) == least;
    candidates
        .iter()
        .filter(cheapest)
        .map(|one| one.number)
        .collect()
}

impl RandomRun {
    /// Advances time and searches for victims in every way.
    pub(super) fn victims(&mut self) {
        steadfs_rt::sleep(Duration::from_secs(self.random.below(200_000) as u64));
        let sections = self.volume.layout.main_segments as usize;
        let skip: BTreeSet<u32> = (0..self.random.below(3))
            .map(|_| self.random.below(sections) as u32)
            .collect();
        if self.random.chance(100) {
            self.volume
                .segments
                .pin(self.random.below(sections / 2) as u32);
        }
        if self.random.chance(50) {
            self.volume.segments.forget_pins();
        }
        for rules in [&Linux618 as &dyn GcRules, &Linux2013] {
            self.volume.segments.set_policy(|p| p.rules = rules);
            for (cost, limit) in SEARCHES {
                for foreground in [self.random.chance(512), self.random.chance(512)] {
                    self.search(VictimSearch {
                        cost,
                        foreground,
                        limit,
                        skip: &skip,
                    });
                }
            }
            self.ssr();
        }
        self.volume.segments.set_policy(|p| p.rules = &Linux618);
        self.atgc_segments();
    }

    fn search(&self, search: VictimSearch<'_>) {
        let segments = &self.volume.segments;
        let now = segments.elapsed();
        let due = due(&segments.inner.lock().manager, search, now);
        let found = segments.begin_cleaning(search);
        assert_eq!(found.is_some(), !due.is_empty(), "{search:?}: {due:?}");
        let Some(victim) = found else { return };
        assert!(
            due.contains(&victim.section),
            "{search:?}: {victim:?} {due:?}"
        );
        // No other section is cleaned meanwhile.
        assert_eq!(segments.begin_cleaning(search), None);
        let left = segments.end_cleaning(victim.section);
        assert_eq!(left, victim.valid);
    }

    /// The segment with the fewest busy blocks, of the first type that has one.
    fn ssr(&self) {
        let mut inner = self.volume.segments.inner.lock();
        let logs = &mut inner.manager;
        let searched = std::mem::replace(&mut logs.policy.max_search, u32::MAX);
        for log in LogType::ALL {
            let types = ssr_types(log);
            let busy = |at: &SegNo, logs: &SegmentManager| logs.sit.busy(*at).count();
            let has_room = |kind: LogType, logs: &SegmentManager| -> Vec<SegNo> {
                partly_filled(logs, kind)
                    .filter(|at| busy(at, logs) < SEGMENT_BLOCKS)
                    .collect()
            };
            let mut all = types.iter().map(|kind| has_room(*kind, logs));
            let first = all.find(|found| !found.is_empty());
            drop(all);
            let found = logs.find_ssr_segment(log, types);
            assert_eq!(found.is_some(), first.is_some(), "{log:?}");
            if let (Some(found), Some(first)) = (found, first) {
                let least = first.iter().map(|at| busy(at, logs)).min();
                assert!(first.contains(&found), "{log:?}: {found}");
                assert_eq!(Some(busy(&found, logs)), least, "{log:?}: {found}");
            }
        }
        logs.policy.max_search = searched;
    }

    /// Where ATGC places blocks of some age.
    fn atgc_segments(&mut self) {
        let now = self.volume.segments.elapsed();
        let wanted = self.random.below(now as usize + 1) as u64;
        let mut inner = self.volume.segments.inner.lock();
        let logs = &mut inner.manager;
        let newest = logs.sit.newest();
        for log in [LogType::HotData, LogType::WarmData, LogType::ColdData] {
            let atgc = |at: SegNo| AgeCandidate {
                stamp: logs.sit.stamp(at),
                number: at.0,
                valid: logs.sit.busy(at).count(),
            };
            let find = |kind: LogType| {
                let room = partly_filled(logs, kind)
                    .map(atgc)
                    .filter(|one| one.valid < SEGMENT_BLOCKS);
                let room: Vec<AgeCandidate> = room.collect();
                by_age(logs.age, now, |rules| {
                    let old =
                        |one: &&AgeCandidate| newest.saturating_sub(one.stamp) >= rules.threshold;
                    let old = room.iter().filter(old).copied().collect();
                    age::nearest(old, wanted, rules)
                })
            };
            let due = ssr_types(log).iter().find_map(|kind| find(*kind));
            let found = logs.choose_atgc((log, wanted), now);
            let found = found.and_then(|(at, ssr)| ssr.then_some(at.0));
            assert_eq!(found, due.map(|one| one.number), "{log:?}");
        }
    }
}

/// The dirty segments of a type.
fn partly_filled(logs: &SegmentManager, kind: LogType) -> impl Iterator<Item = SegNo> {
    let of_kind = (0..logs.sit.len())
        .map(SegNo)
        .filter(move |at| logs.sit.kind(*at) == kind);
    of_kind.filter(|at| {
        let valid = logs.sit.current(*at).count();
        let open = logs.sit.state(*at) == SegmentState::Open;
        !open && valid > 0 && valid < SEGMENT_BLOCKS
    })
}
