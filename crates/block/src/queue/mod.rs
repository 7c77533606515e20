//! The request queue: requests wait here until the scheduler dispatches them to the device.
//!
//! **Problem.** Once a request is dispatched its order cannot be changed any more, and each wake-up of another
//! thread costs more CPU time than most requests.
//!
//! # Dispatch
//! The policy orders queued requests; the device has at most [`QueueOptions::depth`] requests at a time. Requests
//! are started so that as few tasks as possible are woken:
//!
//! - Requests with an urgent tag (waited, journal, checkpoint) are **held**, because their submitter is going to
//!   wait. When it waits, all of its held requests are dispatched at once and run by that task itself
//!   ([`Device::run`]): a single fsync wakes no other task. If the submitter does not wait after all,
//!   [`IoHandle::is_done`] or the drop of the last handle starts the request.
//! - Other requests, and those with a callback, are started at once ([`Device::start`]).
//! - A [`Plug`] holds requests of any kind until it is dropped or a task waits for one of them. When it is
//!   dropped, its requests continue as if they were submitted then.
//!
//! Held and queued requests that are contiguous on the device and have the same tag are merged.
//!
//! **Invariant.** A request that has not ended is held, and its owner will wait for it, poll it or drop it; or it
//! is queued while the device is full, and the next completion starts it; or the device has it. So none is
//! stranded.
//!
//! # Wake-ups
//! - A request that its submitter waits for: none. A batch of them: none with io_uring; otherwise threads of the
//!   device's pool are woken one after the other as they are needed.
//! - Background requests, one or many: one thread of the device; none while one of them is active. A task that
//!   waits for such a request later is woken once.
//! - A FLUSH that is queued after another one: one of its waiters is woken and runs it; the others wake when it
//!   has ended.
//!
//! # Flushes
//! One FLUSH runs at a time, and none beside a write with a preflush: if a FLUSH loses writes, no such write (a
//! commit record, the end of a checkpoint) may become durable, neither meanwhile nor later. A write with FUA alone is one
//! of them, since its failure may be that of an earlier write, which no later FLUSH reports. FLUSHes that arrive
//! meanwhile share the next one, which starts after they arrived: it covers every write that had completed when
//! they were submitted. FLUSHes are numbered: a task that knows which number its data needs can check whether
//! that one or a later one, of any task, has succeeded, and skips its own ([`Queue::next_flush`],
//! [`Queue::has_flushed`]).

mod handle;
mod inner;
mod policy;
mod read_ahead;
mod recorder;
mod request;
mod state;
mod stats;
mod timer;

use std::sync::Arc;

use steadfs_base::{GroupId, IoTag};
use steadfs_iosched::Scheduler;

use crate::{Bio, Buf, Device, Geometry, IoError};
use inner::Inner;
use request::{Completion, HoldKey, is_urgent};

pub use handle::{IoHandle, wait_all};
pub use policy::{Policy, QueueSettings};
pub use stats::{
    BoostStats, Depths, GroupStats, Latency, LatencyBuckets, OpStats, QueueStats, ReadAheadStats,
};

/// Options of a queue.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// Most requests that the device has at a time.
    pub depth: usize,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { depth: 32 }
    }
}

/// A device with its request queue. Handles may be waited for by any number of tasks.
pub struct Queue {
    inner: Arc<Inner>,
}

impl Queue {
    /// A queue in front of `device`, in arrival order ([`Policy::Fifo`]).
    pub fn new(device: Arc<dyn Device>, options: QueueOptions) -> Self {
        let settings = QueueSettings {
            policy: Policy::Fifo,
            depth: options.depth,
            ..QueueSettings::default()
        };
        Self::with_settings(device, settings)
    }

    /// A queue in front of `device`.
    pub fn with_settings(device: Arc<dyn Device>, settings: QueueSettings) -> Self {
        let scheduler = settings.scheduler(&*device);
        Self {
            inner: Arc::new(Inner::new(device, settings, scheduler)),
        }
    }

    /// A queue in front of `device` with a scheduler.
    pub fn with_scheduler(
        device: Arc<dyn Device>,
        options: QueueOptions,
        scheduler: Box<dyn Scheduler>,
    ) -> Self {
        let settings = QueueSettings {
            depth: options.depth,
            ..QueueSettings::default()
        };
        Self {
            inner: Arc::new(Inner::new(device, settings, scheduler)),
        }
    }

    /// Changes the policy and its settings. Queued requests get the new order; dispatched ones stay in the
    /// device.
    pub fn configure(&self, settings: QueueSettings) {
        self.inner.configure(settings);
    }

    /// The present settings.
    pub fn settings(&self) -> QueueSettings {
        self.inner.settings()
    }

    /// Adds a group below `parent`, or changes its weight (1 to 1000).
    pub fn set_group(&self, group: GroupId, parent: GroupId, weight: u32) {
        self.inner.set_group(group, parent, weight);
    }

    /// Removes a group.
    pub fn forget_group(&self, group: GroupId) {
        self.inner.forget_group(group);
    }

    /// The names of the policies, the present one in brackets (as Linux's `queue/scheduler`).
    pub fn describe_policies(&self) -> String {
        let now = self.settings().policy;
        let word = |policy: Policy| match policy == now {
            true => format!("[{}]", policy.name()),
            false => policy.name().to_owned(),
        };
        Policy::ALL.map(word).join(" ")
    }

    /// The scheduler's queues with requests, one per line.
    pub fn describe(&self) -> String {
        self.inner.describe()
    }

    /// The device's fixed properties.
    pub fn geometry(&self) -> &Geometry {
        self.inner.device.geometry()
    }

    /// Largest write in bytes for this tag: the device's limit, or less while other tasks wait for FLUSHes, which
    /// wait for the write.
    pub fn max_transfer_for(&self, tag: IoTag) -> u64 {
        self.inner.max_transfer_for(tag)
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Queues a request. While it waits here for the device, it can be boosted.
    ///
    /// With an urgent tag it is held until a task waits for it (see the module's header). Until then the
    /// submitter must not wait for anything that depends on the request, such as a task that waits for
    /// its effect by other means than a handle. Where that is possible use [`Queue::submit_with`].
    pub fn submit(&self, bio: Bio, tag: IoTag) -> IoHandle {
        let hold = is_urgent(tag).then(HoldKey::of_task);
        self.inner.submit(bio, tag, hold)
    }

    /// Starts a read-ahead of `len` bytes at byte `offset`, charged to `tag`. A later read of exactly that range
    /// uses it. False if the limit of read-ahead memory is reached.
    pub fn read_ahead(&self, offset: u64, len: usize, tag: IoTag) -> bool {
        self.inner.read_ahead(offset, len, tag)
    }

    /// Number of bytes that may still be read ahead.
    pub fn read_ahead_available(&self) -> u64 {
        self.inner.read_ahead.available(steadfs_rt::now())
    }

    /// Sets the limit of bytes that are read ahead and not used yet.
    pub fn set_read_ahead_limit(&self, bytes: u64) {
        self.inner.read_ahead.set_limit(bytes);
    }

    /// Waits for all read-aheads in flight and drops the cached ones: the device will be closed, or another program
    /// may change it.
    pub fn drain_read_ahead(&self) {
        self.inner.drain_read_ahead();
    }

    /// Queues a request without a handle; `done` is called once, from any task, perhaps before this
    /// returns. It takes only locks of a late rank and never waits.
    pub fn submit_with(
        &self,
        bio: Bio,
        tag: IoTag,
        done: impl FnOnce(Bio, Result<(), IoError>) + Send + 'static,
    ) {
        self.inner
            .enqueue(bio, tag, Completion::Call(Box::new(done)), None);
    }

    /// A plug, which collects requests so that they are merged and started at once.
    pub fn plug(&self) -> Plug<'_> {
        Plug {
            queue: self,
            key: HoldKey::of_new_plug(),
        }
    }

    /// Queues a FLUSH: if it succeeds, every write that had completed before is durable. After a failed FLUSH all
    /// later ones fail, because it may have lost earlier writes.
    pub fn flush(&self, tag: IoTag) -> IoHandle {
        self.submit(Bio::flush(), tag)
    }

    /// The number of the FLUSH that makes all completed writes durable: the next one that is dispatched, alone
    /// or as a preflush. From 1.
    pub fn next_flush(&self) -> u64 {
        self.inner.next_flush()
    }

    /// Whether this FLUSH or a later one has succeeded. True for number 0.
    pub fn has_flushed(&self, number: u64) -> bool {
        self.inner.has_flushed(number)
    }

    /// Boosts a request to `tag`, unless it is dispatched or boosting is off. Never lowers it. It is still charged to the
    /// group that submitted it.
    pub fn boost(&self, io: &IoHandle, tag: IoTag) {
        self.inner.boost(io.io(), tag);
    }

    /// Shares requests with other owners that wait for the same work, such as a merged checkpoint: a request that
    /// is not dispatched yet is queued for every one of `tags`, dispatched at the earliest slice, and charged to
    /// all of them.
    pub fn share(&self, ios: &[IoHandle], tags: &[IoTag]) {
        if !ios.is_empty() && !tags.is_empty() {
            self.inner.share(ios, tags);
        }
    }

    /// The effective tag of I/O with tag `now` that a task with tag `waiter` waits for (priority inheritance): the
    /// better urgency, priority and group of both, as the policy compares them. `now` if boosting is off.
    pub fn effective_tag(&self, now: IoTag, waiter: IoTag) -> IoTag {
        self.inner.effective_tag(now, waiter)
    }

    /// The task of this tag waits for other tasks, and submits nothing until [`Queue::end_waits`]. Unless `idles`, the
    /// device does not idle for its next request meanwhile.
    pub fn begin_wait(&self, tag: IoTag, idles: bool) {
        self.inner.begin_wait(tag, idles);
    }

    /// The tasks of these tags no longer wait for others: the device idles for them as if a request of each had completed
    /// now.
    pub fn end_waits(&self, tags: &[IoTag]) {
        if !tags.is_empty() {
            self.inner.end_waits(tags);
        }
    }

    /// Whether the policy serves the group of `a` more than that of `b`, because it weighs more.
    pub fn outweighs(&self, a: IoTag, b: IoTag) -> bool {
        a.group != b.group && self.inner.outweighs(a, b)
    }

    /// Reads `len` bytes at byte `offset` and waits.
    pub fn read(&self, offset: u64, len: usize, tag: IoTag) -> Result<Buf, IoError> {
        let mut bio = self.submit(Bio::read(offset, len), tag).into_bio()?;
        Ok(bio.bufs.pop().expect("a read has one buffer"))
    }

    /// Writes and waits.
    pub fn write(&self, offset: u64, bufs: Vec<Buf>, tag: IoTag) -> Result<(), IoError> {
        self.submit(Bio::write(offset, bufs), tag).wait()
    }

    /// The numbers of queued and dispatched requests.
    pub fn depths(&self) -> Depths {
        self.inner.depths()
    }

    /// The queue's statistics.
    pub fn stats(&self) -> QueueStats {
        self.inner.stats()
    }
}

/// Holds the requests submitted through it until it is dropped.
pub struct Plug<'q> {
    queue: &'q Queue,
    key: HoldKey,
}

impl Plug<'_> {
    /// Queues a request as [`Queue::submit`] does, but not before the plug is dropped or a task waits for one
    /// of its requests.
    pub fn submit(&self, bio: Bio, tag: IoTag) -> IoHandle {
        self.queue.inner.submit(bio, tag, Some(self.key))
    }

    /// Queues a request as [`Queue::submit_with`] does, but not before the plug is dropped or a task waits
    /// for one of its requests.
    pub fn submit_with(
        &self,
        bio: Bio,
        tag: IoTag,
        done: impl FnOnce(Bio, Result<(), IoError>) + Send + 'static,
    ) {
        let to = Completion::Call(Box::new(done));
        self.queue.inner.enqueue(bio, tag, to, Some(self.key));
    }
}

impl Drop for Plug<'_> {
    fn drop(&mut self) {
        self.queue.inner.unplug(self.key);
    }
}

#[cfg(test)]
mod tests;
