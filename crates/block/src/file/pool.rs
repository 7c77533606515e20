//! Threads that run what nobody waits for.
//!
//! A wake-up on another CPU costs more than most requests, so there are as few as possible:
//! - A task that waits runs its requests itself and wakes nobody.
//! - A lane (one of the pool's threads) is *looking* from the moment it is woken, or is back from a
//!   blocking system call, until it takes requests or goes to sleep. As long as one is looking,
//!   nobody else is woken: it will see what was added.
//! - A lane that takes requests and leaves others behind wakes the next lane.
//!
//! So whenever requests are pending, a lane is looking or all lanes are at work: nothing is
//! stranded.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use steadfs_rt::{Condvar, JoinHandle, Mutex, Rank};

use super::engine::Runner;
use super::jobs::{Job, NoMore, Source};

thread_local! {
    /// The pool whose lane this thread is, as its shared state's address; 0 for others.
    static LANE_OF: Cell<usize> = const { Cell::new(0) };
}

/// The pool. Dropping it waits for its threads.
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    runner: Arc<Runner>,
    max_lanes: usize,
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    pending: VecDeque<Job>,
    lanes: Vec<JoinHandle<()>>,
    /// Lanes asleep, those with a wake-up under way included.
    asleep: usize,
    /// Wake-ups sent and not yet received.
    wake_ups: usize,
    /// Lanes that will look at `pending` before they sleep, those being woken or born included.
    looking: usize,
    closing: bool,
}

impl State {
    /// How many pending requests a lane takes that has room for so many. One that blocks for long,
    /// such as a FLUSH, is taken alone and by an idle lane, so that no transfer waits behind it.
    fn takes(&self, room: usize, idle: bool) -> usize {
        let plain = |job: &&Job| job.0.is_plain();
        let n = self.pending.iter().take(room).take_while(plain).count();
        if n == 0 && idle {
            return self.pending.len().min(1);
        }
        n
    }
}

impl Pool {
    /// A pool of up to `max_lanes` threads; they are started when first needed.
    pub(super) fn new(runner: Arc<Runner>, max_lanes: usize) -> Self {
        assert!(max_lanes > 0, "somebody must run what nobody waits for");
        Self(Arc::new(Shared {
            runner,
            max_lanes,
            state: Mutex::new(
                Rank::DeviceInner,
                State {
                    pending: VecDeque::new(),
                    lanes: Vec::new(),
                    asleep: 0,
                    wake_ups: 0,
                    looking: 0,
                    closing: false,
                },
            ),
            work: Condvar::new(),
        }))
    }

    /// How many threads it has at most.
    pub(super) fn max_lanes(&self) -> usize {
        self.0.max_lanes
    }

    /// How many threads it has.
    #[cfg(test)]
    pub(super) fn lanes(&self) -> usize {
        self.0.state.lock().lanes.len()
    }

    /// Leaves `jobs` to the pool. Where the host refuses it the first thread, the calling task runs them.
    pub(super) fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = self.0.state.lock();
        state.pending.extend(jobs);
        self.0.rouse(&mut state);
        let is_alone = state.lanes.is_empty();
        drop(state);
        while is_alone && let Some(job) = self.take() {
            self.0.runner.run(vec![job], &mut NoMore);
        }
    }

    /// Takes a pending request for the calling task to run.
    pub(super) fn take(&self) -> Option<Job> {
        self.0.state.lock().pending.pop_front()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.closing = true;
        let lanes = std::mem::take(&mut state.lanes);
        self.0.work.notify_all();
        drop(state);
        // The last owner may be a request's completion on a lane: that lane ends by itself.
        if LANE_OF.get() == self.0.address() {
            return;
        }
        for lane in lanes {
            lane.join();
        }
    }
}

impl Shared {
    fn address(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Sees to it that a lane will look at what is pending, if one is free.
    fn rouse(self: &Arc<Self>, state: &mut State) {
        if state.pending.is_empty() || state.looking > 0 {
            return;
        }
        if state.asleep > state.wake_ups {
            state.wake_ups += 1;
            state.looking += 1;
            self.work.notify_one();
        } else if state.lanes.len() < self.max_lanes {
            state.looking += 1;
            let shared = Arc::clone(self);
            match steadfs_rt::try_spawn("steadfs-io", move || shared.lane()) {
                Ok(lane) => state.lanes.push(lane),
                // The others look at it, later; without others, who came with it.
                Err(_) => state.looking -= 1,
            }
        }
    }

    fn lane(self: Arc<Self>) {
        LANE_OF.set(self.address());
        let mut lane = Lane {
            shared: &self,
            looking: true,
        };
        loop {
            let jobs = lane.more(self.runner.width());
            if !jobs.is_empty() {
                steadfs_rt::fault_point("io");
                self.runner.run(jobs, &mut lane);
                lane.back();
            } else if !self.sleep() {
                return;
            } else {
                lane.looking = true;
            }
        }
    }

    /// Sleeps until there is work; false if there will be none any more.
    fn sleep(self: &Arc<Self>) -> bool {
        let mut state = self.state.lock();
        if !state.pending.is_empty() {
            state.looking += 1;
            return true;
        }
        if state.closing {
            return false;
        }
        state.asleep += 1;
        while state.wake_ups == 0 && !state.closing {
            self.work.wait_idle(&mut state);
        }
        state.asleep -= 1;
        if state.wake_ups > 0 {
            state.wake_ups -= 1;
        } else {
            state.looking += 1;
        }
        true
    }
}

/// A thread of the pool.
struct Lane<'a> {
    shared: &'a Arc<Shared>,
    looking: bool,
}

impl Source for Lane<'_> {
    fn waits(&self) -> bool {
        false
    }

    fn back(&mut self) {
        if !self.looking {
            self.looking = true;
            self.shared.state.lock().looking += 1;
        }
    }

    fn more(&mut self, room: usize) -> Vec<Job> {
        let mut state = self.shared.state.lock();
        let idle = room == self.shared.runner.width();
        let n = state.takes(room, idle);
        let jobs = state.pending.drain(..n).collect();
        if self.looking {
            self.looking = false;
            state.looking -= 1;
        }
        self.shared.rouse(&mut state);
        jobs
    }
}
