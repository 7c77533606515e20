//! Single decisions, shares on a modelled device, and random histories that are checked against the rules.

mod flushes;
mod histories;
mod shared;
mod shares;

use std::collections::BTreeMap;

use proptest::prelude::*;
use steadfs_base::{IoPrio, OwnerId, PrioClass, Urgency};

use super::*;

const MS: u64 = 1_000_000;
const KIB: u64 = 1 << 10;

fn tag(group: u32, owner: u32, urgency: Urgency, prio: IoPrio) -> IoTag {
    IoTag {
        urgency,
        prio,
        group: GroupId(group),
        owner: OwnerId(owner),
    }
}

fn be(level: u8) -> IoPrio {
    IoPrio::best_effort(level)
}

fn prio(class: PrioClass) -> IoPrio {
    IoPrio { class, level: 4 }
}

fn sync(group: u32, owner: u32) -> IoTag {
    tag(group, owner, Urgency::Waited, be(4))
}

fn background(group: u32) -> IoTag {
    tag(group, 0, Urgency::Background, be(4))
}

fn write(tag: IoTag, bytes: u64) -> Io {
    Io {
        tag,
        charged: tag,
        direction: Direction::Write,
        bytes,
        flushes: 0,
        readahead: false,
    }
}

fn flush(tag: IoTag) -> Io {
    Io {
        tag,
        charged: tag,
        direction: Direction::Flush,
        bytes: 0,
        flushes: 1,
        readahead: false,
    }
}

/// Serves all requests one at a time, in 1 ms each; returns their order.
fn drain(fair: &mut impl Scheduler) -> Vec<u32> {
    let mut now = Nanos(0);
    let mut order = Vec::new();
    while fair.queued() > 0 {
        match fair.next(now) {
            Some(id) => {
                now.0 += MS;
                fair.complete(id, now);
                order.push(id.0);
            }
            None => now = fair.rerun_at().expect("no request is in flight").max(now),
        }
    }
    order
}

fn filled(requests: &[Io]) -> Fair {
    let mut fair = Fair::new(FairOptions::default());
    for (n, &io) in (0..).zip(requests) {
        fair.insert(IoId(n), io, Nanos(0));
    }
    fair
}

#[test]
fn classes_and_lanes_are_served_in_order() {
    let real_time = tag(0, 1, Urgency::Waited, prio(PrioClass::RealTime));
    let idle = tag(0, 2, Urgency::Waited, prio(PrioClass::Idle));
    let requests = [idle, background(0), sync(0, 3), real_time, sync(0, 3)];
    let mut fair = filled(&requests.map(|tag| write(tag, 4 * KIB)));
    assert_eq!(drain(&mut fair), [3, 2, 4, 1, 0]);
}

#[test]
fn a_lone_request_is_not_entered_in_the_tree() {
    let mut fair = Fair::new(FairOptions::default());
    for n in 0..100 {
        let now = Nanos(n * MS);
        fair.insert(IoId(0), write(sync(7, n as u32), KIB), now);
        assert_eq!(fair.next(now), Some(IoId(0)));
        assert_eq!(fair.rerun_at(), None);
        fair.complete(IoId(0), now);
    }
    assert_eq!(fair.tree.leaves.len(), 0);
}

#[test]
fn the_device_never_idles_for_a_lone_owner() {
    fn check(mut policy: impl Scheduler) {
        for n in 0..100u32 {
            let now = Nanos(u64::from(n) * MS);
            for id in [2 * n, 2 * n + 1] {
                policy.insert(IoId(id), write(sync(0, 1), KIB), now);
            }
            for id in [2 * n, 2 * n + 1] {
                assert_eq!(policy.next(now), Some(IoId(id)));
            }
            policy.complete(IoId(2 * n), now);
            policy.complete(IoId(2 * n + 1), now);
        }
    }
    check(Fair::new(Fair::preset()));
    check(Cfq::new(Cfq::preset()));
}

#[test]
fn a_flush_goes_first_with_any_tag() {
    let idle = tag(3, 2, Urgency::Idle, prio(PrioClass::Idle));
    let real_time = tag(0, 1, Urgency::Waited, prio(PrioClass::RealTime));
    let mut fair = filled(&[
        write(real_time, KIB),
        write(sync(0, 3), KIB),
        flush(idle),
        write(real_time, KIB),
    ]);
    assert_eq!(drain(&mut fair)[0], 2);
}

/// Read-ahead is served like async writes, in a leaf of its own.
#[test]
fn readahead_does_not_queue_behind_async_writes() {
    let readahead = Io {
        direction: Direction::Read,
        readahead: true,
        ..write(background(1), 64 * KIB)
    };
    let mut ios = vec![write(background(1), 64 * KIB); 8];
    ios.extend([readahead, readahead, write(sync(1, 5), KIB)]);
    let mut fair = filled(&ios);
    let now = Nanos(0);
    assert!(matches!(
        fair.boost(IoId(9), sync(1, 5), now),
        BoostOutcome::Boosted { .. }
    ));
    let order = drain(&mut fair);
    let position = |id| order.iter().position(|&o| o == id).unwrap();
    assert!(
        position(9) < 2 && position(10) < 2,
        "{order:?}: a task waits"
    );
    assert!((2..5).contains(&position(8)), "{order:?}");
}

#[test]
fn a_second_boost_changes_nothing() {
    let mut fair = filled(&[
        write(background(1), KIB),
        write(background(1), KIB),
        write(background(1), KIB),
        write(sync(2, 5), KIB),
    ]);
    let now = Nanos(0);
    let boosted = BoostOutcome::Boosted { overtaken: 2 };
    assert_eq!(fair.boost(IoId(2), sync(2, 5), now), boosted);
    assert_eq!(
        fair.boost(IoId(2), sync(2, 5), now),
        BoostOutcome::AlreadyUrgent
    );
    assert_eq!(
        fair.boost(IoId(2), background(9), now),
        BoostOutcome::AlreadyUrgent
    );
    assert_eq!(
        fair.boost(IoId(3), sync(2, 5), now),
        BoostOutcome::AlreadyUrgent
    );
    // The boosted request arrived before the waiter's own.
    let order = drain(&mut fair);
    let position = |id| order.iter().position(|&o| o == id);
    assert!(position(2) < position(3));
}

#[test]
fn a_boost_moves_a_request_to_another_group_only_if_it_is_heavier() {
    let mut fair = Fair::new(FairOptions::default());
    fair.set_group(GroupId(1), GroupId(0), 100);
    fair.set_group(GroupId(2), GroupId(0), 20);
    fair.set_group(GroupId(3), GroupId(2), 1000);
    let boosted = |now, waiter| fair.boosted_tag(now, waiter).group.0;
    assert_eq!(boosted(sync(2, 1), sync(1, 2)), 1);
    assert_eq!(boosted(sync(1, 1), sync(2, 2)), 1);
    // The weights at the level where the paths separate count.
    assert_eq!(boosted(sync(1, 1), sync(3, 2)), 1);
    assert_eq!(boosted(sync(3, 1), sync(1, 2)), 1);
    assert_eq!(boosted(sync(1, 1), sync(1, 2)), 1);
    assert_eq!(boosted(background(1), sync(2, 2)), 2);
}

#[test]
fn a_boosted_request_in_the_device_stays_as_it_is() {
    let mut fair = filled(&[write(background(0), KIB), write(background(0), KIB)]);
    assert_eq!(fair.next(Nanos(0)), Some(IoId(0)));
    let boost = fair.boost(IoId(0), sync(0, 1), Nanos(0));
    assert_eq!(boost, BoostOutcome::AlreadyDispatched);
}

#[test]
fn cfq_ramps_the_async_depth_up_after_a_late_sync_request() {
    let mut fair = Cfq::new(Cfq::preset());
    fair.insert(IoId(0), write(sync(0, 1), KIB), Nanos(0));
    assert_eq!(fair.next(Nanos(0)), Some(IoId(0)));
    for id in 1..20 {
        fair.insert(IoId(id), write(background(0), KIB), Nanos(0));
    }
    assert_eq!(
        fair.next(Nanos(0)),
        None,
        "no async request beside a sync one"
    );
    let slow = 200 * MS;
    fair.complete(IoId(0), Nanos(slow));
    let dispatched = |fair: &mut Cfq, now: u64| {
        let mut ids = Vec::new();
        while let Some(id) = fair.next(Nanos(now)) {
            ids.push(id);
        }
        let n = ids.len();
        ids.into_iter().for_each(|id| fair.complete(id, Nanos(now)));
        n
    };
    assert_eq!(dispatched(&mut fair, slow), 1);
    assert_eq!(dispatched(&mut fair, slow + 50 * MS), 1);
    assert_eq!(dispatched(&mut fair, slow + 200 * MS), 2);
    assert_eq!(dispatched(&mut fair, slow + 500 * MS), 5);
}

#[test]
fn idle_owners_and_removed_groups_are_dropped() {
    let mut fair = Fair::new(FairOptions::default());
    let mut now = 0;
    for n in 0..10_000u32 {
        let group = n % 50;
        fair.set_group(GroupId(group + 1), GroupId(0), 50);
        let a = write(sync(group + 1, n), KIB);
        let b = write(sync(group + 1, n + 1), KIB);
        fair.insert(IoId(0), a, Nanos(now));
        fair.insert(IoId(1), b, Nanos(now));
        drain(&mut fair);
        now += 20 * MS;
        fair.remove_group(GroupId(group + 1));
    }
    assert!(fair.tree.leaves.len() < 400, "{}", fair.tree.leaves.len());
    let groups = fair.tree.groups.iter().flatten().count();
    assert!(groups <= 51, "{groups}");
}

#[test]
fn describe_lists_owners_with_requests() {
    let fair = filled(&[write(sync(4, 77), KIB), write(background(4), KIB)]);
    let mut text = String::new();
    fair.describe(&mut text).unwrap();
    assert!(text.contains("group 4 weight 100: 2 queued"), "{text}");
    assert!(
        text.contains("owner 77 be,4 sync weight 40: 1 queued"),
        "{text}"
    );
    assert!(text.contains("owner 0 be,4 async"), "{text}");
}
