//! The throughput of the device, and the cost of a FLUSH.

use super::window_min::WindowMin;
use crate::Nanos;

/// Measured time after which bytes and time are halved, so that older measurements lose weight.
const HALVING_NS: u64 = 200_000_000;
/// The shortest measured time that yields a throughput.
const MEASURED_NS_MIN: u64 = 1_000_000;
/// Bounds of the cost of a FLUSH, in bytes.
const FLUSH_COST_BYTES_MIN: u64 = 4 << 10;
const FLUSH_COST_BYTES_MAX: u64 = 16 << 20;
/// The longest time that a FLUSH is charged.
const FLUSH_COST_NS_MAX: u64 = 100_000_000;

/// Measures a device from the dispatches and completions of its requests.
///
/// The throughput is that of the time in which the device has data requests and no FLUSH. The cost of a FLUSH is the
/// shortest duration of the last 32 to 64 FLUSHes: a longer FLUSH writes data of other owners, or competes with other
/// requests, which is not charged to its owner.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceSpeed {
    bytes: u64,
    time: u64,
    /// The time of the last dispatch or completion.
    last_event: Nanos,
    /// Data requests in flight.
    transferring: usize,
    /// FLUSHes and durable writes in flight.
    flushing: usize,
    /// The shortest FLUSH.
    shortest: WindowMin,
}

impl DeviceSpeed {
    fn advance(&mut self, now: Nanos) {
        if self.transferring > 0 && self.flushing == 0 {
            self.time += now.0.saturating_sub(self.last_event.0);
        }
        self.last_event = now;
    }

    /// A request is dispatched; `flushes` is the number of times that the device makes data durable for it.
    pub(super) fn begin(&mut self, flushes: u8, now: Nanos) {
        self.advance(now);
        match flushes {
            0 => self.transferring += 1,
            _ => self.flushing += 1,
        }
    }

    /// A request that was dispatched at `began` has completed.
    pub(super) fn end(&mut self, flushes: u8, bytes: u64, began: Nanos, now: Nanos) {
        self.advance(now);
        if flushes == 0 {
            self.transferring -= 1;
            if self.flushing == 0 {
                self.bytes += bytes;
            }
            if self.time >= HALVING_NS {
                self.time /= 2;
                self.bytes /= 2;
            }
            return;
        }
        self.flushing -= 1;
        let took = now.0.saturating_sub(began.0) / u64::from(flushes);
        self.shortest.add(took);
    }

    /// The time of a FLUSH in nanoseconds; `None` before the first one.
    pub(super) fn flush_time(&self) -> Option<u64> {
        self.shortest.get().map(|time| time.min(FLUSH_COST_NS_MAX))
    }

    /// The time in nanoseconds in which the device transfers this number of bytes; 0 while its throughput is not known.
    pub(super) fn transfer_time(&self, bytes: u64) -> u64 {
        if self.time < MEASURED_NS_MIN || self.bytes == 0 {
            return 0;
        }
        let time = u128::from(bytes) * u128::from(self.time) / u128::from(self.bytes);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The bytes that the device transfers in the time of a FLUSH; `None` while throughput or time are not known.
    pub(super) fn flush_bytes(&self) -> Option<u64> {
        if self.time < MEASURED_NS_MIN || self.bytes == 0 {
            return None;
        }
        let time = u128::from(self.flush_time()?);
        let bytes = time * u128::from(self.bytes) / u128::from(self.time);
        Some(
            u64::try_from(bytes)
                .unwrap_or(FLUSH_COST_BYTES_MAX)
                .clamp(FLUSH_COST_BYTES_MIN, FLUSH_COST_BYTES_MAX),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_flush_costs_what_the_device_moves_in_its_time() {
        let mut speed = DeviceSpeed::default();
        assert_eq!((speed.flush_time(), speed.flush_bytes()), (None, None));
        let mut now = 0;
        for n in 0..100 {
            // 1 MiB in 10 ms; a FLUSH takes 5 ms, or 40 ms with data of other owners.
            speed.begin(0, Nanos(now));
            speed.end(0, 1 << 20, Nanos(now), Nanos(now + 10 * MS));
            now += 10 * MS;
            let took = if n % 20 == 7 { 5 * MS } else { 40 * MS };
            speed.begin(1, Nanos(now));
            speed.end(1, 0, Nanos(now), Nanos(now + took));
            now += took + 3 * MS;
        }
        assert_eq!(speed.flush_time(), Some(5 * MS));
        assert_eq!(speed.flush_bytes(), Some(512 << 10));
    }

    #[test]
    fn transfers_beside_a_flush_are_not_measured() {
        let mut speed = DeviceSpeed::default();
        speed.begin(0, Nanos(0));
        speed.begin(2, Nanos(10 * MS));
        speed.end(0, 1 << 20, Nanos(0), Nanos(50 * MS));
        speed.end(2, 4096, Nanos(10 * MS), Nanos(60 * MS));
        assert_eq!(speed.flush_time(), Some(25 * MS));
        assert_eq!(speed.flush_bytes(), None);
        speed.begin(0, Nanos(60 * MS));
        speed.end(0, 1 << 20, Nanos(60 * MS), Nanos(70 * MS));
        assert_eq!(speed.flush_bytes(), Some((1 << 20) * 25 / 20));
    }

    #[test]
    fn the_cost_of_a_flush_is_bounded() {
        let mut speed = DeviceSpeed::default();
        speed.begin(0, Nanos(0));
        speed.end(0, 4 << 30, Nanos(0), Nanos(MS));
        speed.begin(1, Nanos(MS));
        speed.end(1, 0, Nanos(MS), Nanos(MS));
        assert_eq!(speed.flush_bytes(), Some(FLUSH_COST_BYTES_MIN));
        for _ in 0..64 {
            speed.begin(1, Nanos(MS));
            speed.end(1, 0, Nanos(MS), Nanos(MS + (1 << 40)));
        }
        assert_eq!(speed.flush_time(), Some(FLUSH_COST_NS_MAX));
        assert_eq!(speed.flush_bytes(), Some(FLUSH_COST_BYTES_MAX));
    }
}
