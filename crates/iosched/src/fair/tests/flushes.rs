//! Async writes in a series of FLUSHes.

use super::*;

const LIMIT: u64 = 128 * KIB;

/// Dispatches and completes requests one at a time, in no time, until none may be dispatched; returns the bytes of async
/// requests.
fn drain_now<R: Rules>(fair: &mut FairQueue<R>, now: Nanos) -> u64 {
    let mut bytes = 0;
    while let Some(id) = fair.next(now) {
        let entry = *fair.entry(id);
        bytes += if is_sync(entry.tag) { 0 } else { entry.bytes };
        fair.complete(id, now);
    }
    bytes
}

/// A scheduler with a stream of background writes queued, right after a FLUSH.
fn beside_a_flush<R: Rules>(now: Nanos) -> FairQueue<R> {
    let mut fair = FairQueue::new(R::options());
    fair.insert(IoId(0), flush(sync(0, 1)), now);
    assert_eq!(fair.next(now), Some(IoId(0)));
    fair.complete(IoId(0), now);
    for n in 1..=64 {
        fair.insert(IoId(n), write(background(0), 64 * KIB), now);
    }
    fair
}

#[test]
fn async_writes_between_two_flushes_are_bounded() {
    let now = Nanos(50 * MS);
    let mut fair: Fair = beside_a_flush(now);
    assert_eq!(drain_now(&mut fair, now), LIMIT);
    assert_eq!(fair.rerun_at(), Some(Nanos(54 * MS)));
    // Sync requests and reads are not bound.
    fair.insert(IoId(100), write(sync(0, 7), 4 * KIB), now);
    let readahead = Io {
        direction: Direction::Read,
        readahead: true,
        ..write(background(0), 64 * KIB)
    };
    fair.insert(IoId(101), readahead, now);
    assert_eq!(fair.next(now), Some(IoId(100)));
    fair.complete(IoId(100), now);
    assert_eq!(drain_now(&mut fair, now), 64 * KIB);
    // The bound ends with the next FLUSH, or with the series.
    fair.insert(IoId(102), flush(sync(0, 1)), now);
    assert_eq!(drain_now(&mut fair, now), LIMIT);
    let later = Nanos(54 * MS);
    assert_eq!(drain_now(&mut fair, later), 60 * 64 * KIB);
    assert_eq!(fair.queued(), 0);
}

#[test]
fn a_lone_write_is_bound_too() {
    let now = Nanos(50 * MS);
    let mut fair: Fair = beside_a_flush(now);
    drain_now(&mut fair, Nanos(60 * MS));
    fair.insert(IoId(0), flush(sync(0, 1)), Nanos(60 * MS));
    drain_now(&mut fair, Nanos(60 * MS));
    for n in 0..2 {
        fair.insert(IoId(0), write(background(0), LIMIT), Nanos(60 * MS));
        let bytes = [LIMIT, 0][n];
        assert_eq!(drain_now(&mut fair, Nanos(60 * MS)), bytes);
    }
    assert_eq!(fair.rerun_at(), Some(Nanos(64 * MS)));
    assert_eq!(fair.next(Nanos(64 * MS)), Some(IoId(0)));
}

#[test]
fn a_fast_device_gets_more_bytes_between_flushes() {
    let mut fair = Fair::new(FairOptions::default());
    let mut now = Nanos(0);
    for _ in 0..10 {
        // 1 MiB in 1 ms; a FLUSH takes 0.5 ms.
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
    // Requests that complete in no time raise the measured throughput a little.
    let given = drain_now(&mut fair, now) / (64 * KIB);
    assert!((8..=10).contains(&given), "{given} pieces");
}

/// A heavier group keeps its share, even if it delays the FLUSHes of others.
#[test]
fn a_heavier_group_is_not_held_back() {
    let now = Nanos(50 * MS);
    for (weight, given) in [(100, LIMIT), (101, 16 * 64 * KIB)] {
        let mut fair = Fair::new(FairOptions::default());
        fair.set_group(GroupId(1), GroupId(0), 100);
        fair.set_group(GroupId(2), GroupId(0), weight);
        fair.insert(IoId(0), flush(sync(1, 1)), now);
        drain_now(&mut fair, now);
        for n in 1..=16 {
            fair.insert(IoId(n), write(background(2), 64 * KIB), now);
        }
        assert_eq!(drain_now(&mut fair, now), given, "weight {weight}");
    }
}

#[test]
fn cfq_does_not_bound_writes_between_flushes() {
    let now = Nanos(50 * MS);
    let mut fair: Cfq = beside_a_flush(now);
    assert_eq!(drain_now(&mut fair, now), 64 * 64 * KIB);
}

#[test]
fn single_writes_are_small_in_a_series_of_flushes() {
    let now = Nanos(50 * MS);
    let fair: Fair = beside_a_flush(now);
    assert_eq!(fair.max_write_bytes(background(0), now), LIMIT);
    assert_eq!(fair.max_write_bytes(sync(0, 2), now), u64::MAX);
    // After the series there is no bound, since no fsync was late.
    let largest = |ms: u64| fair.max_write_bytes(background(0), Nanos(ms * MS));
    assert_eq!(largest(1049), u64::MAX);
    let cfq: Cfq = beside_a_flush(now);
    assert_eq!(cfq.max_write_bytes(background(0), now), u64::MAX);
}
