//! Groups and owners: who is known, where each belongs and what it weighs, and when it is forgotten. How
//! they stand in line and are served: [`service`].

mod service;

use std::collections::BTreeMap;
use std::fmt::Write;

use steadfs_base::{GroupId, IoPrio, IoTag, OwnerId, PrioClass};

use super::lanes::{LANES, is_sync, is_sync_lane, lane_of};
use super::options::{DEFAULT_WEIGHT, PrioWeights};
use crate::{IoId, Nanos};

/// Where groups stand, as BFQ has it: beside their parent's best-effort owners.
const GROUP_LANE: usize = 2;
/// Groups nest this deep; deeper ones stand beside their parents.
const DEEPEST: usize = 32;
/// Owners without requests that are remembered.
const MAX_IDLE_LEAVES: usize = 128;
pub(super) const ROOT: usize = 0;

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

    fn set_place(&mut self, child: Child, place: Place) {
        match child {
            Child::Leaf(at) => self.leaf_mut(at).place = place,
            Child::Group(at) => self.group_mut(at).place = Some(place),
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

    pub(super) fn remove_group(&mut self, id: GroupId) {
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

    /// Removes forgotten groups that have become empty. Not while somebody walks through them.
    pub(super) fn tidy(&mut self) {
        while let Some(at) = self.untidy.pop() {
            if self.groups[at].is_some() {
                self.drop_if_empty(at);
            }
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
