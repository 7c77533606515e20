//! The async bytes that keep the device busy.
//!
//! A bound on the async bytes in the device must not cost throughput where the device works on many requests at a time.
//! How many bytes it needs is learned by trial: if the throughput of async requests that fill the bound is below three
//! quarters of the highest that was seen, the smallest bound becomes twice the present one. What was learned is
//! forgotten step by step.
//!
//! The time of async requests is that in which the device has no others, and their part of what a FLUSH takes longer than
//! the shortest one: it writes what they left in the device's volatile cache. Where each FLUSH does that, the shortest
//! includes it and the throughput appears to be higher; so a measurement with FLUSHes does not raise the highest one.
//!
//! Where a smaller bound has the throughput of the highest to a sixteenth, a larger one delays fsyncs for no gain: the bound
//! does not grow beyond the smallest one that had it, until that is not so any longer.

use crate::Nanos;

use super::super::entry::InFlight;

/// The time with async requests alone in which a throughput is measured.
const MEASURED_NS: u64 = 64_000_000;
/// The highest throughput falls by this part in each measurement.
const HIGHEST_DECAY: u64 = 128;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepBusy {
    /// Time with async requests and no others in the device, and the bytes of async requests that completed in it.
    time: u64,
    bytes: u64,
    last_event: Nanos,
    /// FLUSHes and durable writes in flight.
    flushing: usize,
    /// Bytes of async requests and of others that were written since the last FLUSH.
    unflushed: [u64; 2],
    /// Whether a FLUSH completed in this measurement.
    flushed: bool,
    /// Completions, and those while the bound was reached.
    completions: u32,
    full: u32,
    /// The largest bound of these.
    bound: u64,
    /// The highest throughput, in bytes per millisecond.
    highest: u64,
    /// The last throughput.
    last: u64,
    bytes_min: u64,
    /// The smallest bound that has almost the highest throughput; 0: none is known.
    enough: u64,
}

impl KeepBusy {
    /// The smallest useful bound that is known.
    pub(super) fn bytes_min(&self) -> u64 {
        self.bytes_min
    }

    /// The smallest bound beyond which throughput does not grow, if one is known.
    pub(super) fn enough(&self) -> Option<u64> {
        (self.enough > 0).then_some(self.enough)
    }

    /// The time of the device in nanoseconds that async requests of this size take at the highest throughput, if that has
    /// been measured. The bound may have halved the last throughput; if that is even lower, the requests are slower ones.
    pub(super) fn time_of(&self, bytes: u64) -> Option<u64> {
        let throughput = match self.last {
            0 => self.bytes.checked_div(self.time / 1_000_000).unwrap_or(0),
            last => self.highest.min(last.saturating_mul(2)),
        };
        let time = u128::from(bytes) * 1_000_000 / u128::from(throughput.max(1));
        let time = u64::try_from(time).unwrap_or(u64::MAX);
        (throughput > 0).then_some(time)
    }

    /// Time passes with these requests in the device.
    pub(super) fn advance(&mut self, in_flight: InFlight, now: Nanos) {
        if in_flight.background > in_flight.background_ranges && in_flight.sync == 0 {
            self.time += now.0.saturating_sub(self.last_event.0);
        }
        self.last_event = now;
    }

    /// A FLUSH or durable write is dispatched.
    pub(super) fn flush_begins(&mut self) {
        self.flushing += 1;
    }

    /// One has completed, and took longer than the shortest by `excess` nanoseconds.
    pub(super) fn flush_ends(&mut self, excess: u64) {
        self.flushing -= 1;
        self.flushed = true;
        let [own, others] = std::mem::take(&mut self.unflushed);
        let part = u128::from(excess) * u128::from(own) / u128::from((own + others).max(1));
        self.time += u64::try_from(part).unwrap_or(u64::MAX);
    }

    /// A sync write has completed.
    pub(super) fn others_completed(&mut self, bytes: u64) {
        self.unflushed[1] += bytes;
    }

    /// An async request has completed; `in_flight` includes it. The bound was this, `None`: there was none.
    pub(super) fn completed(&mut self, bytes: u64, in_flight: InFlight, bound: Option<u64>) {
        self.unflushed[0] += bytes;
        if in_flight.sync == self.flushing {
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
        let has_most = throughput >= self.highest / 16 * 15;
        if was_full && has_most && !(1..=self.bound).contains(&self.enough) {
            self.enough = self.bound;
        } else if was_full && !has_most && self.bound >= self.enough {
            self.enough = 0;
        }
        let counted = match self.flushed && self.highest > 0 {
            true => throughput.min(self.highest),
            false => throughput,
        };
        self.highest = counted.max(self.highest - self.highest / HIGHEST_DECAY);
        *self = Self {
            last_event: self.last_event,
            flushing: self.flushing,
            unflushed: self.unflushed,
            highest: self.highest,
            last: throughput,
            bytes_min: self.bytes_min,
            enough: self.enough,
            ..Self::default()
        };
    }

    /// Forgets a quarter of the smallest bound, so that it is tried again.
    pub(super) fn forget(&mut self) {
        self.bytes_min -= self.bytes_min / 4;
    }
}
