//! The rules of Linux's CFQ, up to 4.20, for experiments.

use steadfs_base::IoPrio;

use super::device_speed::DeviceSpeed;
use super::entry::{Entry, InFlight};
use super::fsync_latency::FsyncLatency;
use super::lanes::is_sync;
use super::options::{FairOptions, MS, Slice};
use super::rules::{FlushCost, Rules};
use crate::Nanos;

/// After a late sync request the async depth restarts at one, and grows by one in this time.
const RAMP_STEP: Nanos = Nanos(100 * MS);
/// A sync request that completes later than this after its arrival is late.
const LATE: Nanos = Nanos(125 * MS);

/// CFQ's rules: time slices of 100 ms (40 ms and two requests for async requests), idling, no async request in flight
/// together with sync requests, and an async depth that restarts at one after a late sync request.
#[derive(Debug)]
pub struct CfqRules {
    async_depth: usize,
    async_max_wait: Nanos,
    /// When a sync request last completed late.
    last_late: Option<Nanos>,
}

impl Rules for CfqRules {
    const NAME: &'static str = "cfq";
    const COST_IS_KNOWN: bool = false;
    const RAISES_WEIGHT: bool = false;

    fn options() -> FairOptions {
        FairOptions {
            async_bytes: u64::MAX,
            flush_bytes_min: u64::MAX,
            slice: Slice {
                bytes: u64::MAX,
                sync_time: Nanos(100 * MS),
                background_time: Nanos(40 * MS),
                background_requests: 2,
                depth: 4,
                idle_to_end: true,
            },
            always_idle: true,
            ..FairOptions::default()
        }
    }

    fn new(options: &FairOptions) -> Self {
        Self {
            async_depth: options.async_depth,
            async_max_wait: options.async_max_wait,
            last_late: None,
        }
    }

    /// CFQ's slice lengths: 180 for level 0, 100 for 4, 40 for 7.
    fn weight(prio: IoPrio) -> u32 {
        (9 - u32::from(prio.level.min(7))) * 20
    }

    fn slice_cost(_: u64, time: Nanos) -> u64 {
        time.0
    }

    /// The time of a slice includes that of its durable writes.
    fn flush_cost(speed: &DeviceSpeed, _: &FairOptions) -> FlushCost {
        FlushCost {
            flush: speed.flush_time().unwrap_or(0),
            durable_write: 0,
        }
    }

    fn async_limit(&self, in_flight: InFlight, now: Nanos) -> usize {
        if in_flight.sync > 0 {
            return 0;
        }
        let Some(late) = self.last_late else {
            return self.async_depth;
        };
        let steps = now.0.saturating_sub(late.0) / RAMP_STEP.0;
        let steps = usize::try_from(steps).unwrap_or(usize::MAX);
        steps.clamp(1, self.async_depth)
    }

    fn drains_for_async(&self, in_flight: InFlight, waited: Nanos) -> bool {
        in_flight.sync > 0 && waited >= self.async_max_wait
    }

    fn completed(&mut self, entry: &Entry, now: Nanos) {
        if is_sync(entry.tag) && now.0.saturating_sub(entry.arrived.0) > LATE.0 {
            self.last_late = Some(now);
        }
    }

    fn fsync(&self) -> Option<&FsyncLatency> {
        None
    }

    fn fsync_mut(&mut self) -> Option<&mut FsyncLatency> {
        None
    }
}
