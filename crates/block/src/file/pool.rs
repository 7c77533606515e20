//! Threads that run background requests.
//!
//! **Problem.** A wake-up on another CPU costs more than most requests. **Rules** to have few of them:
//! - A task that waits runs its requests itself and wakes no other task.
//! - A lane (one of the pool's threads) is *looking* from its wake-up, or its return from a blocking
//!   system call, until it takes requests or goes to sleep. While one lane is looking, no other is
//!   woken: the looking one will find added requests.
//! - A lane that takes requests and leaves others pending wakes the next lane.
//!
//! **Invariant.** While requests are pending, a lane is looking or all lanes are running requests. So no
//! request is stranded.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use steadfs_rt::{Condvar, JoinHandle, Mutex, Rank};

use super::engine::RequestRunner;
use super::jobs::{Job, JobSource, NoMoreJobs};

thread_local! {
    /// The pool whose lane this thread is, as its shared state's address; 0 for others.
    static LANE_OF: Cell<usize> = const { Cell::new(0) };
}

/// The pool. Its drop waits for its threads.
pub(super) struct Pool(Arc<Shared>);

struct Shared {
    runner: Arc<RequestRunner>,
    max_lanes: usize,
    state: Mutex<PoolState>,
    work: Condvar,
}

struct PoolState {
    pending: VecDeque<Job>,
    lanes: Vec<JoinHandle<()>>,
    /// Lanes asleep, including those with a pending wake-up.
    asleep: usize,
    /// Wake-ups sent and not yet received.
    wake_ups: usize,
    /// Lanes that will check `pending` before they sleep, including those being woken or started.
    looking: usize,
    closing: bool,
}

impl PoolState {
    /// How many pending requests a lane that can run `max_jobs` takes. A request that blocks for long, such as
    /// a FLUSH, is taken alone and by an idle lane, so that no transfer waits behind it.
    fn takeable(&self, max_jobs: usize, idle: bool) -> usize {
        let plain = |job: &&Job| job.0.is_plain();
        let n = self.pending.iter().take(max_jobs).take_while(plain).count();
        if n == 0 && idle {
            return self.pending.len().min(1);
        }
        n
    }
}

impl Pool {
    /// A pool of up to `max_lanes` threads; they are started when first needed.
    pub(super) fn new(runner: Arc<RequestRunner>, max_lanes: usize) -> Self {
        assert!(max_lanes > 0, "background requests need a thread");
        Self(Arc::new(Shared {
            runner,
            max_lanes,
            state: Mutex::new(
                Rank::DeviceInner,
                PoolState {
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

    /// Most threads of the pool.
    pub(super) fn max_lanes(&self) -> usize {
        self.0.max_lanes
    }

    /// Number of threads.
    #[cfg(test)]
    pub(super) fn lanes(&self) -> usize {
        self.0.state.lock().lanes.len()
    }

    /// Adds `jobs` to the pool. If the host refuses the first thread, the calling task runs them.
    pub(super) fn push(&self, jobs: impl IntoIterator<Item = Job>) {
        let mut state = self.0.state.lock();
        state.pending.extend(jobs);
        self.0.wake_lane(&mut state);
        let is_alone = state.lanes.is_empty();
        drop(state);
        while is_alone && let Some(job) = self.take() {
            self.0.runner.run(vec![job], &mut NoMoreJobs);
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
        // The last reference may be dropped by a completion on a lane: that lane ends by itself.
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

    /// Makes sure that a lane is looking, if requests are pending and a lane is free.
    fn wake_lane(self: &Arc<Self>, state: &mut PoolState) {
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
                // Other lanes take the requests later; without other lanes the submitter does.
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
                lane.returned();
            } else if !self.sleep() {
                return;
            } else {
                lane.looking = true;
            }
        }
    }

    /// Sleeps until requests are pending; false if the pool is closed.
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

impl JobSource for Lane<'_> {
    fn waits(&self) -> bool {
        false
    }

    fn returned(&mut self) {
        if !self.looking {
            self.looking = true;
            self.shared.state.lock().looking += 1;
        }
    }

    fn more(&mut self, max_jobs: usize) -> Vec<Job> {
        let mut state = self.shared.state.lock();
        let idle = max_jobs == self.shared.runner.width();
        let n = state.takeable(max_jobs, idle);
        let jobs = state.pending.drain(..n).collect();
        if self.looking {
            self.looking = false;
            state.looking -= 1;
        }
        self.shared.wake_lane(&mut state);
        jobs
    }
}
