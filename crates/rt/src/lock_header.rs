//! The common part of all locks: rank, owners and the check of the lock order.
//!
//! Builds with debug assertions check the order: each task (thread or coroutine) has a list of the locks that it holds,
//! and an acquisition that may wait panics if it does not follow the order (lockdep for one fixed order).

use crate::Rank;
use crate::inherit::{self, LockOwners};
use crate::sim::world;

/// A lock's rank, its key among locks of that rank, and its owners. Its address identifies the lock.
pub(crate) struct LockHeader {
    rank: Rank,
    owners: LockOwners,
    #[cfg(debug_assertions)]
    key: Option<u64>,
}

impl LockHeader {
    pub(crate) const fn new(rank: Rank) -> Self {
        Self {
            rank,
            owners: LockOwners::new(),
            #[cfg(debug_assertions)]
            key: None,
        }
    }

    #[cfg_attr(
        not(debug_assertions),
        expect(unused_variables, reason = "checks are off")
    )]
    pub(crate) const fn with_key(rank: Rank, key: u64) -> Self {
        assert!(
            !matches!(rank, Rank::Leaf),
            "no lock is taken below a leaf lock, so its rank has no keys"
        );
        Self {
            rank,
            owners: LockOwners::new(),
            #[cfg(debug_assertions)]
            key: Some(key),
        }
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether owners inherit the priority of waiters: locks under which tasks do I/O. Except the checkpoint lock of
    /// f2fs, whose requests are boosted by the rules of merged checkpoints (`f2fs/checkpoint/urgency`).
    #[inline]
    pub(crate) fn inherits(&self) -> bool {
        self.rank <= Rank::JournalReclaim && self.rank != Rank::Checkpoint
    }

    pub(crate) const fn owners(&self) -> &LockOwners {
        &self.owners
    }

    /// Identifies the lock while it lives: used as a key of look-ups, never as an order.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The running task has taken the lock.
    #[inline]
    pub(crate) fn record_owner(&self) {
        if self.inherits() {
            self.owners.add_current();
        }
    }

    /// The running task releases the lock.
    #[inline]
    pub(crate) fn clear_owner(&self) {
        if self.inherits() {
            self.owners.remove_current();
        }
    }
}

/// A lock that the running task holds. It is dropped after the host's guard, and wakes the next waiter of a simulation.
pub(crate) struct HeldLock<'a> {
    header: &'a LockHeader,
}

impl<'a> HeldLock<'a> {
    #[inline]
    pub(crate) fn new(header: &'a LockHeader) -> Self {
        held_locks::push(header);
        header.record_owner();
        Self { header }
    }

    /// The lock was taken; `edge` is the wait for it, if there was one.
    #[inline]
    pub(crate) fn acquired(header: &'a LockHeader, edge: Option<inherit::WaitForEdge>) -> Self {
        let held = Self::new(header);
        match edge {
            Some(edge) => inherit::acquired_after_wait(header, edge),
            None if header.inherits() && header.owners.has_waiters() => {
                inherit::owner_changed(header)
            }
            None => {}
        }
        held
    }

    pub(crate) fn header(&self) -> &'a LockHeader {
        self.header
    }
}

impl Drop for HeldLock<'_> {
    #[inline]
    fn drop(&mut self) {
        held_locks::pop(self.header);
        self.header.clear_owner();
        if world::simulated() {
            world::released(self.header);
        }
    }
}

#[cfg(debug_assertions)]
pub(crate) mod held_locks {
    use std::cell::RefCell;

    use super::LockHeader;
    use crate::Rank;

    /// One held lock.
    #[derive(Clone, Copy)]
    pub(crate) struct Entry {
        address: usize,
        rank: Rank,
        key: Option<u64>,
    }

    impl Entry {
        fn of(header: &LockHeader) -> Self {
            Self {
                address: header.address(),
                rank: header.rank,
                key: header.key,
            }
        }

        fn name(&self) -> String {
            match self.key {
                Some(key) => format!("{:?}({key})", self.rank),
                None => format!("{:?}", self.rank),
            }
        }

        /// Whether a task that holds this lock may wait for `next`.
        fn allows(&self, next: &Entry) -> bool {
            if self.rank != next.rank {
                return self.rank < next.rank;
            }
            matches!((self.key, next.key), (Some(mine), Some(next)) if mine < next)
        }
    }

    /// The locks that a task holds, in the order in which it took them.
    #[derive(Default)]
    pub(crate) struct HeldList(Vec<Entry>);

    #[cfg(feature = "sim")]
    impl HeldList {
        pub(crate) fn names(&self) -> Vec<String> {
            self.0.iter().map(Entry::name).collect()
        }

        pub(crate) fn holds(&self, address: usize) -> bool {
            self.0.iter().any(|entry| entry.address == address)
        }
    }

    thread_local! {
        static HELD: RefCell<HeldList> = const { RefCell::new(HeldList(Vec::new())) };
    }

    /// Calls `f` on the running task's list, unless the thread is ending.
    fn with<R>(f: impl FnOnce(&mut HeldList) -> R) -> Option<R> {
        HELD.try_with(|held| f(&mut held.borrow_mut())).ok()
    }

    /// Swaps the running task's list with `other`.
    #[cfg(feature = "sim")]
    pub(crate) fn swap(other: &mut HeldList) {
        with(|held| std::mem::swap(held, other));
    }

    /// Panics if the task holds a lock below which it must not wait for `header`.
    pub(crate) fn check(header: &LockHeader) {
        let next = Entry::of(header);
        let bad = with(|held| held.0.iter().find(|entry| !entry.allows(&next)).copied()).flatten();
        if let Some(bad) = bad {
            panic!(
                "lock order: task '{}' takes {} while it holds {}",
                crate::task_name(),
                next.name(),
                bad.name(),
            );
        }
    }

    /// Panics if the task is about to wait for a condition under `header` while it holds another lock of the same or a
    /// later rank: the task that is to notify it may need that lock.
    pub(crate) fn check_wait(header: &LockHeader) {
        let mine = Entry::of(header);
        let bad = with(|held| {
            let mut others = held.0.iter().filter(|entry| entry.address != mine.address);
            others.find(|entry| entry.rank >= mine.rank).copied()
        });
        if let Some(bad) = bad.flatten() {
            panic!(
                "lock order: task '{}' waits for a condition under {} while it holds {}",
                crate::task_name(),
                mine.name(),
                bad.name(),
            );
        }
    }

    pub(crate) fn push(header: &LockHeader) {
        with(|held| held.0.push(Entry::of(header)));
    }

    pub(crate) fn pop(header: &LockHeader) {
        let address = header.address();
        with(|held| {
            if let Some(at) = held.0.iter().rposition(|entry| entry.address == address) {
                held.0.remove(at);
            }
        });
    }
}

#[cfg(not(debug_assertions))]
pub(crate) mod held_locks {
    use super::LockHeader;

    #[cfg(feature = "sim")]
    #[derive(Default)]
    pub(crate) struct HeldList(());

    #[cfg(feature = "sim")]
    impl HeldList {
        pub(crate) fn names(&self) -> Vec<String> {
            vec!["(recorded in builds with debug assertions only)".to_owned()]
        }

        pub(crate) fn holds(&self, _address: usize) -> bool {
            false
        }
    }

    #[cfg(feature = "sim")]
    #[inline(always)]
    pub(crate) fn swap(_other: &mut HeldList) {}
    #[inline(always)]
    pub(crate) fn check(_header: &LockHeader) {}
    #[inline(always)]
    pub(crate) fn check_wait(_header: &LockHeader) {}
    #[inline(always)]
    pub(crate) fn push(_header: &LockHeader) {}
    #[inline(always)]
    pub(crate) fn pop(_header: &LockHeader) {}
}
