//! Time stamps as Linux gives them since 6.13: coarse, except where somebody could see that a file
//! changed twice at one time.
//!
//! A stamp that moves with every write makes every fsync of an overwritten file a journal commit. So a
//! write gets the time of the last tick, and a finer one only if the times it replaces have been looked
//! at. Of two files the one written later never has the earlier time: no tick is older than the last
//! fine stamp given.

use std::sync::atomic::{AtomicI64, Ordering};

use steadfs_base::Timestamp;
use steadfs_rt::wall_clock;

/// Nanoseconds from one tick to the next: those of a kernel with CONFIG_HZ=250.
const TICK: i64 = 4_000_000;
const SECOND: i64 = 1_000_000_000;

/// Gives a volume's stamps.
#[derive(Default)]
pub struct Clock {
    /// The latest fine stamp, in nanoseconds since 1970.
    floor: AtomicI64,
}

impl Clock {
    /// The present.
    pub fn fine(&self) -> Timestamp {
        let now = wall_clock();
        self.floor.fetch_max(nanos(now), Ordering::AcqRel);
        now
    }

    /// The last tick, or the last fine stamp if that was later.
    pub fn coarse(&self) -> Timestamp {
        let now = nanos(wall_clock());
        let tick = now - now.rem_euclid(TICK);
        let floor = self.floor.load(Ordering::Acquire);
        // A clock that was set back starts anew.
        stamp(if floor <= now { tick.max(floor) } else { tick })
    }
}

/// Whether a read at `now` moves the time of the last one, as relatime says: where it is not later than the file's
/// last changes, and once a day.
pub fn relatime_needs_update(
    now: Timestamp,
    atime: Timestamp,
    mtime: Timestamp,
    ctime: Timestamp,
) -> bool {
    const DAY: i64 = 24 * 60 * 60;
    atime <= mtime || atime <= ctime || atime.secs.saturating_add(DAY) <= now.secs
}

/// Nanoseconds since 1970; the year 2262 and later is all one.
fn nanos(at: Timestamp) -> i64 {
    at.secs
        .saturating_mul(SECOND)
        .saturating_add(at.nanos.into())
}

fn stamp(nanos: i64) -> Timestamp {
    Timestamp {
        secs: nanos.div_euclid(SECOND),
        nanos: nanos.rem_euclid(SECOND) as u32,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use steadfs_rt::sim;

    use super::*;

    #[test]
    fn a_read_is_noted_after_changes_and_once_a_day() {
        let at = |secs| Timestamp { secs, nanos: 7 };
        let moves = |now, atime, mtime, ctime| {
            relatime_needs_update(at(now), at(atime), at(mtime), at(ctime))
        };
        assert!(moves(1000, 500, 500, 400), "not read since it was written");
        assert!(moves(1000, 500, 400, 500), "not read since it was changed");
        assert!(!moves(1000, 500, 499, 499));
        assert!(!moves(500 + 86_399, 500, 499, 499));
        assert!(moves(500 + 86_400, 500, 499, 499));
        // A stamp of the far future is no overflow.
        assert!(!moves(1000, i64::MAX, 499, 499));
    }

    #[test]
    fn ticks_stand_still_but_never_before_a_fine_stamp() {
        sim::run(sim::Config::default(), || {
            let clock = Clock::default();
            let first = clock.coarse();
            steadfs_rt::sleep(Duration::from_micros(1));
            assert_eq!(clock.coarse(), first, "one tick");
            let fine = clock.fine();
            assert!(fine > first);
            assert_eq!(clock.coarse(), fine, "not before what was given");
            steadfs_rt::sleep(Duration::from_millis(5));
            assert!(clock.coarse() > fine);
        });
    }

    #[test]
    fn stamps_before_1970_round_down() {
        let at = Timestamp {
            secs: -2,
            nanos: 999_999_999,
        };
        assert_eq!(stamp(nanos(at)), at);
    }
}
