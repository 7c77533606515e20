//! Every search for a section to clean or a segment to fill, beside an explicit look at all of them: what is found
//! costs as little as anything, whatever index or cursor led there.

use std::time::Duration;

use super::*;
use crate::disk::SEGMENT_BLOCKS;
use crate::segment::clean::{Cost, Search};
use crate::segment::logs::Logs;
use crate::segment::policy::hole_types;
use crate::victim::age::{self, AgeRules, Aged};

/// A search for a section, by all means.
const SEARCHES: [(Cost, Option<u32>); 5] = [
    (Cost::Greedy, None),
    (Cost::Greedy, Some(u32::MAX)),
    (Cost::CostBenefit, None),
    (Cost::CostBenefit, Some(u32::MAX)),
    (Cost::Age, None),
];

/// Sections without a log in which some but not all blocks are valid, and nothing is being written.
fn sections(logs: &Logs) -> Vec<Aged> {
    let table = &logs.table;
    let all = table.per_section() * SEGMENT_BLOCKS;
    let mut found = Vec::new();
    for number in 0..table.len() / table.per_section() {
        let first = number * table.per_section();
        let of = || (first..first + table.per_section()).map(SegNo);
        let valid: u32 = of().map(|at| table.current(at).count()).sum();
        let taken = of().any(|at| table.state(at) == State::Open || !table.claimed(at).is_empty());
        if !taken && valid > 0 && valid < all {
            let stamps: u64 = of().map(|at| table.stamp(at)).sum();
            let stamp = stamps / u64::from(table.per_section());
            found.push(Aged {
                stamp,
                number,
                valid,
            });
        }
    }
    found
}

/// What cleaning a section by cost and benefit costs; none where it brings nothing.
fn cost_benefit(one: &Aged, size: u32, oldest: u64, now: u64) -> Option<u64> {
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

/// By age, without the threshold where nothing is as old and the volume is younger than it.
fn by_age(rules: AgeRules, now: u64, find: impl Fn(&AgeRules) -> Option<Aged>) -> Option<Aged> {
    let any = AgeRules {
        threshold: 0,
        ..rules
    };
    find(&rules).or_else(|| (now < rules.threshold).then(|| find(&any))?)
}

/// What a search may find: any of these.
fn due(logs: &Logs, search: Search<'_>, now: u64) -> Vec<u32> {
    let mut candidates = sections(logs);
    candidates.retain(|one| !search.skip.contains(&one.number));
    let begun = |one: &Aged| logs.cleaning.begun.contains(&one.number);
    if search.foreground
        && let Some(first) = candidates.iter().find(|one| begun(one))
    {
        return vec![first.number];
    }
    candidates.retain(|one| !logs.cleaning.pinned.contains(&one.number));
    candidates.retain(|one| search.foreground || !begun(one));
    let size = logs.table.per_section() * SEGMENT_BLOCKS;
    let cost = |one: &Aged| match search.cost {
        Cost::Greedy | Cost::Age => Some(one.valid.into()),
        Cost::CostBenefit => cost_benefit(one, size, logs.table.oldest(), now),
    };
    if search.cost == Cost::Age {
        let newest = logs.table.newest();
        let found = by_age(logs.age, now, |rules| {
            age::oldest(candidates.clone(), newest, size, rules)
        });
        return found.into_iter().map(|one| one.number).collect();
    }
    let least = candidates.iter().filter_map(cost).min();
    let cheapest = |one: &&Aged| least.is_some() && cost(one) == least;
    candidates
        .iter()
        .filter(cheapest)
        .map(|one| one.number)
        .collect()
}

impl RandomRun {
    /// Lets time pass, and looks for victims in every way.
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
        for rules in [GcPolicy::Linux618, GcPolicy::Linux2013] {
            self.volume.segments.set_policy(|p| p.rules = rules);
            for (cost, limit) in SEARCHES {
                for foreground in [self.random.chance(512), self.random.chance(512)] {
                    self.search(Search {
                        cost,
                        foreground,
                        limit,
                        skip: &skip,
                    });
                }
            }
            self.holes();
        }
        self.volume
            .segments
            .set_policy(|p| p.rules = GcPolicy::Linux618);
        self.aged_holes();
    }

    fn search(&self, search: Search<'_>) {
        let segments = &self.volume.segments;
        let now = segments.elapsed();
        let due = due(&segments.inner.lock().logs, search, now);
        let found = segments.begin_cleaning(search);
        assert_eq!(found.is_some(), !due.is_empty(), "{search:?}: {due:?}");
        let Some(victim) = found else { return };
        assert!(
            due.contains(&victim.section),
            "{search:?}: {victim:?} {due:?}"
        );
        // Nobody else cleans meanwhile.
        assert_eq!(segments.begin_cleaning(search), None);
        let left = segments.end_cleaning(victim.section);
        assert_eq!(left, victim.valid);
    }

    /// The segment with the fewest busy blocks, of the first type that has one.
    fn holes(&self) {
        let mut inner = self.volume.segments.inner.lock();
        let logs = &mut inner.logs;
        let searched = std::mem::replace(&mut logs.policy.max_search, u32::MAX);
        for log in LogType::ALL {
            let types = hole_types(log);
            let busy = |at: &SegNo, logs: &Logs| logs.table.busy(*at).count();
            let has_room = |kind: LogType, logs: &Logs| -> Vec<SegNo> {
                partly_filled(logs, kind)
                    .filter(|at| busy(at, logs) < SEGMENT_BLOCKS)
                    .collect()
            };
            let mut all = types.iter().map(|kind| has_room(*kind, logs));
            let first = all.find(|found| !found.is_empty());
            drop(all);
            let found = logs.find_holes(log, types);
            assert_eq!(found.is_some(), first.is_some(), "{log:?}");
            if let (Some(found), Some(first)) = (found, first) {
                let least = first.iter().map(|at| busy(at, logs)).min();
                assert!(first.contains(&found), "{log:?}: {found}");
                assert_eq!(Some(busy(&found, logs)), least, "{log:?}: {found}");
            }
        }
        logs.policy.max_search = searched;
    }

    /// Where blocks of some age go.
    fn aged_holes(&mut self) {
        let now = self.volume.segments.elapsed();
        let wanted = self.random.below(now as usize + 1) as u64;
        let mut inner = self.volume.segments.inner.lock();
        let logs = &mut inner.logs;
        let newest = logs.table.newest();
        for log in [LogType::HotData, LogType::WarmData, LogType::ColdData] {
            let aged = |at: SegNo| Aged {
                stamp: logs.table.stamp(at),
                number: at.0,
                valid: logs.table.busy(at).count(),
            };
            let find = |kind: LogType| {
                let room = partly_filled(logs, kind)
                    .map(aged)
                    .filter(|one| one.valid < SEGMENT_BLOCKS);
                let room: Vec<Aged> = room.collect();
                by_age(logs.age, now, |rules| {
                    let old = |one: &&Aged| newest.saturating_sub(one.stamp) >= rules.threshold;
                    let old = room.iter().filter(old).copied().collect();
                    age::nearest(old, wanted, rules)
                })
            };
            let due = hole_types(log).iter().find_map(|kind| find(*kind));
            let found = logs.choose_aged((log, wanted), now);
            let found = found.and_then(|(at, holes)| holes.then_some(at.0));
            assert_eq!(found, due.map(|one| one.number), "{log:?}");
        }
    }
}

/// The segments of a type in which something is valid, but not all, and which no log has open.
fn partly_filled(logs: &Logs, kind: LogType) -> impl Iterator<Item = SegNo> {
    let of_kind = (0..logs.table.len())
        .map(SegNo)
        .filter(move |at| logs.table.kind(*at) == kind);
    of_kind.filter(|at| {
        let valid = logs.table.current(*at).count();
        let open = logs.table.state(*at) == State::Open;
        !open && valid > 0 && valid < SEGMENT_BLOCKS
    })
}
