//! The queue's bookkeeping. All of it is under the queue's lock, and nothing in here waits.

mod dispatch;
#[cfg(debug_assertions)]
mod overlap;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use steadfs_base::{GroupId, IoTag, Urgency};
use steadfs_iosched::{BoostOutcome, Io as SchedIo, IoId, Nanos, Scheduler};
use steadfs_rt::Instant;
use steadfs_rt::inherit::{self, TaskNo};

use super::handle::Io;
use super::policy::QueueSettings;
use super::recorder::Recorder;
use super::request::{
    Completion, HoldKey, Part, Phase, ReqId, Request, Runner, direction, is_mergeable,
};
use super::stats::Depths;
use crate::{Bio, Op};

pub(super) struct State {
    pub sched: Box<dyn Scheduler>,
    /// Counts the policies there have been: requests that an earlier one let go are not this one's.
    epoch: u32,
    settings: QueueSettings,
    /// Parent and weight of each.
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
    /// The one that makes the device flush, alone or before a write. There is one at a time.
    flushing: Option<ReqId>,
    /// Those the policy has let go that wait for its end.
    parked: VecDeque<ReqId>,
    /// The FLUSH that has not started; it takes those that arrive.
    next_flush: Option<ReqId>,
    /// FLUSHes given to the device, those before writes included.
    pub flushes: u64,
    /// The latest of them that has ended well.
    pub flushed: u64,
    /// Why a FLUSH failed: the first one's cause.
    pub flush_error: Option<String>,
    /// Somebody is starting requests and will look again for more.
    pub pumping: bool,
    pub runners: u64,
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

/// How often the device makes data durable for a bio.
fn flushes(bio: &Bio) -> u8 {
    u8::from(bio.op == Op::Flush) + u8::from(bio.preflush) + u8::from(bio.fua)
}

/// Of how many accounts a request is at most.
const MAX_SHARERS: usize = 64;

fn nanos(at: Instant) -> Nanos {
    Nanos(at.0)
}

impl State {
    pub(super) fn new(
        sched: Box<dyn Scheduler>,
        settings: QueueSettings,
        depth: usize,
        max_transfer: u32,
    ) -> Self {
        assert!(depth > 0, "a queue lets at least one request through");
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
            runners: 0,
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

    /// How many bytes one write of this tag should have at most.
    pub(super) fn max_transfer_for(&self, tag: IoTag, now: Instant) -> u64 {
        let piece = self.sched.max_write_bytes(tag, nanos(now));
        self.max_transfer.min(piece)
    }

    /// When the policy wants to be asked again.
    pub(super) fn look_again(&self) -> Option<Instant> {
        if self.in_flight >= self.depth {
            return None;
        }
        self.sched.rerun_at().map(|at| Instant(at.0))
    }

    /// Another policy takes over.
    pub(super) fn reorder(
        &mut self,
        sched: Box<dyn Scheduler>,
        settings: QueueSettings,
        depth: usize,
        now: Instant,
    ) {
        (self.sched, self.settings, self.depth) = (sched, settings, depth);
        self.epoch = self.epoch.wrapping_add(1);
        // Parents were made before their groups, and their numbers are smaller.
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
            self.hand_over(id, now);
        }
    }

    /// Gives a request to the policy.
    fn hand_over(&mut self, id: ReqId, now: Instant) {
        let epoch = self.epoch;
        let request = self.living(id);
        request.phase = Phase::Queued;
        request.epoch = epoch;
        let io = SchedIo {
            tag: request.tag,
            direction: direction(request.bio.op),
            bytes: request.bio.len,
            flushes: flushes(&request.bio),
            readahead: request.is_ahead(),
        };
        let sharers = std::mem::take(&mut request.sharers);
        self.sched.insert(id.io_id(), io, nanos(now));
        for &tag in &sharers {
            self.sched.share(id.io_id(), tag, nanos(now));
        }
        // Another policy may want to know them.
        self.living(id).sharers = sharers;
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

    fn living(&mut self, id: ReqId) -> &mut Request {
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

    /// Takes a submitted bio in: merged, held, or in the policy's hands.
    pub(super) fn admit(
        &mut self,
        bio: Bio,
        tag: IoTag,
        to: Completion,
        hold: Option<HoldKey>,
        now: Instant,
    ) {
        #[cfg(debug_assertions)]
        self.changing.begin(&bio);
        let io = to.io().cloned();
        let part = Part::of(&bio, to, now);
        let id = self.place(bio, tag, part, hold, now);
        if let Some(io) = io {
            io.set_request(id);
        }
    }

    /// What a request has changed may be changed by others now.
    fn changes_end(&mut self, op: Op, request: &Request) {
        #[cfg(debug_assertions)]
        for part in request.parts() {
            self.changing.end(op, part.offset, part.len);
        }
        #[cfg(not(debug_assertions))]
        let _ = (op, request);
    }

    fn place(
        &mut self,
        bio: Bio,
        tag: IoTag,
        part: Part,
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
        part: Part,
        tag: IoTag,
        hold: Option<HoldKey>,
        now: Instant,
    ) {
        self.living(id).merged.push(part);
        self.share(id, tag, now);
        self.recorder.flushes_joined += 1;
        self.raise(id, tag, now);
        if hold.is_none() {
            self.release_held(id, None, now);
        }
    }

    /// A request is for somebody of this tag, too.
    pub(super) fn share(&mut self, id: ReqId, tag: IoTag, now: Instant) {
        let Some(request) = self.get(id) else { return };
        // Most of them are one account's; whoever comes when there are many is not told apart.
        let known = request.sharers.contains(&tag) || request.sharers.len() >= MAX_SHARERS;
        if known || request.phase == Phase::Dispatched {
            return;
        }
        let queued = request.phase == Phase::Queued;
        self.living(id).sharers.push(tag);
        if queued {
            self.sched.share(id.io_id(), tag, nanos(now));
        }
    }

    fn merge(
        &mut self,
        bio: Bio,
        part: Part,
        tag: IoTag,
        hold: Option<HoldKey>,
        now: Instant,
    ) -> Result<ReqId, (Bio, Part)> {
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
        let request = self.living(id);
        if !request.takes(&bio, &part.to, tag, hold, max_transfer) {
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

    /// Gives a held request to the policy; a FLUSH not before the one that runs has ended.
    fn release(&mut self, id: ReqId, runner: Option<Runner>, now: Instant) {
        let flush_runs = self.running_flush.is_some();
        let request = self.living(id);
        debug_assert!(!matches!(request.phase, Phase::Queued | Phase::Dispatched));
        request.runner = runner;
        if request.bio.op == Op::Flush && flush_runs {
            request.phase = Phase::Blocked;
            return;
        }
        self.hand_over(id, now);
    }

    /// Releases everything that is held under `key`.
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

    /// Ends a plug: what somebody is going to wait for is held for `task` now, the rest released.
    pub(super) fn unplug(&mut self, key: HoldKey, task: HoldKey, now: Instant) {
        let mut held = std::mem::take(&mut self.held);
        held.retain_mut(|(k, id)| {
            if *k != key {
                return true;
            }
            let request = self.living(*id);
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

    /// What a request is held under, if it is.
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

    /// Raises a request's tag; what became of it.
    pub(super) fn raise(&mut self, id: ReqId, tag: IoTag, now: Instant) -> BoostOutcome {
        let Some(request) = self.get(id) else {
            return BoostOutcome::AlreadyDispatched;
        };
        let (phase, old) = (request.phase, request.tag);
        if phase == Phase::Dispatched {
            return BoostOutcome::AlreadyDispatched;
        }
        let raised = self.sched.boosted_tag(old, tag);
        if raised == old {
            return BoostOutcome::AlreadyUrgent;
        }
        self.living(id).tag = raised;
        if phase == Phase::Queued {
            return self.sched.boost(id.io_id(), tag, nanos(now));
        }
        BoostOutcome::Boosted { overtaken: 0 }
    }

    /// Raises what a task has submitted and the device does not have; whether anything was.
    pub(super) fn raise_of(&mut self, task: TaskNo, tag: IoTag, now: Instant) -> bool {
        if !self.settings.boost {
            return false;
        }
        let waits = |request: &Request| {
            request.phase != Phase::Dispatched && request.parts().any(|part| part.by == task)
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
            let boost = self.raise(id, tag, now);
            if let BoostOutcome::Boosted { .. } = boost {
                any = true;
                let request = self.living(id);
                let bytes = request.parts().map(|part| part.len).sum();
                let others = request.parts().filter(|part| part.by != task);
                let along = others.map(|part| part.len).sum();
                let charged = (request.tag.group, bytes);
                self.recorder.boosted(boost, charged, along);
                self.recorder.inherited();
            }
        }
        any
    }

    /// What a task's new requests are submitted as: others may wait for what it holds.
    pub(super) fn lent(&mut self, tag: IoTag) -> IoTag {
        if !self.settings.boost || !inherit::has_waiters() {
            return tag;
        }
        let raised = inherit::effective_tag(tag, |now, waiter| self.sched.boosted_tag(now, waiter));
        if raised != tag {
            self.recorder.inherited();
        }
        raised
    }

    /// Who is charged for the request that carries a submitted bio, and its bytes; and how many of them
    /// are other bios'.
    pub(super) fn bytes_of(&mut self, io: &Io) -> ((GroupId, u64), u64) {
        let Some(request) = self.get(io.request()) else {
            return ((GroupId(0), 0), 0);
        };
        let own = |part: &&Part| {
            let handle = part.to.io();
            handle.is_some_and(|handle| std::ptr::eq(Arc::as_ptr(handle), io))
        };
        let all = request.parts().map(|part| part.len).sum();
        let others = request.parts().filter(|part| !own(part));
        let along = others.map(|part| part.len).sum();
        ((request.tag.group, all), along)
    }
}
