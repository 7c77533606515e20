//! Groups, owners and their places in line. What stands in a line is ordered by *start tags*: the
//! service it has had, divided by its weight (start-time fair queueing, at each level of the tree).

use std::collections::BTreeMap;
use std::fmt::Write;

use steadfs_base::{GroupId, IoPrio, IoTag, OwnerId, PrioClass, Urgency};

use super::options::{CLASSES, DEFAULT_WEIGHT, PrioWeights, class_of};
use crate::{IoId, Nanos};

/// Lines of a group: for each class one of those that somebody waits for, one of the others.
pub(super) const LANES: usize = 2 * CLASSES;
/// Where groups stand, as BFQ has it: beside their parent's best-effort owners.
const GROUP_LANE: usize = 2;
/// Groups nest this deep; deeper ones stand beside their parents.
const DEEPEST: usize = 32;
/// Owners without requests that are remembered.
const MAX_IDLE_LEAVES: usize = 128;
/// Start tags count bytes (or nanoseconds) in these parts, divided by the weight.
const SCALE: u128 = 1 << 20;
/// With `low_latency`: the factor, and for how many bytes (or nanoseconds) it holds.
const RAISE: u64 = 30;
const RAISED_FOR: u64 = 512 << 10;
/// … and after which pause.
const PAUSE: u64 = 300_000_000;
/// Weight of a new think time in the mean, as a divisor.
const THINK_SHARE: u64 = 8;

pub(super) const ROOT: usize = 0;

/// The class that a tag is served in.
pub(super) fn class(tag: IoTag) -> PrioClass {
    if tag.urgency == Urgency::Idle {
        PrioClass::Idle
    } else {
        tag.prio.class
    }
}

/// Whether somebody waits for requests of this tag.
pub(super) fn is_sync(tag: IoTag) -> bool {
    tag.urgency <= Urgency::Checkpoint
}

pub(super) fn lane_of(tag: IoTag) -> usize {
    2 * class_of(class(tag)) + usize::from(!is_sync(tag))
}

/// Whether a line is of those that somebody waits for.
pub(super) const fn is_sync_lane(lane: usize) -> bool {
    lane.is_multiple_of(2)
}

/// The line of what nobody waits for, of the same class.
pub(super) const fn async_lane(lane: usize) -> usize {
    lane | 1
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Child {
    Leaf(usize),
    Group(usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub parent: usize,
    pub lane: usize,
    pub weight: u32,
    start: u128,
    /// Orders equal start tags.
    number: u64,
    pub active: bool,
}

impl Place {
    fn key(&self) -> (u128, u64) {
        (self.start, self.number)
    }
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Owners and groups that have something queued, or may soon, by start tag.
    pub active: BTreeMap<(u128, u64), Child>,
    /// The start tag of who was served last.
    virtual_time: u128,
    /// Requests queued in it and below.
    pub queued: usize,
    /// Since when something waits here and nothing was served.
    pub since: Nanos,
    /// Bytes that the lines ahead of this one have had since then.
    pub passed: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    pub id: GroupId,
    /// `None`: the root.
    pub place: Option<Place>,
    depth: usize,
    pub lanes: [Lane; LANES],
    pub queued: usize,
    children: usize,
    /// Nobody knows it any more (or nobody ever told of it): goes when it is empty.
    forgotten: bool,
    pub served: u64,
}

/// Whose requests stand in one queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LeafKey {
    pub group: GroupId,
    pub lane: usize,
    pub level: u8,
    pub owner: OwnerId,
}

/// Who owns what is read before anybody has asked for it: it does not stand behind all that is to be written.
pub(super) const AHEAD: OwnerId = OwnerId(u32::MAX);

impl LeafKey {
    /// Requests that nobody waits for share one queue for each priority of a group, what is read ahead another.
    pub(super) fn of(tag: IoTag) -> Self {
        let is_known = is_sync(tag) || tag.owner == AHEAD;
        Self {
            group: tag.group,
            lane: lane_of(tag),
            level: tag.prio.level.min(7),
            owner: if is_known { tag.owner } else { OwnerId(0) },
        }
    }
}

#[derive(Debug)]
pub(super) struct Leaf {
    pub key: LeafKey,
    pub place: Place,
    /// By arrival.
    pub requests: BTreeMap<u64, IoId>,
    pub in_flight: usize,
    /// When the last of its requests ended.
    pub last_end: Nanos,
    ended_any: bool,
    /// Mean time from the end of its last request to the next one.
    pub think: u64,
    /// Whose request was the last that stood here, if it was not its own: that owner works for this one, too.
    carrier: Option<(usize, LeafKey)>,
    /// Service that counts a thirtieth only.
    raised: u64,
    pub served: u64,
}

impl Leaf {
    pub(super) fn is_sync(&self) -> bool {
        is_sync_lane(self.key.lane)
    }
}

/// All groups and owners.
#[derive(Debug)]
pub(super) struct Tree {
    pub groups: Vec<Option<Group>>,
    by_id: BTreeMap<GroupId, usize>,
    pub leaves: Vec<Option<Leaf>>,
    free_leaves: Vec<usize>,
    by_key: BTreeMap<LeafKey, usize>,
    last: Option<(LeafKey, usize)>,
    numbers: u64,
    /// Leaves that stand in a line.
    pub active: usize,
    /// Groups that may have become empty.
    untidy: Vec<usize>,
    prio_weights: PrioWeights,
    low_latency: bool,
}

impl Tree {
    pub(super) fn new(prio_weights: PrioWeights, low_latency: bool) -> Self {
        let root = Group {
            id: GroupId(0),
            place: None,
            depth: 0,
            lanes: Default::default(),
            queued: 0,
            children: 0,
            forgotten: false,
            served: 0,
        };
        Self {
            groups: vec![Some(root)],
            by_id: BTreeMap::from([(GroupId(0), ROOT)]),
            leaves: Vec::new(),
            free_leaves: Vec::new(),
            by_key: BTreeMap::new(),
            last: None,
            numbers: 0,
            active: 0,
            untidy: Vec::new(),
            prio_weights,
            low_latency,
        }
    }

    pub(super) fn group(&self, at: usize) -> &Group {
        self.groups[at].as_ref().expect("the group is there")
    }

    pub(super) fn group_mut(&mut self, at: usize) -> &mut Group {
        self.groups[at].as_mut().expect("the group is there")
    }

    pub(super) fn leaf(&self, at: usize) -> &Leaf {
        self.leaves[at].as_ref().expect("the owner is there")
    }

    pub(super) fn leaf_mut(&mut self, at: usize) -> &mut Leaf {
        self.leaves[at].as_mut().expect("the owner is there")
    }

    fn place(&self, child: Child) -> Option<Place> {
        match child {
            Child::Leaf(at) => Some(self.leaf(at).place),
            Child::Group(at) => self.group(at).place,
        }
    }

    pub(super) fn weight(&self, child: Child) -> u32 {
        self.place(child)
            .map_or(DEFAULT_WEIGHT, |place| place.weight)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The group's index; one that nobody has told of is made, below the root.
    fn group_at(&mut self, id: GroupId) -> usize {
        match self.by_id.get(&id) {
            Some(&at) => at,
            None => self.add_group(id, ROOT, DEFAULT_WEIGHT, true),
        }
    }

    fn add_group(&mut self, id: GroupId, parent: usize, weight: u32, forgotten: bool) -> usize {
        let parent = match &self.group(parent) {
            group if group.depth >= DEEPEST => group.place.expect("the root is not deep").parent,
            _ => parent,
        };
        let depth = self.group(parent).depth + 1;
        self.group_mut(parent).children += 1;
        let group = Group {
            id,
            place: Some(Place {
                parent,
                lane: GROUP_LANE,
                weight,
                start: 0,
                number: self.number(),
                active: false,
            }),
            depth,
            lanes: Default::default(),
            queued: 0,
            children: 0,
            forgotten,
            served: 0,
        };
        let at = self.groups.iter().position(Option::is_none);
        let at = at.unwrap_or_else(|| {
            self.groups.push(None);
            self.groups.len() - 1
        });
        self.groups[at] = Some(group);
        self.by_id.insert(id, at);
        at
    }

    pub(super) fn set_group(&mut self, id: GroupId, parent: GroupId, weight: u32) {
        if id == GroupId(0) {
            return;
        }
        if let Some(&at) = self.by_id.get(&id) {
            let group = self.group_mut(at);
            group.forgotten = false;
            if let Some(place) = &mut group.place {
                place.weight = weight;
            }
            return;
        }
        let parent = self.group_at(parent);
        self.add_group(id, parent, weight, false);
    }

    pub(super) fn forget_group(&mut self, id: GroupId) {
        if id == GroupId(0) {
            return;
        }
        if let Some(&at) = self.by_id.get(&id) {
            self.group_mut(at).forgotten = true;
            self.drop_if_empty(at);
        }
    }

    /// Removes a forgotten group that has nothing left, and its parents likewise.
    fn drop_if_empty(&mut self, mut at: usize) {
        loop {
            let group = self.group(at);
            let Some(place) = group.place else { return };
            if !group.forgotten || place.active || group.queued > 0 {
                return;
            }
            let id = group.id;
            if self.group(at).children > 0 {
                self.sweep(Some(id));
            }
            if self.group(at).children > 0 {
                return;
            }
            self.by_id.remove(&id);
            self.groups[at] = None;
            self.group_mut(place.parent).children -= 1;
            at = place.parent;
        }
    }

    /// Forgets owners that have nothing (of one group, or all).
    fn sweep(&mut self, of: Option<GroupId>) {
        for at in 0..self.leaves.len() {
            let Some(leaf) = &self.leaves[at] else {
                continue;
            };
            let busy = leaf.place.active || leaf.in_flight > 0 || !leaf.requests.is_empty();
            if busy || of.is_some_and(|group| leaf.key.group != group) {
                continue;
            }
            let (key, parent) = (leaf.key, leaf.place.parent);
            self.by_key.remove(&key);
            self.leaves[at] = None;
            self.free_leaves.push(at);
            self.group_mut(parent).children -= 1;
        }
        self.last = None;
    }

    /// The queue for requests of this tag.
    pub(super) fn leaf_for(&mut self, tag: IoTag) -> usize {
        let key = LeafKey::of(tag);
        if let Some((last, at)) = self.last
            && last == key
        {
            return at;
        }
        let at = match self.by_key.get(&key) {
            Some(&at) => at,
            None => self.add_leaf(key),
        };
        self.last = Some((key, at));
        at
    }

    fn add_leaf(&mut self, key: LeafKey) -> usize {
        if self.leaves.len() - self.free_leaves.len() >= self.active + MAX_IDLE_LEAVES {
            self.sweep(None);
        }
        let parent = self.group_at(key.group);
        let prio = IoPrio {
            class: PrioClass::BestEffort,
            level: key.level,
        };
        let leaf = Leaf {
            key,
            place: Place {
                parent,
                lane: key.lane,
                weight: self.prio_weights.of(prio),
                start: 0,
                number: self.number(),
                active: false,
            },
            requests: BTreeMap::new(),
            in_flight: 0,
            last_end: Nanos(0),
            ended_any: false,
            think: 0,
            carrier: None,
            raised: 0,
            served: 0,
        };
        self.group_mut(parent).children += 1;
        let at = self.free_leaves.pop().unwrap_or_else(|| {
            self.leaves.push(None);
            self.leaves.len() - 1
        });
        self.leaves[at] = Some(leaf);
        self.by_key.insert(key, at);
        at
    }

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

    fn set_place(&mut self, child: Child, place: Place) {
        match child {
            Child::Leaf(at) => self.leaf_mut(at).place = place,
            Child::Group(at) => self.group_mut(at).place = Some(place),
        }
    }

    /// Takes a leaf that has nothing out of its line, and groups that are empty then.
    pub(super) fn deactivate(&mut self, leaf: usize) {
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

    /// Removes forgotten groups that have become empty. Not while somebody walks through them.
    pub(super) fn tidy(&mut self) {
        while let Some(at) = self.untidy.pop() {
            if self.groups[at].is_some() {
                self.drop_if_empty(at);
            }
        }
    }

    /// A request joins a leaf's queue.
    pub(super) fn push(&mut self, at: usize, seq: u64, id: IoId, now: Nanos) {
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
    pub(super) fn stand(&mut self, at: usize, seq: u64, id: IoId, now: Nanos) {
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
    pub(super) fn note_carried(&mut self, at: usize, carrier: usize) {
        let key = self.leaf(carrier).key;
        self.leaf_mut(at).carrier = Some((carrier, key));
    }

    /// Who works for a leaf, if somebody does and has nothing queued, here or elsewhere.
    pub(super) fn carrier_of(&self, at: usize) -> Option<usize> {
        let (carrier, key) = self.leaf(at).carrier?;
        let leaf = self.leaves[carrier].as_ref()?;
        (leaf.key == key && leaf.requests.is_empty()).then_some(carrier)
    }

    /// A request leaves a leaf's queue.
    pub(super) fn take(&mut self, at: usize, seq: u64, now: Nanos) {
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
    pub(super) fn begin_turn(&mut self, leaf: usize) {
        let mut at = Some(self.leaf(leaf).place);
        while let Some(place) = at {
            let group = self.group_mut(place.parent);
            let lane = &mut group.lanes[place.lane];
            lane.virtual_time = lane.virtual_time.max(place.start);
            at = group.place;
        }
    }

    /// A request of a leaf goes to the device.
    pub(super) fn note_begun(&mut self, leaf: usize, bytes: u64) {
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
    pub(super) fn pass(&mut self, leaf: usize, cost: u64, now: Nanos) {
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
    pub(super) fn pass_beside(&mut self, leaf: usize, picked: usize, cost: u64, now: Nanos) {
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
    pub(super) fn charge(&mut self, leaf: usize, cost: u64) {
        self.charge_to(leaf, cost, false);
    }

    /// The same for service that came by another's turn: nobody is then further behind than one such service
    /// would put him who was level. Whoever is carried by a heavy one would be in debt for long.
    pub(super) fn charge_along(&mut self, leaf: usize, cost: u64) {
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
    pub(super) fn ended(&mut self, at: usize, now: Nanos) {
        let leaf = self.leaf_mut(at);
        leaf.in_flight -= 1;
        leaf.last_end = now;
        leaf.ended_any = true;
    }

    /// Whether a request on the account of `b` is better off than on that of `a`: the weights where
    /// their ways part. Both are of one class.
    pub(super) fn is_heavier(&self, a: IoTag, b: IoTag) -> bool {
        let (a, b) = (self.way(a), self.way(b));
        let apart = a.iter().zip(&b).find(|(a, b)| a.0 != b.0);
        apart.is_some_and(|(a, b)| b.1 > a.1)
    }

    /// The groups from the root down with their weights, and the priority's at last.
    fn way(&self, tag: IoTag) -> Vec<(Option<GroupId>, u32)> {
        let mut way = vec![(None, self.prio_weights.of(tag.prio))];
        if !self.by_id.contains_key(&tag.group) {
            way.push((Some(tag.group), DEFAULT_WEIGHT));
        }
        let mut at = self.by_id.get(&tag.group).copied();
        while let Some(group) = at.map(|at| self.group(at)) {
            let Some(place) = group.place else { break };
            way.push((Some(group.id), place.weight));
            at = Some(place.parent);
        }
        way.reverse();
        way
    }

    /// A line for each group and owner that has something queued or in the device.
    pub(super) fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        for group in self.groups.iter().flatten() {
            let weight = group.place.map_or(DEFAULT_WEIGHT, |place| place.weight);
            writeln!(
                out,
                "group {} weight {weight}: {} queued, {} bytes served",
                group.id.0, group.queued, group.served
            )?;
            let own = |leaf: &&Leaf| {
                leaf.key.group == group.id && (leaf.in_flight > 0 || !leaf.requests.is_empty())
            };
            for leaf in self.leaves.iter().flatten().filter(own) {
                let class = ["rt", "be", "idle"][leaf.key.lane / 2];
                let kind = if leaf.is_sync() { "sync" } else { "async" };
                writeln!(
                    out,
                    "  owner {} {class},{} {kind} weight {}: {} queued, {} in the device, {} bytes served",
                    leaf.key.owner.0,
                    leaf.key.level,
                    leaf.place.weight,
                    leaf.requests.len(),
                    leaf.in_flight,
                    leaf.served
                )?;
            }
        }
        Ok(())
    }
}
