//! What a simulation's tasks do to each other, for who wants to show it.

use std::cell::{Cell, RefCell};

use super::world::{self, World};
use crate::{Instant, Rank, now};

/// What a task did, or what became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// It has a lock.
    Locked(Rank),
    /// It has to wait for a lock.
    WaitsForLock(Rank),
    /// It waits for a condition; the lock that protects it is of this rank.
    Waits(Rank),
    /// It goes on after a condition.
    GoesOn,
    /// It sleeps.
    Sleeps,
}

/// A deed: when, and whose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// The virtual time.
    pub at: Instant,
    /// The task's name; that of the callbacks is `callbacks`.
    pub task: String,
    /// What it did.
    pub deed: Deed,
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
pub fn observe_no_more() {
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
    pub(crate) fn tell(&self, world: &World, deed: Deed) {
        if self.watches.get() {
            self.tell_observer(world, deed);
        }
    }

    #[cold]
    fn tell_observer(&self, world: &World, deed: Deed) {
        if let Some(observer) = &*self.observer.borrow() {
            let me = world.me();
            let task = world.state(|state| state.task(me).name.clone());
            observer(Observation {
                at: now(),
                task,
                deed,
            });
        }
    }
}
