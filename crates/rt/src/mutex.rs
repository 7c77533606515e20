//! A mutual-exclusion lock with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Rank;
use crate::inherit;
use crate::lock_header::{HeldLock, LockHeader, held_locks};
use crate::sim::world::{self, LockMode};

/// A mutual-exclusion lock. A panic while it is held does not poison it.
pub struct Mutex<T: ?Sized> {
    header: LockHeader,
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    inner: parking_lot::Mutex<T>,
}

/// Access to the value of a [`Mutex`], which is released when the guard is dropped.
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped in this order: the host's lock is free when the next waiter is woken.
    pub(crate) inner: parking_lot::MutexGuard<'a, T>,
    pub(crate) held: HeldLock<'a>,
}

impl<T> Mutex<T> {
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
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// The protected value. Ownership proves that the lock is free.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock and takes it.
    ///
    /// # Panics
    /// In builds with debug assertions: if the task holds a lock of a later rank, or of the same rank without a smaller
    /// key.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        held_locks::check(&self.header);
        let mut edge = None;
        if world::simulated() {
            edge = world::enter(&self.header, LockMode::Exclusive, &|| {
                !self.inner.is_locked()
            });
        }
        let inner = self.inner.try_lock().unwrap_or_else(|| {
            if self.header.inherits() && edge.is_none() {
                edge = Some(inherit::wait_for_lock(&self.header));
            }
            self.inner.lock()
        });
        MutexGuard {
            inner,
            held: HeldLock::acquired(&self.header, edge),
        }
    }

    /// Takes the lock if it is free. Never waits, so any rank is allowed.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if world::simulated() && !world::may_try(&self.header, LockMode::Exclusive) {
            return None;
        }
        Some(MutexGuard {
            inner: self.inner.try_lock()?,
            held: HeldLock::new(&self.header),
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

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mutex({:?})", self.rank())
    }
}
