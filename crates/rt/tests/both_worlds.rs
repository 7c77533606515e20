//! The same test bodies on threads and in simulation, with many seeds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_rt::sim::{self, Config};
use steadfs_rt::{
    Condvar, Event, Instant, Mutex, Rank, RwLock, now, random_u64, sleep, sleep_until, spawn,
    wall_clock, yield_now,
};

macro_rules! both {
    ($($name:ident)*) => {
        mod threads {
            $(#[test] fn $name() { super::$name(); })*
        }
        mod simulated {
            $(#[test] fn $name() {
                for seed in 0..200 {
                    super::sim::run(super::Config::new(seed), super::$name);
                }
            })*
        }
    };
}

both! {
    counts_are_exact
    a_bounded_queue_delivers_each_item_once
    readers_share_and_writers_do_not
    a_waiting_writer_stops_new_readers
    timed_waits_time_out
    a_notified_timed_wait_does_not_time_out
    an_event_reaches_every_waiter
    tries_do_not_wait
    clocks_advance
    join_returns_the_value_of_a_task
    random_numbers_differ
    locks_unlock_in_a_panic
}

fn counts_are_exact() {
    let total = Arc::new(Mutex::new(Rank::Inode, 0u64));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let total = Arc::clone(&total);
            spawn("adder", move || {
                for _ in 0..50 {
                    let mut total = total.lock();
                    let before = *total;
                    yield_now();
                    *total = before + 1;
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join());
    assert_eq!(*total.lock(), 200);
}

struct Bounded {
    items: Mutex<VecDeque<u64>>,
    changed: Condvar,
}

fn a_bounded_queue_delivers_each_item_once() {
    let queue = Arc::new(Bounded {
        items: Mutex::new(Rank::QueueState, VecDeque::new()),
        changed: Condvar::new(),
    });
    let makers: Vec<_> = (0..3)
        .map(|maker| {
            let queue = Arc::clone(&queue);
            spawn("maker", move || {
                for n in 0..20 {
                    let mut items = queue.items.lock();
                    while items.len() == 2 {
                        queue.changed.wait(&mut items);
                    }
                    items.push_back(maker * 100 + n);
                    queue.changed.notify_all();
                }
            })
        })
        .collect();
    let takers: Vec<_> = (0..2)
        .map(|_| {
            let queue = Arc::clone(&queue);
            spawn("taker", move || {
                let mut got = Vec::new();
                while got.len() < 30 {
                    let mut items = queue.items.lock();
                    while items.is_empty() {
                        queue.changed.wait(&mut items);
                    }
                    got.extend(items.pop_front());
                    queue.changed.notify_all();
                }
                got
            })
        })
        .collect();
    makers.into_iter().for_each(|task| task.join());
    let mut got: Vec<u64> = takers.into_iter().flat_map(|task| task.join()).collect();
    got.sort_unstable();
    let expected: Vec<u64> = (0..3)
        .flat_map(|m| (0..20).map(move |n| m * 100 + n))
        .collect();
    assert_eq!(got, expected);
}

fn readers_share_and_writers_do_not() {
    let pair = Arc::new(RwLock::new(Rank::Group, (0u64, 0u64)));
    let together = Arc::new(AtomicU64::new(0));
    let writer = {
        let pair = Arc::clone(&pair);
        spawn("writer", move || {
            for n in 1..=30 {
                let mut pair = pair.write();
                pair.0 = n;
                yield_now();
                pair.1 = n;
            }
        })
    };
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (pair, together) = (Arc::clone(&pair), Arc::clone(&together));
            spawn("reader", move || {
                for _ in 0..30 {
                    let pair = pair.read();
                    together.fetch_add(1, Ordering::Relaxed);
                    yield_now();
                    assert_eq!(pair.0, pair.1);
                    together.fetch_sub(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    readers.into_iter().for_each(|task| task.join());
    writer.join();
    assert_eq!(together.load(Ordering::Relaxed), 0);
    assert_eq!(*pair.read(), (30, 30));
    // Two readers hold the lock at the same time.
    let first = pair.read();
    let second = {
        let pair = Arc::clone(&pair);
        spawn("second", move || *pair.read())
    };
    assert_eq!(second.join(), *first);
}

fn a_waiting_writer_stops_new_readers() {
    let lock = Arc::new(RwLock::new(Rank::Group, Vec::new()));
    let first = lock.read();
    let writer = {
        let lock = Arc::clone(&lock);
        spawn("writer", move || lock.write().push("writer"))
    };
    // When a new reader has to wait, the writer waits.
    let begin = now();
    while lock.try_read().is_some() {
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "the writer waits"
        );
        sleep(Duration::from_millis(1));
    }
    let late = {
        let lock = Arc::clone(&lock);
        spawn("late reader", move || lock.read().clone())
    };
    sleep(Duration::from_millis(5));
    assert!(!late.is_finished());
    drop(first);
    assert_eq!(late.join(), ["writer"]);
    writer.join();
}

fn timed_waits_time_out() {
    let lock = Mutex::new(Rank::Dirty, ());
    let never = Condvar::new();
    let begin = now();
    let limit = Duration::from_millis(3);
    let mut guard = lock.lock();
    assert!(never.wait_for(&mut guard, limit));
    assert!(begin.elapsed() >= limit);
    if sim::active() {
        assert_eq!(begin.elapsed(), limit);
    }
    never.notify_all();
    assert!(never.wait_for(&mut guard, Duration::ZERO));
}

fn a_notified_timed_wait_does_not_time_out() {
    let shared = Arc::new((Mutex::new(Rank::Dirty, false), Condvar::new()));
    let other = Arc::clone(&shared);
    let mut set = shared.0.lock();
    let task = spawn("notifier", move || {
        *other.0.lock() = true;
        other.1.notify_one();
    });
    while !*set {
        assert!(!shared.1.wait_for(&mut set, Duration::from_secs(60)));
    }
    drop(set);
    task.join();
}

fn an_event_reaches_every_waiter() {
    let event = Arc::new(Event::new());
    assert_eq!(event.get(), None);
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let event = Arc::clone(&event);
            spawn("waiter", move || event.wait())
        })
        .collect();
    yield_now();
    event.set(7);
    for waiter in waiters {
        assert_eq!(waiter.join(), 7);
    }
    assert_eq!(event.wait(), 7);
}

fn tries_do_not_wait() {
    let mutex = Mutex::new(Rank::Leaf, 1);
    let guard = mutex.lock();
    assert!(mutex.try_lock().is_none());
    drop(guard);
    assert_eq!(mutex.try_lock().map(|guard| *guard), Some(1));
    let shared = RwLock::new(Rank::Table, 1);
    let reader = shared.read();
    assert!(shared.try_write().is_none());
    assert_eq!(shared.try_read().map(|guard| *guard), Some(1));
    drop(reader);
    let writer = shared.try_write();
    assert!(writer.is_some());
    assert!(shared.try_read().is_none());
}

fn clocks_advance() {
    let begin = now();
    let calendar = wall_clock();
    sleep(Duration::from_millis(2));
    let later = now();
    assert!(later.since(begin) >= Duration::from_millis(2));
    sleep_until(later + Duration::from_millis(1));
    sleep_until(Instant(0));
    assert!(now() - later >= Duration::from_millis(1));
    let passed = wall_clock();
    assert!((passed.secs, passed.nanos) > (calendar.secs, calendar.nanos));
    if sim::active() {
        assert_eq!(now(), Instant(3_000_000));
    }
}

fn join_returns_the_value_of_a_task() {
    let outer = spawn("outer", || spawn("inner", || vec![1, 2, 3]).join().len());
    assert_eq!(outer.join(), 3);
    let task = spawn("quick", || ());
    let begin = now();
    while !task.is_finished() {
        assert!(begin.elapsed() < Duration::from_secs(20));
        sleep(Duration::from_micros(50));
    }
    task.join();
}

fn random_numbers_differ() {
    assert_ne!(random_u64(), random_u64());
}

fn locks_unlock_in_a_panic() {
    let lock = Mutex::new(Rank::Group, 5);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guard = lock.lock();
        std::panic::resume_unwind(Box::new("quietly"));
    }));
    assert!(caught.is_err());
    assert_eq!(*lock.lock(), 5);
}
