//! The tree of groups and owners: their parents and weights, and their removal. [`service`] queues and serves them.

mod service;

use std::collections::BTreeMap;
use std::fmt::Write;

use steadfs_base::{GroupId, IoPrio, IoTag, OwnerId, PrioClass};

use super::lanes::{LANES, is_sync, is_sync_lane, lane_of};
use super::options::DEFAULT_WEIGHT;
use crate::{IoId, Nanos};
use service::WEIGHT_RAISE_BYTES;

/// The lane of child groups: that of best-effort sync requests, as in BFQ.
const GROUP_LANE: usize = 2;
/// Depth of the tree; deeper groups become siblings of their parents.
const DEPTH_MAX: usize = 32;
/// Leaves without requests that are kept.
const IDLE_LEAVES_MAX: usize = 128;
pub(super) const ROOT: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Child {
    Leaf(usize),
    Group(usize),
}

/// The position of an owner or group in its parent (BFQ's `bfq_entity`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Entity {
    pub parent: usize,
    pub lane: usize,
    pub weight: u32,
    start: u128,
    shared: SharedService,
    /// Order among equal start tags.
    seq: u64,
    pub active: bool,
}

/// Service of an entity in slices of others.
#[derive(Clone, Copy, Debug, Default)]
struct SharedService {
    /// What it has added to the start tag and the vtime had not passed at `vtime`.
    behind: u128,
    vtime: u128,
    /// What the last request added.
    last: u128,
}

impl Entity {
    fn key(&self) -> (u128, u64) {
        (self.start, self.seq)
    }

    /// The part of `added`, for service in a slice of others, by which the start tag grows. For two such requests (the
    /// log blocks and the record of a commit) the entity is behind the vtime at most.
    fn add_shared(&mut self, added: u128, vtime: u128) -> u128 {
        let passed = vtime.saturating_sub(self.shared.vtime);
        let behind = self.shared.behind.saturating_sub(passed);
        let most = self.shared.last + added;
        let more = added.min(most.saturating_sub(behind));
        self.shared = SharedService {
            behind: behind + more,
            vtime,
            last: added,
        };
        more
    }
}

/// The owners, and child groups, of one class in a group, sync or async (BFQ's `bfq_service_tree`).
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// Entities with queued requests, or for which the device idles, by start tag.
    pub active: BTreeMap<(u128, u64), Child>,
    /// The start tag of the entity that was served last.
    vtime: u128,
    /// Requests queued in the lane and below it.
    pub queued: usize,
    /// When the lane was served last, or became non-empty.
    pub since: Nanos,
    /// Bytes that earlier lanes were served since then.
    pub passed: u64,
}

#[derive(Debug)]
pub(super) struct Group {
    pub id: GroupId,
    /// `None` for the root.
    pub entity: Option<Entity>,
    depth: usize,
    pub lanes: [Lane; LANES],
    pub queued: usize,
    children: usize,
    /// The group was removed (or never set): it is dropped when it is empty.
    removed: bool,
    pub served: u64,
    /// The cost of all service that it was charged, in bytes.
    charged: u64,
}

/// What the requests of one leaf have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LeafKey {
    pub group: GroupId,
    pub lane: usize,
    pub level: u8,
    pub owner: OwnerId,
}

/// The owner of read-ahead requests: their leaf is their own, so that they do not queue behind all async writes.
pub(super) const READAHEAD_OWNER: OwnerId = OwnerId(u32::MAX);

impl LeafKey {
    /// Async requests of a group share one leaf for each priority; read-ahead has another.
    pub(super) fn of(tag: IoTag) -> Self {
        let has_owner = is_sync(tag) || tag.owner == READAHEAD_OWNER;
        Self {
            group: tag.group,
            lane: lane_of(tag),
            level: tag.prio.level.min(7),
            owner: if has_owner { tag.owner } else { OwnerId(0) },
        }
    }
}

/// The queue of one owner (BFQ's `bfq_queue`).
#[derive(Debug)]
pub(super) struct Leaf {
    pub key: LeafKey,
    pub entity: Entity,
    /// By arrival.
    pub requests: BTreeMap<u64, IoId>,
    pub in_flight: usize,
    /// When its last request completed.
    pub last_completion: Nanos,
    completed_any: bool,
    /// The owner waits for other owners.
    waits_for_others: bool,
    /// The device does not idle for it meanwhile.
    pub idling_stopped: bool,
    /// Moving average of the time from a completion to the next request, in nanoseconds.
    pub think_time: u64,
    /// The leaf of the last request that was served for this one, if another owner submitted it.
    submitter: Option<(usize, LeafKey)>,
    /// Service that is still charged at the raised weight.
    weight_raised_bytes: u64,
    pub served: u64,
}

impl Leaf {
    pub(super) fn is_sync(&self) -> bool {
        is_sync_lane(self.key.lane)
    }
}

/// All groups and leaves.
#[derive(Debug)]
pub(super) struct Tree {
    pub groups: Vec<Option<Group>>,
    by_id: BTreeMap<GroupId, usize>,
    pub leaves: Vec<Option<Leaf>>,
    free_leaves: Vec<usize>,
    by_key: BTreeMap<LeafKey, usize>,
    last: Option<(LeafKey, usize)>,
    last_seq: u64,
    /// Active leaves.
    pub active: usize,
    /// Removed groups that may be empty.
    maybe_empty: Vec<usize>,
    /// The weight of a priority inside its group.
    prio_weight: fn(IoPrio) -> u32,
    low_latency: bool,
}

impl Tree {
    pub(super) fn new(prio_weight: fn(IoPrio) -> u32, low_latency: bool) -> Self {
        let root = Group {
            id: GroupId(0),
            entity: None,
            depth: 0,
            lanes: Default::default(),
            queued: 0,
            children: 0,
            removed: false,
            served: 0,
            charged: 0,
        };
        Self {
            groups: vec![Some(root)],
            by_id: BTreeMap::from([(GroupId(0), ROOT)]),
            leaves: Vec::new(),
            free_leaves: Vec::new(),
            by_key: BTreeMap::new(),
            last: None,
            last_seq: 0,
            active: 0,
            maybe_empty: Vec::new(),
            prio_weight,
            low_latency,
        }
    }

    pub(super) fn group(&self, at: usize) -> &Group {
        self.groups[at]
            .as_ref()
            .expect("the index is that of a group")
    }

    pub(super) fn group_mut(&mut self, at: usize) -> &mut Group {
        self.groups[at]
            .as_mut()
            .expect("the index is that of a group")
    }

    pub(super) fn leaf(&self, at: usize) -> &Leaf {
        self.leaves[at]
            .as_ref()
            .expect("the index is that of a leaf")
    }

    pub(super) fn leaf_mut(&mut self, at: usize) -> &mut Leaf {
        self.leaves[at]
            .as_mut()
            .expect("the index is that of a leaf")
    }

    fn entity(&self, child: Child) -> Option<Entity> {
        match child {
            Child::Leaf(at) => Some(self.leaf(at).entity),
            Child::Group(at) => self.group(at).entity,
        }
    }

    fn set_entity(&mut self, child: Child, entity: Entity) {
        match child {
            Child::Leaf(at) => self.leaf_mut(at).entity = entity,
            Child::Group(at) => self.group_mut(at).entity = Some(entity),
        }
    }

    pub(super) fn weight(&self, child: Child) -> u32 {
        self.entity(child)
            .map_or(DEFAULT_WEIGHT, |entity| entity.weight)
    }

    fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// The group's index. A group that was never set is added below the root.
    fn group_at(&mut self, id: GroupId) -> usize {
        match self.by_id.get(&id) {
            Some(&at) => at,
            None => self.add_group(id, ROOT, DEFAULT_WEIGHT, true),
        }
    }

    fn add_group(&mut self, id: GroupId, parent: usize, weight: u32, removed: bool) -> usize {
        let parent = match &self.group(parent) {
            group if group.depth >= DEPTH_MAX => group.entity.expect("the root has depth 0").parent,
            _ => parent,
        };
        let depth = self.group(parent).depth + 1;
        self.group_mut(parent).children += 1;
        let group = Group {
            id,
            entity: Some(Entity {
                parent,
                lane: GROUP_LANE,
                weight,
                start: 0,
                shared: SharedService::default(),
                seq: self.next_seq(),
                active: false,
            }),
            depth,
            lanes: Default::default(),
            queued: 0,
            children: 0,
            removed,
            served: 0,
            charged: 0,
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
            group.removed = false;
            if let Some(entity) = &mut group.entity {
                entity.weight = weight;
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
            self.group_mut(at).removed = true;
            self.drop_if_empty(at);
        }
    }

    /// Drops a removed group that is empty, and its parents likewise.
    fn drop_if_empty(&mut self, mut at: usize) {
        loop {
            let group = self.group(at);
            let Some(entity) = group.entity else { return };
            if !group.removed || entity.active || group.queued > 0 {
                return;
            }
            let id = group.id;
            if self.group(at).children > 0 {
                self.drop_idle_leaves(Some(id));
            }
            if self.group(at).children > 0 {
                return;
            }
            self.by_id.remove(&id);
            self.groups[at] = None;
            self.group_mut(entity.parent).children -= 1;
            at = entity.parent;
        }
    }

    /// Drops removed groups that have become empty. Not to be called during a walk of the tree.
    pub(super) fn remove_empty_groups(&mut self) {
        while let Some(at) = self.maybe_empty.pop() {
            if self.groups[at].is_some() {
                self.drop_if_empty(at);
            }
        }
    }

    /// Drops leaves without requests, of one group or of all.
    fn drop_idle_leaves(&mut self, of: Option<GroupId>) {
        for at in 0..self.leaves.len() {
            let Some(leaf) = &self.leaves[at] else {
                continue;
            };
            let is_busy = leaf.entity.active || leaf.in_flight > 0 || !leaf.requests.is_empty();
            if is_busy || of.is_some_and(|group| leaf.key.group != group) {
                continue;
            }
            let (key, parent) = (leaf.key, leaf.entity.parent);
            self.by_key.remove(&key);
            self.leaves[at] = None;
            self.free_leaves.push(at);
            self.group_mut(parent).children -= 1;
        }
        self.last = None;
    }

    /// The leaf for requests of this tag.
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

    /// The leaf that is charged for a request of this tag which goes in another leaf's slice. If its group was removed
    /// meanwhile, it is added for the charge only.
    pub(super) fn leaf_to_charge(&mut self, tag: IoTag) -> usize {
        let leaf = self.leaf_for(tag);
        let parent = self.leaf(leaf).entity.parent;
        if self.group(parent).removed {
            self.maybe_empty.push(parent);
        }
        leaf
    }

    fn add_leaf(&mut self, key: LeafKey) -> usize {
        if self.leaves.len() - self.free_leaves.len() >= self.active + IDLE_LEAVES_MAX {
            self.drop_idle_leaves(None);
        }
        let parent = self.group_at(key.group);
        let prio = IoPrio {
            class: PrioClass::BestEffort,
            level: key.level,
        };
        let leaf = Leaf {
            key,
            entity: Entity {
                parent,
                lane: key.lane,
                weight: (self.prio_weight)(prio),
                start: 0,
                shared: SharedService::default(),
                seq: self.next_seq(),
                active: false,
            },
            requests: BTreeMap::new(),
            in_flight: 0,
            last_completion: Nanos(0),
            completed_any: false,
            waits_for_others: false,
            idling_stopped: false,
            think_time: 0,
            submitter: None,
            weight_raised_bytes: match self.low_latency && is_sync_lane(key.lane) {
                true => WEIGHT_RAISE_BYTES,
                false => 0,
            },
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

    /// Whether a request that is charged to `b` is served more than one charged to `a`: compares the weights at the
    /// level where their paths from the root separate. Both must be of one class.
    pub(super) fn is_heavier(&self, a: IoTag, b: IoTag) -> bool {
        self.competing_weights(a, b).is_some_and(|(a, b)| b > a)
    }

    /// The weights of two tags at the level where their paths from the root separate; `None` for those of one group.
    pub(super) fn competing_weights(&self, a: IoTag, b: IoTag) -> Option<(u32, u32)> {
        let (a, b) = (self.path(a), self.path(b));
        let separate = a.iter().zip(&b).find(|(a, b)| a.0 != b.0);
        separate.map(|(a, b)| (a.1, b.1))
    }

    /// The groups from the root down with their weights, and at the end the weight of the tag's priority.
    fn path(&self, tag: IoTag) -> Vec<(Option<GroupId>, u32)> {
        let mut path = vec![(None, (self.prio_weight)(tag.prio))];
        if !self.by_id.contains_key(&tag.group) {
            path.push((Some(tag.group), DEFAULT_WEIGHT));
        }
        let mut at = self.by_id.get(&tag.group).copied();
        while let Some(group) = at.map(|at| self.group(at)) {
            let Some(entity) = group.entity else { break };
            path.push((Some(group.id), entity.weight));
            at = Some(entity.parent);
        }
        path.reverse();
        path
    }

    /// Writes a line for each group, and for each owner with requests that are queued or in flight.
    pub(super) fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        for group in self.groups.iter().flatten() {
            let weight = group.entity.map_or(DEFAULT_WEIGHT, |entity| entity.weight);
            writeln!(
                out,
                "group {} weight {weight}: {} queued, {} bytes charged, {} bytes served",
                group.id.0, group.queued, group.charged, group.served
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
                    leaf.entity.weight,
                    leaf.requests.len(),
                    leaf.in_flight,
                    leaf.served
                )?;
            }
        }
        Ok(())
    }
}
