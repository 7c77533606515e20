//! Tests of read-ahead.

use super::*;

fn read(queue: &Queue, from: u64, len: u64) -> Vec<u8> {
    let buf = queue.read(from * UNIT, (len * UNIT) as usize, WAITED);
    buf.unwrap().to_vec()
}

fn ahead(queue: &Queue, from: u64, len: u64) -> bool {
    queue.read_ahead(from * UNIT, (len * UNIT) as usize, WAITED)
}

fn reads(device: &Puppet) -> usize {
    let log = device.log();
    log.iter().filter(|entry| entry.0 == Op::Read).count()
}

#[test]
fn a_read_uses_a_read_ahead() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    queue.submit(block(5, 7), WAITED).wait().unwrap();
    assert!(ahead(&queue, 5, 2));
    assert!(ahead(&queue, 5, 2), "it is being read");
    assert_eq!(reads(&device), 1);
    // In flight.
    let mut content = vec![7; UNIT as usize];
    content.extend([0; UNIT as usize]);
    assert_eq!(read(&queue, 5, 2), content);
    assert_eq!(reads(&device), 1);
    // Once only.
    assert_eq!(read(&queue, 5, 2), content);
    assert_eq!(reads(&device), 2);
    // Ended.
    ahead(&queue, 5, 2);
    device.end_all();
    assert_eq!(read(&queue, 5, 2), content);
    assert_eq!(reads(&device), 3);
    // Other ranges are read separately.
    ahead(&queue, 5, 2);
    read(&queue, 5, 1);
    read(&queue, 6, 1);
    assert_eq!(reads(&device), 6);
}

#[test]
fn a_changed_range_is_read_again() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    ahead(&queue, 3, 3);
    device.end_all();
    queue.submit(block(5, 9), WAITED).wait().unwrap();
    assert_eq!(read(&queue, 3, 3)[2 * UNIT as usize..], [9; UNIT as usize]);
    // Started while the change was in flight, before or after it on the device.
    for change_first in [true, false] {
        let change = queue.submit(Bio::write_zeroes(5 * UNIT, UNIT), BACKGROUND);
        ahead(&queue, 3, 3);
        device.end(usize::from(!change_first));
        device.end_all();
        change.wait().unwrap();
        assert_eq!(read(&queue, 3, 3), vec![0; 3 * UNIT as usize]);
        queue.submit(block(5, 9), WAITED).wait().unwrap();
    }
}

#[test]
fn a_failed_read_ahead_is_read_again() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    device.state.lock().fail = vec![5 * UNIT];
    ahead(&queue, 5, 1);
    device.end_all();
    device.state.lock().fail.clear();
    assert_eq!(read(&queue, 5, 1), [0; UNIT as usize]);
}

#[test]
fn a_read_that_joins_goes_before_background_requests() {
    for boost in [true, false] {
        let device = Puppet::new();
        let queue = queue_by(&device, 1, Policy::Fair);
        queue.configure(QueueSettings {
            boost,
            ..queue.settings()
        });
        let first = queue.submit(block(0, 1), BACKGROUND);
        let others: Vec<_> = (1..4)
            .map(|n| queue.submit(block(2 * n, 1), BACKGROUND))
            .collect();
        ahead(&queue, 20, 1);
        read(&queue, 20, 1);
        assert_eq!(
            device.log()[1],
            (Op::Read, 20 * UNIT, UNIT),
            "boost: {boost}"
        );
        first.wait().unwrap();
        wait_all(&others).unwrap();
    }
}

/// A device that pauses in `geometry`, which the queue calls between its steps.
struct Nosy {
    inner: Arc<Puppet>,
    asked: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Nosy {
    fn geometry(&self) -> &Geometry {
        let asked = self.asked.lock().take();
        if let Some(asked) = asked {
            asked();
        }
        self.inner.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        self.inner.start(bio, done);
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.inner.help(until);
    }
}

#[test]
fn a_read_that_joins_during_the_start_boosts_it() {
    let puppet = Puppet::new();
    let device = Arc::new(Nosy {
        inner: Arc::clone(&puppet),
        asked: Mutex::new(Rank::DeviceInner, None),
    });
    let settings = QueueSettings {
        policy: Policy::Fifo,
        depth: 1,
        ..QueueSettings::default()
    };
    let queue = Arc::new(Queue::with_settings(Arc::clone(&device) as _, settings));
    let others = [0, 2, 4].map(|n| queue.submit(block(n, 1), BACKGROUND));
    let found = Arc::new(Mutex::new(Rank::Leaf, None));
    let (keep, asks) = (Arc::clone(&found), Arc::downgrade(&queue));
    *device.asked.lock() = Some(Box::new(move || {
        let bio = Bio::read(20 * UNIT, UNIT as usize);
        let io = asks.upgrade().unwrap().submit(bio, WAITED);
        *keep.lock() = Some(io);
    }));
    assert!(ahead(&queue, 20, 1));
    let found = found.lock().take().unwrap();
    found.wait().unwrap();
    assert_eq!(puppet.log()[1], (Op::Read, 20 * UNIT, UNIT));
    wait_all(&others).unwrap();
    queue.drain_read_ahead();
}

/// All parts of a merged request fail, although the error may be in another part.
#[test]
fn a_read_that_joins_a_failing_read_ahead_is_retried() {
    let device = Puppet::new();
    let queue = queue(&device, 1);
    let first = queue.submit(block(50, 1), BACKGROUND);
    ahead(&queue, 5, 1);
    ahead(&queue, 6, 1);
    device.state.lock().fail = vec![6 * UNIT];
    let [good, bad] = [5, 6].map(|n| queue.submit(Bio::read(n * UNIT, UNIT as usize), WAITED));
    device.end_all();
    first.wait().unwrap();
    assert_eq!(
        device.log()[1],
        (Op::Read, 5 * UNIT, 2 * UNIT),
        "both at once"
    );
    assert_eq!(
        good.into_bio().unwrap().bufs[0].to_vec(),
        [0; UNIT as usize]
    );
    let error = bad.wait().unwrap_err();
    assert_eq!((error.offset, error.len), (6 * UNIT, UNIT));
    assert_eq!(queue.stats().in_flight, 0);
}

#[test]
fn the_submitters_held_requests_go_first() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let own = queue.submit(Bio::read(5 * UNIT, UNIT as usize), WAITED);
    ahead(&queue, 6, 1);
    ahead(&queue, 7, 1);
    own.wait().unwrap();
    assert_eq!(device.log()[0], (Op::Read, 5 * UNIT, UNIT));
    queue.drain_read_ahead();
}

/// Like background writes, read-aheads leave slots of the device free, and other requests go first.
#[test]
fn unused_read_aheads_delay_no_other_request() {
    for policy in [Policy::Fifo, Policy::Fair] {
        let device = Puppet::new();
        let queue = queue_by(&device, 8, policy);
        (0..12).for_each(|n| assert!(ahead(&queue, 3 * n, 1)));
        assert_eq!(
            device.pending(),
            6,
            "{policy:?}: slots are free for other requests"
        );
        let waiter = IoTag {
            owner: steadfs_base::OwnerId(7),
            ..WAITED
        };
        let reads = [40, 42, 44].map(|n| {
            let io = queue.submit(Bio::read(n * UNIT, UNIT as usize), waiter);
            assert!(!io.is_done());
            io
        });
        assert_eq!(device.pending(), 8, "{policy:?}");
        device.end(0);
        let third = (Op::Read, 44 * UNIT, UNIT);
        assert_eq!(device.log()[8], third, "{policy:?}: before the rest");
        // A read that joins one of them gets it before the other ones.
        let joined = queue.submit(Bio::read(33 * UNIT, UNIT as usize), waiter);
        device.end(0);
        let asked = (Op::Read, 33 * UNIT, UNIT);
        assert_eq!(device.log()[9], asked, "{policy:?}");
        joined.wait().unwrap();
        wait_all(&reads).unwrap();
        queue.drain_read_ahead();
    }
}

/// The memory of a read-ahead is counted until the device has ended it.
#[test]
fn a_read_ahead_in_flight_keeps_its_memory() {
    let device = Puppet::new();
    let puppet = Arc::clone(&device);
    sim::run(sim::Config::new(1), move || {
        let queue = queue(&puppet, 8);
        queue.set_read_ahead_limit(4 * UNIT);
        assert!(ahead(&queue, 0, 2));
        assert!(ahead(&queue, 2, 2));
        steadfs_rt::sleep(Duration::from_secs(60));
        assert!(!ahead(&queue, 8, 1), "it may be old: it is being read");
        let change = queue.submit(block(1, 9), BACKGROUND);
        puppet.end(2);
        change.wait().unwrap();
        assert!(!ahead(&queue, 8, 1), "and when it cannot be used any more");
        puppet.end(0);
        puppet.end(0);
        assert!(ahead(&queue, 8, 1));
        puppet.end_all();
    });
}

#[test]
fn dropped_read_aheads_have_ended_after_the_drain() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    ahead(&queue, 3, 1);
    let change = queue.submit(block(3, 9), BACKGROUND);
    device.end(1);
    change.wait().unwrap();
    assert_eq!(device.pending(), 1);
    queue.drain_read_ahead();
    assert_eq!(device.pending(), 0);
}

/// Each started read-ahead is used, dropped or kept.
#[test]
fn outcomes_of_read_aheads_are_counted() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let counts = || {
        let ahead = queue.stats().read_ahead;
        (ahead.started, ahead.used, ahead.dropped, ahead.kept)
    };
    assert_eq!(counts(), (0, 0, 0, 0));
    device.state.lock().fail = vec![12 * UNIT];
    (0..5).for_each(|n| assert!(ahead(&queue, 4 * n, 2)));
    ahead(&queue, 0, 2);
    assert_eq!(counts(), (5, 0, 0, 5));
    assert_eq!(queue.stats().read_ahead.bytes, 10 * UNIT);
    read(&queue, 4, 2);
    read(&queue, 8, 1);
    assert_eq!(counts(), (5, 1, 0, 4));
    queue
        .write(9 * UNIT, vec![Buf::zeroed(UNIT as usize)], WAITED)
        .unwrap();
    assert_eq!(counts(), (5, 1, 1, 3));
    device.end_all();
    queue
        .submit(Bio::read(12 * UNIT, 2 * UNIT as usize), WAITED)
        .wait()
        .unwrap_err();
    assert_eq!(counts(), (5, 1, 2, 2));
    assert_eq!(queue.stats().read_ahead.bytes, 4 * UNIT);
    queue.drain_read_ahead();
    assert_eq!(counts(), (5, 1, 4, 0));
    assert_eq!(queue.stats().read_ahead.bytes, 0);
    let shown = "\"read_ahead\":{\"started\":5,\"used\":1,\"dropped\":4,\"kept\":0,\"bytes\":0}";
    let json = queue.stats().to_json();
    assert!(json.contains(shown), "{json}");
}

#[test]
fn memory_is_limited_and_old_read_aheads_are_dropped() {
    sim::run(sim::Config::new(1), || {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(SIZE));
        let queue = Queue::new(device, QueueOptions::default());
        queue.set_read_ahead_limit(4 * UNIT);
        assert!(ahead(&queue, 0, 2));
        assert!(ahead(&queue, 2, 2));
        assert!(!ahead(&queue, 4, 1));
        read(&queue, 2, 2);
        assert!(ahead(&queue, 4, 1), "a used one frees memory");
        assert!(ahead(&queue, 1, 2), "it replaces an overlapping one");
        steadfs_rt::sleep(Duration::from_secs(20));
        assert!(ahead(&queue, 8, 4), "it replaces an unused one");
        queue.set_read_ahead_limit(0);
        queue.drain_read_ahead();
        assert!(!ahead(&queue, 8, 1));
    });
}

#[test]
fn nothing_is_in_flight_after_the_drain() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    (0..5).for_each(|n| assert!(ahead(&queue, 3 * n, 1)));
    assert_eq!(device.pending(), 5);
    queue.drain_read_ahead();
    assert_eq!(device.pending(), 0);
}
