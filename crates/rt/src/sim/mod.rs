//! Deterministic simulation: tasks are coroutines on one thread, the clock is virtual, and a seed makes every choice.
//!
//! [`run`] is a function of its configuration and its closure. The seed determines which task runs next, where a task is
//! preempted, which task gets a contended lock and which waiter a notification wakes; [`Report::trace_hash`]
//! distinguishes two runs. The clock advances when no task can run: it jumps to the next timer. Code takes no time,
//! except that with [`Config::preempt`] the clock may advance by up to 1 ms while tasks can run, so that timers and
//! device completions occur between any two of their steps.
//!
//! A lock must not be shared between a simulation and threads outside it.
//!
//! # The end of a run
//! When the main closure returns, the other tasks continue until no task can run at that instant, or was woken by then.
//! Tasks that remain are a leak and fail the run. With [`Config::allow_daemons`] they are abandoned, like the tasks of a
//! failed run: they are never resumed, nothing on their stacks is dropped, their memory stays allocated and their locks
//! stay locked. Tests that make many runs should end their tasks.

mod failure;
mod lock_queue;
mod observe;
mod stack;
mod state;
pub(crate) mod task;
mod trace;
pub(crate) mod world;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

pub use failure::{Failure, FailureKind, TaskReport};
pub use observe::{Observation, TaskStep, observe, stop_observing};

use steadfs_base::Timestamp;

use crate::Instant;
use state::{NextStep, SimState, TaskId};
use world::World;

/// The input of a run, besides its closure.
#[derive(Clone, Debug)]
pub struct Config {
    /// Seed of all choices.
    pub seed: u64,
    /// Virtual time after which the run fails.
    pub max_time: Duration,
    /// Virtual time that a task may wait for a lock, or in [`Condvar::wait`](crate::Condvar::wait), before the run
    /// fails.
    pub stall_bound: Duration,
    /// Probability (of 1024) that other tasks run before a task takes a lock, and that a timer that is due within 1 ms
    /// expires while tasks can run.
    pub preempt: u16,
    /// Whether tasks may remain when the main task ends.
    pub allow_daemons: bool,
    /// Wake-up latency: the time from a notification, or the release of a lock, until the waiter can run.
    pub wake: Duration,
    /// The fixed result of [`wall_clock`](crate::wall_clock); `None`: the wall clock begins on 2026-01-01 and advances.
    pub calendar: Option<Timestamp>,
}

impl Default for Config {
    /// Seed 0, at most one virtual day, stall bound 5 minutes, preemption at one lock in 16, no wake-up latency.
    fn default() -> Self {
        Self {
            seed: 0,
            max_time: Duration::from_secs(86_400),
            stall_bound: Duration::from_secs(300),
            preempt: 64,
            allow_daemons: false,
            wake: Duration::ZERO,
            calendar: None,
        }
    }
}

impl Config {
    /// The default configuration with another seed.
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Report<T> {
    /// The main closure's value.
    pub value: T,
    /// Hash of all choices and of the words passed to [`trace`].
    pub trace_hash: u64,
    /// When the main closure returned.
    pub end: Instant,
    /// Number of task switches.
    pub switches: u64,
    /// Number of tasks, including the main task and the callback task.
    pub tasks: u64,
}

/// Runs `f` as the main task of a new simulation.
///
/// # Panics
/// If the run fails, with the report of its [`Failure`]; inside another simulation.
pub fn run<T: 'static>(config: Config, f: impl FnOnce() -> T + 'static) -> Report<T> {
    match try_run(config, f) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

/// Runs `f` as the main task of a new simulation.
///
/// # Errors
/// A task or callback panics, all tasks wait for each other, a task waits longer than the stall bound, the virtual time
/// is over, or tasks remain at the end.
///
/// # Panics
/// Inside another simulation.
pub fn try_run<T: 'static>(
    config: Config,
    f: impl FnOnce() -> T + 'static,
) -> Result<Report<T>, Box<Failure>> {
    let world = World::new(SimState::new(config));
    let value = Rc::new(Cell::new(None));
    let slot = Rc::clone(&value);
    let outcome = world::enter_world(&world, || {
        let main = world.spawn("main", move || slot.set(Some(f())));
        assert_eq!(main, TaskId::MAIN);
        drive(&world)
    });
    let clean = outcome.is_ok() && !world.state(|state| state.has_leftovers());
    dispose_of_rest(&world, clean);
    outcome?;
    world.state(|state| {
        Ok(Report {
            value: value.take().expect("the main task ended without a panic"),
            trace_hash: state.trace.hash(),
            end: state.main_ended.expect("the main task ended"),
            switches: state.switches,
            tasks: state.spawned,
        })
    })
}

/// Runs tasks until the main task has ended and no other task can run.
fn drive(world: &World) -> Result<(), Box<Failure>> {
    loop {
        match world.state(SimState::next) {
            NextStep::Run(id) => world.resume(id),
            NextStep::Fail(failure) => return Err(failure),
            NextStep::Done => break,
        }
    }
    world.state(
        |state| match state.has_leftovers() && !state.config.allow_daemons {
            true => Err(state.fail(FailureKind::Leaked)),
            false => Ok(()),
        },
    )
}

/// Drops the rest of a run after a clean end. Otherwise tasks and callbacks stay allocated, since a destructor could
/// wait for a lock that stays locked.
#[expect(unsafe_code, reason = "the idle callback task ends without unwinding")]
fn dispose_of_rest(world: &World, clean: bool) {
    let (tasks, callbacks) = world.state(|state| (state.take_tasks(), state.take_callbacks()));
    if !clean {
        std::mem::forget((tasks, callbacks));
        return;
    }
    for task in tasks.into_iter().flatten() {
        let mut coroutine = task.coroutine.expect("no task runs now");
        // SAFETY: after a clean end only the callback task is left, parked in `run_callbacks` between two callbacks: no
        // frame on its stack owns a value.
        unsafe { coroutine.force_reset() };
        stack::give_back(coroutine.into_stack());
    }
}

/// Whether the caller runs inside a simulation.
pub fn active() -> bool {
    world::simulated()
}

/// Calls `callback` at `time`, or at once if that time has passed.
///
/// Callbacks run one after another on a task of their own, like interrupts, in the order of their times, and then of the
/// calls of this function. They may take locks (a callback that waits for a lock delays the callbacks after it), notify,
/// spawn and schedule callbacks. They must not sleep, yield, join or wait for a condition. Callbacks that are still
/// scheduled when the run ends are dropped.
///
/// # Panics
/// Outside a simulation.
pub fn at(time: Instant, callback: impl FnOnce() + 'static) {
    world::with(|world| world.call_at(time, Box::new(callback)));
}

/// Calls `callback` after `delay`; see [`at`].
///
/// # Panics
/// Outside a simulation.
pub fn after(delay: Duration, callback: impl FnOnce() + 'static) {
    at(crate::now() + delay, callback);
}

/// Sets whether the simulated host refuses further tasks, like a host that has reached a limit (`ulimit -u`).
///
/// # Panics
/// Outside a simulation.
pub fn refuse_tasks(refuse: bool) {
    world::with(|world| world.set_refusing_tasks(refuse));
}

/// Mixes `word` into the run's trace hash. Does nothing outside a simulation.
pub fn trace(word: u64) {
    if active() {
        world::with(|world| world.state(|state| state.trace.mix(word)));
    }
}
