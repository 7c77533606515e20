//! Waiting for a condition under a [`Mutex`](crate::Mutex).

use std::time::Duration;

use crate::MutexGuard;

/// A condition variable. Waits may end without a notification: test the condition in a loop.
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

    /// Releases `guard`, waits for a notification, takes the lock again.
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        self.inner.wait(&mut guard.inner);
    }

    /// Like [`Condvar::wait`], at most `limit` long; true if the time ran out.
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, limit: Duration) -> bool {
        self.inner.wait_for(&mut guard.inner, limit).timed_out()
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.inner.notify_one();
    }

    /// Wakes every waiter.
    pub fn notify_all(&self) {
        self.inner.notify_all();
    }
}
