//! What every lock has in common: its place in the order, and what a task holds.
//!
//! The order is checked in builds with debug assertions only: each task (thread or coroutine) keeps
//! the list of locks it holds, and a blocking acquisition that does not go up the order panics.

use crate::Rank;
use crate::inherit::{self, Lending};
use crate::sim::world;

/// A lock's rank and, among equals, its key. Its address names the lock.
pub(crate) struct Gate {
    rank: Rank,
    lending: Lending,
    #[cfg(debug_assertions)]
    key: Option<u64>,
}

impl Gate {
    pub(crate) const fn new(rank: Rank) -> Self {
        Self {
            rank,
            lending: Lending::new(),
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
            "nothing is taken below a leaf lock, another leaf neither"
        );
        Self {
            rank,
            lending: Lending::new(),
            #[cfg(debug_assertions)]
            key: Some(key),
        }
    }

    pub(crate) const fn rank(&self) -> Rank {
        self.rank
    }

    /// Whether a task does I/O while it holds the lock, and whoever waits lends to it. Not the lock of
    /// checkpoints: theirs is merging's to say (`f2fs/checkpoint/urgency`).
    #[inline]
    pub(crate) fn lends(&self) -> bool {
        self.rank <= Rank::JournalReclaim && self.rank != Rank::Checkpoint
    }

    pub(crate) const fn lending(&self) -> &Lending {
        &self.lending
    }

    /// What names the lock while it lives: used to look up, never to order.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

impl Gate {
    /// The running task has the lock.
    #[inline]
    pub(crate) fn note_held(&self) {
        if self.lends() {
            self.lending.enter();
        }
    }

    /// … and no longer.
    #[inline]
    pub(crate) fn note_free(&self) {
        if self.lends() {
            self.lending.leave();
        }
    }
}

/// A lock that this task holds. Dropped after the host's guard: tells the next waiter.
pub(crate) struct Held<'a> {
    gate: &'a Gate,
}

impl<'a> Held<'a> {
    #[inline]
    pub(crate) fn new(gate: &'a Gate) -> Self {
        held::push(gate);
        gate.note_held();
        Self { gate }
    }

    /// The lock was taken after waiting for it, if `waiting` says so.
    #[inline]
    pub(crate) fn after(gate: &'a Gate, waiting: Option<inherit::WaitForEdge>) -> Self {
        let held = Self::new(gate);
        match waiting {
            Some(waiting) => inherit::got(gate, waiting),
            None if gate.lends() && gate.lending.is_awaited() => inherit::took(gate),
            None => {}
        }
        held
    }

    pub(crate) fn gate(&self) -> &'a Gate {
        self.gate
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        held::pop(self.gate);
        self.gate.note_free();
        if world::simulated() {
            world::released(self.gate);
        }
    }
}

#[cfg(debug_assertions)]
pub(crate) mod held {
    use std::cell::RefCell;

    use super::Gate;
    use crate::Rank;

    /// One held lock.
    #[derive(Clone, Copy)]
    pub(crate) struct Entry {
        address: usize,
        rank: Rank,
        key: Option<u64>,
    }

    impl Entry {
        fn of(gate: &Gate) -> Self {
            Self {
                address: gate.address(),
                rank: gate.rank,
                key: gate.key,
            }
        }

        fn name(&self) -> String {
            match self.key {
                Some(key) => format!("{:?}({key})", self.rank),
                None => format!("{:?}", self.rank),
            }
        }

        /// Whether a task that holds `self` may wait for `next`.
        fn lets(&self, next: &Entry) -> bool {
            if self.rank != next.rank {
                return self.rank < next.rank;
            }
            matches!((self.key, next.key), (Some(mine), Some(its)) if mine < its)
        }
    }

    /// What a task holds, in the order it was taken.
    #[derive(Default)]
    pub(crate) struct List(Vec<Entry>);

    impl List {
        pub(crate) fn names(&self) -> Vec<String> {
            self.0.iter().map(Entry::name).collect()
        }

        pub(crate) fn holds(&self, address: usize) -> bool {
            self.0.iter().any(|entry| entry.address == address)
        }
    }

    thread_local! {
        static HELD: RefCell<List> = const { RefCell::new(List(Vec::new())) };
    }

    /// Runs `f` on the running task's list; nothing where the thread is already ending.
    fn with<R>(f: impl FnOnce(&mut List) -> R) -> Option<R> {
        HELD.try_with(|held| f(&mut held.borrow_mut())).ok()
    }

    /// Puts the running task's list aside and `other` in its place.
    pub(crate) fn swap(other: &mut List) {
        with(|held| std::mem::swap(held, other));
    }

    /// Refuses to wait for `gate` below a lock of the same or a later place.
    pub(crate) fn check(gate: &Gate) {
        let next = Entry::of(gate);
        let bad = with(|held| held.0.iter().find(|entry| !entry.lets(&next)).copied()).flatten();
        if let Some(bad) = bad {
            panic!(
                "lock order: task '{}' takes {} while it holds {}",
                crate::task_name(),
                next.name(),
                bad.name(),
            );
        }
    }

    /// Refuses to wait for a condition under `gate` while another lock of the same or a later rank
    /// is held: whoever shall notify may need it.
    pub(crate) fn check_wait(gate: &Gate) {
        let mine = Entry::of(gate);
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

    pub(crate) fn push(gate: &Gate) {
        with(|held| held.0.push(Entry::of(gate)));
    }

    pub(crate) fn pop(gate: &Gate) {
        let address = gate.address();
        with(|held| {
            if let Some(at) = held.0.iter().rposition(|entry| entry.address == address) {
                held.0.remove(at);
            }
        });
    }
}

#[cfg(not(debug_assertions))]
pub(crate) mod held {
    use super::Gate;

    #[derive(Default)]
    pub(crate) struct List(());

    impl List {
        pub(crate) fn names(&self) -> Vec<String> {
            vec!["(known in builds with debug assertions)".to_owned()]
        }

        pub(crate) fn holds(&self, _address: usize) -> bool {
            false
        }
    }

    #[inline(always)]
    pub(crate) fn swap(_other: &mut List) {}
    #[inline(always)]
    pub(crate) fn check(_gate: &Gate) {}
    #[inline(always)]
    pub(crate) fn check_wait(_gate: &Gate) {}
    #[inline(always)]
    pub(crate) fn push(_gate: &Gate) {}
    #[inline(always)]
    pub(crate) fn pop(_gate: &Gate) {}
}
