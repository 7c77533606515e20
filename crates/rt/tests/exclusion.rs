//! Mutual exclusion as a property, checked with random programs of locks, tries, waits and yields.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use steadfs_rt::sim::{self, Config};
use steadfs_rt::{Condvar, Mutex, Rank, RwLock, sleep, spawn, yield_now};

/// One step of a task.
#[derive(Clone, Copy, Debug)]
enum Step {
    Lock,
    TryLock,
    WaitFor(u64),
    Notify,
    Read,
    Write,
    TryRead,
    TryWrite,
    Both,
    Sleep(u64),
    Yield,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Lock),
        Just(Step::TryLock),
        (0..50u64).prop_map(Step::WaitFor),
        Just(Step::Notify),
        Just(Step::Read),
        Just(Step::Write),
        Just(Step::TryRead),
        Just(Step::TryWrite),
        Just(Step::Both),
        (0..50u64).prop_map(Step::Sleep),
        Just(Step::Yield),
    ]
}

/// The locks. Each has a count of holders, which is not protected by the lock: a writer counts as -1000, so a forbidden
/// overlap is seen.
struct Locks {
    alone: Mutex<u64>,
    alone_holders: AtomicI64,
    condvar: Condvar,
    shared: RwLock<u64>,
    shared_holders: AtomicI64,
    /// Number of times each lock was taken to change its value.
    alone_changes: AtomicU64,
    shared_changes: AtomicU64,
}

impl Locks {
    fn new() -> Self {
        Self {
            alone: Mutex::new(Rank::Group, 0),
            alone_holders: AtomicI64::new(0),
            condvar: Condvar::new(),
            shared: RwLock::new(Rank::MetaBuf, 0),
            shared_holders: AtomicI64::new(0),
            alone_changes: AtomicU64::new(0),
            shared_changes: AtomicU64::new(0),
        }
    }

    /// Changes a value in two steps; other tasks run in between.
    fn change(value: &mut u64, changes: &AtomicU64) {
        changes.fetch_add(1, Ordering::Relaxed);
        let before = *value;
        yield_now();
        *value = before + 1;
    }

    fn hold_alone(&self, value: &mut u64) {
        assert_eq!(self.alone_holders.fetch_sub(1000, Ordering::Relaxed), 0);
        Self::change(value, &self.alone_changes);
        assert_eq!(self.alone_holders.fetch_add(1000, Ordering::Relaxed), -1000);
    }

    fn hold_written(&self, value: &mut u64) {
        assert_eq!(self.shared_holders.fetch_sub(1000, Ordering::Relaxed), 0);
        Self::change(value, &self.shared_changes);
        let before = self.shared_holders.fetch_add(1000, Ordering::Relaxed);
        assert_eq!(before, -1000);
    }

    fn hold_read(&self, value: &u64) {
        assert!(self.shared_holders.fetch_add(1, Ordering::Relaxed) >= 0);
        let before = *value;
        yield_now();
        assert_eq!(*value, before);
        assert!(self.shared_holders.fetch_sub(1, Ordering::Relaxed) > 0);
    }

    fn step(&self, step: Step) {
        match step {
            Step::Lock => self.hold_alone(&mut self.alone.lock()),
            Step::TryLock => {
                if let Some(mut value) = self.alone.try_lock() {
                    self.hold_alone(&mut value);
                }
            }
            Step::WaitFor(micros) => {
                let mut value = self.alone.lock();
                self.hold_alone(&mut value);
                self.condvar
                    .wait_for(&mut value, Duration::from_micros(micros));
                self.hold_alone(&mut value);
            }
            Step::Notify => self.condvar.notify_one(),
            Step::Read => self.hold_read(&self.shared.read()),
            Step::Write => self.hold_written(&mut self.shared.write()),
            Step::TryRead => {
                if let Some(value) = self.shared.try_read() {
                    self.hold_read(&value);
                }
            }
            Step::TryWrite => {
                if let Some(mut value) = self.shared.try_write() {
                    self.hold_written(&mut value);
                }
            }
            Step::Both => {
                let mut value = self.alone.lock();
                self.hold_written(&mut self.shared.write());
                self.hold_alone(&mut value);
            }
            Step::Sleep(micros) => sleep(Duration::from_micros(micros)),
            Step::Yield => yield_now(),
        }
    }
}

fn run(programs: Vec<Vec<Step>>) {
    let locks = Arc::new(Locks::new());
    let start = |program: Vec<Step>| {
        let locks = Arc::clone(&locks);
        spawn("program", move || {
            program.into_iter().for_each(|step| locks.step(step));
        })
    };
    let tasks: Vec<_> = programs.into_iter().map(start).collect();
    tasks.into_iter().for_each(|task| task.join());
    let changes = locks.alone_changes.load(Ordering::Relaxed);
    assert_eq!(*locks.alone.lock(), changes);
    let changes = locks.shared_changes.load(Ordering::Relaxed);
    assert_eq!(*locks.shared.read(), changes);
}

fn programs() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let program = prop::collection::vec(step(), 0..20);
    prop::collection::vec(program, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn in_simulation(programs in programs(), seed: u64, preempt in 0..1024u16) {
        let config = Config { preempt, ..Config::new(seed) };
        let outcome = sim::try_run(config, move || run(programs));
        prop_assert!(outcome.is_ok(), "{}", outcome.expect_err("is an error"));
    }

    #[test]
    fn on_threads(programs in programs()) {
        run(programs);
    }
}
