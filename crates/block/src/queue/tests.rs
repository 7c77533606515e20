//! Tests of the queue on a device whose completions the test controls.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use steadfs_base::{GroupId, Urgency};
use steadfs_rt::{Mutex, Rank, sim};

use super::*;
use crate::{Done, FsyncTarget, MemDevice, Op};

mod crowd;
mod flushes;
mod inherited;
mod random;
mod read_ahead;
mod shares;
mod without;

const UNIT: u64 = 512;
const SIZE: u64 = 64 * UNIT;

/// A device that ends a request when the test calls for it, or one of its choice when a task waits.
struct Puppet {
    memory: MemDevice,
    state: Mutex<Strings>,
    started: AtomicUsize,
    run: AtomicUsize,
}

#[derive(Default)]
struct Strings {
    pending: Vec<(Bio, Done)>,
    /// All started operations, with offset and length.
    log: Vec<(Op, u64, u64)>,
    /// Index of the pending request that `help` ends next.
    choices: Vec<usize>,
    fail: Vec<u64>,
    most: usize,
}

impl Puppet {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            memory: MemDevice::new(SIZE),
            state: Mutex::new(Rank::DeviceInner, Strings::default()),
            started: AtomicUsize::new(0),
            run: AtomicUsize::new(0),
        })
    }

    fn pending(&self) -> usize {
        self.state.lock().pending.len()
    }

    fn log(&self) -> Vec<(Op, u64, u64)> {
        self.state.lock().log.clone()
    }

    fn end(&self, which: usize) {
        let mut state = self.state.lock();
        let which = which % state.pending.len();
        let (bio, done) = state.pending.swap_remove(which);
        let failing = |bad: &&u64| bio.offset <= **bad && **bad < bio.end();
        let error = state.fail.iter().find(failing);
        let error = error.map(|bad| IoError::of(&bio, format!("no byte {bad}")));
        drop(state);
        match error {
            Some(error) => done(bio, Err(error)),
            None => self.memory.start(bio, done),
        }
    }

    fn end_all(&self) {
        while self.pending() > 0 {
            self.end(0);
        }
    }

    fn accept(&self, bio: Bio, done: Done) {
        let mut state = self.state.lock();
        state.log.push((bio.op, bio.offset, bio.len));
        state.pending.push((bio, done));
        state.most = state.most.max(state.pending.len());
    }
}

impl Device for Puppet {
    fn geometry(&self) -> &Geometry {
        self.memory.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        self.started.fetch_add(1, Ordering::Relaxed);
        self.accept(bio, done);
    }

    fn run(&self, batch: Vec<(Bio, Done)>) {
        self.run.fetch_add(batch.len(), Ordering::Relaxed);
        for (bio, done) in batch {
            self.accept(bio, done);
        }
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        while !until() {
            assert!(self.pending() > 0, "a request is stranded");
            let choice = self.state.lock().choices.pop().unwrap_or(0);
            self.end(choice);
        }
    }
}

/// No idling for owners and fsync callers: this device has no clock.
fn queue_by(device: &Arc<Puppet>, depth: usize, policy: Policy) -> Queue {
    let settings = QueueSettings {
        policy,
        depth,
        slice_idle: Some(Duration::ZERO),
        fsync_target: FsyncTarget::Unlimited,
        ..QueueSettings::default()
    };
    Queue::with_settings(Arc::clone(device) as _, settings)
}

fn queue(device: &Arc<Puppet>, depth: usize) -> Queue {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    Queue::new(device, QueueOptions { depth })
}

fn block(n: u64, fill: u8) -> Bio {
    Bio::write(n * UNIT, vec![Buf::copy_of(&[fill; UNIT as usize])])
}

const WAITED: IoTag = IoTag {
    urgency: Urgency::Waited,
    ..IoTag::background()
};
const BACKGROUND: IoTag = IoTag::background();

/// Four tags of two groups.
fn tag(n: u8) -> IoTag {
    let urgency = [
        Urgency::Waited,
        Urgency::Journal,
        Urgency::Background,
        Urgency::Idle,
    ][usize::from(n)];
    IoTag {
        group: GroupId(u32::from(n / 3)),
        ..BACKGROUND.with_urgency(urgency)
    }
}

#[test]
fn a_waiter_runs_what_it_submitted_and_nothing_else_starts() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let ios = [2, 4, 6].map(|n| queue.submit(block(n, n as u8), WAITED));
    assert_eq!(device.pending(), 0, "held until a task waits");
    assert_eq!(queue.stats().held, 3);
    ios[0].wait().unwrap();
    assert_eq!(device.run.load(Ordering::Relaxed), 3);
    wait_all(&ios).unwrap();
    assert_eq!(device.started.load(Ordering::Relaxed), 0);
    assert_eq!(queue.read(4 * UNIT, 512, WAITED).unwrap()[..], [4; 512]);
}

#[test]
fn without_a_waiter_a_request_is_started() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    drop(queue.submit(block(0, 1), WAITED));
    assert_eq!(device.pending(), 1, "its last handle is gone");
    let asked = queue.submit(block(1, 1), WAITED);
    let again = asked.clone();
    drop(asked);
    assert_eq!(device.pending(), 1);
    assert!(!again.is_done());
    assert_eq!(device.pending(), 2, "the task polls");
    let _background = queue.submit(block(3, 1), BACKGROUND);
    assert_eq!(device.pending(), 3);
    let called = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&called);
    queue.submit_with(block(5, 1), WAITED, move |bio, result| {
        result.unwrap();
        assert_eq!(bio.offset, 5 * UNIT);
        flag.store(true, Ordering::Relaxed);
    });
    assert_eq!(device.pending(), 4);
    device.end_all();
    assert!(again.is_done() && called.load(Ordering::Relaxed));
}

#[test]
fn another_task_s_wait_starts_no_held_requests() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let mine = queue.submit(block(0, 1), WAITED);
    steadfs_rt::spawn("other", {
        let inner = Arc::clone(&queue.inner);
        move || {
            Queue { inner }
                .write(UNIT, block(9, 3).bufs, WAITED)
                .unwrap()
        }
    })
    .join();
    assert_eq!(
        device.log(),
        [(Op::Write, UNIT, UNIT)],
        "not merged, either"
    );
    assert_eq!(queue.stats().held, 1);
    mine.wait().unwrap();
}

#[test]
fn contiguous_requests_are_merged_and_end_separately() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let ios: Vec<_> = (0..4)
        .map(|n| queue.submit(block(n, n as u8), WAITED))
        .collect();
    let other = queue.submit(block(4, 4), WAITED.with_urgency(Urgency::Journal));
    let durable = queue.submit(block(5, 5).with_fua(), WAITED);
    wait_all(&ios).unwrap();
    let unit = UNIT;
    assert_eq!(
        device.log(),
        [
            (Op::Write, 0, 4 * unit),
            (Op::Write, 4 * unit, unit),
            (Op::Write, 5 * unit, unit)
        ]
    );
    for (n, io) in (0..).zip(ios) {
        let bio = io.into_bio().unwrap();
        assert_eq!((bio.offset, bio.bufs.len()), (n * UNIT, 1));
        assert_eq!(bio.bufs[0][..], [n as u8; 512]);
    }
    wait_all(&[other, durable]).unwrap();
    let reads: Vec<_> = (0..6)
        .map(|n| queue.submit(Bio::read(n * UNIT, 512), WAITED))
        .collect();
    for (n, io) in (0..).zip(reads) {
        assert_eq!(io.into_bio().unwrap().bufs[0][..], [n; 512]);
    }
    assert_eq!(device.log().len(), 4, "six reads, one request");
    assert_eq!(queue.stats().merged, 3 + 5);
}

#[test]
fn a_merged_request_fails_as_a_whole() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    device.state.lock().fail.push(UNIT + 3);
    let ios: Vec<_> = (0..3).map(|n| queue.submit(block(n, 1), WAITED)).collect();
    for (n, io) in (0..).zip(&ios) {
        let error = io.wait().unwrap_err();
        assert_eq!((error.offset, error.len), (n * UNIT, UNIT));
    }
    let write = &queue.stats().ops[Op::Write as usize];
    assert_eq!((write.count, write.errors, write.requests), (3, 3, 1));
}

#[test]
fn merging_stops_at_the_largest_transfer() {
    let device = Arc::new(MemDevice::new(8 << 20));
    let max = u64::from(device.geometry().max_transfer);
    let queue = Queue::new(device, QueueOptions::default());
    let plug = queue.plug();
    let half = || vec![Buf::zeroed(max as usize / 2)];
    for n in 0..5 {
        plug.submit_with(Bio::write(n * max / 2, half()), BACKGROUND, |_, result| {
            result.unwrap();
        });
    }
    drop(plug);
    assert_eq!(queue.stats().ops[Op::Write as usize].requests, 3);
}

#[test]
fn a_plug_holds_until_it_is_dropped_or_a_task_waits() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let plug = queue.plug();
    for n in 0..3 {
        plug.submit_with(block(n, 1), BACKGROUND, |_, result| result.unwrap());
    }
    assert_eq!(device.pending(), 0);
    drop(plug);
    assert_eq!(device.log(), [(Op::Write, 0, 3 * UNIT)]);
    device.end_all();
    let plug = queue.plug();
    let one = plug.submit(block(10, 1), BACKGROUND);
    let _two = plug.submit(block(20, 1), BACKGROUND);
    one.wait().unwrap();
    assert_eq!(device.run.load(Ordering::Relaxed), 2);
    drop(plug);
    device.end_all();
    let plug = queue.plug();
    let waited = plug.submit(block(30, 1), WAITED);
    drop(plug);
    assert_eq!(
        (device.pending(), queue.stats().held),
        (0, 1),
        "its submitter waits"
    );
    waited.wait().unwrap();
}

#[test]
fn depth_limits_what_the_device_has() {
    let device = Puppet::new();
    let queue = queue(&device, 4);
    let ios: Vec<_> = (0..10)
        .map(|n| queue.submit(block(2 * n, 1), BACKGROUND))
        .collect();
    assert_eq!(
        (device.pending(), queue.stats().queued),
        (3, 7),
        "slots of the device are free"
    );
    queue.read(SIZE - 512, 512, WAITED).unwrap();
    wait_all(&ios).unwrap();
    assert!(device.state.lock().most <= 4);
}

#[test]
fn a_boosted_request_overtakes_and_is_counted() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let ios: Vec<_> = (0..4)
        .map(|n| queue.submit(block(2 * n, 1), BACKGROUND))
        .collect();
    queue.boost(&ios[3], WAITED);
    queue.boost(&ios[3], WAITED);
    queue.boost(&ios[0], WAITED);
    device.end(0);
    assert_eq!(device.log()[1], (Op::Write, 6 * UNIT, UNIT));
    wait_all(&ios).unwrap();
    queue.boost(&ios[1], WAITED);
    let expected = BoostStats {
        raised: 1,
        inherited: 0,
        already_dispatched: 2,
        already_urgent: 1,
        positions_gained: 2,
        bytes: UNIT,
        collateral_bytes: 0,
    };
    assert_eq!(queue.stats().boosts, expected);
}

#[test]
fn collateral_bytes_of_a_boost_are_counted() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let _first = queue.submit(block(50, 1), BACKGROUND);
    let ios: Vec<_> = (0..4)
        .map(|n| queue.submit(block(n, 1), BACKGROUND))
        .collect();
    queue.boost(&ios[2], WAITED);
    let boosts = queue.stats().boosts;
    assert_eq!((boosts.raised, boosts.collateral_bytes), (1, 3 * UNIT));
    assert_eq!(boosts.bytes, 4 * UNIT);
}

#[test]
fn groups_have_their_own_counters() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let mine = IoTag {
        group: GroupId(7),
        ..WAITED
    };
    let _first = queue.submit(block(50, 1), BACKGROUND);
    let ios = [0, 2].map(|n| queue.submit(block(n, 1), BACKGROUND));
    queue.boost(&ios[1], mine);
    device.end_all();
    wait_all(&ios).unwrap();
    queue.read(0, 512, mine).unwrap();
    let discard = queue.submit(Bio::discard(0, UNIT), BACKGROUND);
    device.end_all();
    discard.wait().unwrap();
    let groups = queue.stats().groups;
    let of = |n: usize| {
        let group = &groups[n];
        let waits = group.latency.iter().map(|(_, count)| count).sum::<u64>();
        (
            group.group.0,
            group.requests,
            group.read,
            group.written,
            group.boosted,
            waits,
        )
    };
    assert_eq!(groups.len(), 2);
    assert_eq!(of(0), (0, 3, 0, 2 * UNIT, 0, 3));
    assert_eq!(of(1), (7, 2, UNIT, UNIT, UNIT, 2));
    let named = queue
        .stats()
        .to_json_with(|group| (group.0 == 7).then(|| ("/a\"b".to_owned(), 20)));
    let json: serde_json::Value = serde_json::from_str(&named).unwrap();
    assert_eq!(
        (&json["groups"][1]["path"], &json["groups"][1]["weight"]),
        (&"/a\"b".into(), &20.into())
    );
    assert!(json["groups"][0]["path"].is_null());
    queue.forget_group(GroupId(7));
    assert_eq!(queue.stats().groups.len(), 1);
}

#[test]
fn another_policy_takes_over_queued_requests() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let ios: Vec<_> = (0..4)
        .map(|n| queue.submit(block(2 * n, 1), BACKGROUND))
        .collect();
    let settings = QueueSettings {
        depth: 1,
        ..QueueSettings::default()
    };
    for policy in [Policy::Fair, Policy::Cfq, Policy::Fifo, Policy::Fair] {
        queue.configure(QueueSettings { policy, ..settings });
        assert_eq!(queue.stats().scheduler, policy.name());
        assert_eq!(queue.stats().queued, 3);
    }
    assert_eq!(queue.describe_policies(), "fifo [fair] cfq");
    queue.boost(&ios[3], WAITED);
    device.end_all();
    assert_eq!(device.log()[1].1, 6 * UNIT);
    wait_all(&ios).unwrap();
    assert_eq!(queue.stats().queued, 0);
}

#[test]
fn without_boost_nothing_is_boosted() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let _first = queue.submit(block(50, 1), BACKGROUND);
    let io = queue.submit(block(0, 1), BACKGROUND);
    queue.configure(QueueSettings {
        boost: false,
        ..queue.settings()
    });
    queue.boost(&io, WAITED);
    assert_eq!(queue.stats().boosts, BoostStats::default());
}

#[test]
fn nothing_background_merges_into_a_boosted_request() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let _first = queue.submit(block(50, 1), BACKGROUND);
    let boosted = queue.submit(block(0, 1), BACKGROUND);
    queue.boost(&boosted, WAITED);
    let _next = queue.submit(block(1, 1), BACKGROUND);
    device.end_all();
    assert_eq!(device.log()[1], (Op::Write, 0, UNIT));
}

#[test]
fn flushes_that_arrive_while_one_runs_share_the_next() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let first = queue.flush(BACKGROUND);
    let later: Vec<_> = (0..5).map(|_| queue.flush(BACKGROUND)).collect();
    assert_eq!(device.log().len(), 1);
    device.end(0);
    assert!(first.is_done() && !later[0].is_done());
    assert_eq!(device.log().len(), 2);
    let last = queue.flush(WAITED);
    device.end(0);
    assert!(later.iter().all(IoHandle::is_done));
    last.wait().unwrap();
    assert_eq!(device.log().len(), 3);
    assert_eq!(queue.stats().flushes_joined, 4);
}

#[test]
fn a_failed_flush_fails_for_all_that_share_it() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let first = queue.flush(BACKGROUND);
    let later = [queue.flush(BACKGROUND), queue.flush(WAITED)];
    device.end(0);
    first.wait().unwrap();
    let (bio, done) = device.state.lock().pending.pop().unwrap();
    let error = IoError::of(&bio, "gone");
    done(bio, Err(error));
    assert!(later.iter().all(|io| io.wait().is_err()));
}

#[test]
fn a_flush_covers_writes_that_completed_before_it_began() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    assert!(queue.has_flushed(0));
    let under_way = queue.flush(BACKGROUND);
    let needed = queue.next_flush();
    device.end(0);
    assert!(under_way.is_done() && !queue.has_flushed(needed));
    let before_a_write = queue.submit(block(3, 1).preflush_and_fua(), BACKGROUND);
    assert!(!queue.has_flushed(needed) && queue.next_flush() > needed);
    device.end(0);
    assert!(before_a_write.is_done() && queue.has_flushed(needed));
    let needed = queue.next_flush();
    let failing = queue.flush(BACKGROUND);
    let (bio, done) = device.state.lock().pending.pop().unwrap();
    let error = IoError::of(&bio, "gone");
    done(bio, Err(error));
    assert!(failing.wait().is_err() && !queue.has_flushed(needed));
    // It may have lost earlier writes: a later success does not bring them back.
    let later = queue.flush(BACKGROUND);
    device.end(0);
    assert!(later.wait().is_err() && !queue.has_flushed(needed));
}

#[test]
fn impossible_requests_are_refused_at_once() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let past = queue.submit(block(64, 1), WAITED);
    assert!(past.wait().unwrap_err().cause.contains("past the end"));
    assert!(queue.submit(Bio::read(1, 512), WAITED).wait().is_err());
    assert!(device.log().is_empty());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "overlaps")]
fn overlapping_writes_panic() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let two = vec![Buf::zeroed(1024)];
    let _one = queue.submit(Bio::write(0, two), BACKGROUND);
    let _two = queue.submit(block(1, 1), BACKGROUND);
}

#[test]
fn the_last_waiter_may_close_the_device() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let weak = Arc::downgrade(&device);
    queue.write(0, block(0, 1).bufs, WAITED).unwrap();
    drop((queue, device));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_device_that_ends_requests_at_once_causes_no_recursion() {
    const COUNT: u64 = 100_000;
    let device = Arc::new(MemDevice::new(2 * COUNT * UNIT));
    let queue = Queue::new(device, QueueOptions::default());
    let ended = Arc::new(AtomicUsize::new(0));
    let plug = queue.plug();
    for n in 0..COUNT {
        let ended = Arc::clone(&ended);
        plug.submit_with(Bio::discard(2 * n * UNIT, UNIT), BACKGROUND, move |_, _| {
            ended.fetch_add(1, Ordering::Relaxed);
        });
    }
    drop(plug);
    assert_eq!(ended.load(Ordering::Relaxed) as u64, COUNT);
}

#[test]
fn statistics_are_json() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    queue.write(0, block(0, 1).bufs, WAITED).unwrap();
    let json: serde_json::Value = serde_json::from_str(&queue.stats().to_json()).unwrap();
    assert_eq!(json["scheduler"], "fifo");
    assert_eq!(json["ops"]["write"]["bytes"], 512);
    assert_eq!(json["ops"]["write"]["device"]["count"], 1);
    assert!(json["ops"]["write"]["device"]["max"].as_u64().unwrap() > 0);
}
