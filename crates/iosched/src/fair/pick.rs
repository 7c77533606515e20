//! The choice of the owner that is served next.

use std::ops::Bound;

use super::lanes::{LANES, async_lane, is_sync_lane};
use super::options::CLASSES;
use super::rules::Rules;
use super::tree::{Child, ROOT};
use super::{FairQueue, InService};
use crate::Nanos;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// The owner whose first request is dispatched now.
    Leaf(usize),
    /// The same for a single request, which has waited too long in a lane that is not the first.
    Overdue(usize),
    /// No owner: the device idles for one until this time, or until a request in flight completes.
    Wait(Option<Nanos>),
    /// No owner: none has a request that may be dispatched.
    Nothing,
}

/// The owners at the head of a lane for which the device idles.
#[derive(Clone, Copy, Default)]
struct Idling {
    /// Their smallest and largest weight.
    weights: Option<(u32, u32)>,
    until: Option<Nanos>,
}

impl Idling {
    fn add(&mut self, weight: u32, until: Option<Nanos>) {
        let (least, most) = self.weights.unwrap_or((weight, weight));
        self.weights = Some((least.min(weight), most.max(weight)));
        self.until = self.until.or(until);
    }

    /// Whether an owner of this weight has to wait for them. Among equal weights idling is not worth its cost.
    fn precede(&self, weight: u32, always: bool) -> bool {
        self.weights
            .is_some_and(|(least, most)| always || least != weight || most != weight)
    }
}

impl<R: Rules> FairQueue<R> {
    pub(super) fn pick(&mut self, now: Nanos) -> Pick {
        if let Some(in_service) = self.in_service {
            if let Some(pick) = self.continue_slice(in_service, now) {
                return pick;
            }
            self.expire_slice(now);
        }
        self.pick_in_group(ROOT, now)
    }

    /// The choice if the slice of the owner in service continues; `None` if it has expired.
    fn continue_slice(&self, in_service: InService, now: Nanos) -> Option<Pick> {
        let slice = self.options.slice;
        let leaf = self.tree.leaf(in_service.leaf);
        let lane = leaf.key.lane;
        let (longest, most) = if leaf.is_sync() {
            (slice.sync_time, usize::MAX)
        } else {
            (slice.background_time, slice.background_requests)
        };
        let next = self.first_bytes(Child::Leaf(in_service.leaf)).unwrap_or(0);
        let is_over = in_service.bytes.saturating_add(next) > slice.bytes
            || in_service.requests >= most
            || now.0.saturating_sub(in_service.began.0) >= longest.0;
        if is_over || !leaf.entity.active || self.is_overdue_on_path(in_service.leaf, now) {
            return None;
        }
        if leaf.requests.is_empty() {
            let waits = slice.idle_to_end && self.is_idled_for(in_service.leaf, now);
            return waits.then(|| Pick::Wait(self.idle_until(in_service.leaf, now)));
        }
        if !self.may_dispatch(lane, now) || self.is_held_back(in_service.leaf, now) {
            return None;
        }
        if leaf.in_flight >= slice.depth && self.tree.active > 1 {
            return slice.idle_to_end.then_some(Pick::Wait(None));
        }
        Some(Pick::Leaf(in_service.leaf))
    }

    /// Whether the device idles for an owner of sync requests with an empty queue: the owner, or the owner that submits
    /// for it, usually returns in time.
    pub(super) fn is_idled_for(&self, leaf: usize, now: Nanos) -> bool {
        if self.tree.leaf(leaf).idling_stopped {
            return false;
        }
        self.returns_soon(leaf, now)
            || self
                .tree
                .submitter_of(leaf)
                .is_some_and(|submitter| self.returns_soon(submitter, now))
    }

    fn returns_soon(&self, leaf: usize, now: Nanos) -> bool {
        let idle = self.options.slice_idle.0;
        let leaf = self.tree.leaf(leaf);
        leaf.is_sync()
            && leaf.key.lane / 2 < CLASSES - 1
            && leaf.think_time <= idle
            && !leaf.idling_stopped
            && (leaf.in_flight > 0 || now.0 < leaf.last_completion.0.saturating_add(idle))
    }

    /// The time until which the device idles for an owner, unless a request of it, or of its submitter, is in flight.
    fn idle_until(&self, leaf: usize, now: Nanos) -> Option<Nanos> {
        let awaited = match self.returns_soon(leaf, now) {
            true => leaf,
            false => self.tree.submitter_of(leaf).unwrap_or(leaf),
        };
        let leaf = self.tree.leaf(awaited);
        let until = leaf
            .last_completion
            .0
            .saturating_add(self.options.slice_idle.0);
        (leaf.in_flight == 0).then_some(Nanos(until))
    }

    /// Whether the limits on requests in flight allow a request of this lane.
    fn may_dispatch(&self, lane: usize, now: Nanos) -> bool {
        let idle = lane / 2 == CLASSES - 1;
        (is_sync_lane(lane) || self.may_dispatch_async(now)) && !(idle && self.in_flight.all() > 0)
    }

    /// The same for an overdue lane: the idle class then does not wait for an idle device.
    fn may_dispatch_overdue(&self, lane: usize, now: Nanos) -> bool {
        let idle = lane / 2 == CLASSES - 1;
        (is_sync_lane(lane) || self.may_dispatch_async(now)) && !(idle && self.in_flight.idle > 0)
    }

    /// Whether a lane has waited, or was passed by earlier lanes, up to its limit.
    fn is_lane_overdue(&self, group: usize, lane: usize, now: Nanos) -> bool {
        let queue = &self.tree.group(group).lanes[lane];
        if queue.queued == 0 {
            return false;
        }
        let is_due = |child: &Child| matches!(*child, Child::Leaf(leaf) if self.is_due(leaf, now));
        if !is_sync_lane(lane) && queue.active.values().any(is_due) {
            return true;
        }
        if queue.passed == 0 {
            return false;
        }
        let options = &self.options;
        let waited = now.0.saturating_sub(queue.since.0);
        if is_sync_lane(lane) || self.tree.group(group).lanes[lane - 1].queued == 0 {
            return waited >= options.class_max_wait.0;
        }
        let is_dispatchable =
            |child: &&Child| !matches!(**child, Child::Leaf(leaf) if self.is_held_back(leaf, now));
        let Some(first) = queue.active.values().find(is_dispatchable) else {
            return false;
        };
        let first = self.first_bytes(*first).unwrap_or(0);
        let due = first.saturating_mul(options.sync_per_async);
        queue.passed >= due.max(1) || waited >= options.async_max_wait.0
    }

    /// The size of a leaf's first request.
    fn first_bytes(&self, child: Child) -> Option<u64> {
        let Child::Leaf(at) = child else { return None };
        let (_, &id) = self.tree.leaf(at).requests.first_key_value()?;
        Some(self.entry(id).bytes)
    }

    /// Whether another lane is overdue, and may be served, in one of the leaf's groups up to the root.
    fn is_overdue_on_path(&self, leaf: usize, now: Nanos) -> bool {
        let mut at = Some(self.tree.leaf(leaf).entity);
        while let Some(entity) = at {
            let overdue = |lane: usize| {
                lane != entity.lane
                    && self.is_lane_overdue(entity.parent, lane, now)
                    && (self.may_dispatch_overdue(lane, now)
                        || self.is_drained_for(entity.parent, lane, now))
            };
            if (1..LANES).any(overdue) {
                return true;
            }
            at = self.tree.group(entity.parent).entity;
        }
        false
    }

    /// Whether an async lane that needs the device alone has waited so long that no more sync requests are dispatched:
    /// the device drains for it.
    fn is_drained_for(&self, group: usize, lane: usize, now: Nanos) -> bool {
        let queue = &self.tree.group(group).lanes[lane];
        let waited = Nanos(now.0.saturating_sub(queue.since.0));
        !is_sync_lane(lane)
            && queue.queued > 0
            && self.rules.drains_for_async(self.in_flight, waited)
    }

    fn pick_in_group(&mut self, group: usize, now: Nanos) -> Pick {
        if self.tree.group(group).queued > 0 {
            if (1..LANES).any(|lane| self.is_drained_for(group, lane, now)) {
                return Pick::Wait(None);
            }
            for lane in (1..LANES).rev() {
                if self.is_lane_overdue(group, lane, now)
                    && self.may_dispatch_overdue(lane, now)
                    && let Pick::Leaf(leaf) | Pick::Overdue(leaf) =
                        self.pick_in_lane(group, lane, now, true)
                {
                    return Pick::Overdue(leaf);
                }
            }
        }
        let mut idling: Option<(usize, Option<Nanos>)> = None;
        for lane in 0..LANES {
            if self.tree.group(group).lanes[lane].active.is_empty() {
                continue;
            }
            if let Some((idling_lane, _)) = idling
                && (self.options.always_idle || lane != async_lane(idling_lane))
            {
                break;
            }
            if !self.may_dispatch(lane, now) {
                continue;
            }
            match self.pick_in_lane(group, lane, now, false) {
                Pick::Wait(until) => idling = Some((lane, until)),
                Pick::Nothing => {}
                found => return found,
            }
        }
        idling.map_or(Pick::Nothing, |(_, until)| Pick::Wait(until))
    }

    /// The first owner of a lane, unless the device idles for an owner before it (`is_overdue`: the lane does not wait).
    fn pick_in_lane(&mut self, group: usize, lane: usize, now: Nanos, is_overdue: bool) -> Pick {
        let mut idling = Idling::default();
        let mut after = Bound::Unbounded;
        loop {
            let queue = &self.tree.group(group).lanes[lane].active;
            let Some((&key, &child)) = queue.range((after, Bound::Unbounded)).next() else {
                break;
            };
            after = Bound::Excluded(key);
            let weight = self.tree.weight(child);
            let found = match child {
                Child::Leaf(leaf) => self.pick_leaf(leaf, now),
                Child::Group(group) => self.pick_in_group(group, now),
            };
            match found {
                Pick::Nothing => {}
                Pick::Wait(until) => idling.add(weight, until),
                Pick::Leaf(leaf) | Pick::Overdue(leaf) => {
                    let waits = idling.precede(weight, self.options.always_idle);
                    if waits && !is_overdue && !self.is_due(leaf, now) {
                        break;
                    }
                    return found;
                }
            }
        }
        match idling.weights {
            Some(_) if !is_overdue => Pick::Wait(idling.until),
            _ => Pick::Nothing,
        }
    }

    fn pick_leaf(&mut self, at: usize, now: Nanos) -> Pick {
        let leaf = self.tree.leaf(at);
        if !leaf.requests.is_empty() {
            return match self.is_held_back(at, now) {
                true => Pick::Nothing,
                false => Pick::Leaf(at),
            };
        }
        if self.is_idled_for(at, now) {
            return Pick::Wait(self.idle_until(at, now));
        }
        if leaf.in_flight == 0 {
            self.tree.deactivate(at);
        }
        Pick::Nothing
    }
}
