//! Simulation: tasks as coroutines on one thread, a virtual clock, and every choice made by a seed.
//!
//! [`run`] is a function of its configuration and its closure: which task runs next, where a task
//! is preempted, who gets a contended lock and which waiter a notification wakes follow from the
//! seed, and [`Report::trace_hash`] tells two runs apart. Time passes when nothing can run: the
//! clock then jumps to the next timer. Code costs no time, except that with
//! [`Config::preempt`] the clock may run up to a millisecond ahead of tasks that could still run,
//! so that timers and device completions come between any two of their steps.
//!
//! A lock must not be shared between a simulation and threads outside.
//!
//! # The end of a run
//! When the main closure returns, the other tasks run on until none can at that instant (or was woken by then). Tasks that
//! are still there then are a leak and fail the run, or with [`Config::allow_daemons`] are left
//! behind like the tasks of a failed run: never resumed, nothing on their stacks is dropped, their
//! stacks and what only they own stay allocated, and the locks they hold stay locked. Let tasks end
//! where many runs follow each other.

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
use state::{State, Step, TaskId};
use world::World;

/// What a run depends on besides its closure.
#[derive(Clone, Debug)]
pub struct Config {
    /// Source of every choice.
    pub seed: u64,
    /// Virtual time after which the run fails.
    pub max_time: Duration,
    /// Virtual time a task may wait for a lock, or for a condition by
    /// [`Condvar::wait`](crate::Condvar::wait), before the run fails.
    pub stall_bound: Duration,
    /// Probability, of 1024, that others run before a task takes a lock, and that a timer due
    /// within a millisecond goes off although tasks could still run.
    pub preempt: u16,
    /// Whether tasks may be left when the main task ends.
    pub allow_daemons: bool,
    /// From a notification, or from the release of a lock that is waited for, until the task can run: what
    /// waking a thread costs.
    pub wake: Duration,
    /// What [`wall_clock`](crate::wall_clock) returns throughout; `None`: it begins on 2026-01-01 and runs.
    pub calendar: Option<Timestamp>,
}

impl Default for Config {
    /// Seed 0, a virtual day, stalls after five minutes, preemption at one lock in sixteen, wake-ups for nothing.
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

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct Report<T> {
    /// What the main closure returned.
    pub value: T,
    /// Hash of every decision and of the words given to [`trace`].
    pub trace_hash: u64,
    /// When the main closure returned.
    pub end: Instant,
    /// How often a task was given its turn.
    pub switches: u64,
    /// How many tasks there were, with the main one and that of the callbacks.
    pub tasks: u64,
}

/// Runs `f` as the main task of a new simulation.
///
/// # Panics
/// With a [`Failure`]'s report where [`try_run`] returns one, and inside another simulation.
pub fn run<T: 'static>(config: Config, f: impl FnOnce() -> T + 'static) -> Report<T> {
    match try_run(config, f) {
        Ok(report) => report,
        Err(failure) => panic!("{failure}"),
    }
}

/// Runs `f` as the main task of a new simulation.
///
/// # Errors
/// If a task or callback panics, if all are stuck, if one waits too long, if the time is over, or
/// if tasks are left at the end.
///
/// # Panics
/// Inside another simulation.
pub fn try_run<T: 'static>(
    config: Config,
    f: impl FnOnce() -> T + 'static,
) -> Result<Report<T>, Box<Failure>> {
    let world = World::new(State::new(config));
    let value = Rc::new(Cell::new(None));
    let slot = Rc::clone(&value);
    let outcome = world::enter_world(&world, || {
        let main = world.spawn("main", move || slot.set(Some(f())));
        assert_eq!(main, TaskId::MAIN);
        drive(&world)
    });
    let clean = outcome.is_ok() && !world.state(|state| state.has_leftovers());
    leave_behind(&world, clean);
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

/// Runs tasks until the main one has ended and no other can run.
fn drive(world: &World) -> Result<(), Box<Failure>> {
    loop {
        match world.state(State::next) {
            Step::Run(id) => world.resume(id),
            Step::Fail(failure) => return Err(failure),
            Step::Done => break,
        }
    }
    world.state(
        |state| match state.has_leftovers() && !state.config.allow_daemons {
            true => Err(state.fail(FailureKind::Leaked)),
            false => Ok(()),
        },
    )
}

/// Disposes of what a run leaves: all of it after a clean end; otherwise tasks and callbacks stay
/// allocated for ever, since dropping what they own might wait for locks that stay locked.
#[expect(
    unsafe_code,
    reason = "the callbacks' idle task ends without unwinding"
)]
fn leave_behind(world: &World, clean: bool) {
    let (tasks, unused) = world.state(|state| (state.take_tasks(), state.take_unused()));
    if !clean {
        std::mem::forget((tasks, unused));
        return;
    }
    for task in tasks.into_iter().flatten() {
        let mut coroutine = task.coroutine.expect("no task runs now");
        // SAFETY: after a clean end only the callbacks' task is left, parked in `run_callbacks`
        // between two callbacks: no frame on its stack owns anything.
        unsafe { coroutine.force_reset() };
        stack::give_back(coroutine.into_stack());
    }
}

/// Whether the caller runs inside a simulation.
pub fn active() -> bool {
    world::simulated()
}

/// Calls `callback` at `time`, or at once if that has passed.
///
/// Callbacks run one after another on a task of their own, like interrupts: due ones in the order
/// of their times, then of these calls. They may take locks (a callback that finds one taken delays
/// those behind it), notify, spawn and ask for more callbacks; they must not sleep, yield, join or
/// wait for a condition. What was not called when the run ends is dropped uncalled.
///
/// # Panics
/// Outside a simulation.
pub fn at(time: Instant, callback: impl FnOnce() + 'static) {
    world::with(|world| world.call_at(time, Box::new(callback)));
}

/// Calls `callback` after `delay`; otherwise as [`at`].
///
/// # Panics
/// Outside a simulation.
pub fn after(delay: Duration, callback: impl FnOnce() + 'static) {
    at(crate::now() + delay, callback);
}

/// From now on the host that is simulated refuses further tasks, as one does that has a limit, or gives them again.
///
/// # Panics
/// Outside a simulation.
pub fn refuse_tasks(refuse: bool) {
    world::with(|world| world.set_full(refuse));
}

/// Mixes `word` into the run's trace hash; nothing outside a simulation.
pub fn trace(word: u64) {
    if active() {
        world::with(|world| world.state(|state| state.trace.mix(word)));
    }
}
