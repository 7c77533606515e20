//! Waiting for a lone read without letting the processor sleep.
//!
//! A task that waits alone on its processor lets it sleep, and to wake it takes long, in a virtual machine
//! above all (measured: a read of 4 KiB 71 to 84 µs with a sleep, 59 to 64 without). So who waits for a single
//! read of a quick device asks again and again whether it has been answered, and offers the processor to
//! others between two questions.
//!
//! That is for machines with nothing better to do, and devices that answer soon. Rules:
//! - Only for [`PATIENCE`]; then the task sleeps as ever.
//! - Only while nobody else has requests under way: several who stay awake keep the processors from each
//!   other's requests (measured with four readers: 10 300 reads a second, 12 500 asleep).
//! - A read that was not answered by then, or during which somebody else took the processor for longer than
//!   [`TAKEN`], sends the next ones to sleep at once: twice as many each time, up to [`LONGEST`], and half as
//!   many for each that was answered.
//! - Not where less than half a processor was idle in the last window ([`IdleWindow`]), what was spent here
//!   counting as idle.
//! - Not where a quota limits the program's processor time: it would be spent on nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_rt::cpu::{IdleTimeFn, IdleWindow, has_cpu_quota, idle_time};
use steadfs_rt::{Mutex, Rank, now, yield_now};

/// For how long a task stays awake for one read.
const PATIENCE: Duration = Duration::from_micros(120);
/// An offer of the processor that lasts longer was taken.
const TAKEN: Duration = Duration::from_micros(50);
/// Reads that go to sleep at once after one that was awake for nothing: at first, and after many.
const SHORTEST: u32 = 4;
const LONGEST: u32 = 4096;

/// What those who read from a file have seen of it.
pub(super) struct Awake {
    /// Whether it may be done at all.
    allowed: bool,
    /// How many tasks have requests under way.
    busy: AtomicU32,
    /// How many reads go to sleep at once.
    asleep: AtomicU32,
    /// How many the next failure sends there.
    penalty: AtomicU32,
    /// Nanoseconds spent in this window.
    spent: AtomicU64,
    room: AtomicBool,
    window: Mutex<IdleWindow>,
    idle_time: IdleTimeFn,
}

impl Awake {
    pub(super) fn new() -> Self {
        Self::with(!has_cpu_quota(), idle_time)
    }

    fn with(allowed: bool, idle_time: IdleTimeFn) -> Self {
        Self {
            allowed,
            busy: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            penalty: AtomicU32::new(SHORTEST),
            spent: AtomicU64::new(0),
            room: AtomicBool::new(true),
            window: Mutex::new(Rank::Leaf, IdleWindow::begin(idle_time)),
            idle_time,
        }
    }

    /// The calling task has requests under way until it drops this.
    pub(super) fn enter(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    /// Whether nobody but the calling task has requests under way.
    fn is_alone(&self) -> bool {
        self.busy.load(Ordering::Relaxed) <= 1
    }

    /// Whether the next read is one to stay awake for.
    pub(super) fn is_worth_it(&self) -> bool {
        if !self.allowed || !self.is_alone() {
            return false;
        }
        let fewer = |n: u32| n.checked_sub(1);
        let relaxed = Ordering::Relaxed;
        if self.asleep.fetch_update(relaxed, relaxed, fewer).is_ok() {
            return false;
        }
        self.look();
        self.room.load(Ordering::Relaxed)
    }

    /// Judges a window that is over.
    fn look(&self) {
        let Some(mut window) = self.window.try_lock().filter(|window| window.is_over()) else {
            return;
        };
        let spent = Duration::from_nanos(self.spent.swap(0, Ordering::Relaxed));
        self.room
            .store(window.had_idle_cpu(spent), Ordering::Relaxed);
        *window = IdleWindow::begin(self.idle_time);
    }

    /// Returns when `is_answered` says so, or the task had better sleep.
    pub(super) fn wait(&self, mut is_answered: impl FnMut() -> bool) {
        let begin = now();
        let mut last = begin;
        loop {
            if is_answered() {
                self.learn(true);
                break;
            }
            if !self.is_alone() {
                break;
            }
            yield_now();
            let at = now();
            if at - last > TAKEN || at - begin > PATIENCE {
                self.learn(false);
                break;
            }
            last = at;
        }
        let spent = u64::try_from((last - begin).as_nanos()).unwrap_or(u64::MAX);
        self.spent.fetch_add(spent, Ordering::Relaxed);
    }

    fn learn(&self, answered: bool) {
        let penalty = self.penalty.load(Ordering::Relaxed);
        if answered {
            let less = (penalty / 2).max(SHORTEST);
            self.penalty.store(less, Ordering::Relaxed);
        } else {
            self.asleep.store(penalty, Ordering::Relaxed);
            let more = (penalty * 2).min(LONGEST);
            self.penalty.store(more, Ordering::Relaxed);
        }
    }
}

/// Somebody has requests under way.
pub(super) struct Busy<'a>(&'a Awake);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_machine() -> Awake {
        Awake::with(true, || None)
    }

    /// How many reads go to sleep until one does not.
    fn asleep(awake: &Awake) -> u32 {
        (0..).find(|_| awake.is_worth_it()).expect("some time")
    }

    #[test]
    fn a_slow_device_is_left_alone_ever_longer() {
        let awake = idle_machine();
        assert_eq!(asleep(&awake), 0);
        for n in [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096] {
            awake.wait(|| false);
            assert_eq!(asleep(&awake), n);
        }
    }

    #[test]
    fn a_device_that_is_quick_again_is_trusted_again() {
        let awake = idle_machine();
        for _ in 0..4 {
            awake.wait(|| false);
        }
        assert_eq!(asleep(&awake), 32);
        for _ in 0..4 {
            awake.wait(|| true);
            assert_eq!(asleep(&awake), 0);
        }
        awake.wait(|| false);
        assert_eq!(asleep(&awake), 4);
    }

    #[test]
    fn who_is_not_answered_soon_sleeps() {
        let begin = now();
        idle_machine().wait(|| false);
        assert!(begin.elapsed() >= TAKEN);
    }

    #[test]
    fn several_sleep_and_that_is_nobodys_fault() {
        let awake = idle_machine();
        let _one = awake.enter();
        assert!(awake.is_worth_it());
        let other = awake.enter();
        assert!(!awake.is_worth_it());
        awake.wait(|| false);
        drop(other);
        assert_eq!(asleep(&awake), 0);
    }

    #[test]
    fn a_busy_machine_and_a_quota_leave_no_room() {
        let busy = Awake::with(true, || Some(Duration::ZERO));
        steadfs_rt::sleep(IdleWindow::LENGTH);
        assert!(!busy.is_worth_it());
        // It asks no more before the next window, and then what it spent is room.
        assert!(!busy.is_worth_it());
        busy.spent.store(3_600_000_000_000, Ordering::Relaxed);
        steadfs_rt::sleep(IdleWindow::LENGTH);
        assert!(busy.is_worth_it());
        assert!(!Awake::with(false, || None).is_worth_it());
    }
}
