//! Standing in line, and being served.
//!
//! What stands in a line is ordered by *start tags*: the service it has had, divided by its weight
//! (start-time fair queueing, at each level of the tree). An owner stands in a line of his group while he has
//! something queued (or is waited for), and the group in one of its parent's while anybody stands in its own.

use super::{Child, Place, Tree};
use crate::{IoId, Nanos};

/// Start tags count bytes (or nanoseconds) in these parts, divided by the weight.
const SCALE: u128 = 1 << 20;
/// With `low_latency`: the factor, and for how many bytes (or nanoseconds) it holds.
const RAISE: u64 = 30;
const RAISED_FOR: u64 = 512 << 10;
/// … and after which pause.
const PAUSE: u64 = 300_000_000;
/// Weight of a new think time in the mean, as a divisor.
const THINK_SHARE: u64 = 8;

impl Tree {
    /// Puts a child in its line, and its parents in theirs.
    fn activate(&mut self, mut child: Child) {
        while let Some(mut place) = self.place(child) {
            if place.active {
                return;
            }
            let lane = &mut self.group_mut(place.parent).lanes[place.lane];
            place.start = place.start.max(lane.virtual_time);
            place.active = true;
            lane.active.insert(place.key(), child);
            self.set_place(child, place);
            child = Child::Group(place.parent);
        }
    }

    /// Takes a leaf that has nothing out of its line, and groups that are empty then.
    pub(in crate::fair) fn deactivate(&mut self, leaf: usize) {
        debug_assert!(self.leaf(leaf).place.active && self.leaf(leaf).requests.is_empty());
        self.active -= 1;
        let mut child = Child::Leaf(leaf);
        while let Some(mut place) = self.place(child) {
            let group = self.group_mut(place.parent);
            group.lanes[place.lane].active.remove(&place.key());
            let empty = group.lanes.iter().all(|lane| lane.active.is_empty());
            place.active = false;
            self.set_place(child, place);
            child = Child::Group(place.parent);
            if !empty {
                break;
            }
        }
        let parent = self.leaf(leaf).place.parent;
        if self.group(parent).forgotten {
            self.untidy.push(parent);
        }
    }

    /// A request joins a leaf's queue.
    pub(in crate::fair) fn push(&mut self, at: usize, seq: u64, id: IoId, now: Nanos) {
        let (low_latency, leaf) = (self.low_latency, self.leaf_mut(at));
        leaf.carrier = None;
        if leaf.requests.is_empty() && leaf.in_flight == 0 {
            let pause = now.0.saturating_sub(leaf.last_end.0);
            if leaf.ended_any {
                let sample = pause.min(PAUSE);
                leaf.think = (leaf.think * (THINK_SHARE - 1) + sample) / THINK_SHARE;
            }
            if low_latency && leaf.is_sync() && (pause >= PAUSE || !leaf.ended_any) {
                leaf.raised = RAISED_FOR;
            }
        }
        self.stand(at, seq, id, now);
    }

    /// The same for a request that is not the leaf's own: it tells nothing of how soon its owner comes back.
    pub(in crate::fair) fn stand(&mut self, at: usize, seq: u64, id: IoId, now: Nanos) {
        let leaf = self.leaf_mut(at);
        let before = leaf.requests.insert(seq, id);
        debug_assert!(before.is_none(), "it stands there once");
        if !leaf.place.active {
            self.active += 1;
            self.activate(Child::Leaf(at));
        }
        self.count(at, now, true);
    }

    /// What was served for a leaf was the request of another one.
    pub(in crate::fair) fn note_carried(&mut self, at: usize, carrier: usize) {
        let key = self.leaf(carrier).key;
        self.leaf_mut(at).carrier = Some((carrier, key));
    }

    /// Who works for a leaf, if somebody does and has nothing queued, here or elsewhere.
    pub(in crate::fair) fn carrier_of(&self, at: usize) -> Option<usize> {
        let (carrier, key) = self.leaf(at).carrier?;
        let leaf = self.leaves[carrier].as_ref()?;
        (leaf.key == key && leaf.requests.is_empty()).then_some(carrier)
    }

    /// A request leaves a leaf's queue.
    pub(in crate::fair) fn take(&mut self, at: usize, seq: u64, now: Nanos) {
        let removed = self.leaf_mut(at).requests.remove(&seq);
        debug_assert!(removed.is_some(), "it was queued there");
        self.count(at, now, false);
    }

    fn count(&mut self, leaf: usize, now: Nanos, more: bool) {
        let mut at = Some(self.leaf(leaf).place);
        while let Some(place) = at {
            let group = self.group_mut(place.parent);
            let lane = &mut group.lanes[place.lane];
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
            at = group.place;
        }
    }

    /// A leaf's turn begins: those who come now stand behind it at most.
    pub(in crate::fair) fn begin_turn(&mut self, leaf: usize) {
        let mut at = Some(self.leaf(leaf).place);
        while let Some(place) = at {
            let group = self.group_mut(place.parent);
            let lane = &mut group.lanes[place.lane];
            lane.virtual_time = lane.virtual_time.max(place.start);
            at = group.place;
        }
    }

    /// A request of a leaf goes to the device.
    pub(in crate::fair) fn note_begun(&mut self, leaf: usize, bytes: u64) {
        let served = self.leaf_mut(leaf);
        served.in_flight += 1;
        served.served += bytes;
        let mut at = Some(served.place);
        while let Some(place) = at {
            let group = self.group_mut(place.parent);
            group.served += bytes;
            at = group.place;
        }
    }

    /// A leaf's lines are served, and pass those behind them.
    pub(in crate::fair) fn pass(&mut self, leaf: usize, cost: u64, now: Nanos) {
        let mut at = Some(self.leaf(leaf).place);
        while let Some(place) = at {
            at = self.pass_in(place, cost, now);
        }
    }

    fn pass_in(&mut self, place: Place, cost: u64, now: Nanos) -> Option<Place> {
        let group = self.group_mut(place.parent);
        let lane = &mut group.lanes[place.lane];
        (lane.since, lane.passed) = (now, 0);
        for behind in &mut group.lanes[place.lane + 1..] {
            behind.passed = behind.passed.saturating_add(cost.max(512));
        }
        group.place
    }

    /// The same in the group of a leaf that was served by the turn of another, unless that one's line leads
    /// through it.
    pub(in crate::fair) fn pass_beside(
        &mut self,
        leaf: usize,
        picked: usize,
        cost: u64,
        now: Nanos,
    ) {
        let place = self.leaf(leaf).place;
        let mut at = Some(self.leaf(picked).place);
        while let Some(above) = at {
            if above.parent == place.parent {
                return;
            }
            at = self.group(above.parent).place;
        }
        self.pass_in(place, cost, now);
    }

    /// Charges a leaf and its groups for service.
    pub(in crate::fair) fn charge(&mut self, leaf: usize, cost: u64) {
        self.charge_to(leaf, cost, false);
    }

    /// The same for service that came by another's turn: nobody is then further behind than one such service
    /// would put him who was level. Whoever is carried by a heavy one would be in debt for long.
    pub(in crate::fair) fn charge_along(&mut self, leaf: usize, cost: u64) {
        self.charge_to(leaf, cost, true);
    }

    fn charge_to(&mut self, leaf: usize, cost: u64, bounded: bool) {
        let owner = self.leaf_mut(leaf);
        let cheap = owner.raised.min(cost);
        owner.raised -= cheap;
        let mut child = Child::Leaf(leaf);
        let full = cost;
        let mut cost = cheap / RAISE + (cost - cheap);
        while let Some(mut place) = self.place(child) {
            let added = u128::from(cost) * SCALE / u128::from(place.weight);
            let lane = &mut self.group_mut(place.parent).lanes[place.lane];
            let most = match bounded {
                true => place.start.max(lane.virtual_time + added),
                false => u128::MAX,
            };
            let start = most.min(place.start + added);
            if place.active {
                lane.active.remove(&place.key());
                place.start = start;
                lane.active.insert(place.key(), child);
            } else {
                place.start = start;
            }
            self.set_place(child, place);
            child = Child::Group(place.parent);
            cost = full;
        }
    }

    /// A leaf's request has ended.
    pub(in crate::fair) fn ended(&mut self, at: usize, now: Nanos) {
        let leaf = self.leaf_mut(at);
        leaf.in_flight -= 1;
        leaf.last_end = now;
        leaf.ended_any = true;
    }
}
