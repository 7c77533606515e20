//! A request as the queue records it, and the counts of those in flight.

use steadfs_base::IoTag;

use super::lanes::{is_sync, lane_of};
use super::options::CLASSES;
use crate::{Direction, Nanos};

/// A request that is queued or in flight.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its owner and urgency, boosted.
    pub tag: IoTag,
    /// The same before boosts: its group is charged.
    pub(super) charged: IoTag,
    /// Whether a sharer has the leaf that it was boosted to, which is charged then, too.
    pub(super) leaf_shares: bool,
    /// Its size, or its cost if it transfers nothing.
    pub bytes: u64,
    /// Its kind.
    pub direction: Direction,
    /// Number of times that the device makes data durable for it.
    pub flushes: u8,
    pub(super) arrival: u64,
    /// When it was inserted.
    pub arrived: Nanos,
    /// When it was dispatched.
    pub dispatched: Nanos,
    /// Its leaf; `None` for a lone request and for a queued FLUSH.
    pub(super) leaf: Option<usize>,
    pub(super) queued: bool,
    /// Whether a task of its own waits for it: its tag's owner, or another that shares it. For a background commit or
    /// checkpoint none does.
    pub(super) task_waits: bool,
}

/// What a request of a range costs at most: its bytes are not transferred.
const RANGE_COST_BYTES: u64 = 64 << 10;

/// What a request costs, in bytes that are transferred.
pub(super) fn cost_bytes(direction: Direction, bytes: u64) -> u64 {
    match direction {
        Direction::Range => bytes.min(RANGE_COST_BYTES),
        Direction::Read | Direction::Write | Direction::Flush => bytes,
    }
}

impl Entry {
    /// Whether it has data, which the device transfers.
    pub(super) fn is_transfer(&self) -> bool {
        self.direction != Direction::Range
    }

    /// Whether it may be a step of an fsync, if it is sync.
    pub(super) fn is_sync_step(&self) -> bool {
        matches!(self.direction, Direction::Write | Direction::Flush)
    }

    pub(super) fn is_flush(&self) -> bool {
        self.direction == Direction::Flush
    }

    /// Whether it is an async write that stays in the device's volatile cache.
    pub(super) fn is_volatile(&self) -> bool {
        self.direction == Direction::Write && self.flushes == 0 && !is_sync(self.tag)
    }
}

/// Requests in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct InFlight {
    /// Sync requests.
    pub sync: usize,
    /// Async requests.
    pub background: usize,
    /// Bytes of the async requests.
    pub background_bytes: u64,
    /// Async requests without data.
    pub background_ranges: usize,
    /// Those of both kinds that are of the idle class.
    pub idle: usize,
}

impl InFlight {
    pub(super) fn all(self) -> usize {
        self.sync + self.background
    }

    pub(super) fn count(&mut self, entry: &Entry, more: bool) {
        let Entry { tag, bytes, .. } = *entry;
        let change = |n: &mut usize| *n = if more { *n + 1 } else { *n - 1 };
        if is_sync(tag) {
            change(&mut self.sync);
        } else {
            change(&mut self.background);
            if !entry.is_transfer() {
                change(&mut self.background_ranges);
            }
            self.background_bytes = if more {
                self.background_bytes + bytes
            } else {
                self.background_bytes - bytes
            };
        }
        if lane_of(tag) / 2 == CLASSES - 1 {
            change(&mut self.idle);
        }
    }
}
