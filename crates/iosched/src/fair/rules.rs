//! What distinguishes the policies over one tree: the cost of service, the weights inside a group, and the limits of
//! async requests. The rules are a type parameter, so the product's policy has no branches for that of the experiments.

use std::fmt::Debug;

use steadfs_base::IoPrio;

use super::device_speed::DeviceSpeed;
use super::entry::{Entry, InFlight};
use super::fsync_latency::FsyncLatency;
use super::options::FairOptions;
use crate::Nanos;

/// The rules of a policy, and the state that only these rules need.
pub trait Rules: Debug + Send {
    /// The policy's name.
    const NAME: &'static str;
    /// Whether a request's cost is known when it is dispatched. Otherwise requests are not charged to sharers.
    const COST_IS_KNOWN: bool;
    /// Whether weights are raised with [`FairOptions::low_latency`].
    const RAISES_WEIGHT: bool;

    /// The policy's parameters.
    fn options() -> FairOptions;

    /// The rules before the first request.
    fn new(options: &FairOptions) -> Self;

    /// The weight of a priority inside its group.
    fn weight(prio: IoPrio) -> u32;

    /// The cost of a slice that transferred `bytes` in `time`.
    fn slice_cost(bytes: u64, time: Nanos) -> u64;

    /// The cost of making data durable once, as part of a slice or by a FLUSH of its own.
    fn flush_cost(speed: &DeviceSpeed, options: &FairOptions) -> FlushCost;

    /// Most async requests in flight.
    fn async_limit(&self, in_flight: InFlight, now: Nanos) -> usize;

    /// Whether the device drains for a lane of async requests that has waited for `waited`: no sync request is
    /// dispatched until those in flight have completed.
    fn drains_for_async(&self, in_flight: InFlight, waited: Nanos) -> bool;

    /// A request has completed.
    fn completed(&mut self, entry: &Entry, now: Nanos);

    /// What bounds async requests for fsync callers, if these rules do.
    fn fsync(&self) -> Option<&FsyncLatency>;

    /// The same, to be changed.
    fn fsync_mut(&mut self) -> Option<&mut FsyncLatency>;
}

/// The cost of making data durable once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushCost {
    /// Of a FLUSH.
    pub flush: u64,
    /// Of a durable write, beside its bytes.
    pub durable_write: u64,
}

/// BFQ's rules, with costs in bytes: service is charged as soon as it is dispatched.
#[derive(Debug)]
pub struct FairRules {
    async_depth: usize,
    fsync: FsyncLatency,
}

impl Rules for FairRules {
    const NAME: &'static str = "fair";
    const COST_IS_KNOWN: bool = true;
    const RAISES_WEIGHT: bool = true;

    fn options() -> FairOptions {
        FairOptions::default()
    }

    fn new(options: &FairOptions) -> Self {
        Self {
            async_depth: options.async_depth,
            fsync: FsyncLatency::new(options),
        }
    }

    /// BFQ's: 80 for level 0, 40 for 4, 10 for 7.
    fn weight(prio: IoPrio) -> u32 {
        (8 - u32::from(prio.level.min(7))) * 10
    }

    fn slice_cost(bytes: u64, _: Nanos) -> u64 {
        bytes
    }

    fn flush_cost(speed: &DeviceSpeed, options: &FairOptions) -> FlushCost {
        let cost = speed.flush_bytes().unwrap_or(options.flush_cost);
        FlushCost {
            flush: cost,
            durable_write: cost,
        }
    }

    fn async_limit(&self, _: InFlight, _: Nanos) -> usize {
        self.async_depth
    }

    fn drains_for_async(&self, _: InFlight, _: Nanos) -> bool {
        false
    }

    fn completed(&mut self, _: &Entry, _: Nanos) {}

    fn fsync(&self) -> Option<&FsyncLatency> {
        Some(&self.fsync)
    }

    fn fsync_mut(&mut self) -> Option<&mut FsyncLatency> {
        Some(&mut self.fsync)
    }
}
