//! The bound and the hold, without a queue around them.

use steadfs_base::{IoPrio, Urgency};

use super::*;
use crate::Direction;

const MS: u64 = 1_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn tag(owner: u32, urgency: Urgency) -> IoTag {
    IoTag {
        urgency,
        prio: IoPrio::best_effort(4),
        group: GroupId(0),
        owner: OwnerId(owner),
    }
}

/// A device of 100 KiB/ms whose FLUSH takes 4 ms, with a stream of async requests beside one fsync caller.
struct World {
    fsync: FsyncLatency,
    speed: DeviceSpeed,
    in_flight: InFlight,
    now: u64,
}

impl World {
    fn new(fsync_target: FsyncTarget) -> Self {
        let mut speed = DeviceSpeed::default();
        speed.begin(0, Nanos(0));
        speed.end(0, 1000 * KIB, Nanos(0), Nanos(10 * MS));
        speed.begin(1, Nanos(10 * MS));
        speed.end(1, 0, Nanos(10 * MS), Nanos(14 * MS));
        Self {
            fsync: FsyncLatency::new(&FairOptions {
                fsync_target,
                ..FairOptions::default()
            }),
            speed,
            in_flight: InFlight::default(),
            now: 14 * MS,
        }
    }

    fn entry(&self, tag: IoTag, bytes: u64, flushes: u8) -> Entry {
        Entry {
            tag,
            charged: tag,
            leaf_shares: false,
            bytes,
            direction: Direction::Write,
            flushes,
            arrival: 0,
            arrived: Nanos(self.now),
            dispatched: Nanos(self.now),
            leaf: None,
            queued: false,
            task_waits: tag.owner != OwnerId(0),
        }
    }

    fn begin(&mut self, tag: IoTag, bytes: u64, flushes: u8) -> Entry {
        let entry = self.entry(tag, bytes, flushes);
        self.begin_entry(entry)
    }

    fn begin_entry(&mut self, entry: Entry) -> Entry {
        self.in_flight.count(&entry, true);
        let share = Share::QUARTER;
        self.fsync
            .dispatched(&entry, self.in_flight, share, &self.speed, Nanos(self.now));
        entry
    }

    fn end(&mut self, entry: Entry) {
        let now = Nanos(self.now);
        self.fsync
            .completed(&entry, self.in_flight, &self.speed, now);
        self.in_flight.count(&entry, false);
    }

    fn bound(&self) -> u64 {
        self.fsync.async_bytes(Nanos(self.now))
    }

    /// An fsync of two steps beside as many async bytes as the bound allows. The device serves in order, so the first
    /// step waits for all of them; `parallel`: as if it did not. Returns its time in milliseconds.
    fn fsync(&mut self, with_stream: bool, parallel: bool) -> f64 {
        let background = tag(0, Urgency::Background);
        let bytes = if with_stream { self.bound() } else { 0 };
        let stream = (bytes > 0).then(|| self.begin(background, bytes, 0));
        let began = self.now;
        let data = self.begin(tag(1, Urgency::Waited), 4 * KIB, 0);
        if !parallel {
            self.now += bytes / (100 * KIB) * MS;
        }
        if let Some(stream) = stream {
            self.end(stream);
        }
        self.now += MS / 2;
        self.end(data);
        let record = self.begin(tag(1, Urgency::Waited), 4 * KIB, 1);
        self.now += 4 * MS;
        self.end(record);
        let took = self.now - began;
        self.now += 100 * MS;
        took as f64 / MS as f64
    }

    fn fsyncs(&mut self, count: u32, with_stream: bool, parallel: bool) {
        for _ in 0..count {
            self.fsync(with_stream, parallel);
        }
    }
}

#[test]
fn fsyncs_beside_a_stream_take_at_most_twice_their_shortest() {
    let mut world = World::new(FsyncTarget::Auto);
    assert_eq!(world.bound(), 2 << 20);
    let first = world.fsync(true, false);
    assert!(first > 20.0, "{first}");
    let later: Vec<f64> = (0..100).map(|_| world.fsync(true, false)).collect();
    let mean = later.iter().sum::<f64>() / 100.0;
    assert!((5.0..8.5).contains(&mean), "{mean} {later:?}");
    assert!(later.iter().all(|took| *took <= 13.0), "{later:?}");
}

/// Discards take less time than a write of their size.
#[test]
fn discards_are_no_measure_of_throughput() {
    let mut world = World::new(FsyncTarget::Auto);
    for urgency in [Urgency::Background, Urgency::Waited] {
        for _ in 0..400 {
            let discard = Entry {
                direction: Direction::Range,
                ..world.entry(tag(0, urgency), 2 * MIB, 0)
            };
            let discard = world.begin_entry(discard);
            world.now += MS / 5;
            world.end(discard);
        }
    }
    world.fsync(true, false);
    let later: Vec<f64> = (0..100).map(|_| world.fsync(true, false)).collect();
    let mean = later.iter().sum::<f64>() / 100.0;
    assert!((5.0..8.5).contains(&mean), "{mean} {later:?}");
}

#[test]
fn the_bound_is_released_without_fsync_callers() {
    let mut world = World::new(FsyncTarget::Auto);
    world.fsyncs(10, true, false);
    assert!(world.bound() < 1 << 20, "{}", world.bound());
    assert!(world.fsync.async_write_max(Nanos(world.now)) <= world.bound());
    world.now += KNOWN_NS;
    assert_eq!(world.bound(), 2 << 20);
    assert_eq!(world.fsync.async_write_max(Nanos(world.now)), u64::MAX);
    assert_eq!(world.fsync.holder(Nanos(world.now)), None);
}

/// A device that works on all requests at the same time needs no bound, so the bound grows until it is none.
#[test]
fn a_stream_that_delays_no_fsync_is_not_bounded() {
    let mut world = World::new(FsyncTarget::Auto);
    world.fsyncs(40, true, true);
    let bounds: Vec<u64> = (0..100)
        .map(|_| {
            world.fsync(true, true);
            world.bound()
        })
        .collect();
    let full = bounds.iter().filter(|bound| **bound == 2 << 20).count();
    assert!(full >= 95, "{bounds:?}");
}

#[test]
fn without_async_requests_there_is_no_bound() {
    let mut world = World::new(FsyncTarget::Auto);
    world.fsyncs(31, false, false);
    assert_eq!(world.bound(), 2 << 20, "no fsync was late");
}

/// A stream with one fsync at its end, then the next stream: it may be bounded for the time of a probe only.
#[test]
fn a_probe_waits_for_no_rare_caller() {
    let mut world = World::new(FsyncTarget::Auto);
    world.fsync(true, false);
    assert_eq!(world.bound(), 128 * KIB, "the next fsync would be a probe");
    world.now += PROBE_PAUSE_NS_MAX;
    assert_eq!(world.bound(), 2 << 20);
    assert!(world.fsync.caller(Nanos(world.now)).is_some());
}

/// A commit by its timer delays no task, so it takes nothing from a stream.
#[test]
fn background_commits_are_no_fsyncs() {
    let mut world = World::new(FsyncTarget::Auto);
    for _ in 0..100 {
        let stream = world.begin(tag(0, Urgency::Background), 2 << 20, 0);
        let log = world.begin(tag(0, Urgency::Journal), 64 * KIB, 0);
        assert_eq!(world.fsync.holder(Nanos(world.now)), None);
        world.now += 20 * MS;
        world.end(stream);
        world.end(log);
        let record = world.begin(tag(0, Urgency::Journal), 4 * KIB, 1);
        world.now += 4 * MS;
        world.end(record);
        assert_eq!(world.bound(), 2 << 20);
        assert_eq!(world.fsync.caller(Nanos(world.now)), None);
        world.now += 100 * MS;
    }
    // A task that shares the commit is an fsync caller.
    let record = Entry {
        task_waits: true,
        ..world.begin(tag(0, Urgency::Journal), 4 * KIB, 1)
    };
    world.now += 4 * MS;
    world.end(record);
    assert!(world.fsync.caller(Nanos(world.now)).is_some());
}

/// The target is at least 1 ms, so a device that is fast enough keeps its stream.
#[test]
fn short_fsyncs_are_not_late() {
    let speed = DeviceSpeed::default();
    for (slowest, late) in [(900_000, false), (1_100_000, true)] {
        let mut fsync = FsyncLatency::new(&FairOptions::default());
        fsync.bound = Some(1 << 20);
        let mut ended = |took: u64, met_async: bool| {
            let record = OpenFsync {
                owner: (GroupId(0), OwnerId(1)),
                began: Nanos(MS),
                last_event: Nanos(MS),
                bytes: 4 * KIB,
                steps: 2,
                in_flight: 0,
                met_async,
            };
            fsync.has_met_async = true;
            fsync.fsync_ended(&record, false, &speed, Nanos(MS + took));
            fsync.bound
        };
        assert_eq!(ended(100_000, false), Some(1 << 20));
        let bound = ended(slowest, true).unwrap();
        assert_eq!(bound < 1 << 20, late, "{slowest} ns: {bound}");
    }
}

#[test]
fn a_target_is_kept() {
    let mut world = World::new(FsyncTarget::Within(Nanos(15 * MS)));
    world.fsyncs(60, true, false);
    let later: Vec<f64> = (0..31).map(|_| world.fsync(true, false)).collect();
    let mean = later.iter().sum::<f64>() / 31.0;
    assert!((6.5..=15.0).contains(&mean), "{mean} {later:?}");
    let mut world = World::new(FsyncTarget::Unlimited);
    world.fsyncs(10, true, false);
    assert_eq!(world.bound(), 2 << 20);
}

#[test]
fn async_requests_wait_between_the_steps_of_an_fsync() {
    let mut world = World::new(FsyncTarget::Auto);
    world.fsync(true, false);
    let held = |world: &World| world.fsync.holder(Nanos(world.now)).is_some();
    assert!(!held(&world));
    let data = world.begin(tag(1, Urgency::Waited), 4 * KIB, 0);
    assert!(held(&world), "a step is in the device");
    world.now += MS;
    world.end(data);
    world.now += MS - 1;
    assert!(held(&world), "the next step is expected");
    let until = world.fsync.held_until(Nanos(world.now)).unwrap();
    assert_eq!(until.0, world.now + 1);
    world.now += 1;
    assert!(!held(&world), "it has not come");
    let record = world.begin(tag(1, Urgency::Waited), 4 * KIB, 1);
    assert!(held(&world));
    world.end(record);
    assert!(!held(&world), "the fsync has ended");
}

#[test]
fn sync_writes_without_fsync_hold_nothing_back() {
    let mut world = World::new(FsyncTarget::Auto);
    let mut held = 0;
    for _ in 0..100 {
        let data = world.begin(tag(1, Urgency::Waited), 4 * KIB, 0);
        held += u32::from(world.fsync.holder(Nanos(world.now)).is_some());
        world.now += MS;
        world.end(data);
    }
    assert_eq!(held, UNPROVEN_STEPS_MAX);
}

/// Beside fsyncs without a pause a stream has a quarter of the device's time.
#[test]
fn held_back_requests_earn_their_share() {
    let mut world = World::new(FsyncTarget::Auto);
    world.fsync(true, false);
    let background = tag(0, Urgency::Background);
    let (mut served, began) = (0, world.now);
    while world.now < began + 2000 * MS {
        for flushes in [0, 1] {
            let step = world.begin(tag(1, Urgency::Waited), 4 * KIB, flushes);
            for _ in 0..4 {
                world.now += MS / 2;
                let now = Nanos(world.now);
                if !world.fsync.has_had_share(GroupId(0), Share::QUARTER, now) {
                    let piece = world.begin(background, 100 * KIB, 0);
                    world.end(piece);
                    served += 1;
                }
            }
            world.end(step);
        }
    }
    // Each of 1 ms.
    let share = f64::from(served) / 2000.0;
    assert!((0.22..=0.26).contains(&share), "{share}");
}

#[test]
fn a_device_that_needs_many_bytes_keeps_them() {
    let mut busy = KeepBusy::default();
    let mut now = 0;
    let mut run = |busy: &mut KeepBusy, bound: Option<u64>, ms: u64| {
        for _ in 0..200 {
            let in_flight = InFlight {
                background: 1,
                background_bytes: bound.unwrap_or(2 << 20),
                ..InFlight::default()
            };
            now += ms * MS;
            busy.advance(in_flight, Nanos(now));
            busy.completed(1 << 20, in_flight, bound);
        }
    };
    run(&mut busy, None, 1);
    assert_eq!(busy.bytes_min(), 0);
    // Four fifths of the throughput are enough, a half is not.
    let mut enough = busy;
    run(&mut enough, Some(256 * KIB), 1);
    assert_eq!(enough.bytes_min(), 0);
    run(&mut busy, Some(256 * KIB), 2);
    assert_eq!(busy.bytes_min(), 512 * KIB);
    busy.forget();
    assert_eq!(busy.bytes_min(), 384 * KIB);
}

#[test]
fn a_stream_earns_its_floor_while_fsync_callers_are_known() {
    let mut hold = Hold::default();
    let (group, caller) = (GroupId(0), tag(1, Urgency::Waited));
    let due =
        |hold: &Hold, ms: u64, share, at: u64| hold.is_due(group, ms * MS, share, Nanos(at * MS));
    hold.step_begins(caller, Nanos(0));
    hold.step_ends(Some(Nanos(1000 * MS)), Nanos(10 * MS));
    hold.charge(group, MS, Share::QUARTER, Nanos(10 * MS));
    assert!(
        !due(&hold, 1, Share::QUARTER, 17),
        "1.75 ms of 2 are earned"
    );
    assert!(due(&hold, 1, Share::QUARTER, 18));
    assert_eq!(hold.due_at(Nanos(10 * MS)), Some(Nanos(18 * MS + 1)));
    let tenth = Share { part: 1, of: 10 };
    assert!(!due(&hold, 1, tenth, 29) && due(&hold, 1, tenth, 30));
    let half = Share { part: 1, of: 2 };
    assert!(!due(&hold, 1, half, 17), "the floor is a quarter at most");
    // At most 25 ms are kept, none of the time without fsync callers, and none for a stream that was interrupted.
    assert!(due(&hold, 25, Share::QUARTER, 200));
    assert!(
        due(&hold, 400, Share::QUARTER, 200),
        "as much as one request may cost"
    );
    hold.charge(group, 25 * MS, Share::QUARTER, Nanos(1000 * MS));
    assert!(!due(&hold, 1, Share::QUARTER, 3000));
    hold.step_begins(caller, Nanos(3000 * MS));
    hold.step_ends(Some(Nanos(4000 * MS)), Nanos(3010 * MS));
    hold.stream_begins(group, Nanos(3010 * MS));
    assert!(!due(&hold, 1, Share::QUARTER, 3013) && due(&hold, 1, Share::QUARTER, 3014));
}

#[test]
fn a_bound_that_has_the_full_throughput_is_enough() {
    let mut busy = KeepBusy::default();
    let mut now = 0;
    let mut run = |busy: &mut KeepBusy, bound: Option<u64>, bytes: u64| {
        // Two measurements.
        for _ in 0..128 {
            let in_flight = InFlight {
                background: 1,
                background_bytes: bound.unwrap_or(2 << 20),
                ..InFlight::default()
            };
            now += MS;
            busy.advance(in_flight, Nanos(now));
            busy.completed(bytes, in_flight, bound);
        }
    };
    run(&mut busy, None, MIB);
    assert_eq!((busy.enough(), busy.time_of(MIB)), (None, Some(MS)));
    run(&mut busy, Some(512 * KIB), MIB);
    assert_eq!(busy.enough(), Some(512 * KIB));
    run(&mut busy, Some(256 * KIB), MIB * 7 / 8);
    assert_eq!(
        busy.enough(),
        Some(512 * KIB),
        "an eighth less is not enough"
    );
    run(&mut busy, Some(512 * KIB), MIB * 7 / 8);
    assert_eq!(busy.enough(), None);
}

/// A device with a volatile cache takes writes at once, and programs them during the next FLUSH.
#[test]
fn what_a_flush_takes_longer_is_time_of_the_stream() {
    let mut busy = KeepBusy::default();
    let (stream, both) = (
        InFlight {
            background: 1,
            background_bytes: MIB,
            ..InFlight::default()
        },
        InFlight {
            sync: 1,
            ..InFlight::default()
        },
    );
    let mut now = 0;
    for _ in 0..100 {
        busy.advance(InFlight::default(), Nanos(now));
        now += MS;
        busy.advance(stream, Nanos(now));
        busy.completed(MIB, stream, None);
        busy.flush_begins();
        now += 13 * MS;
        busy.advance(both, Nanos(now));
        busy.flush_ends(9 * MS);
    }
    let time = busy.time_of(MIB).unwrap();
    assert!((9 * MS..11 * MS).contains(&time), "{time}");
}
