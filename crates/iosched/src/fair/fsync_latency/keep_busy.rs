//! The async bytes that keep the device busy.
//!
//! A bound on the async bytes in the device must not cost throughput where the device works on many requests at a time.
//! How many bytes it needs is learned by trial: if the throughput of async requests that fill the bound is below three
//! quarters of the highest that was seen, the smallest bound becomes twice the present one. What was learned is
//! forgotten step by step.

use crate::Nanos;

use super::super::entry::InFlight;

/// The time with async requests alone in which a throughput is measured.
const MEASURED_NS: u64 = 64_000_000;
/// The highest throughput falls by this part in each measurement.
const HIGHEST_DECAY: u64 = 64;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepBusy {
    /// Time with async requests and no others in the device, and the bytes of async requests that completed in it.
    time: u64,
    bytes: u64,
    last_event: Nanos,
    /// Completions, and those while the bound was reached.
    completions: u32,
    full: u32,
    /// The largest bound of these.
    bound: u64,
    /// The highest throughput, in bytes per millisecond.
    highest: u64,
    bytes_min: u64,
}

impl KeepBusy {
    /// The smallest useful bound that is known.
    pub(super) fn bytes_min(&self) -> u64 {
        self.bytes_min
    }

    /// Time passes with these requests in the device.
    pub(super) fn advance(&mut self, in_flight: InFlight, now: Nanos) {
        if in_flight.background > 0 && in_flight.sync == 0 {
            self.time += now.0.saturating_sub(self.last_event.0);
        }
        self.last_event = now;
    }

    /// An async request has completed; `in_flight` includes it. The bound was this, `None`: there was none.
    pub(super) fn completed(&mut self, bytes: u64, in_flight: InFlight, bound: Option<u64>) {
        if in_flight.sync == 0 {
            self.bytes += bytes;
        }
        self.completions += 1;
        if let Some(bound) = bound
            && in_flight.background_bytes >= bound
        {
            self.full += 1;
            self.bound = self.bound.max(bound);
        }
        if self.time >= MEASURED_NS {
            self.measure();
        }
    }

    fn measure(&mut self) {
        let throughput = self.bytes / (self.time / 1_000_000);
        let was_full = 2 * self.full > self.completions;
        if was_full && throughput < self.highest / 4 * 3 {
            self.bytes_min = self.bytes_min.max(self.bound.saturating_mul(2));
        }
        self.highest = throughput.max(self.highest - self.highest / HIGHEST_DECAY);
        *self = Self {
            last_event: self.last_event,
            highest: self.highest,
            bytes_min: self.bytes_min,
            ..Self::default()
        };
    }

    /// Forgets a quarter of the smallest bound, so that it is tried again.
    pub(super) fn forget(&mut self) {
        self.bytes_min -= self.bytes_min / 4;
    }
}
