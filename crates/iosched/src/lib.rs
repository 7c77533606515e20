//! I/O scheduling policies: pure state machines without clock, lock or I/O.
//!
//! A policy decides which of the queued requests the device gets next. It knows requests by number
//! and never sees their content; time is told to it.

mod fair;
mod fifo;

pub use fair::{AsyncRamp, Charge, Fair, FairOptions, PrioWeights, Slice};
pub use fifo::{Fifo, FifoOptions};

use std::fmt::Write;

use steadfs_base::{GroupId, IoTag};

/// A request's number: dense and small, used again after [`Scheduler::complete`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IoId(pub u32);

/// A point in time, in nanoseconds from an origin that does not matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Nanos(pub u64);

/// What a request does, as far as order is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Brings data.
    Read,
    /// Takes data or changes a range.
    Write,
    /// Makes data durable.
    Flush,
}

/// A request as a policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Io {
    /// Owner and urgency.
    pub tag: IoTag,
    /// What it does.
    pub direction: Direction,
    /// Bytes that it moves or changes.
    pub bytes: u64,
    /// How many times the device makes data durable for it: once for a FLUSH, for a flush before a write
    /// and for a write that is durable when it ends.
    pub flushes: u8,
    /// A read that was begun before anybody asked for it: nobody waits, whatever other reads are for.
    pub readahead: bool,
}

/// What became of a boost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BoostOutcome {
    /// The request is served as the new tag demands.
    Boosted {
        /// How many requests stand before it no longer.
        overtaken: u64,
    },
    /// Its tag was at least as good.
    AlreadyUrgent,
    /// It is not queued any more: the device has it.
    AlreadyDispatched,
}

/// A policy. The queue calls it under its lock: it must be quick.
///
/// A request is inserted, perhaps grown and boosted, returned by [`Scheduler::next`] once, and
/// completed. A policy may hold requests back while it has requests in the device, or until a time
/// that [`Scheduler::rerun_at`] tells: when nothing is in flight and something is queued, `next`
/// returns a request, or there is such a time and then it does.
pub trait Scheduler: Send {
    /// The policy's name, as options and reports call it.
    fn name(&self) -> &'static str;

    /// A request has arrived. Its number is not in use.
    fn insert(&mut self, id: IoId, io: Io, now: Nanos);

    /// A queued request has absorbed a neighbour of `bytes` bytes.
    fn grow(&mut self, id: IoId, bytes: u64);

    /// A queued request is for somebody of this tag, too: a FLUSH, or what somebody waits for.
    fn share(&mut self, id: IoId, tag: IoTag, now: Nanos) {
        let _ = (id, tag, now);
    }

    /// Somebody waits for this request: raises its tag to `tag`, never lowers it.
    fn boost(&mut self, id: IoId, tag: IoTag, now: Nanos) -> BoostOutcome;

    /// The request that the device gets now; `None` if none is queued or all are held back.
    fn next(&mut self, now: Nanos) -> Option<IoId>;

    /// The device has ended a request that `next` returned.
    fn complete(&mut self, id: IoId, now: Nanos);

    /// How many requests are queued.
    fn queued(&self) -> usize;

    /// The tag of a request of tag `now` for which a task of tag `waiter` waits. At least as good as
    /// both; the same as `now` if that is as good for the waiter already.
    fn boosted_tag(&self, now: IoTag, waiter: IoTag) -> IoTag {
        now.boosted_to(waiter)
    }

    /// How many bytes one write of this tag should have at most, so that others wait for it no longer than they
    /// have to.
    fn max_write_bytes(&self, tag: IoTag, now: Nanos) -> u64 {
        let _ = (tag, now);
        u64::MAX
    }

    /// When [`Scheduler::next`] is to be asked again although no request has come or ended: it holds
    /// requests back until then for somebody who is expected to come first.
    fn rerun_at(&self) -> Option<Nanos> {
        None
    }

    /// A group exists below `parent`, with this weight (1 to 1000); or its weight has changed. Groups
    /// that nobody has told of are below the root and have the default weight.
    fn set_group(&mut self, group: GroupId, parent: GroupId, weight: u32) {
        let _ = (group, parent, weight);
    }

    /// A group is gone. Requests on its account are served as before.
    fn remove_group(&mut self, group: GroupId) {
        let _ = group;
    }

    /// Tells, a line each, who has requests queued or in the device.
    fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        writeln!(out, "{} requests queued", self.queued())
    }
}
