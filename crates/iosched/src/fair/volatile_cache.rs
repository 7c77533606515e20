//! Bounds the data in the device's volatile write cache while FLUSHes are frequent.
//!
//! Problem: a FLUSH makes all data in the cache durable, also that of other owners, and its caller waits for it. Rule:
//! in a series of FLUSHes (the last one ended less than 4 ms ago) the device gets a bounded amount of async writes from
//! one FLUSH to the next. The bound grows where that data does not delay a FLUSH ([`FlushDelay`]): beside 5000 fsyncs/s
//! the smallest bound left a stream 580 of 1500 MiB/s on a disk whose FLUSH takes 0.1 ms, however much was written.

use steadfs_base::IoTag;

use super::flush_delay::FlushDelay;
use crate::Nanos;

/// A series of FLUSHes ends this long after its last FLUSH.
const SERIES_GAP_NS: u64 = 4_000_000;

/// Counts the bytes of async writes that the next FLUSH has to make durable.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct VolatileCache {
    /// Bytes dispatched since the last FLUSH was dispatched, and bytes in flight at that time.
    bytes: u64,
    /// Bytes in flight.
    in_flight: u64,
    /// FLUSHes in flight, including those of durable writes.
    flushing: usize,
    /// When the last FLUSH completed.
    ended: Option<Nanos>,
    /// The tag of the last FLUSH.
    flush_requester: IoTag,
    /// The bytes that the FLUSH in flight makes durable, if no other FLUSH is in flight with it.
    covered: Option<u64>,
    delay: FlushDelay,
}

impl VolatileCache {
    /// A FLUSH is dispatched. It may not cover writes in flight.
    pub(super) fn flush_begins(&mut self, tag: IoTag) {
        self.flush_requester = tag;
        self.covered = (self.flushing == 0).then_some(self.bytes - self.in_flight);
        self.bytes = self.in_flight;
        self.flushing += 1;
    }

    /// A FLUSH has completed after this number of nanoseconds; `least` is the smallest bound.
    pub(super) fn flush_ends(&mut self, took: u64, least: u64, now: Nanos) {
        self.flushing -= 1;
        self.ended = Some(now);
        if let Some(covered) = self.covered.take() {
            self.delay.flushed(covered, took, least);
        }
    }

    /// Most bytes of async writes from one FLUSH to the next, where the smallest bound is `least`.
    pub(super) fn limit(&self, least: u64) -> u64 {
        self.delay.limit(least)
    }

    /// The bound that was learned; 0 while it is the smallest one.
    pub(super) fn learned(&self) -> u64 {
        self.delay.learned()
    }

    /// An async write is dispatched.
    pub(super) fn write_begins(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.in_flight += bytes;
    }

    /// An async write has completed.
    pub(super) fn write_ends(&mut self, bytes: u64) {
        self.in_flight -= bytes;
    }

    /// Whether a series of FLUSHes is in progress, which writes would delay.
    pub(super) fn in_flush_series(&self, now: Nanos) -> bool {
        self.flushing > 0 || self.series_end().is_some_and(|until| now < until)
    }

    /// The tag of the last FLUSH.
    pub(super) fn flush_requester(&self) -> IoTag {
        self.flush_requester
    }

    /// Whether the next FLUSH of a series has at least `limit` bytes to make durable.
    pub(super) fn is_full(&self, limit: u64, now: Nanos) -> bool {
        self.bytes >= limit && self.in_flush_series(now)
    }

    /// When the series ends unless another FLUSH begins. `None` while a FLUSH is in flight: its completion comes first.
    pub(super) fn series_ends_at(&self) -> Option<Nanos> {
        self.series_end().filter(|_| self.flushing == 0)
    }

    fn series_end(&self) -> Option<Nanos> {
        self.ended
            .map(|at| Nanos(at.0.saturating_add(SERIES_GAP_NS)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 128 << 10;

    #[test]
    fn writes_are_bounded_in_a_series_of_flushes_only() {
        let mut volatile = VolatileCache::default();
        volatile.write_begins(1 << 30);
        volatile.write_ends(1 << 30);
        assert!(!volatile.is_full(LIMIT, Nanos(0)));
        assert_eq!(volatile.series_ends_at(), None);

        volatile.flush_begins(IoTag::default());
        assert!(!volatile.is_full(LIMIT, Nanos(1)));
        volatile.write_begins(LIMIT);
        assert!(volatile.is_full(LIMIT, Nanos(SERIES_GAP_NS * 9)));
        assert_eq!(
            volatile.series_ends_at(),
            None,
            "the FLUSH completes before the series ends"
        );

        volatile.flush_ends(100, LIMIT, Nanos(100));
        assert!(volatile.is_full(LIMIT, Nanos(99 + SERIES_GAP_NS)));
        assert_eq!(volatile.series_ends_at(), Some(Nanos(100 + SERIES_GAP_NS)));
        assert!(!volatile.is_full(LIMIT, Nanos(100 + SERIES_GAP_NS)));
    }

    #[test]
    fn writes_in_flight_count_for_the_next_flush() {
        let mut volatile = VolatileCache::default();
        volatile.write_begins(LIMIT);
        volatile.flush_begins(IoTag::default());
        assert!(volatile.is_full(LIMIT, Nanos(0)));
        volatile.write_ends(LIMIT);
        volatile.flush_begins(IoTag::default());
        assert!(!volatile.is_full(LIMIT, Nanos(0)));
    }
}
