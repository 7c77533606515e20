//! A mutual-exclusion lock with a rank.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::Rank;
use crate::gate::{Gate, Held, held};
use crate::inherit;
use crate::sim::world::{self, Want};

/// A mutual-exclusion lock. A panic while it is held does not poison it.
pub struct Mutex<T: ?Sized> {
    gate: Gate,
    #[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
    inner: parking_lot::Mutex<T>,
}

/// Holds a [`Mutex`].
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    // Dropped in this order: the host's lock is free when the next waiter is told.
    pub(crate) inner: parking_lot::MutexGuard<'a, T>,
    pub(crate) held: Held<'a>,
}

impl<T> Mutex<T> {
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
    ///
    /// # Panics
    /// In builds with debug assertions: if the task holds a lock of a later place in the order, or
    /// of the same rank without a smaller key.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        held::check(&self.gate);
        let mut waiting = None;
        if world::simulated() {
            waiting = world::enter(&self.gate, Want::Alone, &|| !self.inner.is_locked());
        }
        let inner = self.inner.try_lock().unwrap_or_else(|| {
            if self.gate.lends() && waiting.is_none() {
                waiting = Some(inherit::wait_at(&self.gate));
            }
            self.inner.lock()
        });
        MutexGuard {
            inner,
            held: Held::after(&self.gate, waiting),
        }
    }

    /// Takes the lock if it is free. Never waits, so it may go against the order.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if world::simulated() && !world::may_try(&self.gate, Want::Alone) {
            return None;
        }
        Some(MutexGuard {
            inner: self.inner.try_lock()?,
            held: Held::new(&self.gate),
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
