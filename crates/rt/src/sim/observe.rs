//! An observer of the task switches of a simulation, for traces.

use std::cell::{Cell, RefCell};

use super::world::{self, World};
use crate::{Instant, Rank, now};

/// What happened to a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskStep {
    /// The task has taken a lock of this rank.
    Locked(Rank),
    /// The task waits for a lock of this rank.
    WaitsForLock(Rank),
    /// The task waits for a condition, whose lock has this rank.
    WaitsForCondition(Rank),
    /// The task resumes after a wait for a condition.
    Resumes,
    /// The task sleeps.
    Sleeps,
}

/// One step of a task, with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The virtual time.
    pub at: Instant,
    /// The task's name; the callback task is `callbacks`.
    pub task: String,
    /// What happened.
    pub step: TaskStep,
}

pub(crate) type Observer = Box<dyn Fn(Observation)>;

/// Calls `observer` at each step of a task, until the run ends or another observer replaces it. The observer must not
/// lock, wait or spawn. It does not change the run.
///
/// # Panics
/// Outside a simulation.
pub fn observe(observer: impl Fn(Observation) + 'static) {
    world::with(|world| world.set_observer(Some(Box::new(observer))));
}

/// Removes the observer.
///
/// # Panics
/// Outside a simulation.
pub fn stop_observing() {
    world::with(|world| world.set_observer(None));
}

/// The observer of a simulation, if it has one.
#[derive(Default)]
pub(crate) struct ObserverSlot {
    observer: RefCell<Option<Observer>>,
    /// Whether there is one: read at every lock.
    is_set: Cell<bool>,
}

impl ObserverSlot {
    pub(crate) fn set(&self, observer: Option<Observer>) {
        self.is_set.set(observer.is_some());
        *self.observer.borrow_mut() = observer;
    }

    #[inline]
    pub(crate) fn notify(&self, world: &World, step: TaskStep) {
        if self.is_set.get() {
            self.call_observer(world, step);
        }
    }

    #[cold]
    fn call_observer(&self, world: &World, step: TaskStep) {
        if let Some(observer) = &*self.observer.borrow() {
            let me = world.me();
            let task = world.state(|state| state.task(me).name.clone());
            observer(Observation {
                at: now(),
                task,
                step,
            });
        }
    }
}
