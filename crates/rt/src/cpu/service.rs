//! Service threads are SCHED_IDLE while they serve, so that a caller keeps its CPU.
//!
//! Problem: a reply wakes the caller, and the kernel searches an idle CPU to wake it on. The caller's own CPU is busy
//! with the service thread that replies, so the kernel moves the caller, with an interrupt to a CPU that sleeps. That
//! costs more than all work of the server (measured on 2 CPUs of a virtual machine: 68 µs to create a file, 34 µs if
//! the caller stays). The kernel's search counts a CPU that runs only SCHED_IDLE threads as idle (`sched_idle_cpu`).
//!
//! Rule: a service thread with a streak of requests is SCHED_IDLE. The caller takes the CPU over at once, and the
//! service thread continues when the caller sleeps.
//!
//! Problem: if other programs want the CPU, a SCHED_IDLE thread hardly runs. Rule: a monitor samples the threads every
//! [`SAMPLE_INTERVAL`]. A thread that is runnable and makes no progress becomes SCHED_OTHER again, and needs a streak
//! twice as long as before to become SCHED_IDLE once more; an idle thread becomes SCHED_OTHER at once. So other
//! programs delay a request by two samples in up to [`STREAK_MAX`] requests, and never the first request after a pause.
//!
//! Problem: other programs that leave a part of the CPU slow down each request a little. If several callers share that
//! part, one of them runs while another, whose request waits, holds the lock of its directory in the kernel. (Measured
//! beside two busy processes of nice 10, medians, fs_mark with 4 threads: 13 800 files/s, and 16 200 without
//! SCHED_IDLE.) Rule: threads become SCHED_IDLE only on machines with an idle CPU to which the caller would be moved.
//! The monitor measures that every [`IdleWindow::LENGTH`]; with less than half an idle CPU all threads are SCHED_OTHER.
//!
//! Problem: requests with much data to copy, and requests that wait for the device, take long. If they ran as
//! SCHED_IDLE, the threads that write a stream to the device would take the CPU from the thread that feeds it.
//! (Measured on a busy machine, medians of seven rounds, old and new in turn, a stream of 1 MiB writes: 575 MiB/s with
//! SCHED_IDLE, 647 MiB/s without.) Rule: [`ServiceThread::before_long_request`] makes a thread SCHED_OTHER.
//!
//! Problem: where an fsync follows every few requests, threads would change their policy all the time, by two system
//! calls, or by a question to another process (850 a second beside four callers that create and fsync files). Rule: a
//! thread that a long request makes SCHED_OTHER needs a streak twice as long as before, up to [`STREAK_MIXED_MAX`].
//! (Medians of seven rounds, fs_mark with an fsync for each file: 5 % more files/s, in a contained server 13 %.)
//!
//! A thread needs CAP_SYS_NICE to leave SCHED_IDLE, or another process that has it
//! ([`help_threads_by`](super::help_threads_by)); without it all threads stay SCHED_OTHER.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{Pid, gettid};

use super::policy::{SchedPolicy, is_runnable, policy_of, set_policy, state_of};
use super::{IdleTimeFn, IdleWindow, idle_time};
use crate::{Condvar, Mutex, Rank, now};

/// Time between two samples of the monitor while a thread is SCHED_IDLE.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);
/// Samples without a request after which a thread becomes SCHED_OTHER.
const QUIET_SAMPLES: u32 = 4;
/// Samples in which a thread is runnable after which it counts as starved, if it serves fewer than
/// [`BUSY_REQUESTS`] from one sample to the next.
const STARVED_SAMPLES: u32 = 2;
const BUSY_REQUESTS: u64 = 8;
/// Samples with at least [`BUSY_REQUESTS`] after which the needed streak is halved.
const GOOD_SAMPLES: u32 = 16;
/// The streak that a thread needs to become SCHED_IDLE: requests in a row, each less than [`STREAK_GAP_NS`] after the
/// one before. The minimum, with which a thread begins, and the maximum, after many starvations.
const STREAK_MIN: u64 = 8;
const STREAK_MAX: u64 = 1 << 16;
/// The maximum after many long requests.
const STREAK_MIXED_MAX: u64 = 1 << 10;
const STREAK_GAP_NS: u64 = 1_000_000;

/// The service threads of a mount, shared with their monitor.
pub struct ServiceThreads {
    /// The monitor runs, and threads can leave SCHED_IDLE.
    monitored: AtomicBool,
    /// A CPU was idle in the last window.
    has_idle_cpu: AtomicBool,
    /// A thread had the streak to become SCHED_IDLE, and no CPU was idle.
    refused: AtomicBool,
    idle_time: IdleTimeFn,
    state: Mutex<MonitorState>,
    changed: Condvar,
}

struct MonitorState {
    threads: Vec<MonitoredThread>,
    /// The monitor has something to sample: a thread is SCHED_IDLE, or was refused to be.
    sampling: bool,
    ended: bool,
}

/// A thread as the monitor sees it: its counters since they were last reset.
struct MonitoredThread {
    shared: Arc<SharedThread>,
    served: u64,
    quiet_samples: u32,
    starved_samples: u32,
    good_samples: u32,
}

/// What a service thread and the monitor share.
struct SharedThread {
    tid: Pid,
    is_idle_policy: AtomicBool,
    served: AtomicU64,
    /// The streak that the thread needs to become SCHED_IDLE.
    needed_streak: AtomicU64,
}

/// The calling thread's membership in [`ServiceThreads`], until it is dropped.
pub struct ServiceThread {
    threads: Arc<ServiceThreads>,
    shared: Arc<SharedThread>,
    last_reply_ns: u64,
    streak: u64,
}

impl ServiceThreads {
    /// An empty group. Its threads stay SCHED_OTHER until [`ServiceThreads::monitor`] runs.
    pub fn new() -> Arc<Self> {
        Self::with_idle_time(idle_time)
    }

    fn with_idle_time(idle_time: IdleTimeFn) -> Arc<Self> {
        let state = MonitorState {
            threads: Vec::new(),
            sampling: false,
            ended: false,
        };
        Arc::new(Self {
            monitored: AtomicBool::new(false),
            has_idle_cpu: AtomicBool::new(true),
            refused: AtomicBool::new(false),
            idle_time,
            state: Mutex::new(Rank::Leaf, state),
            changed: Condvar::new(),
        })
    }

    /// Adds the calling thread.
    pub fn join(self: &Arc<Self>) -> ServiceThread {
        let shared = Arc::new(SharedThread {
            tid: gettid(),
            is_idle_policy: AtomicBool::new(false),
            served: AtomicU64::new(0),
            needed_streak: AtomicU64::new(STREAK_MIN),
        });
        self.state.lock().threads.push(MonitoredThread {
            shared: Arc::clone(&shared),
            served: 0,
            quiet_samples: 0,
            starved_samples: 0,
            good_samples: 0,
        });
        ServiceThread {
            threads: Arc::clone(self),
            shared,
            last_reply_ns: 0,
            streak: 0,
        }
    }

    /// The monitor: samples the threads until all have ended.
    ///
    /// # Errors
    /// The threads cannot change their policy (no CAP_SYS_NICE, or a policy that an administrator has set). They stay
    /// as they are, and the kernel may move callers between CPUs.
    pub fn monitor(&self) -> io::Result<()> {
        check_policy_change()?;
        self.monitored.store(true, Ordering::Release);
        let mut window = IdleWindow::begin(self.idle_time);
        while self.wait_for_sample(&mut window) {
            let mut refused = self.refused.load(Ordering::Relaxed);
            if window.is_over() {
                self.has_idle_cpu
                    .store(window.had_idle_cpu(Duration::ZERO), Ordering::Relaxed);
                window = IdleWindow::begin(self.idle_time);
                refused = false;
                self.refused.store(false, Ordering::Relaxed);
            }
            let has_idle_cpu = self.has_idle_cpu.load(Ordering::Relaxed);
            let mut state = self.state.lock();
            let mut any_idle_policy = false;
            for thread in &mut state.threads {
                any_idle_policy |= thread.sample(has_idle_cpu);
            }
            state.sampling = any_idle_policy || refused;
        }
        Ok(())
    }

    /// Waits until there is something to sample, and then for the sample's time; returns false at the end.
    fn wait_for_sample(&self, window: &mut IdleWindow) -> bool {
        let mut state = self.state.lock();
        if !state.sampling && !state.ended {
            while !state.sampling && !state.ended {
                self.changed.wait(&mut state);
            }
            *window = IdleWindow::begin(self.idle_time);
        }
        let ended = state.ended;
        drop(state);
        if !ended {
            let has_idle_cpu = self.has_idle_cpu.load(Ordering::Relaxed);
            crate::sleep(if has_idle_cpu {
                SAMPLE_INTERVAL
            } else {
                IdleWindow::LENGTH
            });
        }
        !ended
    }

    /// Records that a thread was refused SCHED_IDLE: the monitor measures a window.
    fn refuse(&self) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            self.start_sampling();
        }
    }

    fn start_sampling(&self) {
        let mut state = self.state.lock();
        if !state.sampling {
            state.sampling = true;
            self.changed.notify_all();
        }
    }
}

impl MonitoredThread {
    /// Judges a thread if it is SCHED_IDLE; returns whether it still is.
    fn sample(&mut self, has_idle_cpu: bool) -> bool {
        let thread = &self.shared;
        if !thread.is_idle_policy.load(Ordering::Acquire) {
            return false;
        }
        if !has_idle_cpu {
            (self.quiet_samples, self.starved_samples) = (0, 0);
            thread.leave_idle_policy();
            return false;
        }
        let served = thread.served.load(Ordering::Acquire);
        let done = served - std::mem::replace(&mut self.served, served);
        if done >= BUSY_REQUESTS {
            (self.quiet_samples, self.starved_samples) = (0, 0);
            self.good_samples += 1;
            if self.good_samples == GOOD_SAMPLES {
                self.good_samples = 0;
                thread.change_needed_streak(|n| (n / 2).max(STREAK_MIN));
            }
            return true;
        }
        self.good_samples = 0;
        self.quiet_samples = if done == 0 { self.quiet_samples + 1 } else { 0 };
        self.starved_samples = if is_runnable(thread.tid) {
            self.starved_samples + 1
        } else {
            0
        };
        let starved = self.starved_samples >= STARVED_SAMPLES;
        if starved {
            thread.change_needed_streak(|n| (n * 2).min(STREAK_MAX));
        }
        if starved || self.quiet_samples >= QUIET_SAMPLES {
            (self.quiet_samples, self.starved_samples) = (0, 0);
            thread.leave_idle_policy();
            return false;
        }
        true
    }
}

impl SharedThread {
    /// The monitor and the thread call this. Load and store need not be one step: if one of two changes at the same time is
    /// lost, the next requests make it again.
    fn change_needed_streak(&self, change: impl FnOnce(u64) -> u64) {
        let needed = self.needed_streak.load(Ordering::Relaxed);
        self.needed_streak.store(change(needed), Ordering::Relaxed);
    }

    /// Makes the thread SCHED_OTHER.
    fn leave_idle_policy(&self) {
        self.is_idle_policy.store(false, Ordering::Release);
        // Fails if the thread has ended, and then there is nothing to do.
        drop(set_policy(self.tid, SchedPolicy::Normal));
    }
}

impl ServiceThread {
    /// Called before each reply.
    pub fn before_reply(&mut self) {
        self.shared.served.fetch_add(1, Ordering::Release);
        if self.shared.is_idle_policy.load(Ordering::Acquire) {
            return;
        }
        let at = now().0;
        let in_streak = at - self.last_reply_ns < STREAK_GAP_NS;
        self.streak = if in_streak { self.streak + 1 } else { 0 };
        self.last_reply_ns = at;
        let needed = self.shared.needed_streak.load(Ordering::Relaxed);
        if self.streak >= needed && self.threads.monitored.load(Ordering::Acquire) {
            self.enter_idle_policy();
        }
    }

    /// Called before a request that copies much data, or does I/O and waits for it: its thread must not wait for a CPU
    /// in addition.
    pub fn before_long_request(&mut self) {
        self.streak = 0;
        if self.shared.is_idle_policy.load(Ordering::Acquire) {
            self.shared
                .change_needed_streak(|n| (n * 2).min(STREAK_MIXED_MAX.max(n)));
            self.shared.leave_idle_policy();
        }
    }

    /// Makes the thread SCHED_IDLE if the machine has an idle CPU.
    fn enter_idle_policy(&mut self) {
        self.streak = 0;
        if !self.threads.has_idle_cpu.load(Ordering::Relaxed) {
            self.threads.refuse();
            return;
        }
        self.shared.is_idle_policy.store(true, Ordering::Release);
        self.threads.start_sampling();
        // Last, and without the lock: the monitor must never wait for a SCHED_IDLE thread.
        let lowered = set_policy(self.shared.tid, SchedPolicy::Idle);
        if lowered.is_err() || !self.shared.is_idle_policy.load(Ordering::Acquire) {
            // The monitor has made the thread SCHED_OTHER in between.
            self.shared.leave_idle_policy();
        }
    }
}

impl Drop for ServiceThread {
    fn drop(&mut self) {
        let mut state = self.threads.state.lock();
        state
            .threads
            .retain(|thread| !Arc::ptr_eq(&thread.shared, &self.shared));
        if state.threads.is_empty() {
            state.ended = true;
            self.threads.changed.notify_all();
        }
    }
}

/// Checks that this thread can become SCHED_IDLE and SCHED_OTHER again, and can read the state of other threads. If it
/// cannot leave SCHED_IDLE, it stays SCHED_IDLE.
fn check_policy_change() -> io::Result<()> {
    let me = gettid();
    if policy_of(me)? != SchedPolicy::Normal {
        return Err(io::Error::other(
            "an administrator has set the scheduling policy of this process",
        ));
    }
    state_of(me).ok_or_else(|| io::Error::other("/proc does not show this process's threads"))?;
    set_policy(me, SchedPolicy::Idle)?;
    set_policy(me, SchedPolicy::Normal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> SchedPolicy {
        policy_of(gettid()).expect("the thread lives and has a policy")
    }

    /// Runs `run` as a service thread under a monitor; its second argument is whether such threads can change their
    /// policy.
    fn with_service_thread(idle_time: IdleTimeFn, run: impl FnOnce(&mut ServiceThread, bool)) {
        let threads = ServiceThreads::with_idle_time(idle_time);
        let monitor = {
            let threads = Arc::clone(&threads);
            crate::spawn("monitor", move || threads.monitor().is_ok())
        };
        // A separate thread, since it may stay SCHED_IDLE.
        let can_change = crate::spawn("probe", || check_policy_change().is_ok()).join();
        let mut thread = threads.join();
        run(&mut thread, can_change);
        drop(thread);
        monitor.join();
    }

    /// Replies until `done`, for at most `limit`; returns whether it was done.
    fn reply_until(
        thread: &mut ServiceThread,
        limit: Duration,
        done: impl Fn(&ServiceThread) -> bool,
    ) -> bool {
        let begin = now();
        while begin.elapsed() < limit {
            // On a busy machine only replies without a pause are in one streak.
            for _ in 0..4 * STREAK_MIN {
                thread.before_reply();
                if done(thread) {
                    return true;
                }
            }
            crate::sleep(Duration::from_micros(10));
        }
        false
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_busy_thread_is_sched_idle_until_it_is_quiet() {
        with_service_thread(
            || None,
            |thread, can_change| {
                // The monitor may begin late.
                let limit = if can_change {
                    LONG
                } else {
                    Duration::from_millis(20)
                };
                let is_idle = reply_until(thread, limit, |_| policy() == SchedPolicy::Idle);
                assert_eq!(is_idle, can_change);
                let begin = now();
                while policy() != SchedPolicy::Normal {
                    assert!(begin.elapsed() < LONG, "a quiet thread is SCHED_OTHER");
                    crate::sleep(Duration::from_millis(1));
                }
            },
        );
    }

    #[test]
    fn long_requests_between_short_ones_need_longer_streaks() {
        with_service_thread(
            || None,
            |thread, can_change| {
                if !can_change {
                    return;
                }
                let needed =
                    |thread: &ServiceThread| thread.shared.needed_streak.load(Ordering::Relaxed);
                let is_idle = |_: &ServiceThread| policy() == SchedPolicy::Idle;
                let mut longer = |before: u64| {
                    // On a busy machine the monitor may come in between.
                    (0..20).any(|_| {
                        assert!(reply_until(thread, LONG, is_idle));
                        thread.shared.needed_streak.store(before, Ordering::Relaxed);
                        thread.before_long_request();
                        needed(thread) > before
                    })
                };
                assert!(longer(STREAK_MIN));
                assert!(!longer(STREAK_MIXED_MAX));
                assert_eq!(policy(), SchedPolicy::Normal);
                thread
                    .shared
                    .needed_streak
                    .store(STREAK_MIN, Ordering::Relaxed);
                // Of a thread that is SCHED_OTHER a long request says nothing.
                thread.before_long_request();
                assert_eq!(needed(thread), STREAK_MIN);
            },
        );
    }

    #[test]
    fn threads_stay_sched_other_without_an_idle_cpu() {
        with_service_thread(
            || Some(Duration::ZERO),
            |thread, can_change| {
                if !can_change {
                    return;
                }
                let is_measured =
                    |thread: &ServiceThread| !thread.threads.has_idle_cpu.load(Ordering::Relaxed);
                assert!(reply_until(thread, LONG, is_measured));
                // SCHED_IDLE before the window ended, the thread becomes SCHED_OTHER, and stays that.
                assert!(reply_until(thread, LONG, |_| policy() == SchedPolicy::Normal));
                for _ in 0..1000 {
                    thread.before_reply();
                    assert_eq!(policy(), SchedPolicy::Normal);
                }
            },
        );
    }
}
