//! A lock shared by readers or held by one writer, with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Rank;
use crate::gate::{Gate, Held, held};
use crate::inherit;
use crate::sim::world::{self, Want};

/// A readers-writer lock. Readers do not pass a waiting writer; a task must not take it twice.
pub struct RwLock<T: ?Sized> {
    gate: Gate,
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    inner: parking_lot::RwLock<T>,
}

/// Holds a [`RwLock`] for reading.
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    // Dropped in this order: the host's lock is free when the next waiter is told.
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held<'a>,
}

/// Holds a [`RwLock`] for writing.
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held<'a>,
}

impl<T> RwLock<T> {
    /// A new lock of `rank` around `value`. Never taken while another of its rank is held.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self::behind(Gate::new(rank), value)
    }

    /// A new lock of `rank` around `value` that may be taken while others of its rank are held
    /// whose keys are smaller. Not for [`Rank::Leaf`].
    pub const fn with_key(rank: Rank, key: u64, value: T) -> Self {
        Self::behind(Gate::with_key(rank, key), value)
    }

    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    const fn behind(gate: Gate, value: T) -> Self {
        Self {
            gate,
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// The value, when nobody can hold the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until no writer holds or awaits the lock and shares it.
    ///
    /// # Panics
    /// In builds with debug assertions: if the task holds a lock of a later place in the order, or
    /// of the same rank without a smaller key (this lock among them).
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        held::check(&self.gate);
        let mut waiting = None;
        if world::simulated() {
            let free = || !self.inner.is_locked_exclusive();
            waiting = world::enter(&self.gate, Want::Shared, &free);
        }
        let inner = self.inner.try_read().unwrap_or_else(|| {
            if self.gate.lends() && waiting.is_none() {
                waiting = Some(inherit::wait_at(&self.gate));
            }
            self.inner.read()
        });
        RwLockReadGuard {
            inner,
            _held: Held::after(&self.gate, waiting),
        }
    }

    /// Waits until nobody holds the lock and takes it.
    ///
    /// # Panics
    /// As [`RwLock::read`].
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        held::check(&self.gate);
        let mut waiting = None;
        if world::simulated() {
            waiting = world::enter(&self.gate, Want::Alone, &|| !self.inner.is_locked());
        }
        let inner = self.inner.try_write().unwrap_or_else(|| {
            if self.gate.lends() && waiting.is_none() {
                waiting = Some(inherit::wait_at(&self.gate));
            }
            self.inner.write()
        });
        RwLockWriteGuard {
            inner,
            _held: Held::after(&self.gate, waiting),
        }
    }

    /// Shares the lock if no writer holds or awaits it. Never waits.
    #[inline]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        if world::simulated() && !world::may_try(&self.gate, Want::Shared) {
            return None;
        }
        Some(RwLockReadGuard {
            inner: self.inner.try_read()?,
            _held: Held::new(&self.gate),
        })
    }

    /// Takes the lock if it is free. Never waits.
    #[inline]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        if world::simulated() && !world::may_try(&self.gate, Want::Alone) {
            return None;
        }
        Some(RwLockWriteGuard {
            inner: self.inner.try_write()?,
            _held: Held::new(&self.gate),
        })
    }

    /// The lock's rank.
    pub fn rank(&self) -> Rank {
        self.gate.rank()
    }

    /// The value, when the borrow proves that nobody holds the lock.
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
