//! A place in the order of locks that is not a lock.

use std::fmt;

use crate::Rank;
use crate::gate::{Gate, held};

/// Something that a task can stand in as if it held a lock of a rank, though nobody waits for it: an open
/// journal handle, say. In builds with debug assertions the order of locks is checked against it; it is never
/// a step of a simulation's schedule, so that builds with and without these checks run alike.
pub struct RankScope(Gate);

/// A task stands in a [`RankScope`] until this is dropped, by the same task.
#[must_use]
pub struct RankScopeGuard<'a>(&'a Gate);

impl RankScope {
    /// A place of `rank`. No task stands in two of its rank.
    pub const fn new(rank: Rank) -> Self {
        Self(Gate::new(rank))
    }

    /// From now on the task stands there.
    ///
    /// # Panics
    /// As [`RankScope::check`].
    #[inline]
    pub fn enter(&self) -> RankScopeGuard<'_> {
        self.check();
        held::push(&self.0);
        RankScopeGuard(&self.0)
    }

    /// Nothing, if the task may go there.
    ///
    /// # Panics
    /// In builds with debug assertions: if the task holds a lock of a later place in the order, or stands
    /// here already.
    #[inline]
    pub fn check(&self) {
        held::check(&self.0);
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
        held::pop(self.0);
    }
}
