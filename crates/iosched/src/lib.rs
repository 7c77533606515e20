//! I/O scheduling policies: pure state machines without clock, lock or I/O.
//!
//! A policy decides which of the queued requests is dispatched to the device next. It knows requests by number and
//! never accesses their data; its caller passes the time.

#![forbid(unsafe_code)]

mod fair;
mod fifo;

pub use fair::{Cfq, CfqRules, Fair, FairOptions, FairQueue, FairRules, FsyncTarget, Rules, Slice};
pub use fifo::{Fifo, FifoOptions};

use std::fmt::Write;

use steadfs_base::{GroupId, IoTag};

/// The number of a request: a small index, used again after [`Scheduler::complete`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u32);

/// A point in time or a duration, in nanoseconds. The origin of the clock does not matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Reads data.
    Read,
    /// Writes data.
    Write,
    /// Changes a range without data (discard, zeroes): it takes time of the device, and nothing of its throughput.
    Range,
    /// Makes the device's volatile cache durable.
    Flush,
}

/// A request as a policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// Owner and urgency.
    pub tag: IoTag,
    /// The tag before boosts: its group is charged for the request.
    pub charged: IoTag,
    /// The kind of the request.
    pub direction: Direction,
    /// Bytes that are read, written or changed.
    pub bytes: u64,
    /// How many times the device makes data durable for it: once for a FLUSH, for a FLUSH before a write (preflush) and
    /// for a durable write (FUA).
    pub flushes: u8,
    /// A read-ahead request, for which no task waits. All other reads are sync.
    pub readahead: bool,
}

/// The result of [`Scheduler::boost`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BoostOutcome {
    /// The request has a new tag and is served by it.
    Boosted {
        /// Requests of its old queue that it has overtaken.
        overtaken: u64,
    },
    /// Its tag was at least as urgent.
    AlreadyUrgent,
    /// It is in flight.
    AlreadyDispatched,
}

/// A scheduling policy. The queue calls it under a lock, so it must be fast.
///
/// A request is inserted, perhaps grown and boosted, returned once by [`Scheduler::next`], and completed. A policy may
/// hold requests back while other requests are in flight, or until the time of [`Scheduler::rerun_at`]. Invariant: if
/// requests are queued and none is in flight, `next` returns a request, or `rerun_at` a time at which it does.
pub trait Scheduler: Send {
    /// The policy's name in options and reports.
    fn name(&self) -> &'static str;

    /// Queues a request. Its number must not be in use.
    fn insert(&mut self, id: IoId, io: Io, now: Nanos);

    /// A queued request was merged with an adjacent one of `bytes` bytes.
    fn grow(&mut self, id: IoId, bytes: u64);

    /// A queued request also serves the owner of this tag: it is a FLUSH, or a sync request submitted for others.
    fn share(&mut self, id: IoId, tag: IoTag, now: Nanos) {
        let _ = (id, tag, now);
    }

    /// A task of tag `tag` waits for this request: boosts the request to it. Never makes it less urgent, and changes its
    /// order only: it is still charged to the group that it was inserted for.
    fn boost(&mut self, id: IoId, tag: IoTag, now: Nanos) -> BoostOutcome;

    /// The request to dispatch now; `None` if none is queued or all are held back.
    fn next(&mut self, now: Nanos) -> Option<IoId>;

    /// A request that `next` returned has completed.
    fn complete(&mut self, id: IoId, now: Nanos);

    /// The number of queued requests.
    fn queued(&self) -> usize;

    /// The boosted tag of a request of tag `now` for which a task of tag `waiter` waits: at least as urgent as both, and
    /// `now` itself if that is urgent enough for the waiter.
    fn boosted_tag(&self, now: IoTag, waiter: IoTag) -> IoTag {
        now.boosted_to(waiter)
    }

    /// Whether the group of `a` is served more than that of `b`.
    fn outweighs(&self, a: IoTag, b: IoTag) -> bool {
        let _ = (a, b);
        false
    }

    /// The largest size of one write of this tag, so that other requests do not wait longer than necessary for it.
    fn max_write_bytes(&self, tag: IoTag, now: Nanos) -> u64 {
        let _ = (tag, now);
        u64::MAX
    }

    /// The owner of this tag waits for other owners and submits nothing until [`Scheduler::end_wait`]. Unless `idles`, no
    /// request is held back for its next one meanwhile. Returns whether requests may have been held back.
    fn begin_wait(&mut self, tag: IoTag, idles: bool) -> bool {
        let _ = (tag, idles);
        false
    }

    /// The owner of this tag no longer waits for others: its next request may follow as soon as if a request of its own
    /// had completed now.
    fn end_wait(&mut self, tag: IoTag, now: Nanos) {
        let _ = (tag, now);
    }

    /// The time at which the queue must call [`Scheduler::next`] again even if no request arrives or completes: until
    /// then, requests are held back for an owner that is expected to submit one (idling), or for a FLUSH.
    fn rerun_at(&self) -> Option<Nanos> {
        None
    }

    /// Adds a group below `parent` with this weight (1 to 1000), or changes its weight. A group that was never set is
    /// below the root and has the default weight.
    fn set_group(&mut self, group: GroupId, parent: GroupId, weight: u32) {
        let _ = (group, parent, weight);
    }

    /// Removes a group. Its remaining requests are served as before.
    fn remove_group(&mut self, group: GroupId) {
        let _ = group;
    }

    /// Writes a line for each owner with requests that are queued or in flight.
    fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        writeln!(out, "{} requests queued", self.queued())
    }
}
