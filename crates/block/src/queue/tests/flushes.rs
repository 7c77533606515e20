//! One FLUSH at a time, and none succeeds after a failed one.

use super::*;

fn fail(device: &Puppet) {
    let (bio, done) = device.state.lock().pending.pop().unwrap();
    let error = IoError::of(&bio, "gone");
    done(bio, Err(error));
}

#[test]
fn a_flush_and_a_preflush_run_one_after_the_other() {
    for tag in [WAITED, BACKGROUND] {
        let device = Puppet::new();
        let queue = queue(&device, 8);
        let flush = queue.flush(BACKGROUND);
        let commit = queue.submit(block(3, 1).preflush_and_fua(), tag);
        let plain = queue.submit(block(5, 1), BACKGROUND);
        // Polling starts the held request.
        assert!(!commit.is_done());
        assert_eq!(device.pending(), 2, "the write waits for the flush");
        let other = queue.submit(block(7, 1).preflush_and_fua(), BACKGROUND);
        device.end(0);
        assert!(flush.is_done());
        assert_eq!(
            device.pending(),
            2,
            "one of the two writes, and the plain one"
        );
        // A FLUSH that arrives now starts after them.
        let later = queue.flush(tag);
        assert!(!later.is_done());
        later.wait().unwrap();
        assert!(commit.is_done() && other.is_done());
        plain.wait().unwrap();
        let writes = [3, 7].map(|n| (Op::Write, n * UNIT, UNIT));
        let order: Vec<_> = device
            .log()
            .into_iter()
            .filter(|entry| entry.0 == Op::Flush || writes.contains(entry))
            .collect();
        let flush = (Op::Flush, 0, 0);
        assert_eq!(order, [flush, writes[0], writes[1], flush]);
    }
}

/// The host reports a write that it lost once: here to the write with FUA.
#[test]
fn a_write_with_fua_is_not_beside_a_flush_and_its_failure_is_that_of_the_next() {
    for tag in [WAITED, BACKGROUND] {
        let device = Puppet::new();
        let queue = queue(&device, 8);
        let tail = queue.submit(block(3, 1).with_fua(), BACKGROUND);
        let flush = queue.flush(tag);
        let commit = queue.submit(block(5, 1).preflush_and_fua(), tag);
        assert!(!flush.is_done() && !commit.is_done());
        assert_eq!(device.pending(), 1, "one after the other");
        let needed = queue.next_flush();
        fail(&device);
        for io in [tail, flush, commit] {
            assert!(io.wait().unwrap_err().cause.contains("gone"));
        }
        assert!(!queue.has_flushed(needed));
        let stats = queue.stats();
        assert_eq!((stats.held, stats.queued, stats.in_flight), (0, 0, 0));
    }
}

#[test]
fn nothing_becomes_durable_after_a_failed_flush() {
    for tag in [WAITED, BACKGROUND] {
        let device = Puppet::new();
        let queue = queue(&device, 8);
        let flush = queue.flush(BACKGROUND);
        let meanwhile = queue.submit(block(3, 1).preflush_and_fua(), tag);
        assert!(!meanwhile.is_done());
        fail(&device);
        assert!(flush.wait().is_err());
        assert!(meanwhile.wait().unwrap_err().cause.contains("gone"));
        let later = queue.submit(block(3, 1).preflush_and_fua(), tag);
        assert!(later.wait().unwrap_err().cause.contains("gone"));
        assert_eq!(
            device.log(),
            [(Op::Flush, 0, 0)],
            "the device has none of them"
        );
        let stats = queue.stats();
        assert_eq!((stats.held, stats.queued, stats.in_flight), (0, 0, 0));
    }
}

#[test]
fn a_flush_does_not_hide_a_failed_preflush() {
    let device = Puppet::new();
    let queue = queue(&device, 8);
    let commit = queue.submit(block(3, 1).preflush_and_fua(), BACKGROUND);
    let flush = queue.flush(BACKGROUND);
    assert_eq!(device.pending(), 1);
    fail(&device);
    assert!(commit.wait().is_err() && flush.wait().is_err());
}

/// Background writes are split into short ones while FLUSHes follow one another.
#[test]
fn background_writes_are_short_beside_flushes() {
    const PIECE: u64 = 64 << 10;
    let run = || {
        let device = Arc::new(MemDevice::new(8 << 20));
        let most = u64::from(device.geometry().max_transfer);
        let queue = Queue::with_settings(device, QueueSettings::default());
        let requests = || queue.stats().ops[Op::Write as usize].requests;
        let write_all = || {
            let plug = queue.plug();
            for n in 0..8 {
                let bufs = vec![Buf::zeroed(PIECE as usize)];
                plug.submit_with(Bio::write(n * PIECE, bufs), BACKGROUND, |_, result| {
                    result.unwrap();
                });
            }
        };
        assert_eq!(queue.max_transfer_for(BACKGROUND), most);
        write_all();
        assert_eq!(requests(), 1);
        queue.flush(WAITED).wait().unwrap();
        assert_eq!(queue.max_transfer_for(BACKGROUND), 2 * PIECE);
        assert_eq!(queue.max_transfer_for(WAITED), most);
        write_all();
        assert_eq!(requests(), 1 + 1, "the others wait for the next FLUSH");
        steadfs_rt::sleep(Duration::from_millis(5));
        assert_eq!(requests(), 1 + 4, "which does not come");
        // The bound for fsync callers ends, too.
        steadfs_rt::sleep(Duration::from_secs(1));
        assert_eq!(queue.max_transfer_for(BACKGROUND), most);
        write_all();
        assert_eq!(requests(), 1 + 4 + 1);
    };
    sim::run(sim::Config::new(1), run);
}

/// A commit by its timer was dispatched before a task's fsync joined it.
#[test]
fn a_task_that_joins_a_commit_in_flight_is_a_caller_of_fsync() {
    let device = Puppet::new();
    let queue = Queue::with_settings(Arc::clone(&device) as _, QueueSettings::default());
    let idle = queue.describe();
    let timer = BACKGROUND.with_urgency(Urgency::Journal);
    let commit = queue.submit(block(3, 1).preflush_and_fua(), timer);
    let waiter = IoTag {
        owner: steadfs_base::OwnerId(9),
        ..WAITED
    };
    assert!(!commit.is_done(), "asking starts it");
    assert_eq!(device.pending(), 1);
    queue.boost(&commit, waiter);
    device.end(0);
    commit.wait().unwrap();
    assert!(!idle.contains("in force"), "{idle}");
    let known = queue.describe();
    assert!(known.contains("in force"), "{known}");
}
