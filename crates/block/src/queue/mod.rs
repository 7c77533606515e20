//! The request queue: where waiting I/O stays until the device may have it.
//!
//! # How a request gets to the device
//! The policy orders what is queued; the device has at most [`QueueOptions::depth`] requests at a
//! time. Who starts them is decided so that as few tasks as possible are woken:
//!
//! - Requests with an urgent tag (waited, journal, checkpoint) are **held**: their submitter is
//!   going to wait. When it does, everything it has submitted goes to the device together, run by
//!   that task itself ([`Device::run`]): a lone fsync wakes nobody. A held request is not lost when
//!   nobody waits after all: asking whether it is done, or dropping its last handle, starts it.
//! - Other requests, and those with a callback, are started at once ([`Device::start`]).
//! - A [`Plug`] holds requests of any kind until it is dropped or one of them is waited for. When it
//!   is dropped, each goes on as if it were submitted then.
//!
//! Held and queued requests that continue one another on the device and have the same tag are
//! merged.
//!
//! So at any time, a request that has not ended is held and has an owner that will wait, ask or
//! drop it; or it is queued and the device has its fill, and the next completion starts it; or the
//! device has it. None is stranded.
//!
//! # Wake-ups
//! - A request that its submitter waits for: none. A batch of them: none with io_uring; without, the
//!   pool helps, and the device's threads are woken one after the other as they are needed.
//! - A request that nobody waits for, or a run of them: one thread of the device, none while one is
//!   at it. Whoever waits for it later is woken once.
//! - A FLUSH behind another one: one of those who wait is woken and runs it; the others when it has
//!   ended.
//!
//! # Flushes
//! One FLUSH runs at a time, and none beside a write that makes the device flush before it: if a FLUSH loses
//! what was written, no such write (a commit block, the end of a checkpoint) may become durable as if it had
//! not, neither meanwhile nor later. Those that arrive meanwhile share the next one, which starts after
//! they arrived: it covers every write that had completed when they were submitted. They are numbered,
//! so that whoever remembers which one his data needs can see that somebody else's was that one or a
//! later one, and do without ([`Queue::next_flush`], [`Queue::has_flushed`]).

mod ahead;
mod handle;
mod inner;
mod policy;
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

/// How a queue works.
#[derive(Clone, Debug)]
pub struct QueueOptions {
    /// How many requests the device has at a time.
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

    /// A queue in front of `device` in the order of a policy.
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

    /// Changes the policy and its settings. What is queued is put in the new order; what the device
    /// has stays there.
    pub fn configure(&self, settings: QueueSettings) {
        self.inner.configure(settings);
    }

    /// How the queue works at present.
    pub fn settings(&self) -> QueueSettings {
        self.inner.settings()
    }

    /// Tells of a group below `parent`, or of its new weight (1 to 1000).
    pub fn set_group(&self, group: GroupId, parent: GroupId, weight: u32) {
        self.inner.set_group(group, parent, weight);
    }

    /// A group is gone.
    pub fn forget_group(&self, group: GroupId) {
        self.inner.forget_group(group);
    }

    /// The policies there are, the present one in brackets (as Linux's `queue/scheduler`).
    pub fn describe_policies(&self) -> String {
        let now = self.settings().policy;
        let word = |policy: Policy| match policy == now {
            true => format!("[{}]", policy.name()),
            false => policy.name().to_owned(),
        };
        Policy::ALL.map(word).join(" ")
    }

    /// Who has requests queued or in the device, in lines.
    pub fn describe(&self) -> String {
        self.inner.describe()
    }

    /// The device's fixed properties.
    pub fn geometry(&self) -> &Geometry {
        self.inner.device.geometry()
    }

    /// How many bytes a write of this tag should have at most: what the device takes, or less while others wait
    /// for FLUSHes, which wait for it.
    pub fn max_transfer_for(&self, tag: IoTag) -> u64 {
        self.inner.max_transfer_for(tag)
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.inner.device
    }

    /// Queues a request. It may wait for the device here, in the queue, where it can be boosted.
    ///
    /// With an urgent tag it stays here until somebody waits for it (see the module's head). The
    /// submitter must not wait in between for anything that may depend on the request, such as a
    /// task that waits for its effect otherwise than by its handle. Who cannot promise that uses
    /// [`Queue::submit_with`].
    pub fn submit(&self, bio: Bio, tag: IoTag) -> IoHandle {
        let hold = is_urgent(tag).then(HoldKey::of_task);
        self.inner.submit(bio, tag, hold)
    }

    /// Begins to read `len` bytes at byte `offset`, on the account of `tag`, because they will probably be
    /// wanted: a read of that very range finds them. False if there is too much already that was read ahead
    /// and not asked for.
    pub fn read_ahead(&self, offset: u64, len: usize, tag: IoTag) -> bool {
        self.inner.read_ahead(offset, len, tag)
    }

    /// How many bytes more may be read ahead.
    pub fn read_ahead_available(&self) -> u64 {
        self.inner.ahead.room(steadfs_rt::now())
    }

    /// Most bytes that are read ahead and not asked for at a time.
    pub fn set_read_ahead_limit(&self, bytes: u64) {
        self.inner.ahead.limit(bytes);
    }

    /// Waits for what is being read ahead, and forgets all of it: the device is about to be closed, or changed by
    /// somebody else.
    pub fn drain_read_ahead(&self) {
        self.inner.drain_read_ahead();
    }

    /// Queues a request that nobody waits for; `done` is called once, from any task, perhaps before
    /// this returns. It takes only locks of a late rank and never waits.
    pub fn submit_with(
        &self,
        bio: Bio,
        tag: IoTag,
        done: impl FnOnce(Bio, Result<(), IoError>) + Send + 'static,
    ) {
        self.inner
            .enqueue(bio, tag, Completion::Call(Box::new(done)), None);
    }

    /// Collects requests, so that they are merged and started together.
    pub fn plug(&self) -> Plug<'_> {
        Plug {
            queue: self,
            key: HoldKey::of_new_plug(),
        }
    }

    /// Queues a FLUSH: when it ends well, every write that had completed is durable. After one that failed all
    /// later ones fail, since it may have lost what was written before.
    pub fn flush(&self, tag: IoTag) -> IoHandle {
        self.submit(Bio::flush(), tag)
    }

    /// The number of the FLUSH that makes durable what the device has answered by now: of the next that
    /// it is given, alone or before a write. From 1.
    pub fn next_flush(&self) -> u64 {
        self.inner.next_flush()
    }

    /// Whether this FLUSH, or a later one, has ended well. Number 0 stands for none that is needed.
    pub fn has_flushed(&self, number: u64) -> bool {
        self.inner.has_flushed(number)
    }

    /// Raises a request that is not yet dispatched to `tag`; never lowers, does nothing once the
    /// device has it, and nothing where boosting is switched off.
    pub fn boost(&self, io: &IoHandle, tag: IoTag) {
        self.inner.boost(io.io(), tag);
    }

    /// Requests that the device does not have yet are for others, too, who wait for what their owner does:
    /// they go as soon as those of the best placed of all, and are on the accounts of all.
    pub fn share(&self, ios: &[IoHandle], tags: &[IoTag]) {
        if !ios.is_empty() && !tags.is_empty() {
            self.inner.share(ios, tags);
        }
    }

    /// What I/O of tag `now` becomes when a task of tag `waiter` waits for it: as urgent and on as good
    /// an account as either, by the policy's measure. `now` itself where boosting is switched off.
    pub fn effective_tag(&self, now: IoTag, waiter: IoTag) -> IoTag {
        self.inner.effective_tag(now, waiter)
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

    /// How many requests there are now, and where.
    pub fn depths(&self) -> Depths {
        self.inner.depths()
    }

    /// What the queue has done and how long it took.
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
    /// Queues a request as [`Queue::submit`] does, but not before the plug is dropped or one of its
    /// requests is waited for.
    pub fn submit(&self, bio: Bio, tag: IoTag) -> IoHandle {
        self.queue.inner.submit(bio, tag, Some(self.key))
    }

    /// Queues a request as [`Queue::submit_with`] does, but not before the plug is dropped or one
    /// of its requests is waited for.
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
