//! Callers that wait for another task's write-back: its requests are boosted, and what is left is theirs.

use super::*;

/// One request at a time: what is queued can be boosted.
fn on_a_slow_queue<T: 'static>(test: impl FnOnce(Arc<MemFs>) -> T + 'static) -> T {
    simulated(10 * MILLI, |fs| {
        fs.set_depth(1);
        test(fs)
    })
}

/// Runs `sync` while the flusher has all of file 1 in flight. Returns boosts and how long the sync took.
fn beside_the_flusher(fs: &Arc<MemFs>, sync: impl FnOnce(&MemFs)) -> (u64, Duration) {
    let other = Arc::clone(fs);
    let flusher = spawn("flusher", move || other.flush_in_background(1));
    sleep(5 * MILLI);
    let (before, began) = (fs.boosts(), now());
    sync(fs);
    let took = now().since(began);
    flusher.join().unwrap();
    (fs.boosts() - before, took)
}

#[test]
fn an_fsync_boosts_what_the_flusher_has_queued_of_the_file() {
    let boosts = on_a_slow_queue(|fs| {
        fs.write(1, 0..1, 5);
        fs.write(1, 2..3, 5);
        fs.write(1, 4..5, 5);
        let (boosts, _) = beside_the_flusher(&fs, |fs| fs.sync(1).unwrap());
        assert!(fs.of(1).pages().is_empty());
        fs.check();
        boosts
    });
    assert!(boosts >= 2, "two of three writes were queued: {boosts}");
}

#[test]
fn without_a_waiter_nothing_is_boosted() {
    let boosts = on_a_slow_queue(|fs| {
        fs.write(1, 0..1, 5);
        fs.write(1, 2..3, 5);
        fs.flush_in_background(1).unwrap();
        fs.boosts()
    });
    assert_eq!(boosts, 0);
}

/// It waits for the files that are in flight with its own, since they are mapped together.
#[test]
fn a_waiter_for_one_small_file_boosts_its_batch() {
    let boosts = on_a_slow_queue(|fs| {
        for number in [1, 3, 5] {
            fs.write(number, 0..1, 5);
            fs.write(number, 2..3, 5);
        }
        let other = Arc::clone(&fs);
        let flusher = spawn("flusher", move || {
            other.sync_files(&[1, 3, 5], WritebackReason::Background)
        });
        sleep(5 * MILLI);
        fs.sync(5).unwrap();
        flusher.join().unwrap();
        fs.check();
        fs.boosts()
    });
    assert!(boosts >= 4, "those of the other files, too: {boosts}");
}

/// The flusher collects nothing more, and the waiter writes the rest with its own tag.
#[test]
fn a_holder_in_the_background_leaves_the_rest_to_its_waiter() {
    let (log, rest) = on_a_slow_queue(|fs| {
        fs.write(1, 0..40, 5);
        let other = Arc::clone(&fs);
        let flusher = spawn("flusher", move || {
            other.flush_in_background(1).unwrap();
            other.of(1).pages().dirty_bytes()
        });
        sleep(5 * MILLI);
        fs.sync(1).unwrap();
        let rest = flusher.join();
        fs.check();
        (fs.take_log(), rest)
    });
    assert_eq!(rest, 32 * BS, "two batches were in flight");
    let completed = log.iter().filter(|e| matches!(e, Event::Completed(_)));
    assert_eq!(completed.count(), 10, "each block is written once: {log:?}");
}

/// A caller waits for what was dirty when it began, not for the whole pass of the flusher.
#[test]
fn an_fsync_ends_before_a_long_pass_of_the_flusher() {
    let took = on_a_slow_queue(|fs| {
        fs.write(1, 0..4, 5);
        fs.sync(1).unwrap();
        fs.write(1, 0..1, 6);
        let (_, took) = beside_the_flusher(&fs, |fs| fs.sync(1).unwrap());
        fs.check();
        took
    });
    assert!(took < 40 * MILLI, "{took:?}");
}

/// What a failed write of the flusher leaves is written by the waiter, and the error is the file's.
#[test]
fn a_waiter_writes_again_what_failed_for_the_flusher() {
    on_a_slow_queue(|fs| {
        fs.write(1, 0..2, 5);
        let mut failures = 1;
        fs.fail_writes(move |_| {
            failures -= 1;
            failures >= 0
        });
        let other = Arc::clone(&fs);
        let flusher = spawn("flusher", move || other.flush_in_background(1));
        sleep(5 * MILLI);
        fs.sync(1).unwrap();
        assert!(flusher.join().is_err());
        assert!(fs.of(1).pages().is_empty());
        let error = fs.of(1).pages().take_error();
        assert!(matches!(error, Some(WriteError::Device(_))), "{error:?}");
        fs.check();
    });
}
