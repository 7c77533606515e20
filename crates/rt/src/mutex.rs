//! A mutual-exclusion lock with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Rank;

/// A mutual-exclusion lock. A panic while it is held does not poison it.
pub struct Mutex<T: ?Sized> {
    rank: Rank,
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    inner: parking_lot::Mutex<T>,
}

/// Holds a [`Mutex`].
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    pub(crate) inner: parking_lot::MutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    /// A new lock of `rank` around `value`.
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            rank,
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// The value, when nobody can hold the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            inner: self.inner.lock(),
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard {
            inner: self.inner.try_lock()?,
        })
    }

    /// The lock's rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The value, when the borrow proves that nobody holds the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mutex({:?})", self.rank)
    }
}
