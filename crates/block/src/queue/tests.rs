//! The queue against a device that is told when to end what, in what order and how.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use steadfs_base::{GroupId, Urgency};
use steadfs_rt::{Mutex, Rank, sim};

use super::*;
use crate::{Done, MemDevice, Op};

mod inherited;
mod shares;

const UNIT: u64 = 512;
const SIZE: u64 = 64 * UNIT;

/// A device that ends a request when it is told to, or when a task waits: then one of its choice.
struct Puppet {
    memory: MemDevice,
    state: Mutex<Strings>,
    started: AtomicUsize,
    run: AtomicUsize,
}

#[derive(Default)]
struct Strings {
    pending: Vec<(Bio, Done)>,
    /// Every operation that was started, with offset and length.
    log: Vec<(Op, u64, u64)>,
    /// Which of the pending ones `help` ends, by turns.
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

/// Nobody is waited for: the puppet knows no time.
fn queue_by(device: &Arc<Puppet>, depth: usize, policy: Policy) -> Queue {
    let settings = QueueSettings {
        policy,
        depth,
        slice_idle: Some(Duration::ZERO),
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

#[test]
fn a_waiter_runs_what_it_submitted_and_nothing_else_starts() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let ios = [2, 4, 6].map(|n| queue.submit(block(n, n as u8), WAITED));
    assert_eq!(device.pending(), 0, "held until somebody waits");
    assert_eq!(queue.stats().held, 3);
    ios[0].wait().unwrap();
    assert_eq!(device.run.load(Ordering::Relaxed), 3);
    wait_all(&ios).unwrap();
    assert_eq!(device.started.load(Ordering::Relaxed), 0);
    assert_eq!(queue.read(4 * UNIT, 512, WAITED).unwrap()[..], [4; 512]);
}

#[test]
fn without_a_waiter_a_request_starts_all_the_same() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    drop(queue.submit(block(0, 1), WAITED));
    assert_eq!(device.pending(), 1, "its last handle is gone");
    let asked = queue.submit(block(1, 1), WAITED);
    let again = asked.clone();
    drop(asked);
    assert_eq!(device.pending(), 1);
    assert!(!again.is_done());
    assert_eq!(device.pending(), 2, "somebody polls");
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
fn another_task_s_wait_leaves_held_requests_alone() {
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
fn neighbours_are_merged_and_end_separately() {
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
fn a_plug_holds_until_it_is_dropped_or_waited_in() {
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
        "room is left"
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
fn what_is_raised_along_is_counted() {
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
fn groups_have_their_own_numbers() {
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
    let groups = queue.stats().groups;
    let of = |n: usize| {
        let group = &groups[n];
        let waits = group.latency.iter().map(|(_, count)| count).sum::<u32>();
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
    assert_eq!(of(0), (0, 2, 0, 2 * UNIT, 0, 2));
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
fn another_policy_takes_over_what_is_queued() {
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
fn without_boost_nothing_is_raised() {
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
fn a_failed_flush_fails_for_all_who_share_it() {
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
fn a_flush_covers_what_was_answered_before_it_began() {
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
    // It may have lost what was written before: a later one that goes well brings that back as little.
    let later = queue.flush(BACKGROUND);
    device.end(0);
    assert!(later.wait().is_err() && !queue.has_flushed(needed));
}

#[test]
fn what_the_device_cannot_do_is_refused_at_once() {
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
fn overlapping_writes_are_a_mistake() {
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
fn a_device_that_ends_requests_at_once_makes_no_recursion() {
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
fn many_may_wait_for_one_request() {
    for seed in 0..20 {
        sim::run(sim::Config::new(seed), || {
            let device: Arc<dyn Device> = Arc::new(Slow(Arc::new(MemDevice::new(SIZE))));
            let queue = Queue::new(device, QueueOptions::default());
            for tag in [WAITED, BACKGROUND] {
                let ios = [
                    queue.submit(block(0, 1), tag),
                    queue.flush(tag),
                    queue.flush(tag),
                ];
                let tasks: Vec<_> = (0..4)
                    .map(|_| {
                        let ios = ios.clone();
                        steadfs_rt::spawn("waiter", move || wait_all(&ios).unwrap())
                    })
                    .collect();
                tasks.into_iter().for_each(steadfs_rt::JoinHandle::join);
            }
        });
    }
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

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64, u8),
    Read(u64, u64, u8),
    Zero(u64, u64),
    Flush(u8),
    Durable(u64),
    Call(u64, u8),
    Plugged(u64, u64),
    End(usize),
    Wait(usize),
    Ask(usize),
    Boost(usize, u8),
    Drop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = 0..60u64;
    let len = 1..4u64;
    let tag = 0..4u8;
    let any = any::<usize>();
    let step = prop_oneof![
        6 => (at.clone(), len.clone(), tag.clone()).prop_map(|(a, l, t)| Step::Write(a, l, t)),
        3 => (at.clone(), len.clone(), tag.clone()).prop_map(|(a, l, t)| Step::Read(a, l, t)),
        1 => (at.clone(), len.clone()).prop_map(|(a, l)| Step::Zero(a, l)),
        2 => tag.clone().prop_map(Step::Flush),
        1 => at.clone().prop_map(Step::Durable),
        1 => (at.clone(), tag.clone()).prop_map(|(a, t)| Step::Call(a, t)),
        1 => (at, len).prop_map(|(a, l)| Step::Plugged(a, l)),
        4 => any.prop_map(Step::End),
        2 => any.prop_map(Step::Wait),
        1 => any.prop_map(Step::Ask),
        1 => (any, tag).prop_map(|(i, t)| Step::Boost(i, t)),
        1 => any.prop_map(Step::Drop),
    ];
    prop::collection::vec(step, 1..120)
}

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

/// What is expected of a submitted request.
struct Expected {
    io: Option<IoHandle>,
    op: Op,
    range: std::ops::Range<u64>,
    /// For reads: the content while they are under way.
    content: Vec<u8>,
    /// For flushes: how many device operations had started when it was submitted.
    after: usize,
}

struct History {
    device: Arc<Puppet>,
    queue: Queue,
    /// What memory holds when everything has ended, or would hold.
    model: Vec<u8>,
    open: Vec<Expected>,
    /// Calls that came: where the request began and whether it ended well.
    calls: Arc<Mutex<Vec<(u64, bool)>>>,
    called: usize,
    fill: u8,
}

impl History {
    fn is_free(&self, from: u64, len: u64) -> bool {
        let range = from * UNIT..(from + len) * UNIT;
        let overlaps =
            |open: &Expected| range.start < open.range.end && open.range.start < range.end;
        from + len <= 64 && !self.open.iter().any(overlaps)
    }

    fn note(&mut self, io: Option<IoHandle>, op: Op, from: u64, len: u64) {
        let range = from * UNIT..(from + len) * UNIT;
        let content = self.model[range.start as usize..range.end as usize].to_vec();
        self.open.push(Expected {
            io,
            op,
            range,
            content,
            after: self.device.log().len(),
        });
    }

    fn bio(&mut self, from: u64, len: u64) -> Bio {
        let bufs = (0..len).map(|i| {
            self.fill = self.fill.wrapping_add(1);
            let at = ((from + i) * UNIT) as usize;
            self.model[at..at + UNIT as usize].fill(self.fill);
            Buf::copy_of(&[self.fill; UNIT as usize])
        });
        Bio::write(from * UNIT, bufs.collect())
    }

    /// A change has failed, or nobody knows: what the device holds is right.
    fn learn(&mut self, range: std::ops::Range<u64>) {
        let bytes = &mut self.model[range.start as usize..range.end as usize];
        self.device.memory.read(range.start, bytes);
    }

    /// A request has ended: what it promises holds.
    fn check(&mut self, expected: &Expected) {
        let (start, end) = (expected.range.start, expected.range.end);
        let result = expected.io.as_ref().map(IoHandle::wait);
        if matches!(result, Some(Err(_))) {
            let fails = !self.device.state.lock().fail.is_empty();
            assert!(fails, "nothing fails by itself");
            return self.learn(start..end);
        }
        match expected.op {
            Op::Flush => {
                let log = self.device.log();
                let flushed = log[expected.after..].iter().any(|l| l.0 == Op::Flush);
                assert!(flushed, "a FLUSH starts after its submission");
            }
            Op::Read => {
                let io = expected.io.clone().expect("reads keep their handles");
                let got: Vec<u8> = io
                    .into_bio()
                    .unwrap()
                    .bufs
                    .iter()
                    .flat_map(|b| b.to_vec())
                    .collect();
                assert_eq!(got, expected.content);
            }
            _ => {
                let mut got = vec![0; (end - start) as usize];
                self.device.memory.read(start, &mut got);
                assert_eq!(got, expected.content, "bytes {start}..{end}");
            }
        }
    }

    fn settle(&mut self) {
        let done = |e: &mut Expected| e.io.as_ref().is_some_and(|io| io.io().is_done());
        let ended: Vec<_> = self.open.extract_if(.., done).collect();
        for expected in ended {
            self.check(&expected);
        }
    }

    fn step(&mut self, step: Step) {
        let n = self.open.len();
        match step {
            Step::Write(from, len, t) if self.is_free(from, len) => {
                let bio = self.bio(from, len);
                let io = self.queue.submit(bio, tag(t));
                self.note(Some(io), Op::Write, from, len);
            }
            Step::Read(from, len, t) if self.is_free(from, len) => {
                let bio = Bio::read(from * UNIT, (len * UNIT) as usize);
                let io = self.queue.submit(bio, tag(t));
                self.note(Some(io), Op::Read, from, len);
            }
            Step::Zero(from, len) if self.is_free(from, len) => {
                let range = (from * UNIT) as usize..((from + len) * UNIT) as usize;
                self.model[range].fill(0);
                let bio = Bio::write_zeroes(from * UNIT, len * UNIT);
                let io = self.queue.submit(bio, tag(0));
                self.note(Some(io), Op::WriteZeroes, from, len);
            }
            Step::Flush(t) => {
                let after = self.device.log().len();
                let io = self.queue.flush(tag(t));
                self.note(Some(io), Op::Flush, 0, 0);
                self.open.last_mut().unwrap().after = after;
            }
            Step::Durable(from) if self.is_free(from, 1) => {
                let bio = self.bio(from, 1).preflush_and_fua();
                let io = self.queue.submit(bio, tag(0));
                self.note(Some(io), Op::Write, from, 1);
            }
            Step::Call(from, t) if self.is_free(from, 1) => self.call(from, t),
            Step::Plugged(from, len) if self.is_free(from, len) => {
                let bios: Vec<_> = (0..len).map(|i| self.bio(from + i, 1)).collect();
                let plug = self.queue.plug();
                let ios: Vec<_> = bios
                    .into_iter()
                    .map(|bio| plug.submit(bio, tag(2)))
                    .collect();
                drop(plug);
                for (i, io) in (0..).zip(ios) {
                    self.note(Some(io), Op::Write, from + i, 1);
                }
            }
            Step::End(i) if self.device.pending() > 0 => self.device.end(i),
            Step::Wait(i) if n > 0 => {
                if let Some(io) = self.open[i % n].io.clone() {
                    let _ = io.wait();
                }
            }
            Step::Ask(i) if n > 0 => {
                let _ = self.open[i % n].io.as_ref().map(IoHandle::is_done);
            }
            Step::Boost(i, t) if n > 0 => {
                if let Some(io) = &self.open[i % n].io {
                    self.queue.boost(io, tag(t));
                }
            }
            Step::Drop(i) if n > 0 => {
                let expected = &mut self.open[i % n];
                if expected.op != Op::Read {
                    expected.io = None;
                }
            }
            _ => {}
        }
        self.settle();
    }

    fn call(&mut self, from: u64, t: u8) {
        let bio = self.bio(from, 1);
        let calls = Arc::clone(&self.calls);
        self.queue.submit_with(bio, tag(t), move |bio, result| {
            assert_eq!(bio.bufs.len(), 1);
            calls.lock().push((bio.offset, result.is_ok()));
        });
        self.called += 1;
        self.note(None, Op::Write, from, 1);
    }

    fn finish(mut self) {
        let left = self.open.iter().filter_map(|open| open.io.clone());
        let left: Vec<_> = left.collect();
        let result = wait_all(&left);
        assert_eq!(result.is_ok(), left.iter().all(|io| io.wait().is_ok()));
        self.device.end_all();
        self.settle();
        let calls = self.calls.lock().clone();
        assert_eq!(calls.len(), self.called);
        let failed = calls.iter().filter(|call| !call.1);
        failed.for_each(|call| self.learn(call.0..call.0 + UNIT));
        let forgotten: Vec<_> = self.open.drain(..).map(|open| open.range).collect();
        if !self.device.state.lock().fail.is_empty() {
            forgotten.into_iter().for_each(|range| self.learn(range));
        }
        assert_eq!(self.device.memory.to_bytes(), self.model);
        let stats = self.queue.stats();
        assert_eq!((stats.held, stats.queued, stats.in_flight), (0, 0, 0));
        let flushes = self
            .device
            .log()
            .iter()
            .filter(|l| l.0 == Op::Flush)
            .count();
        assert_eq!(stats.ops[Op::Flush as usize].requests, flushes as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_histories_end_and_leave_what_was_written(
        steps in steps(),
        depth in 1..6usize,
        choices in prop::collection::vec(any::<usize>(), 0..50),
        fail in prop::collection::vec(0..SIZE, 0..3),
        policy in prop_oneof![Just(Policy::Fifo), Just(Policy::Fair), Just(Policy::Cfq)],
    ) {
        let device = Puppet::new();
        device.state.lock().choices = choices;
        device.state.lock().fail = fail;
        let mut history = History {
            queue: queue_by(&device, depth, policy),
            device,
            model: vec![0; SIZE as usize],
            open: Vec::new(),
            calls: Arc::new(Mutex::new(Rank::Leaf, Vec::new())),
            called: 0,
            fill: 0,
        };
        for step in steps {
            history.step(step);
        }
        prop_assert!(history.device.state.lock().most <= depth);
        history.finish();
    }
}

/// A device in a simulation: requests take time and end in another order.
struct Slow(Arc<MemDevice>);

impl Device for Slow {
    fn geometry(&self) -> &Geometry {
        self.0.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        let memory = Arc::clone(&self.0);
        let time = Duration::from_micros(20 + steadfs_rt::random_u64() % 500);
        sim::after(time, move || memory.start(bio, done));
    }
}

/// Tasks that submit, wait, forget and flush; nothing must stall.
fn crowd(seed: u64, policy: Policy) -> u64 {
    let config = sim::Config {
        stall_bound: Duration::from_secs(1),
        ..sim::Config::new(seed)
    };
    let report = sim::run(config, move || {
        let memory = Arc::new(MemDevice::new(1 << 20));
        let device: Arc<dyn Device> = Arc::new(Slow(Arc::clone(&memory)));
        let settings = QueueSettings {
            policy,
            depth: 4,
            ..QueueSettings::default()
        };
        let queue = Arc::new(Queue::with_settings(device, settings));
        queue.set_group(GroupId(1), GroupId(0), 20);
        let tasks: Vec<_> = (0..6u64)
            .map(|task| {
                let queue = Arc::clone(&queue);
                steadfs_rt::spawn("task", move || {
                    let mut ios = Vec::new();
                    for i in 0..20u64 {
                        let at = task * 20 + i;
                        let choice = steadfs_rt::random_u64();
                        let io = queue.submit(block(at, task as u8), tag((choice % 4) as u8));
                        match choice / 4 % 6 {
                            5 => queue.configure(QueueSettings {
                                policy: Policy::ALL[(choice / 24 % 3) as usize],
                                strict_guarantees: (choice / 72).is_multiple_of(4),
                                ..settings
                            }),
                            0 => io.wait().unwrap(),
                            1 => drop(io),
                            2 => queue.flush(WAITED).wait().unwrap(),
                            3 => queue.boost(&io, WAITED),
                            _ => ios.push(io),
                        }
                    }
                    wait_all(&ios).unwrap();
                    queue.flush(WAITED).wait().unwrap();
                })
            })
            .collect();
        for task in tasks {
            task.join();
        }
        while queue.stats().in_flight + queue.stats().queued > 0 {
            steadfs_rt::sleep(Duration::from_millis(1));
        }
        for task in 0..6u64 {
            let mut got = [0; 20 * UNIT as usize];
            memory.read(task * 20 * UNIT, &mut got);
            assert_eq!(got, [task as u8; 20 * UNIT as usize]);
        }
    });
    report.trace_hash
}

#[test]
fn a_simulated_crowd_never_stalls() {
    let mut hashes = BTreeMap::new();
    let policy = |seed: u64| Policy::ALL[(seed % 3) as usize];
    for seed in 0..200 {
        hashes.insert(seed, crowd(seed, policy(seed)));
    }
    for seed in [0, 7, 199] {
        assert_eq!(
            crowd(seed, policy(seed)),
            hashes[&seed],
            "a run is a function of its seed"
        );
    }
}
