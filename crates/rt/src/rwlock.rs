//! A readers-writer lock with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Rank;
use crate::inherit;
use crate::lock_header::{HeldLock, LockHeader, held_locks};
use crate::sim::world::{self, LockMode};

/// A readers-writer lock. New readers wait for a waiting writer, so a task must not take the lock twice.
pub struct RwLock<T: ?Sized> {
    header: LockHeader,
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    inner: parking_lot::RwLock<T>,
}

/// Shared access to the value of a [`RwLock`], which is released when the guard is dropped.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // Dropped in this order: the host's lock is free when the next waiter is woken.
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: HeldLock<'a>,
}

/// Exclusive access to the value of a [`RwLock`], which is released when the guard is dropped.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: HeldLock<'a>,
}

impl<T> RwLock<T> {
    /// A new lock of `rank`. A task must not take it while it holds another lock of that rank.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::with_header(LockHeader::new(rank), value)
    }

    /// A new lock of `rank` with a key: a task may take it while it holds locks of that rank with smaller keys. Not
    /// for [`Rank::Leaf`].
    pub const fn with_key(rank: Rank, key: u64, value: T) -> Self {
        Self::with_header(LockHeader::with_key(rank, key), value)
    }

    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    const fn with_header(header: LockHeader, value: T) -> Self {
        Self {
            header,
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// The protected value. Ownership proves that the lock is free.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds the lock or waits for it, and takes the lock shared.
    ///
    /// # Panics
    /// In builds with debug assertions: if the task holds this lock, a lock of a later rank, or a lock of the same rank
    /// without a smaller key.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        held_locks::check(&self.header);
        let mut edge = None;
        if world::simulated() {
            let free = || !self.inner.is_locked_exclusive();
            edge = world::enter(&self.header, LockMode::Shared, &free);
        }
        let inner = self.inner.try_read().unwrap_or_else(|| {
            if self.header.inherits() && edge.is_none() {
                edge = Some(inherit::wait_for_lock(&self.header));
            }
            self.inner.read()
        });
        RwLockReadGuard {
            inner,
            _held: HeldLock::acquired(&self.header, edge),
        }
    }

    /// Waits until the lock is free and takes it exclusively.
    ///
    /// # Panics
    /// As [`RwLock::read`].
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        held_locks::check(&self.header);
        let mut edge = None;
        if world::simulated() {
            edge = world::enter(&self.header, LockMode::Exclusive, &|| {
                !self.inner.is_locked()
            });
        }
        let inner = self.inner.try_write().unwrap_or_else(|| {
            if self.header.inherits() && edge.is_none() {
                edge = Some(inherit::wait_for_lock(&self.header));
            }
            self.inner.write()
        });
        RwLockWriteGuard {
            inner,
            _held: HeldLock::acquired(&self.header, edge),
        }
    }

    /// Takes the lock shared if no writer holds it or waits for it. Never waits.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        if world::simulated() && !world::may_try(&self.header, LockMode::Shared) {
            return None;
        }
        Some(RwLockReadGuard {
            inner: self.inner.try_read()?,
            _held: HeldLock::new(&self.header),
        })
    }

    /// Takes the lock exclusively if it is free. Never waits.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        if world::simulated() && !world::may_try(&self.header, LockMode::Exclusive) {
            return None;
        }
        Some(RwLockWriteGuard {
            inner: self.inner.try_write()?,
            _held: HeldLock::new(&self.header),
        })
    }

    /// The lock's rank.
    pub fn rank(&self) -> Rank {
        self.header.rank()
    }

    /// The protected value. The exclusive borrow proves that the lock is free.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RwLock({:?})", self.rank())
    }
}
