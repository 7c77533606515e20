//! Properties of simulations: choices follow the seed, time is virtual, deadlocks and stalls are reported.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::{GroupId, IoTag};
use steadfs_rt::inherit::{current_task, end_waits, has_waiters, set_task_tag, wait_for};
use steadfs_rt::sim::{self, Config, Failure, FailureKind, Report};
use steadfs_rt::{
    Condvar, Event, Instant, Mutex, Rank, RankScope, RwLock, now, sleep, spawn, yield_now,
};

fn fails(config: Config, f: impl FnOnce() + 'static) -> Failure {
    *sim::try_run(config, f).expect_err("the run fails")
}

/// Runs four tasks that contend for a lock; returns the order in which they took it.
fn contend() -> Vec<u64> {
    let order = Arc::new(Mutex::new(Rank::Inode, Vec::new()));
    let tasks: Vec<_> = (0..4)
        .map(|who| {
            let order = Arc::clone(&order);
            spawn("contender", move || {
                for _ in 0..5 {
                    order.lock().push(who);
                    sleep(Duration::from_micros(10));
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join());
    order.lock().clone()
}

#[test]
fn a_seed_makes_every_choice() {
    let run = |seed| sim::run(Config::new(seed), contend);
    let (mut hashes, mut orders) = (BTreeSet::new(), BTreeSet::new());
    for seed in 0..100 {
        let (first, again) = (run(seed), run(seed));
        assert_eq!(first.trace_hash, again.trace_hash);
        assert_eq!(first.value, again.value);
        assert_eq!(first.switches, again.switches);
        assert_eq!(first.end, again.end);
        hashes.insert(first.trace_hash);
        orders.insert(first.value);
    }
    assert_eq!(hashes.len(), 100);
    assert!(orders.len() > 90, "only {} orders", orders.len());
}

/// Runs four tasks that donate their tags to the owner of a lock and check whether tags are donated to them.
fn donate() {
    let lock = Arc::new(RwLock::new(Rank::Inode, ()));
    let tasks: Vec<_> = (0..4)
        .map(|group| {
            let lock = Arc::clone(&lock);
            spawn("donor", move || {
                let _tag = set_task_tag(IoTag {
                    group: GroupId(group),
                    ..IoTag::default()
                });
                for _ in 0..200 {
                    let _guard = lock.write();
                    for _ in 0..5 {
                        sleep(Duration::from_micros(1));
                        sim::trace(has_waiters().into());
                    }
                }
            })
        })
        .collect();
    tasks.into_iter().for_each(|task| task.join());
}

#[test]
fn simulations_on_several_threads_do_not_influence_each_other() {
    let run = || sim::run(Config::new(1), donate).trace_hash;
    let alone = run();
    let threads =
        (0..4).map(|_| spawn("world", move || (0..10).map(|_| run()).collect::<Vec<_>>()));
    for thread in threads.collect::<Vec<_>>() {
        assert_eq!(thread.join(), [alone; 10]);
    }
}

#[test]
fn traced_words_change_the_hash() {
    let hash = |word| sim::run(Config::new(1), move || sim::trace(word)).trace_hash;
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
    sim::trace(3);
    assert!(!sim::active());
}

#[test]
fn random_numbers_follow_the_seed() {
    let numbers = |seed| {
        let run = sim::run(Config::new(seed), || {
            [steadfs_rt::random_u64(), steadfs_rt::random_u64()]
        });
        run.value
    };
    assert_eq!(numbers(1), numbers(1));
    assert_ne!(numbers(1), numbers(2));
}

/// Two increments that read and write under the lock, but release it in between.
fn lost_update() -> u64 {
    let count = Arc::new(Mutex::new(Rank::Inode, 0u64));
    let tasks = [(); 2].map(|()| {
        let count = Arc::clone(&count);
        spawn("racer", move || {
            let seen = *count.lock();
            *count.lock() = seen + 1;
        })
    });
    tasks.into_iter().for_each(|task| task.join());
    *count.lock()
}

#[test]
fn a_race_is_found_by_some_seed_and_stays_found() {
    let lost = |seed| sim::run(Config::new(seed), lost_update).value != 2;
    let found: Vec<u64> = (0..500).filter(|seed| lost(*seed)).collect();
    assert!(!found.is_empty() && found.len() < 250, "{}", found.len());
    assert!(found.iter().all(|seed| lost(*seed)));
    let quiet = Config {
        preempt: 0,
        ..Config::new(0)
    };
    assert_eq!(sim::run(quiet, lost_update).value, 2);
}

#[test]
fn an_hour_passes_at_once() {
    let Report { end, switches, .. } = sim::run(Config::new(0), || {
        for _ in 0..60 {
            sleep(Duration::from_secs(60));
        }
    });
    assert_eq!(end, Instant(3_600_000_000_000));
    assert!(switches < 100);
}

#[test]
fn a_deadlock_report_names_tasks_and_locks() {
    let failure = fails(Config::new(3), || {
        let shared = Arc::new((Mutex::new(Rank::Group, ()), Mutex::new(Rank::Dirty, ())));
        let other = Arc::clone(&shared);
        let task = spawn("holder", move || {
            let _group = other.0.lock();
            let mut dirty = other.1.lock();
            Condvar::new().wait(&mut dirty);
        });
        yield_now();
        sleep(Duration::from_millis(1));
        let waiter = spawn("waiter", move || drop(shared.0.lock()));
        waiter.join();
        task.join();
    });
    assert_eq!(failure.kind, FailureKind::Deadlock);
    let text = failure.to_string();
    assert!(text.contains("seed 3"), "{text}");
    assert!(
        text.contains("'holder': waits for a condition under Dirty"),
        "{text}"
    );
    assert!(
        text.contains("'main': waits for the end of 'waiter'"),
        "{text}"
    );
    assert!(
        text.contains("'waiter': waits for the lock Group"),
        "{text}"
    );
    if cfg!(debug_assertions) {
        assert!(text.contains("that 'holder' holds"), "{text}");
        assert!(text.contains("holds Group"), "{text}");
    }
}

#[test]
fn a_lock_taken_twice_is_a_deadlock_or_a_violation() {
    let failure = fails(Config::new(0), || {
        let lock = Mutex::new(Rank::Group, ());
        let _first = lock.lock();
        let _second = lock.lock();
    });
    if cfg!(debug_assertions) {
        let FailureKind::Panic { task, message } = failure.kind else {
            panic!("{failure}");
        };
        assert_eq!(task, "main");
        assert!(message.contains("takes Group while it holds Group"));
    } else {
        assert_eq!(failure.kind, FailureKind::Deadlock);
    }
}

#[test]
fn a_wait_beyond_the_bound_is_a_stall() {
    let config = Config {
        stall_bound: Duration::from_secs(10),
        ..Config::new(0)
    };
    let sleepy = || {
        let lock = Arc::new(Mutex::new(Rank::Group, ()));
        let other = Arc::clone(&lock);
        let task = spawn("sleeper", move || {
            let _guard = other.lock();
            sleep(Duration::from_secs(11));
        });
        sleep(Duration::from_millis(1));
        drop(lock.lock());
        task.join();
    };
    let failure = fails(config.clone(), sleepy);
    let task = "main".to_owned();
    assert_eq!(failure.kind, FailureKind::Stall { task });
    let patient = Config {
        stall_bound: Duration::from_secs(11),
        ..config
    };
    sim::run(patient, sleepy);
}

/// A worker that waits for work with `wait` for one minute.
fn idle_worker(wait: fn(&Condvar, &mut steadfs_rt::MutexGuard<'_, bool>)) {
    let shared = Arc::new((Mutex::new(Rank::QueueState, false), Condvar::new()));
    let other = Arc::clone(&shared);
    let worker = spawn("worker", move || {
        let mut stop = other.0.lock();
        while !*stop {
            wait(&other.1, &mut stop);
        }
    });
    for _ in 0..6 {
        sleep(Duration::from_secs(10));
    }
    *shared.0.lock() = true;
    shared.1.notify_all();
    worker.join();
}

#[test]
fn an_idle_wait_is_no_stall() {
    let config = Config {
        stall_bound: Duration::from_secs(10),
        ..Config::new(0)
    };
    sim::run(config.clone(), || idle_worker(|c, g| c.wait_idle(g)));
    let failure = fails(config, || idle_worker(|c, g| c.wait(g)));
    let task = "worker".to_owned();
    assert_eq!(failure.kind, FailureKind::Stall { task });
}

#[test]
fn a_run_ends_at_the_time_limit_or_a_livelock() {
    let config = Config {
        max_time: Duration::from_secs(5),
        ..Config::new(0)
    };
    let failure = fails(config, || sleep(Duration::from_secs(6)));
    assert_eq!(failure.kind, FailureKind::TimeLimit);
    let failure = fails(Config::new(0), || {
        loop {
            yield_now();
        }
    });
    assert_eq!(failure.kind, FailureKind::Livelock);
}

#[test]
fn the_clock_advances_while_tasks_poll() {
    for preempt in [0, 64] {
        let config = Config {
            preempt,
            ..Config::new(0)
        };
        sim::run(config, || {
            let done = Rc::new(RefCell::new(false));
            let other = Rc::clone(&done);
            sim::after(Duration::from_secs(1), move || *other.borrow_mut() = true);
            while !*done.borrow() {
                yield_now();
            }
            assert_eq!(now(), Instant(1_000_000_000));
        });
    }
}

#[test]
fn a_panic_names_task_and_seed() {
    let failure = fails(Config::new(41), || {
        spawn("doomed", || panic!("out of {}", "luck")).join();
    });
    let kind = FailureKind::Panic {
        task: "doomed".to_owned(),
        message: "out of luck".to_owned(),
    };
    assert_eq!(failure.kind, kind);
    let text = failure.to_string();
    assert!(text.contains("seed 41") && text.contains("'main': waits for the end"));
}

#[test]
#[should_panic(expected = "simulation of seed 5 failed at 0 ns: task 'main' panicked: no")]
fn run_panics_with_the_report() {
    sim::run(Config::new(5), || panic!("no"));
}

#[test]
fn leftover_tasks_fail_the_run_unless_allowed() {
    let leave = || {
        let _daemon = spawn("daemon", || {
            loop {
                sleep(Duration::from_secs(5));
            }
        });
        let _ends = spawn("ends soon", yield_now);
        now()
    };
    let failure = *sim::try_run(Config::new(0), leave).expect_err("a daemon remains");
    assert_eq!(failure.kind, FailureKind::Leaked);
    let names: Vec<_> = failure.tasks.iter().map(|task| &task.name[..]).collect();
    assert_eq!(names, ["daemon"]);
    let config = Config {
        allow_daemons: true,
        ..Config::new(0)
    };
    assert_eq!(sim::run(config, leave).value, Instant(0));
}

#[test]
fn abandoned_tasks_are_never_dropped() {
    struct Loud(Arc<AtomicU64>);
    impl Drop for Loud {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicU64::new(0));
    let config = |allow_daemons| Config {
        allow_daemons,
        ..Config::new(0)
    };
    let (loud, unused) = (Loud(Arc::clone(&drops)), Loud(Arc::clone(&drops)));
    sim::run(config(true), move || {
        sim::after(Duration::from_secs(1), move || drop(unused));
        let _daemon = spawn("daemon", move || {
            sleep(Duration::from_secs(5));
            drop(loud);
        });
        yield_now();
    });
    assert_eq!(drops.load(Ordering::Relaxed), 0);
    // A clean end drops callbacks that were not called.
    let unused = Loud(Arc::clone(&drops));
    sim::run(config(false), move || {
        sim::after(Duration::from_secs(1), move || drop(unused));
    });
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn callbacks_run_in_order_and_may_lock_notify_and_spawn() {
    for seed in 0..50 {
        sim::run(Config::new(seed), || {
            let log = Arc::new(Mutex::new(Rank::DeviceInner, Vec::new()));
            let done = Arc::new(Event::new());
            for (micros, name) in [(30, "c"), (10, "a"), (10, "b"), (0, "now")] {
                let log = Arc::clone(&log);
                sim::after(Duration::from_micros(micros), move || log.lock().push(name));
            }
            let (other, event) = (Arc::clone(&log), Arc::clone(&done));
            sim::at(Instant(20_000), move || {
                other.lock().push("nest");
                sim::after(Duration::from_micros(20), move || {
                    other.lock().push("d");
                    let _task = spawn("from a callback", move || event.set(now()));
                });
            });
            assert!(done.wait() >= Instant(40_000));
            assert_eq!(*log.lock(), ["now", "a", "b", "nest", "c", "d"]);
        });
    }
}

#[test]
fn a_callback_may_wait_for_locks_only() {
    sim::run(Config::new(0), || {
        let lock = Arc::new(Mutex::new(Rank::DeviceInner, 0));
        let guard = lock.lock();
        let other = Arc::clone(&lock);
        sim::at(Instant(5), move || {
            let mut word = other.lock();
            *word = now().0;
        });
        sleep(Duration::from_nanos(100));
        assert_eq!(*guard, 0);
        drop(guard);
        sleep(Duration::from_nanos(1));
        assert_eq!(*lock.lock(), 100);
    });
    let failure = fails(Config::new(0), || {
        sim::at(Instant(5), || sleep(Duration::from_secs(1)));
        sleep(Duration::from_secs(9));
    });
    assert!(
        failure
            .to_string()
            .contains("a timed callback must not sleep")
    );
}

#[test]
fn callbacks_run_between_the_steps_of_a_task() {
    // A task that never blocks reads a value twice; with some seeds the callback runs in between.
    let between = |seed| {
        let run = sim::run(Config::new(seed), || {
            let word = Arc::new(Mutex::new(Rank::DeviceInner, 0));
            let other = Arc::clone(&word);
            sim::after(Duration::from_micros(50), move || *other.lock() = 1);
            let first = *word.lock();
            let second = *word.lock();
            first != second
        });
        run.value
    };
    let seen = (0..3000).filter(|seed| between(*seed)).count();
    assert!(seen > 0 && seen < 1500, "{seen}");
}

#[test]
fn no_task_starves_at_a_contended_lock() {
    for seed in 0..50 {
        sim::run(Config::new(seed), || {
            let lock = Arc::new(Mutex::new(Rank::Group, false));
            let other = Arc::clone(&lock);
            // Takes the lock again right after the release, and sleeps while it holds it.
            let hog = spawn("hog", move || {
                for round in 0..1000 {
                    let stop = other.lock();
                    if *stop {
                        return round;
                    }
                    sleep(Duration::from_millis(1));
                }
                panic!("the other task starved");
            });
            sleep(Duration::from_micros(500));
            *lock.lock() = true;
            assert!(hog.join() < 5);
        });
    }
}

#[test]
fn writers_and_readers_make_progress() {
    for seed in 0..50 {
        sim::run(Config::new(seed), || {
            let lock = Arc::new(RwLock::new(Rank::Group, 0u64));
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let lock = Arc::clone(&lock);
                    spawn("reader", move || {
                        for _ in 0..1000 {
                            let seen = lock.read();
                            if *seen >= 3 {
                                return;
                            }
                            sleep(Duration::from_micros(100));
                        }
                        panic!("the writer starved");
                    })
                })
                .collect();
            for _ in 0..3 {
                sleep(Duration::from_micros(50));
                *lock.write() += 1;
            }
            readers.into_iter().for_each(|task| task.join());
            assert!(now() < Instant(3_000_000));
        });
    }
}

#[test]
fn ended_tasks_and_runs_free_their_memory() {
    let report = sim::run(Config::new(0), || {
        for n in 0..5000u64 {
            assert_eq!(spawn("short", move || n).join(), n);
        }
    });
    assert_eq!(report.tasks, 5001);
    for seed in 0..2000 {
        sim::run(Config::new(seed), contend);
    }
}

#[test]
fn a_simulation_does_not_nest() {
    let failure = fails(Config::new(0), || {
        sim::run(Config::new(1), || ());
    });
    assert!(failure.to_string().contains("inside another"));
    assert!(!sim::active());
}

/// The wake-up latency applies to notifications and locks, not to timeouts and sleeps.
#[test]
fn a_wake_up_has_the_configured_latency() {
    let config = Config {
        preempt: 0,
        wake: Duration::from_micros(50),
        ..Config::new(1)
    };
    let times = sim::run(config, || {
        let lock = Arc::new((Mutex::new(Rank::Inode, false), Condvar::new()));
        let theirs = Arc::clone(&lock);
        let task = spawn("waiter", move || {
            let mut set = theirs.0.lock();
            while !*set {
                theirs.1.wait(&mut set);
            }
            let notified = now().0;
            drop(set);
            sleep(Duration::from_micros(100));
            let guard = theirs.0.lock();
            let locked = now().0;
            drop(guard);
            let mut set = theirs.0.lock();
            assert!(theirs.1.wait_for(&mut set, Duration::from_micros(7)));
            [notified, locked, now().0]
        });
        sleep(Duration::from_micros(10));
        *lock.0.lock() = true;
        lock.1.notify_all();
        sleep(Duration::from_micros(100));
        let guard = lock.0.lock();
        sleep(Duration::from_micros(90));
        drop(guard);
        task.join()
    });
    // Notified at 10; the lock is released at 200.
    assert_eq!(times.value, [60_000, 250_000, 257_000]);
}

/// Builds with and without the check of the lock order run alike.
#[test]
fn a_rank_scope_is_no_scheduling_point() {
    let hash = |seed, stands: bool| {
        let run = move || {
            let place = Arc::new(RankScope::new(Rank::TxnHandle));
            let sum = Arc::new(Mutex::new(Rank::Group, 0));
            let add = |number: u64| {
                let (place, sum) = (Arc::clone(&place), Arc::clone(&sum));
                spawn("task", move || {
                    for _ in 0..10 {
                        let _standing = stands.then(|| place.enter());
                        *sum.lock() += number;
                    }
                })
            };
            let tasks: Vec<_> = (0..3).map(add).collect();
            tasks.into_iter().for_each(|task| task.join());
        };
        sim::run(Config::new(seed), run).trace_hash
    };
    let mut hashes = BTreeSet::new();
    for seed in 0..20 {
        assert_eq!(hash(seed, true), hash(seed, false));
        hashes.insert(hash(seed, true));
    }
    assert!(hashes.len() > 10, "the tasks contend");
}

/// A waiter donates its tag until the result is there, not until it runs again.
#[test]
fn a_task_that_has_produced_a_result_inherits_nothing() {
    sim::run(sim::Config::new(1), || {
        let owner = current_task();
        let waiter = spawn("waiter", move || {
            let _tag = set_task_tag(IoTag::default());
            let _edge = wait_for(&[owner]);
            sleep(Duration::from_millis(10));
        });
        sleep(Duration::from_millis(1));
        assert!(has_waiters());
        end_waits();
        assert!(!has_waiters());
        waiter.join();
    });
}

#[test]
fn a_task_takes_much_with_it() {
    let bytes = [1; 4096];
    let run = sim::run(sim::Config::new(1), move || {
        let sum = move || bytes.iter().map(|&byte: &u8| u32::from(byte)).sum::<u32>();
        steadfs_rt::spawn("large", sum).join()
    });
    assert_eq!(run.value, 4096);
}
