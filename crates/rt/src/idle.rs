//! Whether the machine has processors to spare.

use std::time::Duration;

use crate::{Instant, now};

/// Tells for how long the processors have had nothing to do since the machine started, all together; `None`
/// where the system does not tell.
pub type IdleTime = fn() -> Option<Duration>;

/// A time in which processors may be idle.
pub struct IdleWindow {
    begin: Instant,
    /// Idle time until then.
    idle: Option<Duration>,
    idle_time: IdleTime,
}

impl IdleWindow {
    /// How long one lasts at least.
    pub const LENGTH: Duration = Duration::from_millis(100);

    /// One that begins now.
    pub fn begin(idle_time: IdleTime) -> Self {
        Self {
            begin: now(),
            idle: idle_time(),
            idle_time,
        }
    }

    /// Whether it has lasted long enough to judge by it.
    pub fn is_over(&self) -> bool {
        self.begin.elapsed() >= Self::LENGTH
    }

    /// Whether at least half a processor was left over since it began, `used` of it by who asks and would do
    /// without. Where the system does not tell, it was.
    pub fn had_idle_cpu(&self, used: Duration) -> bool {
        let Some((before, idle)) = self.idle.zip((self.idle_time)()) else {
            return true;
        };
        idle.saturating_sub(before) + used >= self.begin.elapsed() / 2
    }
}

/// For how long the processors had nothing to do since the machine started, all together.
pub fn idle_time() -> Option<Duration> {
    let ticks = idle_ticks(&std::fs::read_to_string("/proc/stat").ok()?)?;
    let second = rustix::param::clock_ticks_per_second();
    Some(Duration::from_millis(
        ticks.checked_mul(1000)?.checked_div(second)?,
    ))
}

/// The sum of "idle" and "iowait" of proc_stat(5), in clock ticks. (A processor whose tasks wait for a device
/// or for requests counts as waiting for I/O.)
fn idle_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.strip_prefix("cpu ")?.split_ascii_whitespace().skip(3);
    let mut next = || words.next()?.parse::<u64>().ok();
    next()?.checked_add(next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_read() {
        let stat = "cpu  10132153 290696 3084719 46828483 16683 0 25195 0 175628 0\ncpu0 1 2 3 4 5";
        assert_eq!(idle_ticks(stat), Some(46_828_483 + 16_683));
        assert_eq!(idle_ticks("cpu  1 2 3 4"), None);
        assert_eq!(idle_ticks("intr 1 2 3 4 5"), None);
        assert!(idle_time().is_some());
    }

    #[test]
    fn what_is_used_by_who_asks_is_room() {
        let window = IdleWindow::begin(|| Some(Duration::ZERO));
        crate::sleep(Duration::from_millis(1));
        assert!(!window.had_idle_cpu(Duration::ZERO));
        assert!(window.had_idle_cpu(Duration::from_secs(3600)));
        assert!(IdleWindow::begin(|| None).had_idle_cpu(Duration::ZERO));
    }
}
