//! Multigrain timestamps, as in Linux since 6.13: coarse, unless a reader could otherwise miss that a file changed
//! between two reads of its times.
//!
//! Problem: a timestamp that changes with every write makes every fsync of an overwritten file a journal commit. Rule:
//! a write gets the time of the last tick (4 ms), and a fine one only if the times it replaces have been queried. Of
//! two files the one written later never has the earlier time: a coarse time is never before the last fine one.

use std::sync::atomic::{AtomicI64, Ordering};

use steadfs_base::Timestamp;
use steadfs_rt::wall_clock;

/// Length of a tick: that of a kernel with CONFIG_HZ=250.
const TICK_NANOS: i64 = 4_000_000;
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The source of a volume's timestamps.
#[derive(Default)]
pub struct Clock {
    /// The latest fine timestamp, in nanoseconds since 1970.
    floor: AtomicI64,
}

impl Clock {
    /// The current time.
    pub fn fine(&self) -> Timestamp {
        let now = wall_clock();
        self.floor.fetch_max(nanos(now), Ordering::AcqRel);
        now
    }

    /// The time of the last tick, or the last fine timestamp if that is later.
    pub fn coarse(&self) -> Timestamp {
        let now = nanos(wall_clock());
        let tick = now - now.rem_euclid(TICK_NANOS);
        let floor = self.floor.load(Ordering::Acquire);
        // After the clock was set back, the floor does not apply.
        stamp(if floor <= now { tick.max(floor) } else { tick })
    }
}

/// Whether a read at `now` updates the access time under relatime: if that is not later than the last change of the file,
/// or is a day old.
pub fn relatime_needs_update(
    now: Timestamp,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
) -> bool {
    const DAY: i64 = 24 * 60 * 60;
    atime <= mtime || atime <= ctime || atime.secs.saturating_add(DAY) <= now.secs
}

/// Nanoseconds since 1970; saturates in the year 2262.
fn nanos(at: Timestamp) -> i64 {
    at.secs
        .saturating_mul(NANOS_PER_SECOND)
        .saturating_add(at.nanos.into())
}

fn stamp(nanos: i64) -> Timestamp {
    Timestamp {
        secs: nanos.div_euclid(NANOS_PER_SECOND),
        nanos: nanos.rem_euclid(NANOS_PER_SECOND) as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfs_rt::sim;

    use super::*;

    #[test]
    fn relatime_updates_after_changes_and_once_a_day() {
        let at = |secs| Timestamp { secs, nanos: 7 };
        let moves = |now, atime, mtime, ctime| {
            relatime_needs_update(at(now), at(atime), at(mtime), at(ctime))
        };
        assert!(moves(1000, 500, 500, 400), "not read since it was written");
        assert!(moves(1000, 500, 400, 500), "not read since it was changed");
        assert!(!moves(1000, 500, 499, 499));
        assert!(!moves(500 + 86_399, 500, 499, 499));
        assert!(moves(500 + 86_400, 500, 499, 499));
        // A timestamp of the far future does not overflow.
        assert!(!moves(1000, i64::MAX, 499, 499));
    }

    #[test]
    fn coarse_times_are_constant_within_a_tick_and_never_before_a_fine_one() {
        sim::run(sim::Config::default(), || {
            let clock = Clock::default();
            let first = clock.coarse();
            steadfs_rt::sleep(Duration::from_micros(1));
            assert_eq!(clock.coarse(), first, "one tick");
            let fine = clock.fine();
            assert!(fine > first);
            assert_eq!(clock.coarse(), fine, "not before the fine one");
            steadfs_rt::sleep(Duration::from_millis(5));
            assert!(clock.coarse() > fine);
        });
    }

    #[test]
    fn timestamps_before_1970_round_down() {
        let at = Timestamp {
            secs: -2,
            nanos: 999_999_999,
        };
        assert_eq!(stamp(nanos(at)), at);
    }
}
