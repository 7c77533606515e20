//! Who waits for one lock, and whose turn it is.
//!
//! A waiter stays in the queue until it has the lock: readers that come later see a waiting writer.
//! A free lock may be taken past the queue (as on the host), so a woken waiter can find it taken
//! again; it then has a reservation that nobody passes.

use std::collections::VecDeque;

use super::state::TaskId;

/// How a lock is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Shared,
    Alone,
}

struct Waiter {
    task: TaskId,
    want: Want,
    woken: bool,
    reserved: bool,
}

/// Waiters of one lock, the first come first.
#[derive(Default)]
pub(crate) struct LockQueue(VecDeque<Waiter>);

impl LockQueue {
    /// Whether a task (`me` if it may already be queued) that wants the lock may take it now, if
    /// the lock itself is free for it.
    pub(crate) fn may_enter(&self, me: Option<TaskId>, want: Want) -> bool {
        let ahead = self.0.iter().take_while(|waiter| Some(waiter.task) != me);
        let mut in_the_way = ahead.filter(|waiter| match (waiter.want, want) {
            (Want::Alone, Want::Shared) => true,
            (Want::Shared, Want::Shared) => false,
            (_, Want::Alone) => waiter.reserved,
        });
        in_the_way.next().is_none()
    }

    /// Queues `task`; where it is queued already, it was woken in vain and gets a reservation.
    pub(crate) fn join(&mut self, task: TaskId, want: Want) {
        match self.0.iter_mut().find(|waiter| waiter.task == task) {
            Some(waiter) => {
                waiter.woken = false;
                waiter.reserved = true;
            }
            None => self.0.push_back(Waiter {
                task,
                want,
                woken: false,
                reserved: false,
            }),
        }
    }

    /// Takes `task` out, which has the lock now.
    pub(crate) fn leave(&mut self, task: TaskId) {
        self.0.retain(|waiter| waiter.task != task);
    }

    /// The lock was released: calls `wake` for each waiter whose turn it is and who sleeps: the
    /// first one, or all readers at the head. `reserve` keeps newcomers from passing them.
    pub(crate) fn release(&mut self, reserve: bool, mut wake: impl FnMut(TaskId)) {
        let readers = self.0.iter().take_while(|w| w.want == Want::Shared).count();
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
