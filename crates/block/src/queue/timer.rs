//! Reruns the scheduler at the time that it requests. The task is created for the first such time. If the host
//! refuses a thread, nothing is held back.

use std::sync::{Arc, Weak};

use steadfs_rt::{Condvar, Instant, Mutex, Rank, now, try_spawn};

use super::inner::Inner;

pub(super) struct Timer {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    at: Option<Instant>,
    has_task: bool,
    closed: bool,
}

impl Timer {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(Rank::Leaf, TimerState::default()),
            changed: Condvar::new(),
        })
    }

    /// Pumps `queue` at `at` or before; false if there is no task for it. One caller at a time.
    pub(super) fn set(self: &Arc<Self>, at: Instant, queue: &Arc<Inner>) -> bool {
        let mut state = self.state.lock();
        if state.at.is_some_and(|earlier| earlier <= at) {
            return true;
        }
        state.at = Some(at);
        if state.has_task {
            self.changed.notify_one();
            return true;
        }
        drop(state);
        let (timer, queue) = (Arc::clone(self), Arc::downgrade(queue));
        let started = try_spawn("io-timer", move || timer.run(&queue)).is_ok();
        let mut state = self.state.lock();
        state.has_task = started;
        if !started {
            state.at = None;
        }
        started
    }

    /// The queue is dropped: the task will end.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_one();
    }

    fn run(&self, queue: &Weak<Inner>) {
        let mut state = self.state.lock();
        while !state.closed {
            let Some(at) = state.at else {
                self.changed.wait_idle(&mut state);
                continue;
            };
            let left = at.since(now());
            if !left.is_zero() {
                self.changed.wait_for(&mut state, left);
                continue;
            }
            state.at = None;
            drop(state);
            if let Some(queue) = queue.upgrade() {
                queue.pump_now();
            }
            state = self.state.lock();
        }
    }
}
