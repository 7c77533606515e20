//! A lock shared by readers or held by one writer, with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Rank;

/// A readers-writer lock. Readers do not pass a waiting writer; a task must not take it twice.
pub struct RwLock<T: ?Sized> {
    rank: Rank,
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    inner: parking_lot::RwLock<T>,
}

/// Holds a [`RwLock`] for reading.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
}

/// Holds a [`RwLock`] for writing.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
}

impl<T> RwLock<T> {
    /// A new lock of `rank` around `value`.
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            rank,
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// The value, when nobody can hold the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock and shares it.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        RwLockReadGuard {
            inner: self.inner.read(),
        }
    }

    /// Waits until nobody holds the lock and takes it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        RwLockWriteGuard {
            inner: self.inner.write(),
        }
    }

    /// Shares the lock if no writer holds or awaits it.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        Some(RwLockReadGuard {
            inner: self.inner.try_read()?,
        })
    }

    /// Takes the lock if it is free.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        Some(RwLockWriteGuard {
            inner: self.inner.try_write()?,
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

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RwLock({:?})", self.rank)
    }
}
