//! Queueing and service by start tags (start-time fair queueing).
//!
//! At each level of the tree the active entities of a lane are ordered by their *start tags*: the service they have
//! received divided by their weight. An owner is active in a lane of its group while it has requests queued, or while
//! the device idles for it. A group is active in its parent while one of its lanes has an active entity.

use steadfs_base::IoTag;

use super::{Child, Entity, LeafKey, Tree};
use crate::{IoId, Nanos};

/// Units of a start tag for one byte (or nanosecond) of service at weight 1.
const SCALE: u128 = 1 << 20;
/// Weight raising with `low_latency`: the factor, and the bytes for which it holds. The weight of a new owner is raised
/// from its first charge on, which may be its share of a commit or a write in another owner's slice: charged for that at
/// its own weight, it would wait until all owners that began with it have used up their raised weights.
const WEIGHT_RAISE_FACTOR: u64 = 30;
pub(super) const WEIGHT_RAISE_BYTES: u64 = 512 << 10;
/// The pause of an owner after which its weight is raised.
const WEIGHT_RAISE_PAUSE_NS: u64 = 300_000_000;
/// Share of a new think time in the moving average, as a divisor.
const THINK_TIME_DIVISOR: u64 = 8;

impl Tree {
    /// Makes a child and its parents active in their lanes.
    fn activate(&mut self, mut child: Child) {
        while let Some(mut entity) = self.entity(child) {
            if entity.active {
                return;
            }
            let lane = &mut self.group_mut(entity.parent).lanes[entity.lane];
            entity.start = entity.start.max(lane.vtime);
            entity.active = true;
            lane.active.insert(entity.key(), child);
            self.set_entity(child, entity);
            child = Child::Group(entity.parent);
        }
    }

    /// Makes a leaf without requests inactive, and the groups that have no active entity then.
    pub(in crate::fair) fn deactivate(&mut self, leaf: usize) {
        debug_assert!(self.leaf(leaf).entity.active && self.leaf(leaf).requests.is_empty());
        self.active -= 1;
        let mut child = Child::Leaf(leaf);
        while let Some(mut entity) = self.entity(child) {
            let group = self.group_mut(entity.parent);
            group.lanes[entity.lane].active.remove(&entity.key());
            let is_empty = group.lanes.iter().all(|lane| lane.active.is_empty());
            entity.active = false;
            self.set_entity(child, entity);
            child = Child::Group(entity.parent);
            if !is_empty {
                break;
            }
        }
        let parent = self.leaf(leaf).entity.parent;
        if self.group(parent).removed {
            self.maybe_empty.push(parent);
        }
    }

    /// Queues a request of the leaf's own owner.
    pub(in crate::fair) fn push_own(&mut self, at: usize, seq: u64, id: IoId, now: Nanos) {
        let (low_latency, leaf) = (self.low_latency, self.leaf_mut(at));
        leaf.submitter = None;
        let has_waited = std::mem::take(&mut leaf.waits_for_others);
        leaf.idling_stopped = false;
        if leaf.requests.is_empty() && leaf.in_flight == 0 {
            let pause = now.0.saturating_sub(leaf.last_completion.0);
            // The time in which it waited for others is not its own.
            if leaf.completed_any && !has_waited {
                let sample = pause.min(WEIGHT_RAISE_PAUSE_NS);
                leaf.think_time =
                    (leaf.think_time * (THINK_TIME_DIVISOR - 1) + sample) / THINK_TIME_DIVISOR;
            }
            if low_latency && leaf.is_sync() && leaf.completed_any && pause >= WEIGHT_RAISE_PAUSE_NS
            {
                leaf.weight_raised_bytes = WEIGHT_RAISE_BYTES;
            }
        }
        self.enqueue(at, seq, id, now);
    }

    /// The owner of this tag submits nothing until others have made progress. Unless `idles`, the device does not idle
    /// for it. Returns whether it may have done so.
    pub(in crate::fair) fn begin_wait(&mut self, tag: IoTag, idles: bool) -> bool {
        let Some(&at) = self.by_key.get(&LeafKey::of(tag)) else {
            return false;
        };
        let leaf = self.leaf_mut(at);
        leaf.waits_for_others = true;
        leaf.idling_stopped = !idles;
        !idles && leaf.entity.active && leaf.requests.is_empty()
    }

    /// The owner of this tag no longer waits for others: the device idles for it from now on.
    pub(in crate::fair) fn end_wait(&mut self, tag: IoTag, now: Nanos) {
        let Some(&at) = self.by_key.get(&LeafKey::of(tag)) else {
            return;
        };
        let leaf = self.leaf_mut(at);
        leaf.waits_for_others = false;
        leaf.idling_stopped = false;
        leaf.last_completion = now;
        leaf.completed_any = true;
        if !leaf.entity.active {
            self.active += 1;
            self.activate(Child::Leaf(at));
        }
    }

    /// Queues a request. If it is another owner's, it does not count for the think time of this one.
    pub(in crate::fair) fn enqueue(&mut self, at: usize, seq: u64, id: IoId, now: Nanos) {
        let leaf = self.leaf_mut(at);
        let before = leaf.requests.insert(seq, id);
        debug_assert!(before.is_none(), "a request is queued once in a leaf");
        if !leaf.entity.active {
            self.active += 1;
            self.activate(Child::Leaf(at));
        }
        self.count(at, now, true);
    }

    /// Records that the last request served for a leaf was submitted by another leaf's owner.
    pub(in crate::fair) fn record_submitter(&mut self, at: usize, submitter: usize) {
        let key = self.leaf(submitter).key;
        self.leaf_mut(at).submitter = Some((submitter, key));
    }

    /// The leaf whose owner submits requests for this one, if that leaf has no requests queued.
    pub(in crate::fair) fn submitter_of(&self, at: usize) -> Option<usize> {
        let (submitter, key) = self.leaf(at).submitter?;
        let leaf = self.leaves[submitter].as_ref()?;
        (leaf.key == key && leaf.requests.is_empty()).then_some(submitter)
    }

    /// Removes a request from a leaf.
    pub(in crate::fair) fn dequeue(&mut self, at: usize, seq: u64, now: Nanos) {
        let removed = self.leaf_mut(at).requests.remove(&seq);
        debug_assert!(removed.is_some(), "the request was queued in this leaf");
        self.count(at, now, false);
    }

    fn count(&mut self, leaf: usize, now: Nanos, more: bool) {
        let mut at = Some(self.leaf(leaf).entity);
        while let Some(entity) = at {
            let group = self.group_mut(entity.parent);
            let lane = &mut group.lanes[entity.lane];
            if more {
                if lane.queued == 0 {
                    (lane.since, lane.passed) = (now, 0);
                }
                lane.queued += 1;
                group.queued += 1;
            } else {
                lane.queued -= 1;
                group.queued -= 1;
            }
            at = group.entity;
        }
    }

    /// Begins a leaf's slice: the vtime of its lanes advances to its start tags, so that an entity that becomes active
    /// starts no earlier.
    pub(in crate::fair) fn begin_slice(&mut self, leaf: usize) {
        let mut at = Some(self.leaf(leaf).entity);
        while let Some(entity) = at {
            let group = self.group_mut(entity.parent);
            let lane = &mut group.lanes[entity.lane];
            lane.vtime = lane.vtime.max(entity.start);
            at = group.entity;
        }
    }

    /// Counts a dispatched request of a leaf.
    pub(in crate::fair) fn record_dispatch(&mut self, leaf: usize, bytes: u64) {
        let served = self.leaf_mut(leaf);
        served.in_flight += 1;
        served.served += bytes;
        let mut at = Some(served.entity);
        while let Some(entity) = at {
            let group = self.group_mut(entity.parent);
            group.served += bytes;
            at = group.entity;
        }
    }

    /// Records the service of a leaf's lanes, up to the root: they have passed the lanes after them.
    pub(in crate::fair) fn record_service(&mut self, leaf: usize, cost: u64, now: Nanos) {
        let mut at = Some(self.leaf(leaf).entity);
        while let Some(entity) = at {
            at = self.record_service_in(entity, cost, now);
        }
    }

    fn record_service_in(&mut self, entity: Entity, cost: u64, now: Nanos) -> Option<Entity> {
        let group = self.group_mut(entity.parent);
        let lane = &mut group.lanes[entity.lane];
        (lane.since, lane.passed) = (now, 0);
        for later in &mut group.lanes[entity.lane + 1..] {
            later.passed = later.passed.saturating_add(cost.max(512));
        }
        group.entity
    }

    /// Records service in the group of a leaf whose request was dispatched in the slice of `picked`, unless the path of
    /// `picked` to the root contains that group.
    pub(in crate::fair) fn record_service_beside(
        &mut self,
        leaf: usize,
        picked: usize,
        cost: u64,
        now: Nanos,
    ) {
        let entity = self.leaf(leaf).entity;
        let mut at = Some(self.leaf(picked).entity);
        while let Some(above) = at {
            if above.parent == entity.parent {
                return;
            }
            at = self.group(above.parent).entity;
        }
        self.record_service_in(entity, cost, now);
    }

    /// Charges service to a leaf and its groups.
    pub(in crate::fair) fn charge(&mut self, leaf: usize, cost: u64) {
        self.charge_to(leaf, cost, false);
    }

    /// Charges service that the leaf received in another owner's slice. Of such service it is behind by two requests at
    /// most: otherwise an owner of small weight that was served for long in the slices of one of large weight would wait
    /// for long afterwards.
    pub(in crate::fair) fn charge_shared(&mut self, leaf: usize, cost: u64) {
        self.charge_to(leaf, cost, true);
    }

    fn charge_to(&mut self, leaf: usize, cost: u64, bounded: bool) {
        let owner = self.leaf_mut(leaf);
        let raised = owner.weight_raised_bytes.min(cost);
        owner.weight_raised_bytes -= raised;
        let mut child = Child::Leaf(leaf);
        let full = cost;
        let mut cost = raised / WEIGHT_RAISE_FACTOR + (cost - raised);
        while let Some(mut entity) = self.entity(child) {
            let added = u128::from(cost) * SCALE / u128::from(entity.weight);
            let group = self.group_mut(entity.parent);
            group.charged = group.charged.saturating_add(full);
            let lane = &mut group.lanes[entity.lane];
            let added = match bounded {
                true => entity.add_shared(added, lane.vtime),
                false => added,
            };
            let start = entity.start + added;
            if entity.active {
                lane.active.remove(&entity.key());
                entity.start = start;
                lane.active.insert(entity.key(), child);
            } else {
                entity.start = start;
            }
            self.set_entity(child, entity);
            child = Child::Group(entity.parent);
            cost = full;
        }
    }

    /// Counts a completed request of a leaf.
    pub(in crate::fair) fn record_completion(&mut self, at: usize, now: Nanos) {
        let leaf = self.leaf_mut(at);
        leaf.in_flight -= 1;
        leaf.last_completion = now;
        leaf.completed_any = true;
    }
}
