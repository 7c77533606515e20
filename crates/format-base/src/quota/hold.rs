//! Room under limits that a call holds from its check until what it needs is counted.
//!
//! **Problem.** A check and a count that are apart let each of several callers have the last of a limit.
//!
//! **Rule.** What a call needs is checked and held under one lock, and counts as used while the [`Hold`] exists: until the
//! call has counted it, or has failed. For the moment in which both are there it counts twice: a call that is refused because
//! of what others hold tries again for a while ([`HOLD_WAIT_MAX`]).

use std::sync::Arc;
use std::time::Duration;

use super::account::{Account, Holding};
use super::usage::Usage;

/// How long a call waits for what others hold to be counted.
pub const HOLD_WAIT_MAX: Duration = Duration::from_millis(50);
/// Time between two attempts.
pub const HOLD_POLL: Duration = Duration::from_millis(1);

/// An owner's entry in memory.
pub trait Owner {
    /// Calls `act` with the account, which is locked.
    fn with_account<R>(&self, act: impl FnOnce(&mut Account) -> R) -> R;
}

/// What counts as used for its owners while this exists.
#[must_use]
pub struct Hold<D: Owner>(Vec<(Arc<D>, Usage)>);

impl<D: Owner> Default for Hold<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Owner> Hold<D> {
    /// Holds `need` for one more owner, if its limits allow that at second `now`.
    pub fn add(&mut self, owner: Arc<D>, need: Usage, now: u64) -> Holding {
        let holding = owner.with_account(|account| account.try_hold(need, now));
        if holding == Holding::Held {
            self.0.push((owner, need));
        }
        holding
    }

    /// Adds what another one holds.
    pub fn join(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// The bytes are delayed data from now on.
    pub fn delay(mut self) {
        for (owner, held) in self.0.drain(..) {
            owner.with_account(|account| {
                account.release(held);
                account.delayed = account.delayed.saturating_add(held.bytes);
            });
        }
    }
}

impl<D: Owner> Drop for Hold<D> {
    fn drop(&mut self) {
        for (owner, held) in &self.0 {
            owner.with_account(|account| account.release(*held));
        }
    }
}
