//! What nobody waits for beside those who make data durable again and again.

use super::*;

const ROOM: u64 = 128 * KIB;

/// Starts and ends what may go, a request at a time, none taking any time; its bytes that nobody waits for.
fn drained_now(fair: &mut Fair, now: Nanos) -> u64 {
    let mut bytes = 0;
    while let Some(id) = fair.next(now) {
        let entry = *fair.entry(id);
        bytes += if is_sync(entry.tag) { 0 } else { entry.bytes };
        fair.complete(id, now);
    }
    bytes
}

/// A stream of background writes is queued, and a FLUSH has just ended.
fn beside_a_flush(options: FairOptions, now: Nanos) -> Fair {
    let mut fair = Fair::new(options);
    fair.insert(IoId(0), flush(sync(0, 1)), now);
    assert_eq!(fair.next(now), Some(IoId(0)));
    fair.complete(IoId(0), now);
    for n in 1..=64 {
        fair.insert(IoId(n), write(background(0), 64 * KIB), now);
    }
    fair
}

#[test]
fn between_two_flushes_the_device_gets_little_to_make_durable() {
    let now = Nanos(50 * MS);
    let mut fair = beside_a_flush(FairOptions::default(), now);
    assert_eq!(drained_now(&mut fair, now), ROOM);
    assert_eq!(fair.rerun_at(), Some(Nanos(54 * MS)));
    // What somebody waits for goes at any time, and what is only read.
    fair.insert(IoId(100), write(sync(0, 7), 4 * KIB), now);
    let ahead = Io {
        direction: Direction::Read,
        readahead: true,
        ..write(background(0), 64 * KIB)
    };
    fair.insert(IoId(101), ahead, now);
    assert_eq!(fair.next(now), Some(IoId(100)));
    fair.complete(IoId(100), now);
    assert_eq!(drained_now(&mut fair, now), 64 * KIB);
    // The next FLUSH makes room, and so does that none comes.
    fair.insert(IoId(102), flush(sync(0, 1)), now);
    assert_eq!(drained_now(&mut fair, now), ROOM);
    let later = Nanos(54 * MS);
    assert_eq!(drained_now(&mut fair, later), 60 * 64 * KIB);
    assert_eq!(fair.queued(), 0);
}

#[test]
fn a_lone_write_is_held_back_no_less() {
    let now = Nanos(50 * MS);
    let mut fair = beside_a_flush(FairOptions::default(), now);
    drained_now(&mut fair, Nanos(60 * MS));
    fair.insert(IoId(0), flush(sync(0, 1)), Nanos(60 * MS));
    drained_now(&mut fair, Nanos(60 * MS));
    for n in 0..2 {
        fair.insert(IoId(0), write(background(0), ROOM), Nanos(60 * MS));
        let goes = [ROOM, 0][n];
        assert_eq!(drained_now(&mut fair, Nanos(60 * MS)), goes);
    }
    assert_eq!(fair.rerun_at(), Some(Nanos(64 * MS)));
    assert_eq!(fair.next(Nanos(64 * MS)), Some(IoId(0)));
}

#[test]
fn a_fast_device_gets_what_it_moves_in_the_time_of_a_flush() {
    let mut fair = Fair::new(FairOptions::default());
    let mut now = Nanos(0);
    for _ in 0..10 {
        // 1 MiB in a millisecond; a FLUSH takes half of one.
        fair.insert(IoId(0), write(sync(0, 1), KIB * KIB), now);
        fair.next(now).unwrap();
        now.0 += MS;
        fair.complete(IoId(0), now);
        fair.insert(IoId(0), flush(sync(0, 1)), now);
        fair.next(now).unwrap();
        now.0 += MS / 2;
        fair.complete(IoId(0), now);
    }
    for n in 1..=64 {
        fair.insert(IoId(n), write(background(0), 64 * KIB), now);
    }
    // What takes no time makes it look a little faster.
    let given = drained_now(&mut fair, now) / (64 * KIB);
    assert!((8..=10).contains(&given), "{given} pieces");
}

/// Its share is its own, however long others' FLUSHes take then.
#[test]
fn a_heavier_group_is_not_held_back() {
    let now = Nanos(50 * MS);
    for (weight, given) in [(100, ROOM), (101, 16 * 64 * KIB)] {
        let mut fair = Fair::new(FairOptions::default());
        fair.set_group(GroupId(1), GroupId(0), 100);
        fair.set_group(GroupId(2), GroupId(0), weight);
        fair.insert(IoId(0), flush(sync(1, 1)), now);
        drained_now(&mut fair, now);
        for n in 1..=16 {
            fair.insert(IoId(n), write(background(2), 64 * KIB), now);
        }
        assert_eq!(drained_now(&mut fair, now), given, "weight {weight}");
    }
}

#[test]
fn cfq_has_no_such_bound() {
    let now = Nanos(50 * MS);
    let mut fair = beside_a_flush(FairOptions::cfq(), now);
    assert_eq!(drained_now(&mut fair, now), 64 * 64 * KIB);
}

#[test]
fn writes_are_short_while_flushes_go_on() {
    let now = Nanos(50 * MS);
    let fair = beside_a_flush(FairOptions::default(), now);
    assert_eq!(fair.max_write_bytes(background(0), now), ROOM);
    assert_eq!(fair.max_write_bytes(sync(0, 2), now), u64::MAX);
    assert_eq!(
        fair.max_write_bytes(background(0), Nanos(54 * MS)),
        u64::MAX
    );
    let cfq = beside_a_flush(FairOptions::cfq(), now);
    assert_eq!(cfq.max_write_bytes(background(0), now), u64::MAX);
}
