//! What tasks wait for, for people who look at a hanging mount.
//!
//! Problem: a task in a slow call sleeps somewhere below the call, and nothing shows where. Rule: a task that serves calls
//! has a [`TaskWaits`] ([`TaskWaits::of_task`]), and code that is about to sleep names its step until it goes on
//! ([`during`]). Steps nest: a commit that waits for the device is `commit, device`. A wait for a condition that is in no
//! step is one for another task.
//!
//! Cost: nothing in calls that do not sleep. A step is a look at a thread-local, two stores and, if it is the outermost,
//! a reading of the clock; waiting for a request adds one uncontended lock. Tasks without a `TaskWaits` (flusher, commit
//! task) and simulated ones record nothing.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::sim::world;
use crate::time::{Instant, now};

/// Why a task does not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStep {
    /// A lock that another task holds.
    Lock = 1,
    /// A request: in the queue or in the device.
    Io = 2,
    /// A commit of the journal.
    Commit = 3,
    /// A checkpoint of f2fs.
    Checkpoint = 4,
    /// Garbage collection of f2fs.
    Cleaning = 5,
    /// Free space of the journal's log.
    LogSpace = 6,
    /// Write-back of the file.
    Flush = 7,
    /// The limit of dirty data.
    DirtyLimit = 8,
    /// What another task does.
    Task = 9,
}

impl WaitStep {
    const ALL: [Self; 9] = [
        Self::Lock,
        Self::Io,
        Self::Commit,
        Self::Checkpoint,
        Self::Cleaning,
        Self::LogSpace,
        Self::Flush,
        Self::DirtyLimit,
        Self::Task,
    ];

    /// The name that users see.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Io => "I/O",
            Self::Commit => "commit",
            Self::Checkpoint => "checkpoint",
            Self::Cleaning => "cleaning",
            Self::LogSpace => "log space",
            Self::Flush => "flush of the file",
            Self::DirtyLimit => "dirty limit",
            Self::Task => "another request",
        }
    }
}

/// A queue of requests, which knows where each of them is.
pub trait RequestPlaces: Send + Sync {
    /// `queue` or `device`; `None` if the request has ended.
    fn place(&self, request: u64) -> Option<&'static str>;
}

/// The request for which a task sleeps.
type WaitedRequest = (Arc<dyn RequestPlaces>, u64);

#[expect(clippy::disallowed_types, reason = "rt wraps the host's lock")]
type HostMutex<T> = parking_lot::Mutex<T>;

/// The steps in which a task waits now.
#[derive(Default)]
pub struct TaskWaits {
    /// Numbers of steps, the innermost in the lowest byte; 0: the task does not wait.
    steps: AtomicU32,
    /// When the outermost step began, in nanoseconds.
    since: AtomicU64,
    request: HostMutex<Option<WaitedRequest>>,
}

thread_local! {
    static WAITS: RefCell<Option<Arc<TaskWaits>>> = const { RefCell::new(None) };
}

/// A wait that others see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The names of the steps, the outermost first.
    pub steps: Vec<&'static str>,
    /// Since the outermost began.
    pub time: Duration,
}

impl TaskWaits {
    /// Those of the running task, which records its steps from now on until it ends.
    pub fn of_task() -> Arc<Self> {
        WAITS.with_borrow_mut(|own| Arc::clone(own.get_or_insert_default()))
    }

    /// What the task waits for; `None` if it runs.
    pub fn wait(&self) -> Option<Wait> {
        let numbers = self.steps.load(Ordering::Acquire).to_be_bytes();
        let known = |number: u8| WaitStep::ALL.into_iter().find(|step| *step as u8 == number);
        let steps: Vec<WaitStep> = numbers.into_iter().filter_map(known).collect();
        if steps.is_empty() {
            return None;
        }
        let since = Instant(self.since.load(Ordering::Relaxed));
        let place = || {
            // The queue is asked without this lock.
            let request = self.request.lock().clone();
            request.and_then(|(queue, request)| queue.place(request))
        };
        let name = |step: WaitStep| match step {
            WaitStep::Io => place().unwrap_or(step.name()),
            step => step.name(),
        };
        Some(Wait {
            steps: steps.into_iter().map(name).collect(),
            time: since.elapsed(),
        })
    }
}

/// The running task waits until this is dropped.
#[must_use]
pub struct WaitGuard(Option<(Arc<TaskWaits>, u32)>);

/// Records that the running task is about to wait.
pub fn during(step: WaitStep) -> WaitGuard {
    if world::simulated() {
        return WaitGuard(None);
    }
    begin(step, |_| true)
}

/// Records that the running task is about to wait for a condition, unless it is in a step already.
pub(crate) fn for_condition() -> WaitGuard {
    begin(WaitStep::Task, |outer| outer == 0)
}

/// Records `step` if `is_wanted` inside the steps of the task.
fn begin(step: WaitStep, is_wanted: impl FnOnce(u32) -> bool) -> WaitGuard {
    // Fails on a thread that is ending.
    let own = WAITS.try_with(|own| own.borrow().clone()).ok().flatten();
    let outer = |own: &TaskWaits| own.steps.load(Ordering::Relaxed);
    WaitGuard(own.filter(|own| is_wanted(outer(own))).map(|own| {
        let outer = outer(&own);
        if outer == 0 {
            own.since.store(now().0, Ordering::Relaxed);
        }
        // The outermost of more than four steps is forgotten while they last.
        own.steps.store(outer << 8 | step as u32, Ordering::Release);
        (own, outer)
    }))
}

/// Records that the running task is about to wait for a request.
pub fn during_request(queue: Arc<dyn RequestPlaces>, request: u64) -> RequestWaitGuard {
    let guard = during(WaitStep::Io);
    if let Some((own, _)) = &guard.0 {
        *own.request.lock() = Some((queue, request));
    }
    RequestWaitGuard(guard)
}

/// The running task waits for a request until this is dropped.
#[must_use]
pub struct RequestWaitGuard(WaitGuard);

impl Drop for RequestWaitGuard {
    fn drop(&mut self) {
        if let Some((own, _)) = &self.0.0 {
            // This may be the last reference to the queue, which is not dropped under the lock.
            let request = own.request.lock().take();
            drop(request);
        }
    }
}

impl Drop for WaitGuard {
    fn drop(&mut self) {
        if let Some((own, outer)) = &self.0 {
            own.steps.store(*outer, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Condvar, Mutex, Rank};

    struct InDevice;

    impl RequestPlaces for InDevice {
        fn place(&self, request: u64) -> Option<&'static str> {
            (request == 7).then_some("device")
        }
    }

    #[test]
    fn steps_nest_and_end() {
        let task = crate::spawn("waits", || {
            drop(during(WaitStep::Lock));
            let waits = TaskWaits::of_task();
            assert_eq!(waits.wait(), None);
            let commit = during(WaitStep::Commit);
            let request = during_request(Arc::new(InDevice), 7);
            let shown = waits.wait().unwrap();
            assert_eq!(shown.steps, ["commit", "device"]);
            drop(request);
            assert_eq!(waits.wait().unwrap().steps, ["commit"]);
            drop(commit);
            assert_eq!(waits.wait(), None);
            let ended = during_request(Arc::new(InDevice), 8);
            assert_eq!(waits.wait().unwrap().steps, ["I/O"]);
            drop(ended);
        });
        task.join();
    }

    #[test]
    fn a_condition_is_a_step_of_its_own_only_outside_of_others() {
        let (waits, shown) = std::sync::mpsc::channel();
        let met = Arc::new((Mutex::new(Rank::Leaf, 0), Condvar::new()));
        let task = crate::spawn("waits", {
            let met = Arc::clone(&met);
            move || {
                waits.send(TaskWaits::of_task()).unwrap();
                let (met, changed) = &*met;
                let wait_until = |value| {
                    let mut met = met.lock();
                    while *met < value {
                        changed.wait(&mut met);
                    }
                };
                wait_until(1);
                let _commit = during(WaitStep::Commit);
                wait_until(2);
            }
        });
        let shown: Arc<TaskWaits> = shown.recv().unwrap();
        for (value, step) in [(1, "another request"), (2, "commit")] {
            while shown.wait().is_none_or(|wait| wait.steps != [step]) {
                crate::yield_now();
            }
            *met.0.lock() = value;
            met.1.notify_all();
        }
        task.join();
    }

    #[test]
    fn a_wait_in_deep_steps_ends_in_the_outer_one() {
        let task = crate::spawn("waits", || {
            let waits = TaskWaits::of_task();
            let outer = during(WaitStep::Flush);
            let inner = [(); 5].map(|()| during(WaitStep::Lock));
            assert_eq!(waits.wait().unwrap().steps, ["lock"; 4]);
            for guard in inner.into_iter().rev() {
                drop(guard);
            }
            assert_eq!(waits.wait().unwrap().steps, ["flush of the file"]);
            drop(outer);
            assert_eq!(waits.wait(), None);
        });
        task.join();
    }
}
