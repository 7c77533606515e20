//! Single decisions by hand, shares against a modelled device, random histories against the rules.

mod carried;
mod flushes;
mod histories;
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
        direction: Direction::Write,
        bytes,
        flushes: 0,
        readahead: false,
    }
}

fn flush(tag: IoTag) -> Io {
    Io {
        tag,
        direction: Direction::Flush,
        bytes: 0,
        flushes: 1,
        readahead: false,
    }
}

/// Serves everything, one request at a time that takes a millisecond; the order.
fn drain(fair: &mut Fair) -> Vec<u32> {
    let mut now = Nanos(0);
    let mut order = Vec::new();
    while fair.queued() > 0 {
        match fair.next(now) {
            Some(id) => {
                now.0 += MS;
                fair.complete(id, now);
                order.push(id.0);
            }
            None => now = fair.rerun_at().expect("nothing is in the device").max(now),
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
fn classes_and_kinds_in_their_order() {
    let real_time = tag(0, 1, Urgency::Waited, prio(PrioClass::RealTime));
    let idle = tag(0, 2, Urgency::Waited, prio(PrioClass::Idle));
    let requests = [idle, background(0), sync(0, 3), real_time, sync(0, 3)];
    let mut fair = filled(&requests.map(|tag| write(tag, 4 * KIB)));
    assert_eq!(drain(&mut fair), [3, 2, 4, 1, 0]);
}

#[test]
fn a_lone_request_goes_at_once_and_leaves_no_trace() {
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
fn a_lone_owner_is_never_waited_for() {
    for options in [FairOptions::default(), FairOptions::cfq()] {
        let mut fair = Fair::new(options);
        for n in 0..100u32 {
            let now = Nanos(u64::from(n) * MS);
            for id in [2 * n, 2 * n + 1] {
                fair.insert(IoId(id), write(sync(0, 1), KIB), now);
            }
            for id in [2 * n, 2 * n + 1] {
                assert_eq!(fair.next(now), Some(IoId(id)));
            }
            fair.complete(IoId(2 * n), now);
            fair.complete(IoId(2 * n + 1), now);
        }
    }
}

#[test]
fn a_flush_goes_first_whatever_its_tag() {
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

/// It is served as writes are that nobody waits for, and does not stand behind all of them.
#[test]
fn what_is_read_ahead_has_a_line_of_its_own() {
    let ahead = Io {
        direction: Direction::Read,
        readahead: true,
        ..write(background(1), 64 * KIB)
    };
    let mut ios = vec![write(background(1), 64 * KIB); 8];
    ios.extend([ahead, ahead, write(sync(1, 5), KIB)]);
    let mut fair = filled(&ios);
    let now = Nanos(0);
    assert!(matches!(
        fair.boost(IoId(9), sync(1, 5), now),
        BoostOutcome::Boosted { .. }
    ));
    let order = drain(&mut fair);
    let place = |id| order.iter().position(|&o| o == id).unwrap();
    assert!(place(9) < 2 && place(10) < 2, "{order:?}: somebody waits");
    assert!((2..5).contains(&place(8)), "{order:?}");
}

#[test]
fn a_boost_raises_in_place_once() {
    let mut fair = filled(&[
        write(background(1), KIB),
        write(background(1), KIB),
        write(background(1), KIB),
        write(sync(2, 5), KIB),
    ]);
    let now = Nanos(0);
    let raised = BoostOutcome::Boosted { overtaken: 2 };
    assert_eq!(fair.boost(IoId(2), sync(2, 5), now), raised);
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
    // It came before the waiter's own.
    let order = drain(&mut fair);
    let place = |id| order.iter().position(|&o| o == id);
    assert!(place(2) < place(3));
}

#[test]
fn a_boost_moves_the_account_to_a_heavier_group_only() {
    let mut fair = Fair::new(FairOptions::default());
    fair.set_group(GroupId(1), GroupId(0), 100);
    fair.set_group(GroupId(2), GroupId(0), 20);
    fair.set_group(GroupId(3), GroupId(2), 1000);
    let raised = |now, waiter| fair.boosted_tag(now, waiter).group.0;
    assert_eq!(raised(sync(2, 1), sync(1, 2)), 1);
    assert_eq!(raised(sync(1, 1), sync(2, 2)), 1);
    // What counts is the weight where the ways part.
    assert_eq!(raised(sync(1, 1), sync(3, 2)), 1);
    assert_eq!(raised(sync(3, 1), sync(1, 2)), 1);
    assert_eq!(raised(sync(1, 1), sync(1, 2)), 1);
    assert_eq!(raised(background(1), sync(2, 2)), 2);
}

#[test]
fn a_boosted_request_in_the_device_stays_as_it_is() {
    let mut fair = filled(&[write(background(0), KIB), write(background(0), KIB)]);
    assert_eq!(fair.next(Nanos(0)), Some(IoId(0)));
    let boost = fair.boost(IoId(0), sync(0, 1), Nanos(0));
    assert_eq!(boost, BoostOutcome::AlreadyDispatched);
}

#[test]
fn cfq_lets_background_in_slowly_after_a_slow_sync_request() {
    let mut fair = Fair::new(FairOptions::cfq());
    fair.insert(IoId(0), write(sync(0, 1), KIB), Nanos(0));
    assert_eq!(fair.next(Nanos(0)), Some(IoId(0)));
    for id in 1..20 {
        fair.insert(IoId(id), write(background(0), KIB), Nanos(0));
    }
    assert_eq!(fair.next(Nanos(0)), None, "not beside a sync request");
    let slow = 200 * MS;
    fair.complete(IoId(0), Nanos(slow));
    let let_in = |fair: &mut Fair, now: u64| {
        let mut ids = Vec::new();
        while let Some(id) = fair.next(Nanos(now)) {
            ids.push(id);
        }
        let n = ids.len();
        ids.into_iter().for_each(|id| fair.complete(id, Nanos(now)));
        n
    };
    assert_eq!(let_in(&mut fair, slow), 1);
    assert_eq!(let_in(&mut fair, slow + 50 * MS), 1);
    assert_eq!(let_in(&mut fair, slow + 200 * MS), 2);
    assert_eq!(let_in(&mut fair, slow + 500 * MS), 5);
}

#[test]
fn owners_that_are_gone_are_forgotten() {
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
fn describes_who_waits() {
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
