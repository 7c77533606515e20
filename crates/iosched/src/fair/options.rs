//! The parameters of the policies over one tree.

use steadfs_base::PrioClass;

use super::fsync_latency::FsyncTarget;
use crate::Nanos;

pub(super) const MS: u64 = 1_000_000;

/// Default and bounds of a group's weight (Linux: `io.bfq.weight`).
pub(crate) const DEFAULT_WEIGHT: u32 = 100;
pub(crate) const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;

/// The limits of a slice: it expires at the first one that is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Most bytes, except for a single larger request.
    pub bytes: u64,
    /// Longest time of a slice of sync requests.
    pub sync_time: Nanos,
    /// Longest time of a slice of async requests.
    pub background_time: Nanos,
    /// Most requests of a slice of async requests.
    pub background_requests: usize,
    /// Most requests of one owner in flight while other owners are active.
    pub depth: usize,
    /// Whether the device idles for an owner with an empty queue until the end of its slice.
    pub idle_to_end: bool,
}

/// The parameters of [`FairQueue`](super::FairQueue).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FairOptions {
    /// Most requests in flight.
    pub depth: usize,
    /// Most async requests in flight.
    pub async_depth: usize,
    /// Bytes of async requests in flight from which on no more of them are dispatched: no request can overtake one that
    /// is in flight.
    pub async_bytes: u64,
    /// The limits of a slice.
    pub slice: Slice,
    /// How long the device idles for the owner in service after its last completion. Only if weights or classes
    /// differ; zero disables idling.
    pub slice_idle: Nanos,
    /// Idle also if all weights are equal.
    pub always_idle: bool,
    /// Weight raising: inside its group, an owner that becomes active after a pause has 30 times its weight at first.
    pub low_latency: bool,
    /// One request in flight, and the device idles for every owner: exact shares at the cost of throughput.
    pub strict_guarantees: bool,
    /// If a group always has sync requests queued, its async requests get one byte for this many bytes of sync service.
    pub sync_per_async: u64,
    /// The async requests of a group get at least one request in this time.
    pub async_max_wait: Nanos,
    /// A class gets at least one request in this time, whatever earlier classes request.
    pub class_max_wait: Nanos,
    /// The cost of a FLUSH in bytes, until the duration of a FLUSH and the throughput of the device are measured.
    pub flush_cost: u64,
    /// In a series of FLUSHes: bytes of async writes that may be dispatched from one FLUSH to the next, and the largest
    /// single write. More bytes if the device transfers more in the time of a FLUSH, or if they do not delay a FLUSH.
    pub flush_bytes_min: u64,
    /// The time that an fsync may take beside async requests.
    pub fsync_target: FsyncTarget,
}

impl Default for FairOptions {
    fn default() -> Self {
        Self {
            depth: usize::MAX,
            async_depth: 24,
            async_bytes: 2 << 20,
            slice: Slice {
                bytes: 64 << 10,
                sync_time: Nanos(125 * MS),
                background_time: Nanos(40 * MS),
                background_requests: usize::MAX,
                depth: usize::MAX,
                idle_to_end: false,
            },
            slice_idle: Nanos(8 * MS),
            always_idle: false,
            low_latency: true,
            strict_guarantees: false,
            sync_per_async: 8,
            async_max_wait: Nanos(250 * MS),
            class_max_wait: Nanos(200 * MS),
            flush_cost: 64 << 10,
            flush_bytes_min: 128 << 10,
            fsync_target: FsyncTarget::Auto,
        }
    }
}

impl FairOptions {
    /// These options with what `strict_guarantees` implies.
    pub(super) fn with_implied(mut self) -> Self {
        if self.strict_guarantees {
            self.depth = 1;
            self.slice.idle_to_end = true;
            self.always_idle = true;
            self.slice_idle = self.slice_idle.max(Nanos(8 * MS));
        }
        assert!(
            self.depth > 0 && self.async_depth > 0 && self.async_bytes > 0,
            "at least one request of each kind may be in flight"
        );
        assert!(
            self.slice.bytes > 0 && self.slice.background_requests > 0 && self.slice.depth > 0,
            "a slice serves at least one request"
        );
        self
    }
}

pub(super) const CLASSES: usize = 3;

pub(super) fn class_of(class: PrioClass) -> usize {
    match class {
        PrioClass::RealTime => 0,
        PrioClass::BestEffort => 1,
        PrioClass::Idle => 2,
    }
}
