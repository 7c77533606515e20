//! The queue's motions: in, on to the device, out.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{GroupId, IoTag, Urgency};
use steadfs_iosched::{BoostOutcome, Scheduler};
use steadfs_rt::inherit::{self, Boostable, TaskNo};
use steadfs_rt::{Instant, Mutex, MutexGuard, Rank, now};

use super::ahead::{Ahead, Begun};
use super::handle::{Io, IoHandle};
use super::policy::QueueSettings;
use super::request::{Completion, HoldKey, Repeat, ReqId, Runner};
use super::state::State;
use super::stats::{Depths, QueueStats};
use super::timer::Timer;
use crate::{Bio, Device, Done, IoError, Op};

/// What a queue and its handles share.
pub(super) struct Inner {
    pub device: Arc<dyn Device>,
    pub ahead: Ahead,
    state: Mutex<State>,
    timer: Arc<Timer>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.timer.close();
    }
}

impl HoldKey {
    /// What the calling task's urgent requests are held under. In simulation all tasks share it,
    /// which only releases requests earlier than they would be.
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

    /// A key that nothing is held under.
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
struct Ready {
    /// For the calling task to run.
    own: Vec<(Bio, Done)>,
    /// For the device to run.
    others: Vec<(Bio, Done)>,
    /// For nobody to run.
    refused: Vec<(Bio, Done, IoError)>,
}

impl Ready {
    /// Ends what is refused, without the queue's lock.
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
        let state = State::new(scheduler, settings, depth, max_transfer);
        Self {
            device,
            ahead: Ahead::new(),
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

    /// The policy has held something back until now.
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
        if let Some(io) = self.ahead.take(&bio, tag) {
            self.want(&io, tag);
            return IoHandle::new(io, Arc::clone(self));
        }
        let io = Io::new();
        self.enqueue(bio, tag, Completion::Handle(Arc::clone(&io)), hold);
        IoHandle::new(io, Arc::clone(self))
    }

    /// Begins a read that nobody waits for yet, if there is room for what it brings; whether there was.
    pub(super) fn read_ahead(self: &Arc<Self>, offset: u64, len: usize, tag: IoTag) -> bool {
        let bio = Bio::read(offset, len);
        if self.device.geometry().check(&bio).is_err() {
            // That is told to whoever reads there.
            return true;
        }
        let io = Io::new();
        let now = now();
        // Whoever finds it finds it in the queue, where he can raise it.
        let mut state = self.state.lock();
        match self.ahead.begin(offset..bio.end(), &io, now) {
            Begun::Now => {
                // What its submitter is going to wait for goes first.
                state.release_key(HoldKey::of_task(), None, now);
                let tag = tag.with_urgency(Urgency::Background);
                state.admit(bio, tag, Completion::Ahead(io), None, now);
                self.pump(state, now);
                true
            }
            Begun::Before => true,
            Begun::Full => false,
        }
    }

    /// What was begun ahead is waited for now. With boosting switched off, too: it must not be later than a
    /// read that was not begun.
    fn want(self: &Arc<Self>, io: &Io, tag: IoTag) {
        if io.is_done() {
            return;
        }
        let now = now();
        let mut state = self.state.lock();
        if let BoostOutcome::Boosted { .. } = state.raise(io.request(), tag, now) {
            self.pump(state, now);
        }
    }

    /// Waits for what was read ahead and not asked for, and forgets it.
    pub(super) fn drain_read_ahead(self: &Arc<Self>) {
        for io in self.ahead.empty() {
            // Nobody wants its result.
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
            self.state.lock().recorder.refused(bio.op);
            to.call(bio, Err(error));
            return;
        }
        let now = now();
        let mut state = self.state.lock();
        let tag = state.lent(tag);
        state.admit(bio, tag, to, hold, now);
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

    /// Starts a request that is held: somebody watches it without waiting.
    pub(super) fn start_held(self: &Arc<Self>, id: ReqId) {
        let mut state = self.state.lock();
        if state.key_of(id).is_some() {
            let now = now();
            state.release_held(id, None, now);
            self.pump(state, now);
        }
    }

    /// Nobody can wait for a request any more: starts it, unless a plug will.
    pub(super) fn forsaken(self: &Arc<Self>, id: ReqId) {
        let mut state = self.state.lock();
        if let Some(HoldKey::Task(_)) = state.key_of(id) {
            let now = now();
            state.release_held(id, None, now);
            self.pump(state, now);
        }
    }

    pub(super) fn boost(self: &Arc<Self>, io: &Io, tag: IoTag) {
        let now = now();
        let mut state = self.state.lock();
        if !state.settings().boost {
            return;
        }
        let boost = state.raise(io.request(), tag, now);
        let (raised, along) = state.bytes_of(io);
        state.recorder.boosted(boost, raised, along);
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
        stats.read_ahead = self.ahead.stats();
        stats
    }

    pub(super) fn depths(&self) -> Depths {
        self.state.lock().depths()
    }

    /// Waits until `io` has ended; meanwhile this task does what it can for it.
    pub(super) fn wait(self: &Arc<Self>, io: &Io) {
        let now = now();
        let own = Arc::clone(self);
        let _queued = inherit::blocked_on(own);
        let mut state = self.state.lock();
        if inherit::has_waiters() {
            // Somebody has come since it submitted them.
            inherit::effective_tag(IoTag::default(), |tag, waiter| {
                state.raise_of(inherit::current_task(), waiter, now);
                tag
            });
        }
        let runner = Runner(state.runners);
        state.runners += 1;
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

    /// Starts what the policy lets through. One task does it at a time; one that finds another at
    /// it leaves the rest to it, so a device that ends requests at once makes no recursion.
    fn pump<'a>(self: &'a Arc<Self>, mut state: MutexGuard<'a, State>, mut now: Instant) {
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

    /// Takes what the policy lets through.
    fn collect(self: &Arc<Self>, state: &mut State, runner: Option<Runner>, now: Instant) -> Ready {
        let mut ready = Ready::default();
        self.collect_at(state, runner, now, &mut ready);
        while let Some(at) = state.look_again()
            && !self.timer.set(at, self)
        {
            // There is nobody who would look then: the time counts as come.
            self.collect_at(state, runner, at, &mut ready);
        }
        ready
    }

    fn collect_at(
        self: &Arc<Self>,
        state: &mut State,
        runner: Option<Runner>,
        now: Instant,
        ready: &mut Ready,
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

    /// The device has ended a request. The next ones are started first; nothing of the queue is
    /// held any more when the waiters learn of the end, so that the last of them can close it.
    fn complete(self: Arc<Self>, id: ReqId, bio: Bio, result: Result<(), IoError>) {
        if matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes) {
            self.ahead.forget(&(bio.offset..bio.end()));
        }
        let now = now();
        let mut state = self.state.lock();
        let (request, result) = state.complete(id, &bio, result, now);
        self.pump(state, now);
        if result.is_ok() || !request.is_ahead() {
            drop(self);
            request.end(bio, result);
            return;
        }
        for Repeat {
            io,
            offset,
            len,
            tag,
        } in request.end(bio, result)
        {
            let bio = Bio::read(offset, len as usize);
            self.enqueue(bio, tag, Completion::Again(io), None);
        }
    }
}

impl Boostable for Inner {
    fn boost(self: Arc<Self>, task: TaskNo, tag: IoTag) {
        let now = now();
        let mut state = self.state.lock();
        if state.raise_of(task, tag, now) {
            self.pump(state, now);
        }
    }
}

/// Offers a request to those that may sleep until its end.
fn offer(mut job: (Bio, Done), waiters: &[Arc<Io>]) -> Result<(), (Bio, Done)> {
    for io in waiters {
        match io.offer(job) {
            Ok(()) => return Ok(()),
            Err(back) => job = back,
        }
    }
    Err(job)
}
