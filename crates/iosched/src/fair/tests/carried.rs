//! What one does for others: as the f2fs task that writes the checkpoints of all.

use super::shares::{Client, LONG, WINDOW, World};
use super::*;

/// One of the root's, of weight 50.
fn carrier() -> IoTag {
    tag(0, 0, Urgency::Checkpoint, be(3))
}

/// Groups 1 and 2 ask, 3 to 5 stream.
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

fn carried(for_whom: &[IoTag]) -> Client {
    Client::of(carrier(), 64 * KIB, 4).carrying(for_whom)
}

fn stream(group: u32) -> Client {
    Client::of(sync(group, group), 64 * KIB, 4)
}

#[test]
fn it_goes_with_the_strongest_of_those_whom_it_serves_and_the_carrier() {
    for depth in [1, 4] {
        let cases: [(&[IoTag], f64); 4] = [
            (&[], 50.0),
            (&[sync(2, 2)], 50.0),
            (&[sync(1, 1)], 200.0),
            (&[sync(1, 1), sync(2, 2), sync(1, 3)], 200.0),
        ];
        for (for_whom, weight) in cases {
            let mut world = world(depth);
            world.run(&[carried(for_whom), stream(3)], LONG);
            world.check(LONG, &[weight, 100.0]);
        }
    }
}

#[test]
fn it_is_on_the_account_of_those_whom_it_serves() {
    let mut world = world(1);
    world.run(&[carried(&[sync(1, 1)]), stream(1), stream(3)], LONG);
    for from in (300 * MS..LONG - WINDOW).step_by(100 * MS as usize) {
        let served = world.served(from);
        // The group's 200, and something of the carrier's own 50.
        let ratio = (served[0] + served[1]) as f64 / served[2] as f64;
        assert!((1.9..2.6).contains(&ratio), "{served:?}");
        // The group's own stream has its half.
        let ratio = served[0] as f64 / served[1] as f64;
        assert!((0.9..1.2).contains(&ratio), "{served:?}");
    }
}

#[test]
fn in_the_group_of_those_whom_it_serves_it_goes_before_what_nobody_waits_for() {
    let mut world = world(1);
    let clients = [
        carried(&[sync(1, 1), sync(1, 2)]),
        Client::of(background(1), 64 * KIB, 8),
    ];
    world.run(&clients, LONG);
    world.check(LONG, &[8.0, 1.0]);
}

/// A light group is carried along by a heavy one for seconds. When that one has gone, the light one
/// competes as ever.
#[test]
fn who_was_carried_is_in_no_debt() {
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
                now = fair.rerun_at().expect("somebody is waited for").0.max(now);
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
                None => now = fair.rerun_at().expect("somebody is waited for").0,
            }
        }
        served
    };
    let both = [
        (2, write(carrier(), 64 * KIB)),
        (0, write(sync(3, 3), 64 * KIB)),
    ];
    let served = serve(&mut fair, &both, 5000);
    assert!(
        (1.9..2.1).contains(&(served[0] as f64 / served[1] as f64)),
        "{served:?}"
    );
    // For a weight of 20 that was as much as 100 seconds of its own.
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
        (0, write(carrier(), 64 * KIB)),
        (0, write(sync(5, 5), 64 * KIB)),
    ];
    let served = serve(&mut fair, &daemon, 300);
    assert!(
        (0.45..0.55).contains(&(served[0] as f64 / served[1] as f64)),
        "{served:?}"
    );
}

#[test]
fn a_raised_request_stands_once_in_each_queue() {
    let mut fair = filled(&[write(carrier(), KIB), write(sync(3, 3), KIB)]);
    let now = Nanos(0);
    for waiter in [sync(1, 1), sync(1, 1), carrier(), sync(3, 3), background(3)] {
        fair.share(IoId(0), waiter, now);
    }
    // To where it stands for somebody already.
    let real_time = tag(1, 1, Urgency::Waited, prio(PrioClass::RealTime));
    fair.share(IoId(0), real_time, now);
    assert!(matches!(
        fair.boost(IoId(0), real_time, now),
        BoostOutcome::Boosted { .. }
    ));
    assert_eq!(drain(&mut fair), [0, 1]);
    assert!(fair.sharers.is_empty());
}

/// Who lets another one work for him loses nothing by it: between its requests, too, he is waited for where he
/// would be if they were his own.
#[test]
fn who_is_carried_is_waited_for_as_the_carrier_is() {
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
        let carried = got(Client::of(carrier(), 64 * KIB, 1).carrying(&[sync(1, 1)]));
        println!("{own} {carried}");
        assert!(carried >= own, "{depth}: {carried} {own}");
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
        let clients = [carried(&[sync(1, 1), sync(2, 2)]), stream(3), stream(4)];
        world.run(&clients, 3000 * MS);
        let strongest = weights[0].max(weights[1]).max(50);
        world.check(3000 * MS, &[strongest, weights[2], weights[3]].map(f64::from));
    }
}
