//! Waiting for a condition under a [`Mutex`](crate::Mutex).

use std::time::Duration;

use crate::MutexGuard;
use crate::lock_header::held_locks;
use crate::sim::world::{self, WaitLimit};
use crate::waits;

/// A condition variable. A wait may end without a notification: test the condition in a loop.
///
/// While a task waits, all other locks that it holds must have earlier ranks than the guard's: builds with debug
/// assertions panic otherwise.
#[derive(Default)]
pub struct Condvar {
    inner: parking_lot::Condvar,
}

impl Condvar {
    /// A condition variable without waiters.
    pub const fn new() -> Self {
        Self {
            inner: parking_lot::Condvar::new(),
        }
    }

    /// Releases `guard`, waits for a notification and takes the lock again. The notification is expected: a simulated
    /// task that waits longer than the run's stall bound fails the run.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_with(guard, WaitLimit::StallBound);
    }

    /// Like [`Condvar::wait`], without the stall bound: for a task that waits for work, which may never arrive.
    pub fn wait_idle<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.wait_with(guard, WaitLimit::Unlimited);
    }

    /// Like [`Condvar::wait`], for at most `limit`; returns whether the wait timed out.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> bool {
        self.wait_with(guard, WaitLimit::Timeout(limit))
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

    fn wait_with<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, limit: WaitLimit) -> bool {
        let header = guard.held.header();
        held_locks::check_wait(header);
        held_locks::pop(header);
        header.clear_owner();
        let timed_out = if world::simulated() {
            let mutex = parking_lot::MutexGuard::mutex(&guard.inner);
            // When the closure returns, the simulated scheduler has granted the free lock to this task: taking it
            // again does not wait.
            parking_lot::MutexGuard::unlocked(&mut guard.inner, || {
                world::wait(self.address(), header, limit, &|| !mutex.is_locked())
            })
        } else {
            let is_idle = matches!(limit, WaitLimit::Unlimited);
            let _step = (!is_idle).then(waits::for_condition);
            match limit {
                WaitLimit::Timeout(limit) => {
                    self.inner.wait_for(&mut guard.inner, limit).timed_out()
                }
                WaitLimit::StallBound | WaitLimit::Unlimited => {
                    self.inner.wait(&mut guard.inner);
                    false
                }
            }
        };
        held_locks::push(header);
        header.record_owner();
        timed_out
    }

    /// Identifies the condition while it lives: used as a key of look-ups, never as an order.
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.inner).addr()
    }
}
