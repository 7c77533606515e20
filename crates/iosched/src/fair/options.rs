//! What can be chosen about [`Fair`](super::Fair), and its presets.

use steadfs_base::{IoPrio, PrioClass};

use crate::Nanos;

const MS: u64 = 1_000_000;

/// The weight of a group that nobody gave one, and the bounds (Linux: io.bfq.weight).
pub(crate) const DEFAULT_WEIGHT: u32 = 100;
pub(crate) const WEIGHTS: std::ops::RangeInclusive<u32> = 1..=1000;

/// What a turn costs its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charge {
    /// The bytes that were moved.
    Bytes,
    /// The time it took.
    Time,
}

/// How an I/O priority's level becomes a weight inside its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrioWeights {
    /// BFQ's: 80 for level 0, 40 for 4, 10 for 7.
    Bfq,
    /// CFQ's slice lengths: 180 for level 0, 100 for 4, 40 for 7.
    Cfq,
}

impl PrioWeights {
    pub(crate) fn of(self, prio: IoPrio) -> u32 {
        let level = u32::from(prio.level.min(7));
        match self {
            Self::Bfq => (8 - level) * 10,
            Self::Cfq => (9 - level) * 20,
        }
    }
}

/// How long a turn is: whichever limit comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Most bytes, but for one request that is larger.
    pub bytes: u64,
    /// Longest time of those that somebody waits for.
    pub sync: Nanos,
    /// Longest time of those that nobody waits for.
    pub background: Nanos,
    /// Most requests of those that nobody waits for.
    pub background_requests: usize,
    /// Most requests that one owner has in the device while others want it.
    pub depth: usize,
    /// Whether a turn lasts to its end: an owner that has nothing queued is waited for.
    pub kept: bool,
}

/// CFQ's answer to sync requests that took long: few background requests at a time, one more for
/// each slice in which none took long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AsyncRamp {
    /// One more request for each of these.
    pub step: Nanos,
    /// A sync request that ended later than this after it came took long.
    pub delayed: Nanos,
}

/// How [`Fair`](super::Fair) works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FairOptions {
    /// The policy's name.
    pub name: &'static str,
    /// Most requests in the device.
    pub depth: usize,
    /// Most requests in the device that nobody waits for.
    pub async_depth: usize,
    /// Bytes in the device that nobody waits for, from which on no more such requests go there: what
    /// the device has, nobody can pass.
    pub async_bytes: u64,
    /// How long a turn is.
    pub slice: Slice,
    /// What it costs.
    pub charge: Charge,
    /// Weights inside a group.
    pub prio_weights: PrioWeights,
    /// How long the device is kept for an owner that has just been served, whose turn it is and who
    /// has nothing queued. Only where weights or classes differ; zero: never.
    pub slice_idle: Nanos,
    /// Wait for such an owner also where all weights are the same.
    pub always_idle: bool,
    /// Owners that come after a pause start with thirty times their weight, inside their group.
    pub low_latency: bool,
    /// One request at a time, and every owner is waited for: shares are exact, speed is not.
    pub strict_guarantees: bool,
    /// Nothing that nobody waits for is in the device together with what somebody waits for.
    pub async_alone: bool,
    /// Fewer background requests after sync requests that took long.
    pub async_ramp: Option<AsyncRamp>,
    /// Where somebody waits for requests of the same group all the time, those that nobody waits for
    /// get one byte for this many.
    pub sync_per_async: u64,
    /// … and at least one request in this time.
    pub async_max_wait: Nanos,
    /// A class gets at least one request in this time, whatever a better class wants.
    pub class_max_wait: Nanos,
    /// What a FLUSH costs while nobody knows how long it takes and how fast the device is, in bytes.
    pub flush_cost: u64,
    /// While FLUSHes come one after the other: how many bytes of writes that nobody waits for the device is
    /// given from one to the next, at least, and in one piece at most. More where it moves more in the time
    /// that a FLUSH takes.
    pub flush_bytes_min: u64,
}

impl Default for FairOptions {
    fn default() -> Self {
        Self {
            name: "fair",
            depth: usize::MAX,
            async_depth: 24,
            async_bytes: 2 << 20,
            slice: Slice {
                bytes: 64 << 10,
                sync: Nanos(125 * MS),
                background: Nanos(40 * MS),
                background_requests: usize::MAX,
                depth: usize::MAX,
                kept: false,
            },
            charge: Charge::Bytes,
            prio_weights: PrioWeights::Bfq,
            slice_idle: Nanos(8 * MS),
            always_idle: false,
            low_latency: true,
            strict_guarantees: false,
            async_alone: false,
            async_ramp: None,
            sync_per_async: 8,
            async_max_wait: Nanos(250 * MS),
            class_max_wait: Nanos(200 * MS),
            flush_cost: 64 << 10,
            flush_bytes_min: 128 << 10,
        }
    }
}

impl FairOptions {
    /// As Linux's CFQ had it up to 4.20: time slices of 100 ms (40 ms and two requests for those that
    /// nobody waits for), idling, a background depth that restarts at one when sync requests suffer.
    pub fn cfq() -> Self {
        Self {
            name: "cfq",
            async_bytes: u64::MAX,
            flush_bytes_min: u64::MAX,
            slice: Slice {
                bytes: u64::MAX,
                sync: Nanos(100 * MS),
                background: Nanos(40 * MS),
                background_requests: 2,
                depth: 4,
                kept: true,
            },
            charge: Charge::Time,
            prio_weights: PrioWeights::Cfq,
            always_idle: true,
            async_alone: true,
            async_ramp: Some(AsyncRamp {
                step: Nanos(100 * MS),
                delayed: Nanos(125 * MS),
            }),
            ..Self::default()
        }
    }

    /// What `strict_guarantees` implies.
    pub(super) fn settled(mut self) -> Self {
        if self.strict_guarantees {
            self.depth = 1;
            self.slice.kept = true;
            self.always_idle = true;
            self.slice_idle = self.slice_idle.max(Nanos(8 * MS));
        }
        assert!(
            self.depth > 0 && self.async_depth > 0 && self.async_bytes > 0,
            "requests end"
        );
        assert!(
            self.slice.bytes > 0 && self.slice.background_requests > 0 && self.slice.depth > 0,
            "a turn serves something"
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
