//! Callers keep their CPU.
//!
//! A reply wakes its caller, and the kernel looks for an idle CPU to wake it on. The caller's own is
//! busy with us, who reply; so the caller moves, with an interrupt to a CPU that sleeps, and that costs
//! more than all our work (measured on 2 CPUs of a virtual machine: 68 µs to make a file, 34 when the
//! caller stays). For that choice a CPU that runs nothing but SCHED_IDLE threads counts as idle. So a
//! service thread under way is SCHED_IDLE: the caller takes the CPU over at once, and the thread goes
//! on when the caller sleeps.
//!
//! Problem: where other work wants the CPU, a SCHED_IDLE thread hardly runs. Rule: a watch looks every
//! [`LOOK`]. A thread that wants to run and gets nothing done is normal again, and is so for twice as
//! many requests as the last time before it tries once more; one that has nothing to do is normal
//! again at once. So other work delays a request by two looks in up to [`LONGEST`] requests, and the
//! first request after a pause not at all.
//!
//! Problem: other work that leaves a little of the CPU slows each request a little, and where several
//! callers share it one of them runs while another, whose request waits, holds his directory's lock in the
//! kernel. (Measured beside two busy processes of nice 10, medians: fs_mark with 4 threads 13 800 files a
//! second, 16 200 without courtesy.) Rule: courtesy is for machines where a CPU is idle that the caller could
//! be moved to. The watch asks every [`IdleWindow::LENGTH`], and where less than half a CPU's time was left over nobody
//! gives way.
//!
//! Requests that come with much to copy work long, as those do that wait for the device: nobody gives way for
//! them, or the threads that write the stream to the device would take the CPU from the one that feeds it.
//! (Measured on a busy machine, medians of seven rounds in turn: a stream of 1 MiB writes 575 MiB/s where threads
//! gave way, 647 where they did not.)
//!
//! Coming back from SCHED_IDLE takes CAP_SYS_NICE; a daemon without it stays as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::thread::{Pid, gettid};
use steadfs_rt::{Condvar, IdleTime, IdleWindow, Mutex, Rank, idle_time, now};

use crate::sys::{self, Policy};

/// How often the watch looks while a thread is SCHED_IDLE.
const LOOK: Duration = Duration::from_millis(2);
/// Looks without a request after which a thread is normal again.
const QUIET: u32 = 4;
/// Looks after which a thread that wants to run counts as starved, if it serves less than
/// [`LITTLE`] from one to the next.
const STARVED: u32 = 2;
const LITTLE: u64 = 8;
/// Looks with more than that, after which a thread is trusted twice as much.
const GOOD: u32 = 16;
/// Requests in a row, each within [`NEAR`] nanoseconds of the last, before a thread becomes
/// SCHED_IDLE: at first and at least, and after many starvations.
const SHORTEST: u64 = 8;
const LONGEST: u64 = 1 << 16;
const NEAR: u64 = 1_000_000;

/// What the service threads of a mount and their watch share.
pub struct Courtesy {
    /// The watch runs, and threads can come back.
    watched: AtomicBool,
    /// In the last window some CPU was idle.
    room: AtomicBool,
    /// Somebody would give way if there were room.
    asked: AtomicBool,
    /// For how long the CPUs have had nothing to do, all together, if the system tells.
    idle_time: IdleTime,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    members: Vec<Watched>,
    /// Some thread is SCHED_IDLE: the watch looks.
    looking: bool,
    over: bool,
}

/// A thread as the watch sees it.
struct Watched {
    thread: Arc<Thread>,
    served: u64,
    quiet: u32,
    starved: u32,
    good: u32,
}

struct Thread {
    tid: Pid,
    idle: AtomicBool,
    served: AtomicU64,
    /// The streak it takes to become SCHED_IDLE.
    needed: AtomicU64,
}

/// A service thread's membership, ended by dropping it.
pub struct Place {
    courtesy: Arc<Courtesy>,
    thread: Arc<Thread>,
    last: u64,
    streak: u64,
}

impl Courtesy {
    /// For threads to join; nobody is courteous before [`Courtesy::watch`] runs.
    pub fn new() -> Arc<Self> {
        Self::with(idle_time)
    }

    fn with(idle_time: IdleTime) -> Arc<Self> {
        let state = State {
            members: Vec::new(),
            looking: false,
            over: false,
        };
        Arc::new(Self {
            watched: AtomicBool::new(false),
            room: AtomicBool::new(true),
            asked: AtomicBool::new(false),
            idle_time,
            state: Mutex::new(Rank::Leaf, state),
            changed: Condvar::new(),
        })
    }

    /// The calling thread's place.
    pub fn join(self: &Arc<Self>) -> Place {
        let thread = Arc::new(Thread {
            tid: gettid(),
            idle: AtomicBool::new(false),
            served: AtomicU64::new(0),
            needed: AtomicU64::new(SHORTEST),
        });
        self.state.lock().members.push(Watched {
            thread: Arc::clone(&thread),
            served: 0,
            quiet: 0,
            starved: 0,
            good: 0,
        });
        Place {
            courtesy: Arc::clone(self),
            thread,
            last: 0,
            streak: 0,
        }
    }

    /// The watch's life, until all threads are gone.
    pub fn watch(&self) {
        if let Err(error) = may_return() {
            tracing::debug!(%error, "callers may move between CPUs");
            return;
        }
        self.watched.store(true, Ordering::Release);
        let mut window = IdleWindow::begin(self.idle_time);
        while self.sleep(&mut window) {
            let mut asks = self.asked.load(Ordering::Relaxed);
            if window.is_over() {
                self.room
                    .store(window.had_idle_cpu(Duration::ZERO), Ordering::Relaxed);
                window = IdleWindow::begin(self.idle_time);
                asks = false;
                self.asked.store(false, Ordering::Relaxed);
            }
            let room = self.room.load(Ordering::Relaxed);
            let mut state = self.state.lock();
            let mut left = false;
            for watched in &mut state.members {
                left |= watched.look(room);
            }
            state.looking = left || asks;
        }
    }

    /// Waits until there is something to look at, and for the time of the look; false at the end.
    fn sleep(&self, window: &mut IdleWindow) -> bool {
        let mut state = self.state.lock();
        if !state.looking && !state.over {
            while !state.looking && !state.over {
                self.changed.wait(&mut state);
            }
            *window = IdleWindow::begin(self.idle_time);
        }
        let over = state.over;
        drop(state);
        if !over {
            let room = self.room.load(Ordering::Relaxed);
            steadfs_rt::sleep(if room { LOOK } else { IdleWindow::LENGTH });
        }
        !over
    }

    /// Lets the watch look.
    fn ask(&self) {
        if !self.asked.swap(true, Ordering::Relaxed) {
            self.look();
        }
    }

    fn look(&self) {
        let mut state = self.state.lock();
        if !state.looking {
            state.looking = true;
            self.changed.notify_all();
        }
    }
}

impl Watched {
    /// Judges a thread, if it is SCHED_IDLE; whether it still is.
    fn look(&mut self, room: bool) -> bool {
        let thread = &self.thread;
        if !thread.idle.load(Ordering::Acquire) {
            return false;
        }
        if !room {
            (self.quiet, self.starved) = (0, 0);
            thread.raise();
            return false;
        }
        let served = thread.served.load(Ordering::Acquire);
        let done = served - std::mem::replace(&mut self.served, served);
        if done >= LITTLE {
            (self.quiet, self.starved) = (0, 0);
            self.good += 1;
            if self.good == GOOD {
                self.good = 0;
                thread.change_needed(|n| (n / 2).max(SHORTEST));
            }
            return true;
        }
        self.good = 0;
        self.quiet = if done == 0 { self.quiet + 1 } else { 0 };
        self.starved = if wants_to_run(thread.tid) {
            self.starved + 1
        } else {
            0
        };
        let starved = self.starved >= STARVED;
        if starved {
            thread.change_needed(|n| (n * 2).min(LONGEST));
        }
        if starved || self.quiet >= QUIET {
            (self.quiet, self.starved) = (0, 0);
            thread.raise();
            return false;
        }
        true
    }
}

impl Thread {
    /// Only the watch calls this.
    fn change_needed(&self, change: impl FnOnce(u64) -> u64) {
        let needed = self.needed.load(Ordering::Relaxed);
        self.needed.store(change(needed), Ordering::Relaxed);
    }

    fn raise(&self) {
        self.idle.store(false, Ordering::Release);
        // A thread that is gone needs nothing.
        drop(sys::set_policy(self.tid, Policy::Normal));
    }
}

impl Place {
    /// Called before each reply.
    pub fn replies(&mut self) {
        self.thread.served.fetch_add(1, Ordering::Release);
        if self.thread.idle.load(Ordering::Acquire) {
            return;
        }
        let at = now().0;
        let near = at - self.last < NEAR;
        self.streak = if near { self.streak + 1 } else { 0 };
        self.last = at;
        let needed = self.thread.needed.load(Ordering::Relaxed);
        if self.streak >= needed && self.courtesy.watched.load(Ordering::Acquire) {
            self.give_way();
        }
    }

    /// Called before a request that does I/O and waits for others: it must not wait for a CPU besides.
    pub fn works_long(&mut self) {
        self.streak = 0;
        if self.thread.idle.load(Ordering::Acquire) {
            self.thread.raise();
        }
    }

    fn give_way(&mut self) {
        self.streak = 0;
        if !self.courtesy.room.load(Ordering::Relaxed) {
            self.courtesy.ask();
            return;
        }
        self.thread.idle.store(true, Ordering::Release);
        self.courtesy.look();
        // Last, and without the lock: the watch must never wait for a SCHED_IDLE thread.
        let lowered = sys::set_policy(self.thread.tid, Policy::Idle);
        if lowered.is_err() || !self.thread.idle.load(Ordering::Acquire) {
            // The watch ended the courtesy meanwhile.
            self.thread.raise();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.courtesy.state.lock();
        state
            .members
            .retain(|w| !Arc::ptr_eq(&w.thread, &self.thread));
        if state.members.is_empty() {
            state.over = true;
            self.courtesy.changed.notify_all();
        }
    }
}

/// Whether this thread can become SCHED_IDLE and normal again, and see what other threads do. Leaves it
/// SCHED_IDLE if not.
fn may_return() -> std::io::Result<()> {
    let me = gettid();
    if sys::policy_of(me)? != Policy::Normal {
        return Err(std::io::Error::other(
            "the daemon's policy was chosen by others",
        ));
    }
    state_of(me).ok_or_else(|| std::io::Error::other("/proc does not show our threads"))?;
    sys::set_policy(me, Policy::Idle)?;
    sys::set_policy(me, Policy::Normal)
}

fn wants_to_run(tid: Pid) -> bool {
    state_of(tid) == Some(b'R')
}

/// The letter proc(5) gives for a thread's state.
fn state_of(tid: Pid) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/self/task/{}/stat", tid.as_raw_nonzero())).ok()?;
    // "tid (name) state ..."; the name may hold anything.
    let end = stat.iter().rposition(|&b| b == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        sys::policy_of(gettid()).expect("the policy of a living thread")
    }

    /// A thread that serves request after request under a watch, and whether such threads can give way.
    fn serving(idle_time: IdleTime, run: impl FnOnce(&mut Place, bool)) {
        let courtesy = Courtesy::with(idle_time);
        let watch = {
            let courtesy = Arc::clone(&courtesy);
            steadfs_rt::spawn("watch", move || courtesy.watch())
        };
        // A thread of its own, which may stay SCHED_IDLE where it cannot come back.
        let can = steadfs_rt::spawn("probe", || may_return().is_ok()).join();
        let mut place = courtesy.join();
        run(&mut place, can);
        drop(place);
        watch.join();
    }

    /// Replies until `done`, for as long as `limit`; whether it was.
    fn reply_until(place: &mut Place, limit: Duration, done: impl Fn(&Place) -> bool) -> bool {
        let begin = now();
        while begin.elapsed() < limit {
            // Where the machine is busy only replies without a pause are near each other.
            for _ in 0..4 * SHORTEST {
                place.replies();
                if done(place) {
                    return true;
                }
            }
            steadfs_rt::sleep(Duration::from_micros(10));
        }
        false
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_busy_thread_gives_way_and_comes_back_when_it_is_quiet() {
        serving(
            || None,
            |place, can| {
                // The watch may begin late.
                let limit = if can { LONG } else { Duration::from_millis(20) };
                let gave_way = reply_until(place, limit, |_| policy() == Policy::Idle);
                assert_eq!(gave_way, can);
                let begin = now();
                while policy() != Policy::Normal {
                    assert!(begin.elapsed() < LONG, "quiet");
                    steadfs_rt::sleep(Duration::from_millis(1));
                }
            },
        );
    }

    #[test]
    fn nobody_gives_way_where_no_cpu_is_idle() {
        serving(
            || Some(Duration::ZERO),
            |place, can| {
                if !can {
                    return;
                }
                let crowded = |place: &Place| !place.courtesy.room.load(Ordering::Relaxed);
                assert!(reply_until(place, LONG, crowded));
                // Lowered just before, it is normal again; and then it stays so.
                assert!(reply_until(place, LONG, |_| policy() == Policy::Normal));
                for _ in 0..1000 {
                    place.replies();
                    assert_eq!(policy(), Policy::Normal);
                }
            },
        );
    }

    #[test]
    fn states_are_read() {
        assert_eq!(state_of(gettid()), Some(b'R'));
    }
}
