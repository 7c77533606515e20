//! Lock-order checks for something that is not a lock, as Linux has lockdep maps.

use std::fmt;

use crate::Rank;
use crate::lock_header::{LockHeader, held_locks};

/// A scope that has a rank like a lock, but for which no task waits: an open journal handle, for example. Builds with
/// debug assertions check the lock order against the scopes that a task is in. A scope is never a scheduling point of a
/// simulation, so builds with and without these checks run alike.
pub struct RankScope(LockHeader);

/// The running task is in a [`RankScope`] until it drops this guard.
#[must_use]
pub struct RankScopeGuard<'a>(&'a LockHeader);

impl RankScope {
    /// A scope of `rank`. No task may be in two scopes of one rank.
    pub const fn new(rank: Rank) -> Self {
        Self(LockHeader::new(rank))
    }

    /// Enters the scope.
    ///
    /// # Panics
    /// As [`RankScope::check`].
    #[inline]
    pub fn enter(&self) -> RankScopeGuard<'_> {
        self.check();
        held_locks::push(&self.0);
        RankScopeGuard(&self.0)
    }

    /// Checks that the task may enter the scope.
    ///
    /// # Panics
    /// In builds with debug assertions: if the task holds a lock of a later rank, or is in the scope already.
    #[inline]
    pub fn check(&self) {
        held_locks::check(&self.0);
    }
}

impl fmt::Debug for RankScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RankScope").field(&self.0.rank()).finish()
    }
}

impl Drop for RankScopeGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        held_locks::pop(self.0);
    }
}
