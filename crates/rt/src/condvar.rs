//! Waiting for a condition under a [`Mutex`](crate::Mutex).

use std::time::Duration;

use crate::MutexGuard;
use crate::gate::held;
use crate::sim::world::{self, Patience};

/// A condition variable. Waits may end without a notification: test the condition in a loop.
///
/// While a task waits it may hold locks of earlier ranks than the guard's, no others: builds with
/// debug assertions panic otherwise.
#[derive(Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
}

impl Condvar {
    /// A condition nobody waits for.
    pub const fn new() -> Self {
        Self {
            inner: parking_lot::Condvar::new(),
        }
    }

    /// Releases `guard`, waits for a notification, takes the lock again. The notification is
    /// expected: a simulated task that waits longer than the run's stall bound fails the run.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_with(guard, Patience::Bounded);
    }

    /// Like [`Condvar::wait`], for a task that waits for work and may well get none for ever.
    pub fn wait_idle<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_with(guard, Patience::Endless);
    }

    /// Like [`Condvar::wait`], at most `limit` long; true if the time ran out.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> bool {
        self.wait_with(guard, Patience::Until(limit))
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        if world::simulated() {
            world::notify(self.address(), 1);
        } else {
            self.inner.notify_one();
        }
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        if world::simulated() {
            world::notify(self.address(), usize::MAX);
        } else {
            self.inner.notify_all();
        }
    }

    fn wait_with<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, patience: Patience) -> bool {
        let gate = guard.held.gate();
        held::check_wait(gate);
        held::pop(gate);
        gate.note_free();
        let timed_out = if world::simulated() {
            let mutex = parking_lot::MutexGuard::mutex(&guard.inner);
            // The lock is free and this task's turn when the closure returns; taking it again
            // then does not wait.
            parking_lot::MutexGuard::unlocked(&mut guard.inner, || {
                world::wait(self.address(), gate, patience, &|| !mutex.is_locked())
            })
        } else {
            match patience {
                Patience::Until(limit) => self.inner.wait_for(&mut guard.inner, limit).timed_out(),
                Patience::Bounded | Patience::Endless => {
                    self.inner.wait(&mut guard.inner);
                    false
                }
            }
        };
        held::push(gate);
        gate.note_held();
        timed_out
    }

    /// What names the condition while it lives: used to look up, never to order.
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.inner).addr()
    }
}
