//! The wait queue of one simulated lock.
//!
//! A waiter stays in the queue until it has the lock, so later readers see a waiting writer. As on the host, a running
//! task may take a free lock before a waiter that was woken for it (lock stealing). A woken waiter that finds the lock
//! taken gets a reservation: no task overtakes it a second time.

use std::collections::VecDeque;

use super::state::TaskId;

/// The mode in which a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockMode {
    Shared,
    Exclusive,
}

struct Waiter {
    task: TaskId,
    mode: LockMode,
    woken: bool,
    reserved: bool,
}

/// The waiters of one lock, in order of arrival.
#[derive(Default)]
pub(crate) struct LockQueue(VecDeque<Waiter>);

impl LockQueue {
    /// Whether the queue lets a task take the lock in this mode, if the lock itself is free. `me` is the task if it may
    /// be queued already.
    pub(crate) fn may_take(&self, me: Option<TaskId>, mode: LockMode) -> bool {
        let ahead = self.0.iter().take_while(|waiter| Some(waiter.task) != me);
        let mut blocking = ahead.filter(|waiter| match (waiter.mode, mode) {
            (LockMode::Exclusive, LockMode::Shared) => true,
            (LockMode::Shared, LockMode::Shared) => false,
            (_, LockMode::Exclusive) => waiter.reserved,
        });
        blocking.next().is_none()
    }

    /// Queues `task`. If it is queued already, it was woken and found the lock taken: it gets a reservation.
    pub(crate) fn join(&mut self, task: TaskId, mode: LockMode) {
        match self.0.iter_mut().find(|waiter| waiter.task == task) {
            Some(waiter) => {
                waiter.woken = false;
                waiter.reserved = true;
            }
            None => self.0.push_back(Waiter {
                task,
                mode,
                woken: false,
                reserved: false,
            }),
        }
    }

    /// Removes `task`, which has taken the lock.
    pub(crate) fn leave(&mut self, task: TaskId) {
        self.0.retain(|waiter| waiter.task != task);
    }

    /// The lock was released: calls `wake` for the first waiter, or for all readers at the head, unless they are awake.
    /// `reserve` gives them reservations.
    pub(crate) fn release(&mut self, reserve: bool, mut wake: impl FnMut(TaskId)) {
        let readers = self
            .0
            .iter()
            .take_while(|w| w.mode == LockMode::Shared)
            .count();
        for waiter in self.0.iter_mut().take(readers.max(1)) {
            waiter.reserved |= reserve;
            if !waiter.woken {
                waiter.woken = true;
                wake(waiter.task);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
