//! Whether the machine has CPU time to spare.
//!
//! Busy polling and SCHED_IDLE service threads trade CPU time for latency, which only an idle machine can afford. Rule:
//! their users compare the CPUs' idle time at the begin and end of a window of at least [`IdleWindow::LENGTH`]; the
//! machine is idle if at least half a CPU was left over.

use std::time::Duration;

use crate::{Instant, now};

/// Returns the idle time of all CPUs together since boot, or `None` if the host does not report it.
pub type IdleTimeFn = fn() -> Option<Duration>;

/// A window in which the idle time of the CPUs is measured.
pub struct IdleWindow {
    begin: Instant,
    /// The idle time when the window began.
    idle: Option<Duration>,
    idle_time: IdleTimeFn,
}

impl IdleWindow {
    /// The shortest window.
    pub const LENGTH: Duration = Duration::from_millis(100);

    /// A window that begins now.
    pub fn begin(idle_time: IdleTimeFn) -> Self {
        Self {
            begin: now(),
            idle: idle_time(),
            idle_time,
        }
    }

    /// Whether the window is at least [`IdleWindow::LENGTH`] long by now.
    pub fn is_over(&self) -> bool {
        self.begin.elapsed() >= Self::LENGTH
    }

    /// Whether at least half a CPU was idle since the window began. `spent` is CPU time that the caller used and can
    /// do without; it counts as idle. If the host reports no idle time, the answer is yes.
    pub fn had_idle_cpu(&self, spent: Duration) -> bool {
        let Some((before, idle)) = self.idle.zip((self.idle_time)()) else {
            return true;
        };
        idle.saturating_sub(before) + spent >= self.begin.elapsed() / 2
    }
}

/// The idle time of all CPUs together since boot, from proc_stat(5).
#[cfg(target_os = "linux")]
pub fn idle_time() -> Option<Duration> {
    let ticks = idle_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    let second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(
        ticks.checked_mul(1000)?.checked_div(second)?,
    ))
}

/// The idle time of all CPUs, which other hosts do not report here.
#[cfg(not(target_os = "linux"))]
pub fn idle_time() -> Option<Duration> {
    None
}

/// The sum of the columns `idle` and `iowait`, in clock ticks. (The kernel counts an idle CPU as `iowait` while one of
/// its tasks waits for a device or, in io_uring, for requests.)
#[cfg(target_os = "linux")]
fn idle_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.strip_prefix("cpu ")?.split_ascii_whitespace().skip(3);
    let mut next = || words.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_read_from_proc_stat() {
        let stat = "cpu  10132153 290696 3084719 46828483 16683 0 25195 0 175628 0\ncpu0 1 2 3 4 5";
        assert_eq!(idle_ticks(stat), Some(46_828_483 + 16_683));
        assert_eq!(idle_ticks("cpu  1 2 3 4"), None);
        assert_eq!(idle_ticks("intr 1 2 3 4 5"), None);
        assert!(idle_time().is_some());
    }

    #[test]
    fn time_that_the_caller_spent_counts_as_idle() {
        let window = IdleWindow::begin(|| Some(Duration::ZERO));
        crate::sleep(Duration::from_millis(1));
        assert!(!window.had_idle_cpu(Duration::ZERO));
        assert!(window.had_idle_cpu(Duration::from_secs(3600)));
        assert!(IdleWindow::begin(|| None).had_idle_cpu(Duration::ZERO));
    }
}
