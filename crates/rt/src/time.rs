//! Time: a monotonic clock for durations, a wall clock for time stamps.

use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::Duration;

use steadfs_base::Timestamp;

use crate::sim::world;

/// The wall clock at the begin of a simulation: 2026-01-01 00:00:00 UTC.
const SIM_EPOCH: i64 = 1_767_225_600;

/// A point of the monotonic clock, in nanoseconds since its first use in this process, or since the simulation began.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// The time from `earlier` to this point; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The time from this point to now.
    pub fn elapsed(self) -> Duration {
        now().since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }
}

impl Sub<Instant> for Instant {
    type Output = Duration;
    fn sub(self, earlier: Instant) -> Duration {
        self.since(earlier)
    }
}

/// Reads the monotonic clock.
#[expect(clippy::disallowed_types, reason = "rt reads the host's clock")]
pub fn now() -> Instant {
    if world::simulated() {
        return world::now();
    }
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    Instant(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Reads the wall clock. In simulation it begins on 2026-01-01, or is fixed by `sim::Config::calendar`.
#[expect(clippy::disallowed_types, reason = "rt reads the host's clock")]
pub fn wall_clock() -> Timestamp {
    if world::simulated() {
        if let Some(fixed) = world::calendar() {
            return fixed;
        }
        let Instant(nanos) = world::now();
        return Timestamp {
            secs: SIM_EPOCH + (nanos / 1_000_000_000).cast_signed(),
            nanos: (nanos % 1_000_000_000) as u32,
        };
    }
    match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(d) => Timestamp {
            secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX),
            nanos: d.subsec_nanos(),
        },
        Err(_) => Timestamp::default(),
    }
}

/// Waits for `d`.
#[expect(clippy::disallowed_methods, reason = "rt wraps the host")]
pub fn sleep(d: Duration) {
    if world::simulated() {
        world::sleep(d);
    } else {
        std::thread::sleep(d);
    }
}

/// Waits until `t`.
pub fn sleep_until(t: Instant) {
    sleep(t.since(now()));
}
