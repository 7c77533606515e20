//! The queue's state. All of it is under the queue's lock, and no function here waits.

mod dispatch;
#[cfg(debug_assertions)]
mod overlap;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use steadfs_base::{GroupId, IoTag, Urgency};
use steadfs_iosched::{BoostOutcome, Io as SchedIo, IoId, Nanos, Scheduler};
use steadfs_rt::Instant;
use steadfs_rt::inherit::{self, TaskNo};

use super::handle::IoCompletion;
use super::policy::QueueSettings;
use super::recorder::Recorder;
use super::request::{
    Completion, HoldKey, Phase, ReqId, Request, RequestPart, Runner, direction, is_mergeable,
};
use super::stats::Depths;
use crate::{Bio, Op};

pub(super) struct QueueState {
    pub sched: Box<dyn Scheduler>,
    /// Number of the present scheduler: a request that an earlier one dispatched is not reported to it.
    epoch: u32,
    settings: QueueSettings,
    /// Parent and weight of each group.
    groups: BTreeMap<GroupId, (GroupId, u32)>,
    depth: usize,
    max_transfer: u64,
    slots: Vec<Slot>,
    free: Vec<u32>,
    held: Vec<(HoldKey, ReqId)>,
    /// Mergeable requests that are not dispatched, by operation and end.
    tails: BTreeMap<(Tail, u64), ReqId>,
    pub in_flight: usize,
    running_flush: Option<ReqId>,
    /// The dispatched FLUSH or write with a preflush. There is one at a time.
    flushing: Option<ReqId>,
    /// Requests of this kind that the policy has dispatched, and that wait for its end.
    parked: VecDeque<ReqId>,
    /// The FLUSH that is not dispatched; new ones join it.
    next_flush: Option<ReqId>,
    /// FLUSHes dispatched, including preflushes.
    pub flushes: u64,
    /// The latest of them that has succeeded.
    pub flushed: u64,
    /// Cause of the first failed FLUSH.
    pub flush_error: Option<String>,
    /// A task is pumping and will check again for more requests.
    pub pumping: bool,
    pub next_runner: u64,
    pub recorder: Recorder,
    #[cfg(debug_assertions)]
    changing: overlap::Ranges,
}

struct Slot {
    generation: u32,
    request: Option<Request>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tail {
    Read,
    Write,
}

fn tail_of(bio: &Bio) -> Option<(Tail, u64)> {
    let kind = match bio.op {
        Op::Read => Tail::Read,
        _ => Tail::Write,
    };
    is_mergeable(bio).then(|| (kind, bio.end()))
}

/// Number of FLUSHes that a bio costs the device.
fn flushes(bio: &Bio) -> u8 {
    u8::from(bio.op == Op::Flush) + u8::from(bio.preflush) + u8::from(bio.fua)
}

/// Most owners that share a request.
const MAX_SHARERS: usize = 64;

fn nanos(at: Instant) -> Nanos {
    Nanos(at.0)
}

impl QueueState {
    pub(super) fn new(
        sched: Box<dyn Scheduler>,
        settings: QueueSettings,
        depth: usize,
        max_transfer: u32,
    ) -> Self {
        assert!(depth > 0, "a queue dispatches at least one request");
        Self {
            sched,
            epoch: 0,
            settings,
            groups: BTreeMap::new(),
            depth,
            max_transfer: u64::from(max_transfer),
            slots: Vec::new(),
            free: Vec::new(),
            held: Vec::new(),
            tails: BTreeMap::new(),
            in_flight: 0,
            running_flush: None,
            flushing: None,
            parked: VecDeque::new(),
            next_flush: None,
            flushes: 0,
            flushed: 0,
            flush_error: None,
            pumping: false,
            next_runner: 0,
            recorder: Recorder::default(),
            #[cfg(debug_assertions)]
            changing: Default::default(),
        }
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn settings(&self) -> QueueSettings {
        self.settings
    }

    pub(super) fn set_group(&mut self, group: GroupId, parent: GroupId, weight: u32) {
        self.groups.insert(group, (parent, weight));
        self.sched.set_group(group, parent, weight);
    }

    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.groups.remove(&group);
        self.recorder.forget_group(group);
        self.sched.remove_group(group);
    }

    /// Largest write in bytes for this tag.
    pub(super) fn max_transfer_for(&self, tag: IoTag, now: Instant) -> u64 {
        let piece = self.sched.max_write_bytes(tag, nanos(now));
        self.max_transfer.min(piece)
    }

    /// Time at which the scheduler must be rerun.
    pub(super) fn rerun_at(&self) -> Option<Instant> {
        if self.in_flight >= self.depth {
            return None;
        }
        self.sched.rerun_at().map(|at| Instant(at.0))
    }

    /// Moves queued requests to another scheduler.
    pub(super) fn reorder(
        &mut self,
        sched: Box<dyn Scheduler>,
        settings: QueueSettings,
        depth: usize,
        now: Instant,
    ) {
        (self.sched, self.settings, self.depth) = (sched, settings, depth);
        self.epoch = self.epoch.wrapping_add(1);
        // Parents were created before their groups, so their numbers are smaller.
        for (&group, &(parent, weight)) in &self.groups {
            self.sched.set_group(group, parent, weight);
        }
        let queued = |slot: &u32| {
            let request = self.slots[*slot as usize].request.as_ref();
            request.is_some_and(|request| request.phase == Phase::Queued)
        };
        let mut waiting: Vec<u32> = (0..self.slots.len() as u32).filter(queued).collect();
        waiting.sort_by_key(|&slot| {
            let request = self.slots[slot as usize].request.as_ref();
            request.map(|request| request.first.submitted)
        });
        for slot in waiting {
            let id = self.id_of(IoId(slot));
            self.insert_into_scheduler(id, now);
        }
    }

    /// Inserts a request into the scheduler.
    fn insert_into_scheduler(&mut self, id: ReqId, now: Instant) {
        let epoch = self.epoch;
        let request = self.request_mut(id);
        request.phase = Phase::Queued;
        request.epoch = epoch;
        let io = SchedIo {
            tag: request.tag,
            charged: request.first.charged,
            direction: direction(request.bio.op),
            bytes: request.bio.len,
            flushes: flushes(&request.bio),
            readahead: request.is_read_ahead(),
        };
        let sharers = std::mem::take(&mut request.sharers);
        self.sched.insert(id.io_id(), io, nanos(now));
        for &tag in &sharers {
            self.sched.share(id.io_id(), tag, nanos(now));
        }
        // Kept for another scheduler.
        self.request_mut(id).sharers = sharers;
    }

    pub(super) fn depths(&self) -> Depths {
        let mut depths = Depths::default();
        for request in self.slots.iter().filter_map(|slot| slot.request.as_ref()) {
            let waited = request.tag.urgency < Urgency::Background;
            let count = match (request.phase, waited) {
                (Phase::Dispatched, true) => &mut depths.device_waited,
                (Phase::Dispatched, false) => &mut depths.device_background,
                (_, true) => &mut depths.waited,
                (_, false) => &mut depths.background,
            };
            *count += 1;
            depths.reads += usize::from(request.bio.op == Op::Read);
        }
        depths
    }

    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// The request, unless it has ended.
    fn get(&mut self, id: ReqId) -> Option<&mut Request> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        slot.request.as_mut()
    }

    /// Where a request is; `None` if it has ended.
    pub(super) fn place(&mut self, id: ReqId) -> Option<&'static str> {
        self.get(id).map(|request| match request.phase {
            Phase::Held(_) | Phase::Blocked | Phase::Queued => "queue",
            Phase::Dispatched => "device",
        })
    }

    fn request_mut(&mut self, id: ReqId) -> &mut Request {
        self.get(id).expect("the request has not ended")
    }

    fn id_of(&self, io: IoId) -> ReqId {
        ReqId {
            slot: io.0,
            generation: self.slots[io.0 as usize].generation,
        }
    }

    fn add(&mut self, request: Request) -> ReqId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                request: None,
            });
            u32::try_from(self.slots.len() - 1).expect("memory holds fewer requests")
        });
        let entry = &mut self.slots[slot as usize];
        entry.request = Some(request);
        ReqId {
            slot,
            generation: entry.generation,
        }
    }

    /// Admits a bio submitted with tag `charged`, boosted to `tag`: merges it, holds it, or inserts it into the scheduler.
    pub(super) fn admit(
        &mut self,
        bio: Bio,
        charged: IoTag,
        tag: IoTag,
        to: Completion,
        hold: Option<HoldKey>,
        now: Instant,
    ) {
        #[cfg(debug_assertions)]
        self.changing.begin(&bio);
        let io = to.io().cloned();
        let part = RequestPart::of(&bio, charged, to, now);
        let id = self.enqueue_request(bio, tag, part, hold, now);
        if let Some(io) = io {
            io.set_request(id);
        }
    }

    /// A request's changes have ended: its range may be changed by others now.
    fn end_changes(&mut self, op: Op, request: &Request) {
        #[cfg(debug_assertions)]
        for part in request.parts() {
            self.changing.end(op, part.offset, part.len);
        }
        #[cfg(not(debug_assertions))]
        let _ = (op, request);
    }

    fn enqueue_request(
        &mut self,
        bio: Bio,
        tag: IoTag,
        part: RequestPart,
        hold: Option<HoldKey>,
        now: Instant,
    ) -> ReqId {
        if bio.op == Op::Flush
            && let Some(id) = self.next_flush
        {
            self.join_flush(id, part, tag, hold, now);
            return id;
        }
        let (bio, part) = match self.merge(bio, part, tag, hold, now) {
            Ok(id) => return id,
            Err(back) => back,
        };
        let (is_flush, tail) = (bio.op == Op::Flush, tail_of(&bio));
        let id = self.add(Request {
            bio,
            first: part,
            merged: Vec::new(),
            tag,
            phase: hold.map_or(Phase::Blocked, Phase::Held),
            epoch: self.epoch,
            runner: None,
            dispatched: now,
            flush: None,
            sharers: Vec::new(),
        });
        if is_flush {
            self.next_flush = Some(id);
        }
        if let Some(tail) = tail {
            self.tails.insert(tail, id);
        }
        match hold {
            Some(key) => self.held.push((key, id)),
            None => self.release(id, None, now),
        }
        id
    }

    fn join_flush(
        &mut self,
        id: ReqId,
        part: RequestPart,
        tag: IoTag,
        hold: Option<HoldKey>,
        now: Instant,
    ) {
        self.request_mut(id).merged.push(part);
        self.share(id, tag, now);
        self.recorder.flushes_joined += 1;
        self.boost(id, tag, now);
        if hold.is_none() {
            self.release_held(id, None, now);
        }
    }

    pub(super) fn end_wait(&mut self, tag: IoTag, now: Instant) {
        self.sched.end_wait(tag, nanos(now));
    }

    /// Shares a request with an owner of this tag.
    pub(super) fn share(&mut self, id: ReqId, tag: IoTag, now: Instant) {
        let Some(request) = self.get(id) else { return };
        // Sharers above the limit are not charged.
        let known = request.sharers.contains(&tag) || request.sharers.len() >= MAX_SHARERS;
        if known || request.phase == Phase::Dispatched {
            return;
        }
        let queued = request.phase == Phase::Queued;
        self.request_mut(id).sharers.push(tag);
        if queued {
            self.sched.share(id.io_id(), tag, nanos(now));
        }
    }

    fn merge(
        &mut self,
        bio: Bio,
        part: RequestPart,
        tag: IoTag,
        hold: Option<HoldKey>,
        now: Instant,
    ) -> Result<ReqId, (Bio, RequestPart)> {
        let Some((kind, end)) = tail_of(&bio) else {
            return Err((bio, part));
        };
        let Some(&id) = self.tails.get(&(kind, bio.offset)) else {
            return Err((bio, part));
        };
        let max_transfer = match kind {
            Tail::Read => self.max_transfer,
            Tail::Write => self.max_transfer_for(tag, now),
        };
        let request = self.request_mut(id);
        if !request.can_append(&bio, &part, tag, hold, max_transfer) {
            return Err((bio, part));
        }
        let (len, queued) = (bio.len, request.phase == Phase::Queued);
        let old = request.bio.end();
        request.append(bio, part);
        if queued {
            self.sched.grow(id.io_id(), len);
        }
        self.tails.remove(&(kind, old));
        self.tails.insert((kind, end), id);
        self.recorder.merged += 1;
        Ok(id)
    }

    /// Inserts a held request into the scheduler; a FLUSH not before the running one has ended.
    fn release(&mut self, id: ReqId, runner: Option<Runner>, now: Instant) {
        let flush_runs = self.running_flush.is_some();
        let request = self.request_mut(id);
        debug_assert!(!matches!(request.phase, Phase::Queued | Phase::Dispatched));
        request.runner = runner;
        if request.bio.op == Op::Flush && flush_runs {
            request.phase = Phase::Blocked;
            return;
        }
        self.insert_into_scheduler(id, now);
    }

    /// Releases every request that is held under `key`.
    pub(super) fn release_key(&mut self, key: HoldKey, runner: Option<Runner>, now: Instant) {
        if !self.held.iter().any(|(k, _)| *k == key) {
            return;
        }
        let mut held = std::mem::take(&mut self.held);
        held.retain(|&(k, id)| {
            if k == key {
                self.release(id, runner, now);
            }
            k != key
        });
        self.held = held;
    }

    /// Ends a plug: requests that will be waited for are held for `task` now, the others are released.
    pub(super) fn unplug(&mut self, key: HoldKey, task: HoldKey, now: Instant) {
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|(k, id)| {
            if *k != key {
                return true;
            }
            let request = self.request_mut(*id);
            if request.will_be_waited_for() {
                request.phase = Phase::Held(task);
                *k = task;
                return true;
            }
            self.release(*id, None, now);
            false
        });
        self.held = held;
    }

    /// The key that a request is held under, if it is held.
    pub(super) fn key_of(&mut self, id: ReqId) -> Option<HoldKey> {
        match self.get(id)?.phase {
            Phase::Held(key) => Some(key),
            Phase::Blocked | Phase::Queued | Phase::Dispatched => None,
        }
    }

    /// Releases one request, if it is held.
    pub(super) fn release_held(&mut self, id: ReqId, runner: Option<Runner>, now: Instant) {
        if let Some(at) = self.held.iter().rposition(|(_, held)| *held == id) {
            self.held.remove(at);
            self.release(id, runner, now);
        }
    }

    /// Boosts a request to `tag`.
    pub(super) fn boost(&mut self, id: ReqId, tag: IoTag, now: Instant) -> BoostOutcome {
        let Some(request) = self.get(id) else {
            return BoostOutcome::AlreadyDispatched;
        };
        let (phase, old) = (request.phase, request.tag);
        let is_of_policy = request.epoch == self.epoch;
        if is_of_policy && (phase == Phase::Dispatched || self.parked.contains(&id)) {
            // The policy learns that a task waits for what it has dispatched.
            self.sched.boost(id.io_id(), tag, nanos(now));
        }
        if phase == Phase::Dispatched {
            return BoostOutcome::AlreadyDispatched;
        }
        let boosted = self.sched.boosted_tag(old, tag);
        if boosted == old {
            return BoostOutcome::AlreadyUrgent;
        }
        self.request_mut(id).tag = boosted;
        if phase == Phase::Queued {
            return self.sched.boost(id.io_id(), tag, nanos(now));
        }
        BoostOutcome::Boosted { overtaken: 0 }
    }

    /// Boosts the requests of a task that are not dispatched; returns whether any was boosted.
    pub(super) fn boost_task(&mut self, task: TaskNo, tag: IoTag, now: Instant) -> bool {
        if !self.settings.boost {
            return false;
        }
        let waits = |request: &Request| {
            request.phase != Phase::Dispatched && request.parts().any(|part| part.submitter == task)
        };
        let of_task: Vec<ReqId> = (0..self.slots.len() as u32)
            .filter(|slot| {
                self.slots[*slot as usize]
                    .request
                    .as_ref()
                    .is_some_and(waits)
            })
            .map(|slot| self.id_of(IoId(slot)))
            .collect();
        let mut any = false;
        for id in of_task {
            let boost = self.boost(id, tag, now);
            if let BoostOutcome::Boosted { .. } = boost {
                any = true;
                let request = self.request_mut(id);
                let bytes = request.parts().map(|part| part.len).sum();
                let others = request.parts().filter(|part| part.submitter != task);
                let collateral = others.map(|part| part.len).sum();
                let served = (request.tag.group, bytes);
                self.recorder.record_boost(boost, served, collateral);
                self.recorder.record_inherited();
            }
        }
        any
    }

    /// The effective tag of the calling task's new requests (priority inheritance).
    pub(super) fn effective_tag(&mut self, tag: IoTag) -> IoTag {
        if !self.settings.boost || !inherit::has_waiters() {
            return tag;
        }
        let boosted =
            inherit::effective_tag(tag, |now, waiter| self.sched.boosted_tag(now, waiter));
        if boosted != tag {
            self.recorder.record_inherited();
        }
        boosted
    }

    /// The group in whose slices the request of a submitted bio is served, and its bytes; and the bytes of other bios
    /// in it.
    pub(super) fn boost_served(&mut self, io: &IoCompletion) -> ((GroupId, u64), u64) {
        let Some(request) = self.get(io.request()) else {
            return ((GroupId(0), 0), 0);
        };
        let own = |part: &&RequestPart| {
            let handle = part.completion.io();
            handle.is_some_and(|handle| std::ptr::eq(Arc::as_ptr(handle), io))
        };
        let all = request.parts().map(|part| part.len).sum();
        let others = request.parts().filter(|part| !own(part));
        let collateral = others.map(|part| part.len).sum();
        ((request.tag.group, all), collateral)
    }
}
