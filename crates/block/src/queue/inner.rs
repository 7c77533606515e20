//! The queue's operations: submission, dispatch, completion.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{GroupId, IoTag, Urgency};
use steadfs_iosched::{BoostOutcome, Scheduler};
use steadfs_rt::inherit::{self, Boostable, TaskNo};
use steadfs_rt::waits::{self, RequestPlaces};
use steadfs_rt::{Instant, Mutex, MutexGuard, Rank, now};

use super::handle::{IoCompletion, IoHandle};
use super::policy::QueueSettings;
use super::read_ahead::{ReadAheadCache, Reservation};
use super::request::{Completion, HoldKey, ReqId, RetryRead, Runner};
use super::state::QueueState;
use super::stats::{Depths, QueueStats};
use super::timer::Timer;
use crate::{Bio, Device, Done, IoError, Op};

/// The state that a queue and its handles share.
pub(super) struct Inner {
    pub device: Arc<dyn Device>,
    pub read_ahead: ReadAheadCache,
    state: Mutex<QueueState>,
    timer: Arc<Timer>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.timer.close();
    }
}

impl HoldKey {
    /// The key for the calling task's urgent requests. In simulation all tasks share one key, which only
    /// releases requests earlier.
    pub(super) fn of_task() -> Self {
        thread_local! {
            static TASK: Cell<Option<u64>> = const { Cell::new(None) };
        }
        let number = TASK.get().unwrap_or_else(|| {
            let new = new_number();
            TASK.set(Some(new));
            new
        });
        Self::Task(number)
    }

    /// An unused key.
    pub(super) fn of_new_plug() -> Self {
        Self::Plug(new_number())
    }
}

fn new_number() -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    NUMBERS.fetch_add(1, Ordering::Relaxed)
}

/// Requests on their way to the device.
#[derive(Default)]
struct ReadyRequests {
    /// For the calling task to run.
    own: Vec<(Bio, Done)>,
    /// For the device to run.
    others: Vec<(Bio, Done)>,
    /// Not to be run.
    refused: Vec<(Bio, Done, IoError)>,
}

impl ReadyRequests {
    /// Ends refused requests, without the queue's lock.
    fn refuse(&mut self) {
        for (bio, done, error) in self.refused.drain(..) {
            done(bio, Err(error));
        }
    }
}

impl Inner {
    pub(super) fn new(
        device: Arc<dyn Device>,
        settings: QueueSettings,
        scheduler: Box<dyn Scheduler>,
    ) -> Self {
        let max_transfer = device.geometry().max_transfer;
        let depth = settings.depth_for(&*device);
        let state = QueueState::new(scheduler, settings, depth, max_transfer);
        Self {
            device,
            read_ahead: ReadAheadCache::new(),
            state: Mutex::new(Rank::QueueState, state),
            timer: Timer::new(),
        }
    }

    pub(super) fn configure(self: &Arc<Self>, settings: QueueSettings) {
        let scheduler = settings.scheduler(&*self.device);
        let depth = settings.depth_for(&*self.device);
        let now = now();
        let mut state = self.state.lock();
        state.reorder(scheduler, settings, depth, now);
        self.pump(state, now);
    }

    pub(super) fn settings(&self) -> QueueSettings {
        self.state.lock().settings()
    }

    pub(super) fn set_group(&self, group: GroupId, parent: GroupId, weight: u32) {
        self.state.lock().set_group(group, parent, weight);
    }

    pub(super) fn forget_group(&self, group: GroupId) {
        self.state.lock().forget_group(group);
    }

    pub(super) fn describe(&self) -> String {
        let mut out = String::new();
        // Writing to a string does not fail.
        let _ = self.state.lock().sched.describe(&mut out);
        out
    }

    /// The time at which the policy wanted to be rerun has been reached.
    pub(super) fn pump_now(self: &Arc<Self>) {
        let now = now();
        let state = self.state.lock();
        self.pump(state, now);
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        bio: Bio,
        tag: IoTag,
        hold: Option<HoldKey>,
    ) -> IoHandle {
        if let Some(io) = self.read_ahead.take(&bio, tag) {
            self.boost_read_ahead(&io, tag);
            return IoHandle::new(io, Arc::clone(self));
        }
        let io = IoCompletion::new();
        self.enqueue(bio, tag, Completion::Handle(Arc::clone(&io)), hold);
        IoHandle::new(io, Arc::clone(self))
    }

    /// Starts a read-ahead, unless the limit of its memory is reached; returns false then.
    pub(super) fn read_ahead(self: &Arc<Self>, offset: u64, len: usize, tag: IoTag) -> bool {
        let bio = Bio::read(offset, len);
        if self.device.geometry().check(&bio).is_err() {
            // A read of that range will report the error.
            return true;
        }
        let io = IoCompletion::new();
        let now = now();
        // Under the queue's lock: a read that finds the entry also finds the request, so that it can boost it.
        let mut state = self.state.lock();
        match self.read_ahead.reserve(offset..bio.end(), &io, now) {
            Reservation::New => {
                // The submitter's held requests are queued first.
                state.release_key(HoldKey::of_task(), None, now);
                let tag = tag.with_urgency(Urgency::Background);
                state.admit(bio, tag, tag, Completion::ReadAhead(io), None, now);
                self.pump(state, now);
                true
            }
            Reservation::Exists => true,
            Reservation::Full => false,
        }
    }

    /// A task waits for a read-ahead now: boosts it. Also with boosting off, because it must not be served later
    /// than a new read.
    fn boost_read_ahead(self: &Arc<Self>, io: &IoCompletion, tag: IoTag) {
        if io.is_done() {
            return;
        }
        let now = now();
        let mut state = self.state.lock();
        if let BoostOutcome::Boosted { .. } = state.boost(io.request(), tag, now) {
            self.pump(state, now);
        }
    }

    /// Waits for all read-aheads and drops them.
    pub(super) fn drain_read_ahead(self: &Arc<Self>) {
        for io in self.read_ahead.drain() {
            // The result is not used.
            let _ = IoHandle::new(io, Arc::clone(self)).wait();
        }
    }

    pub(super) fn enqueue(
        self: &Arc<Self>,
        bio: Bio,
        tag: IoTag,
        to: Completion,
        hold: Option<HoldKey>,
    ) {
        if let Err(error) = self.device.geometry().check(&bio) {
            self.state.lock().recorder.record_refused(bio.op);
            to.call(bio, Err(error));
            return;
        }
        let now = now();
        let mut state = self.state.lock();
        let boosted = state.effective_tag(tag);
        state.admit(bio, tag, boosted, to, hold, now);
        if hold.is_none() {
            self.pump(state, now);
        }
    }

    pub(super) fn unplug(self: &Arc<Self>, key: HoldKey) {
        let now = now();
        let mut state = self.state.lock();
        state.unplug(key, HoldKey::of_task(), now);
        self.pump(state, now);
    }

    /// Starts a held request, because a task polls it without waiting.
    pub(super) fn start_held(self: &Arc<Self>, id: ReqId) {
        let mut state = self.state.lock();
        if state.key_of(id).is_some() {
            let now = now();
            state.release_held(id, None, now);
            self.pump(state, now);
        }
    }

    /// The last handle is dropped: starts the request, unless a plug will.
    pub(super) fn abandoned(self: &Arc<Self>, id: ReqId) {
        let mut state = self.state.lock();
        if let Some(HoldKey::Task(_)) = state.key_of(id) {
            let now = now();
            state.release_held(id, None, now);
            self.pump(state, now);
        }
    }

    pub(super) fn boost(self: &Arc<Self>, io: &IoCompletion, tag: IoTag) {
        let now = now();
        let mut state = self.state.lock();
        if !state.settings().boost {
            return;
        }
        let boost = state.boost(io.request(), tag, now);
        let (served, collateral) = state.boost_served(io);
        state.recorder.record_boost(boost, served, collateral);
        if matches!(boost, BoostOutcome::Boosted { .. }) {
            self.pump(state, now);
        }
    }

    pub(super) fn share(self: &Arc<Self>, ios: &[IoHandle], tags: &[IoTag]) {
        let now = now();
        let mut state = self.state.lock();
        for io in ios {
            for &tag in tags {
                state.share(io.io().request(), tag, now);
            }
        }
        self.pump(state, now);
    }

    pub(super) fn effective_tag(&self, tag: IoTag, waiter: IoTag) -> IoTag {
        if tag == waiter {
            return tag;
        }
        let state = self.state.lock();
        match state.settings().boost {
            true => state.sched.boosted_tag(tag, waiter),
            false => tag,
        }
    }

    pub(super) fn begin_wait(self: &Arc<Self>, tag: IoTag, idles: bool) {
        let mut state = self.state.lock();
        if state.sched.begin_wait(tag, idles) {
            self.pump(state, now());
        }
    }

    pub(super) fn end_waits(&self, tags: &[IoTag]) {
        let mut state = self.state.lock();
        for &tag in tags {
            state.end_wait(tag, now());
        }
    }

    pub(super) fn outweighs(&self, a: IoTag, b: IoTag) -> bool {
        self.state.lock().sched.outweighs(a, b)
    }

    pub(super) fn max_transfer_for(&self, tag: IoTag) -> u64 {
        self.state.lock().max_transfer_for(tag, now())
    }

    pub(super) fn next_flush(&self) -> u64 {
        self.state.lock().flushes + 1
    }

    pub(super) fn has_flushed(&self, number: u64) -> bool {
        number == 0 || self.state.lock().flushed >= number
    }

    pub(super) fn stats(&self) -> QueueStats {
        let state = self.state.lock();
        let mut stats = state.recorder.stats();
        stats.scheduler = state.sched.name();
        stats.depth = state.depth();
        stats.in_flight = state.in_flight;
        stats.queued = state.sched.queued();
        stats.held = state.held();
        stats.read_ahead = self.read_ahead.stats();
        stats
    }

    pub(super) fn depths(&self) -> Depths {
        self.state.lock().depths()
    }

    /// Waits until `io` has ended. Meanwhile this task runs its requests itself, if it can.
    pub(super) fn wait(self: &Arc<Self>, io: &IoCompletion) {
        let now = now();
        let own = Arc::clone(self);
        let _blocked = inherit::blocked_on(own);
        let own = Arc::clone(self);
        let _step = waits::during_request(own, io.request().to_word());
        let mut state = self.state.lock();
        if inherit::has_waiters() {
            // Another task waits for this one since it submitted the requests.
            inherit::effective_tag(IoTag::default(), |tag, waiter| {
                state.boost_task(inherit::current_task(), waiter, now);
                tag
            });
        }
        let runner = Runner(state.next_runner);
        state.next_runner += 1;
        state.release_key(HoldKey::of_task(), Some(runner), now);
        match state.key_of(io.request()) {
            Some(key @ HoldKey::Plug(_)) => state.release_key(key, Some(runner), now),
            Some(HoldKey::Task(_)) => state.release_held(io.request(), Some(runner), now),
            None => {}
        }
        let mut ready = self.collect(&mut state, Some(runner), now);
        drop(state);
        ready.refuse();
        for (bio, done) in ready.others {
            self.device.start(bio, done);
        }
        if !ready.own.is_empty() {
            self.device.run(ready.own);
        }
        if !io.is_done() {
            self.device.help(&|| io.is_done());
            io.sleep(&*self.device);
        }
    }

    /// Starts what the policy dispatches. One task pumps at a time, and any other leaves the rest to it. So a
    /// device that ends requests at once causes no recursion.
    fn pump<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, QueueState>, mut now: Instant) {
        if state.pumping {
            return;
        }
        loop {
            let mut ready = self.collect(&mut state, None, now);
            if ready.others.is_empty() && ready.refused.is_empty() {
                state.pumping = false;
                return;
            }
            state.pumping = true;
            drop(state);
            ready.refuse();
            for (bio, done) in ready.others {
                self.device.start(bio, done);
            }
            now = steadfs_rt::now();
            state = self.state.lock();
        }
    }

    /// Takes what the policy dispatches.
    fn collect(
        self: &Arc<Self>,
        state: &mut QueueState,
        runner: Option<Runner>,
        now: Instant,
    ) -> ReadyRequests {
        let mut ready = ReadyRequests::default();
        self.collect_at(state, runner, now, &mut ready);
        while let Some(at) = state.rerun_at()
            && !self.timer.set(at, self)
        {
            // Without a timer's task nothing is held back: the scheduler runs as if the time were `at`.
            self.collect_at(state, runner, at, &mut ready);
        }
        ready
    }

    fn collect_at(
        self: &Arc<Self>,
        state: &mut QueueState,
        runner: Option<Runner>,
        now: Instant,
        ready: &mut ReadyRequests,
    ) {
        while let Some(dispatch) = state.dispatch(now) {
            let own = runner.is_some() && dispatch.runner == runner;
            let job = self.job(dispatch.id, dispatch.bio);
            if let Some(error) = dispatch.refused {
                ready.refused.push((job.0, job.1, error));
            } else if own {
                ready.own.push(job);
            } else if let Err(job) = offer(job, &dispatch.waiters) {
                ready.others.push(job);
            }
        }
    }

    fn job(self: &Arc<Self>, id: ReqId, bio: Bio) -> (Bio, Done) {
        let queue = Arc::clone(self);
        let done = move |bio, result| queue.complete(id, bio, result);
        (bio, Box::new(done))
    }

    /// The device has ended a request. Starts the next ones first. No reference to the queue is held when
    /// the waiters are woken, so that the last of them can close it.
    fn complete(self: Arc<Self>, id: ReqId, bio: Bio, result: Result<(), IoError>) {
        if matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            self.read_ahead.drop_range(&(bio.offset..bio.end()));
        }
        let now = now();
        let mut state = self.state.lock();
        let (request, result) = state.complete(id, &bio, result, now);
        self.pump(state, now);
        if result.is_ok() || !request.is_read_ahead() {
            drop(self);
            request.end(bio, result);
            return;
        }
        for RetryRead {
            io,
            offset,
            len,
            tag,
        } in request.end(bio, result)
        {
            let bio = Bio::read(offset, len as usize);
            self.enqueue(bio, tag, Completion::Retry(io), None);
        }
    }
}

impl Boostable for Inner {
    fn boost(self: Arc<Self>, task: TaskNo, tag: IoTag) {
        let now = now();
        let mut state = self.state.lock();
        if state.boost_task(task, tag, now) {
            self.pump(state, now);
        }
    }
}

impl RequestPlaces for Inner {
    fn place(&self, request: u64) -> Option<&'static str> {
        self.state.lock().place(ReqId::from_word(request))
    }
}

/// Offers a request to a task that sleeps until its end.
fn offer(mut job: (Bio, Done), waiters: &[Arc<IoCompletion>]) -> Result<(), (Bio, Done)> {
    for io in waiters {
        match io.offer(job) {
            Ok(()) => return Ok(()),
            Err(back) => job = back,
        }
    }
    Err(job)
}
