//! What a simulation's tasks do to each other, for who wants to show it.

use std::cell::{Cell, RefCell};

use super::world::{self, World};
use crate::{Instant, Rank, now};

/// What a task did, or what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TaskStep {
    /// It has a lock.
    Locked(Rank),
    /// It has to wait for a lock.
    WaitsForLock(Rank),
    /// It waits for a condition; the lock that protects it is of this rank.
    WaitsForCondition(Rank),
    /// It goes on after a condition.
    Resumes,
    /// It sleeps.
    Sleeps,
}

/// One step of a task, with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The virtual time.
    pub at: Instant,
    /// The task's name; that of the callbacks is `callbacks`.
    pub task: String,
    /// What it did.
    pub step: TaskStep,
}

/// Who is told.
pub(crate) type Observer = Box<dyn Fn(Observation)>;

/// From now on `observer` is told what tasks do, until the run ends or somebody else is told. It must not lock, wait
/// or spawn. What happens in the run stays the same.
///
/// # Panics
/// Outside a simulation.
pub fn observe(observer: impl Fn(Observation) + 'static) {
    world::with(|world| world.set_observer(Some(Box::new(observer))));
}

/// Nobody is told any more.
///
/// # Panics
/// Outside a simulation.
pub fn stop_observing() {
    world::with(|world| world.set_observer(None));
}

/// Where a simulation keeps its observer.
#[derive(Default)]
pub(crate) struct Watch {
    observer: RefCell<Option<Observer>>,
    /// Whether there is one: asked at every lock.
    watches: Cell<bool>,
}

impl Watch {
    pub(crate) fn set(&self, observer: Option<Observer>) {
        self.watches.set(observer.is_some());
        *self.observer.borrow_mut() = observer;
    }

    #[inline]
    pub(crate) fn tell(&self, world: &World, step: TaskStep) {
        if self.watches.get() {
            self.tell_observer(world, step);
        }
    }

    #[cold]
    fn tell_observer(&self, world: &World, step: TaskStep) {
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
