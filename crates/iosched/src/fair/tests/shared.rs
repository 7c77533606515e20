//! Requests that one owner submits for others, as the f2fs checkpoint task does.

use super::shares::{Client, LONG, WINDOW, World};
use super::*;

/// An owner in the root group, of weight 50, that submits for others.
fn submitter() -> IoTag {
    tag(0, 0, Urgency::Checkpoint, be(3))
}

/// Requests are submitted for groups 1 and 2; groups 3 to 5 write streams.
const GROUPS: [(u32, u32, u32); 5] = [
    (1, 0, 200),
    (2, 0, 20),
    (3, 0, 100),
    (4, 0, 20),
    (5, 0, 100),
];

fn world(depth: usize) -> World {
    World::new(FairOptions::default(), &GROUPS, depth)
}

fn submitting(sharers: &[IoTag]) -> Client {
    Client::of(submitter(), 64 * KIB, 4).for_others(sharers)
}

fn stream(group: u32) -> Client {
    Client::of(sync(group, group), 64 * KIB, 4)
}

#[test]
fn a_shared_request_has_the_largest_weight_of_its_owners() {
    for depth in [1, 4] {
        let cases: [(&[IoTag], f64); 4] = [
            (&[], 50.0),
            (&[sync(2, 2)], 50.0),
            (&[sync(1, 1)], 200.0),
            (&[sync(1, 1), sync(2, 2), sync(1, 3)], 200.0),
        ];
        for (sharers, weight) in cases {
            let mut world = world(depth);
            world.run(&[submitting(sharers), stream(3)], LONG);
            world.check(LONG, &[weight, 100.0]);
        }
    }
}

#[test]
fn a_shared_request_is_charged_to_its_owners() {
    let mut world = world(1);
    world.run(&[submitting(&[sync(1, 1)]), stream(1), stream(3)], LONG);
    for from in (300 * MS..LONG - WINDOW).step_by(100 * MS as usize) {
        let served = world.served(from);
        // The group's weight of 200, and a part of the submitter's own 50.
        let ratio = (served[0] + served[1]) as f64 / served[2] as f64;
        assert!((1.9..2.6).contains(&ratio), "{served:?}");
        // The group's own stream gets half of its share.
        let ratio = served[0] as f64 / served[1] as f64;
        assert!((0.9..1.2).contains(&ratio), "{served:?}");
    }
}

#[test]
fn a_shared_request_goes_before_async_writes_of_the_group() {
    let mut world = world(1);
    let clients = [
        submitting(&[sync(1, 1), sync(1, 2)]),
        Client::of(background(1), 64 * KIB, 8),
    ];
    world.run(&clients, LONG);
    world.check(LONG, &[8.0, 1.0]);
}

/// A light group shares the requests of a heavy one for seconds. When the heavy one has ended, the light one gets its
/// usual share.
#[test]
fn shared_service_leaves_no_debt() {
    let mut fair = Fair::new(FairOptions::default());
    for (id, parent, weight) in GROUPS {
        fair.set_group(GroupId(id), GroupId(parent), weight);
    }
    let mut now = 0;
    let mut serve = |fair: &mut Fair, ios: &[(u32, Io)], rounds: u64| {
        let mut served = vec![0u64; ios.len()];
        for (id, io) in (0..).zip(ios) {
            fair.insert(IoId(id), io.1, Nanos(now));
            (io.0 > 0).then(|| fair.share(IoId(id), sync(1, 1), Nanos(now)));
            (io.0 > 0).then(|| fair.share(IoId(id), sync(2, 2), Nanos(now)));
        }
        for _ in 0..rounds {
            let Some(IoId(id)) = fair.next(Nanos(now)) else {
                now = fair
                    .rerun_at()
                    .expect("the device idles for an owner")
                    .0
                    .max(now);
                continue;
            };
            now += MS;
            fair.complete(IoId(id), Nanos(now));
            served[id as usize] += 1;
            let io = ios[id as usize];
            fair.insert(IoId(id), io.1, Nanos(now));
            (io.0 > 0).then(|| fair.share(IoId(id), sync(1, 1), Nanos(now)));
            (io.0 > 0).then(|| fair.share(IoId(id), sync(2, 2), Nanos(now)));
        }
        while fair.queued() > 0 {
            match fair.next(Nanos(now)) {
                Some(id) => {
                    now += MS;
                    fair.complete(id, Nanos(now));
                }
                None => now = fair.rerun_at().expect("the device idles for an owner").0,
            }
        }
        served
    };
    let both = [
        (2, write(submitter(), 64 * KIB)),
        (0, write(sync(3, 3), 64 * KIB)),
    ];
    let served = serve(&mut fair, &both, 5000);
    assert!(
        (1.9..2.1).contains(&(served[0] as f64 / served[1] as f64)),
        "{served:?}"
    );
    // For a weight of 20, that service took as long as 100 s of its own share.
    let later = [
        (0, write(sync(2, 2), 64 * KIB)),
        (0, write(sync(4, 4), 64 * KIB)),
    ];
    let served = serve(&mut fair, &later, 100);
    assert!(
        (0.8..1.25).contains(&(served[0] as f64 / served[1] as f64)),
        "{served:?}"
    );
    let daemon = [
        (0, write(submitter(), 64 * KIB)),
        (0, write(sync(5, 5), 64 * KIB)),
    ];
    let served = serve(&mut fair, &daemon, 300);
    assert!(
        (0.45..0.55).contains(&(served[0] as f64 / served[1] as f64)),
        "{served:?}"
    );
}

/// Requests that group 2 submits and that group 1 waits for go in the slices of group 1, and are charged to group 2.
#[test]
fn a_boost_does_not_change_the_account() {
    let mut fair = Fair::new(FairOptions::default());
    for (id, parent, weight) in GROUPS {
        fair.set_group(GroupId(id), GroupId(parent), weight);
    }
    let boosted = Io {
        charged: sync(2, 2),
        ..write(sync(1, 1), 64 * KIB)
    };
    let ios = [
        write(sync(1, 1), 64 * KIB),
        write(sync(3, 3), 64 * KIB),
        boosted,
    ];
    let (mut now, mut served) = (0, [0u64; 3]);
    for (id, io) in (0..).zip(ios) {
        fair.insert(IoId(id), io, Nanos(now));
    }
    for _ in 0..3000 {
        let IoId(id) = fair.next(Nanos(now)).expect("requests are queued");
        now += MS;
        fair.complete(IoId(id), Nanos(now));
        served[id as usize] += 1;
        fair.insert(IoId(id), ios[id as usize], Nanos(now));
    }
    let ratio = served[0] as f64 / served[1] as f64;
    assert!((1.9..2.1).contains(&ratio), "{served:?}");
    // Those that it waits for are as many as its own.
    assert!(served[2] * 10 > served[0] * 9, "{served:?}");
}

/// A boosted request is charged even if it is the only one.
#[test]
fn a_lone_boosted_request_is_charged() {
    let mut text = String::new();
    for boosts_later in [false, true] {
        let mut fair = Fair::new(FairOptions::default());
        fair.set_group(GroupId(1), GroupId(0), 100);
        fair.set_group(GroupId(2), GroupId(0), 20);
        let own = write(sync(2, 2), 64 * KIB);
        let (tag, charged) = (sync(1, 1), own.charged);
        let io = if boosts_later { own } else { Io { tag, ..own } };
        assert_eq!(io.charged, charged);
        fair.insert(IoId(0), io, Nanos(0));
        fair.boost(IoId(0), tag, Nanos(0));
        assert_eq!(fair.next(Nanos(0)), Some(IoId(0)));
        fair.complete(IoId(0), Nanos(MS));
        text.clear();
        fair.describe(&mut text).expect("a string takes all");
        assert!(
            text.contains("group 2 weight 20: 0 queued, 65536 bytes charged"),
            "{text}"
        );
    }
}

/// The first request of a new owner is served in the slice of another group. Its weight is raised for that one, too: it
/// does not wait until a sibling that begins later has used up its raised weight.
#[test]
fn an_owner_that_is_first_charged_in_another_slice_waits_as_its_siblings() {
    let mut fair = Fair::new(FairOptions::default());
    fair.set_group(GroupId(1), GroupId(0), 100);
    fair.set_group(GroupId(2), GroupId(0), 20);
    fair.insert(IoId(0), write(sync(2, 0), 64 * KIB), Nanos(0));
    fair.boost(IoId(0), sync(1, 9), Nanos(0));
    assert_eq!(fair.next(Nanos(0)), Some(IoId(0)));
    let mut now = MS;
    fair.complete(IoId(0), Nanos(now));
    let mut served = [0; 2];
    let owners = [sync(2, 0), sync(2, 1)];
    for (id, owner) in (0..).zip(owners) {
        fair.insert(IoId(id), write(owner, 4 * KIB), Nanos(now));
    }
    while served.iter().sum::<u32>() < 100 {
        let Some(id) = fair.next(Nanos(now)) else {
            now = fair.rerun_at().expect("requests are queued").0;
            continue;
        };
        now += MS;
        fair.complete(id, Nanos(now));
        served[id.0 as usize] += 1;
        fair.insert(id, write(owners[id.0 as usize], 4 * KIB), Nanos(now));
    }
    // Charged for the first one at its own weight, it would be behind by 480 requests of the sibling.
    assert!((40..=50).contains(&served[0]), "{served:?}");
}

#[test]
fn a_boosted_request_is_queued_once_in_each_leaf() {
    let mut fair = filled(&[write(submitter(), KIB), write(sync(3, 3), KIB)]);
    let now = Nanos(0);
    for waiter in [
        sync(1, 1),
        sync(1, 1),
        submitter(),
        sync(3, 3),
        background(3),
    ] {
        fair.share(IoId(0), waiter, now);
    }
    // To a leaf where it is queued for a sharer already.
    let real_time = tag(1, 1, Urgency::Waited, prio(PrioClass::RealTime));
    fair.share(IoId(0), real_time, now);
    assert!(matches!(
        fair.boost(IoId(0), real_time, now),
        BoostOutcome::Boosted { .. }
    ));
    assert_eq!(drain(&mut fair), [0, 1]);
    assert!(fair.sharers.is_empty());
}

/// An owner loses nothing if another one submits for it: the device idles for it between these requests, as if they were
/// its own.
#[test]
fn the_device_idles_for_sharers_as_for_the_submitter() {
    for depth in [1, 4] {
        let got = |client: Client| {
            let mut world = World::new(FairOptions::default(), &GROUPS[..3], depth);
            let clients = [client.thinking(MS), stream(1), stream(3)];
            world.run(&clients, LONG);
            (300 * MS..LONG - WINDOW)
                .step_by(100 * MS as usize)
                .map(|from| world.served(from)[0])
                .sum::<u64>()
        };
        let own = got(Client::of(sync(1, 1), 64 * KIB, 1));
        let shared = got(Client::of(submitter(), 64 * KIB, 1).for_others(&[sync(1, 1)]));
        println!("{own} {shared}");
        assert!(shared >= own, "{depth}: {shared} {own}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_weights(
        weights in prop::collection::vec(1..=1000u32, 4),
        depth in 1..4usize,
    ) {
        let groups: Vec<_> = (1..).zip(&weights).map(|(id, &w)| (id, 0, w)).collect();
        let mut world = World::new(FairOptions::default(), &groups, depth);
        let clients = [submitting(&[sync(1, 1), sync(2, 2)]), stream(3), stream(4)];
        world.run(&clients, 3000 * MS);
        let strongest = weights[0].max(weights[1]).max(50);
        world.check(3000 * MS, &[strongest, weights[2], weights[3]].map(f64::from));
    }
}

/// A request that is alone in the queue is charged to all its owners, if it has several.
#[test]
fn a_lone_shared_request_is_charged() {
    let mut fair = Fair::new(FairOptions::default());
    fair.set_group(GroupId(1), GroupId(0), 100);
    fair.set_group(GroupId(2), GroupId(0), 20);
    let durable = Io {
        flushes: 2,
        ..write(sync(1, 1), 4 * KIB)
    };
    for (id, now) in [(0, 0), (3, 1)] {
        let now = Nanos(now * MS);
        fair.insert(IoId(id), durable, now);
        fair.share(IoId(id), sync(2, 2), now);
        assert_eq!(fair.next(now), Some(IoId(id)));
        fair.complete(IoId(id), now);
        fair.insert(IoId(id + 1), write(sync(2, 2), KIB), now);
        fair.insert(IoId(id + 2), write(sync(1, 1), KIB), now);
        assert_eq!(
            fair.next(now),
            Some(IoId(id + 2)),
            "the light one has paid more"
        );
        fair.complete(IoId(id + 2), now);
        // The device idles for the heavy owner, unless it waits for others.
        assert_eq!(fair.next(now), None);
        assert!(fair.begin_wait(sync(1, 1), false));
        assert_eq!(fair.next(now), Some(IoId(id + 1)));
        fair.complete(IoId(id + 1), now);
    }
}

/// The device does not idle for a sharer that waits, although the owner that has submitted for it returns soon.
#[test]
fn the_device_does_not_idle_for_a_sharer_that_waits() {
    let is_held_back = |waits: bool| {
        let mut fair = Fair::new(FairOptions::default());
        fair.set_group(GroupId(1), GroupId(0), 100);
        fair.set_group(GroupId(2), GroupId(0), 20);
        let durable = Io {
            flushes: 2,
            ..write(sync(1, 1), 4 * KIB)
        };
        let now = Nanos(MS);
        fair.insert(IoId(0), durable, now);
        fair.share(IoId(0), sync(2, 2), now);
        assert_eq!(fair.next(now), Some(IoId(0)));
        if waits {
            fair.begin_wait(sync(2, 2), false);
        }
        fair.complete(IoId(0), now);
        // The heavy group is served until it is the light one's turn.
        (0..40).any(|_| {
            fair.insert(IoId(0), write(sync(1, 3), 64 * KIB), now);
            let next = fair.next(now);
            if let Some(id) = next {
                fair.complete(id, now);
            }
            next.is_none()
        })
    };
    assert!(is_held_back(false));
    assert!(!is_held_back(true));
}

/// When an owner no longer waits for others, the device idles for it as after a request of its own.
#[test]
fn the_device_idles_for_an_owner_whose_wait_has_ended() {
    for resumes in [false, true] {
        let mut fair = filled(&[write(sync(1, 1), 4 * KIB), write(sync(2, 2), 4 * KIB)]);
        fair.set_group(GroupId(1), GroupId(0), 100);
        fair.set_group(GroupId(2), GroupId(0), 20);
        for _ in 0..2 {
            let id = fair.next(Nanos(0)).unwrap();
            fair.complete(id, Nanos(0));
        }
        fair.begin_wait(sync(1, 1), false);
        let now = Nanos(100 * MS);
        if resumes {
            fair.end_wait(sync(1, 1), now);
        }
        fair.insert(IoId(0), write(sync(2, 2), 4 * KIB), now);
        let expected = (!resumes).then_some(IoId(0));
        assert_eq!(fair.next(now), expected);
        assert_eq!(fair.rerun_at(), resumes.then_some(Nanos(108 * MS)));
    }
}
