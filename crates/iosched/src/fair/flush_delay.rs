//! How much data in the volatile cache delays a FLUSH.
//!
//! Problem: some devices write their cache during a FLUSH, so each byte in it delays the caller. Others have written it
//! by then, or have none. Rule: the bound on the data from one FLUSH to the next is a feedback on the FLUSHes that cover
//! at least half of the smallest bound. Where they take at most a quarter longer than those that cover almost
//! nothing, and use half of the bound, it grows by half; where they take more than half longer, it shrinks in proportion.
//! Times are compared by the third smallest of 8, which single slow FLUSHes do not change. Every 32nd FLUSH is a probe:
//! no async write is dispatched before it.

/// FLUSHes that are compared.
const COMPARED: usize = 8;
/// Their third smallest time decides.
const DECIDING: usize = 2;
/// Every FLUSH of this number is a probe.
const PROBE_INTERVAL: u32 = 32;

/// The times of the last FLUSHes of a kind, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    last: [u64; COMPARED],
    count: usize,
}

impl Times {
    fn add(&mut self, took: u64) {
        self.last[self.count % COMPARED] = took;
        self.count += 1;
    }

    /// `None` before there are enough.
    fn deciding(&self) -> Option<u64> {
        let mut sorted = self.last;
        sorted.sort_unstable();
        (self.count >= COMPARED).then_some(sorted[DECIDING])
    }
}

/// The bound on the async bytes from one FLUSH to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FlushDelay {
    /// FLUSHes that covered almost nothing.
    empty: Times,
    /// Other FLUSHes since the last comparison, and the bytes that they covered.
    full: Times,
    covered: u64,
    since_probe: u32,
    /// The bound where it is larger than the smallest one, else 0.
    learned: u64,
}

impl FlushDelay {
    /// The bound where the smallest one is `least`; `u64::MAX`: there is none.
    pub(super) fn limit(&self, least: u64) -> u64 {
        match self.since_probe + 1 == PROBE_INTERVAL && least < u64::MAX {
            true => 0,
            false => self.learned.max(least),
        }
    }

    /// The bound that was learned, or 0.
    pub(super) fn learned(&self) -> u64 {
        self.learned
    }

    /// A FLUSH that covered this number of async bytes has taken this number of nanoseconds.
    pub(super) fn flushed(&mut self, covered: u64, took: u64, least: u64) {
        let bound = self.learned.max(least);
        self.since_probe = (self.since_probe + 1) % PROBE_INTERVAL;
        if covered <= least / 4 {
            self.empty.add(took);
        } else if covered >= least / 2 {
            self.full.add(took);
            self.covered = self.covered.saturating_add(covered);
        }
        let (Some(empty), Some(full)) = (self.empty.deciding(), self.full.deciding()) else {
            return;
        };
        let used = self.covered / self.full.count as u64;
        (self.full, self.covered) = (Times::default(), 0);
        let excess = full.saturating_sub(empty);
        let bound = if excess > empty / 2 {
            let wanted = u128::from(used) * u128::from(empty / 4) / u128::from(excess);
            u64::try_from(wanted).unwrap_or(bound)
        } else if excess <= empty / 4 && used >= bound / 2 {
            bound.saturating_add(bound / 2)
        } else {
            bound
        };
        self.learned = if bound > least { bound } else { 0 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 128 << 10;
    const US: u64 = 1000;

    /// FLUSHes that each cover as much as the bound allows; `time`: microseconds for that number of bytes.
    fn flushes(delay: &mut FlushDelay, count: u32, time: impl Fn(u64) -> u64) {
        for _ in 0..count {
            let covered = delay.limit(LEAST).min(8 << 20);
            delay.flushed(covered, time(covered) * US, LEAST);
        }
    }

    #[test]
    fn the_bound_grows_where_data_delays_no_flush() {
        let mut delay = FlushDelay::default();
        flushes(&mut delay, 8 * PROBE_INTERVAL - 1, |_| 100);
        assert_eq!(delay.learned(), 0, "seven probes are not enough");
        flushes(&mut delay, 200, |_| 100);
        // It grows while half of it is used.
        assert!(delay.learned() > 8 << 20, "{}", delay.learned());
        let bound = delay.learned();
        flushes(&mut delay, 2000, |_| 100);
        assert!(delay.learned() <= bound.max(24 << 20));
    }

    #[test]
    fn the_bound_stays_where_data_delays_a_flush() {
        let mut delay = FlushDelay::default();
        flushes(&mut delay, 2000, |covered| 100 + covered / 1024);
        assert_eq!(delay.learned(), 0);
    }

    #[test]
    fn a_quarter_longer_is_allowed() {
        let mut delay = FlushDelay::default();
        // 1 MiB takes 50 of 100 microseconds.
        flushes(&mut delay, 2000, |covered| 100 + covered * 50 / (1 << 20));
        let bound = delay.learned();
        assert!((512 << 10..=1 << 20).contains(&bound), "{bound}");
    }

    #[test]
    fn single_slow_flushes_do_not_shrink_the_bound() {
        let mut delay = FlushDelay::default();
        let count = std::cell::Cell::new(0);
        flushes(&mut delay, 2000, |_| {
            count.set(count.get() + 1);
            if count.get() % 3 == 0 { 900 } else { 100 }
        });
        assert!(delay.learned() > 8 << 20, "{}", delay.learned());
    }

    #[test]
    fn a_device_that_becomes_slow_gets_less() {
        let mut delay = FlushDelay::default();
        flushes(&mut delay, 1000, |_| 100);
        assert!(delay.learned() > 8 << 20);
        flushes(&mut delay, 9, |covered| 100 + covered / 1024);
        assert_eq!(delay.learned(), 0);
    }

    #[test]
    fn a_probe_has_no_async_writes_before_it() {
        let mut delay = FlushDelay::default();
        let limits: Vec<u64> = (0..PROBE_INTERVAL)
            .map(|_| {
                let limit = delay.limit(LEAST);
                delay.flushed(LEAST, 100 * US, LEAST);
                limit
            })
            .collect();
        let (last, before) = limits.split_last().unwrap();
        assert_eq!(*last, 0);
        assert!(before.iter().all(|limit| *limit == LEAST));
        assert_eq!(delay.limit(u64::MAX), u64::MAX);
    }
}
