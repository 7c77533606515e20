//! Requests that are charged to several owners: FLUSHes for which several owners wait, and requests that one owner
//! submits for others (the checkpoint task of f2fs).

use steadfs_base::{GroupId, IoTag, OwnerId};

use super::FairQueue;
use super::entry::Entry;
use super::lanes::is_sync;
use super::rules::Rules;
use crate::{IoId, Nanos};

/// Another owner that a request serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharer {
    /// The owner of this tag; the request is a FLUSH, or in no leaf yet.
    Recorded(IoTag),
    /// The request is also queued in this leaf.
    Queued(usize),
    /// The request is a FLUSH in flight that was charged to this leaf. The leaf of its own tag is recorded likewise.
    Charged(usize),
}

impl<R: Rules> FairQueue<R> {
    /// Adds an owner that a queued request serves.
    pub(super) fn add_sharer(&mut self, id: IoId, tag: IoTag, now: Nanos) {
        let entry = *self.entry(id);
        assert!(entry.queued, "only queued requests are shared");
        if is_sync(tag) && tag.owner != OwnerId(0) {
            self.entry_mut(id).task_waits = true;
        }
        // An async request is boosted by a waiter instead.
        let is_shared = R::COST_IS_KNOWN && is_sync(tag) && is_sync(entry.tag);
        if !entry.is_flush() && !is_shared {
            return;
        }
        self.sharers.push((id, Sharer::Recorded(tag)));
        if entry.leaf.is_some() {
            self.enqueue_for_sharers(id, now);
        } else if self.lone.take_if(|lone| *lone == id).is_some() {
            // Alone in the queue, but several owners are charged for it.
            self.enqueue(id, now);
        }
    }

    /// Queues a request that is in its owner's leaf in the leaves of its sharers.
    pub(super) fn enqueue_for_sharers(&mut self, id: IoId, now: Nanos) {
        if self.sharers.is_empty() {
            return;
        }
        let Entry {
            arrival, leaf: own, ..
        } = *self.entry(id);
        for (of, sharer) in std::mem::take(&mut self.sharers) {
            let Sharer::Recorded(tag) = sharer else {
                self.sharers.push((of, sharer));
                continue;
            };
            if of != id {
                self.sharers.push((of, sharer));
                continue;
            }
            let leaf = self.tree.leaf_for(tag);
            let queued = (id, Sharer::Queued(leaf));
            if own == Some(leaf) {
                self.entry_mut(id).leaf_shares = true;
                continue;
            }
            if self.sharers.contains(&queued) {
                continue;
            }
            self.sharers.push(queued);
            self.tree.enqueue(leaf, arrival, id, now);
            if self
                .in_service
                .is_some_and(|in_service| self.interrupts(tag, in_service))
            {
                self.expire_slice(now);
            }
        }
    }

    /// If a request is queued in this leaf for a sharer, it is queued there for its owner from now on.
    pub(super) fn take_over_from_sharer(&mut self, id: IoId, leaf: usize) -> bool {
        let at = self
            .sharers
            .iter()
            .position(|s| *s == (id, Sharer::Queued(leaf)));
        let Some(at) = at else { return false };
        self.sharers.swap_remove(at);
        self.entry_mut(id).leaf_shares = true;
        true
    }

    /// Whether a request was boosted to another group than the one that submitted it and is charged.
    pub(super) fn is_in_other_slice(entry: &Entry) -> bool {
        R::COST_IS_KNOWN && entry.charged.group != entry.tag.group
    }

    /// A request is dispatched in the slice of `picked`: removes it from all other leaves and charges those that it
    /// serves. Returns the part of the cost that is charged to `picked`.
    pub(super) fn charge_others(&mut self, id: IoId, picked: usize, cost: u64, now: Nanos) -> u64 {
        let entry = *self.entry(id);
        let own = entry
            .leaf
            .expect("a request that is picked from a leaf has a leaf");
        let is_boosted = Self::is_in_other_slice(&entry);
        if !is_boosted && !self.sharers.iter().any(|(of, _)| *of == id) {
            return cost;
        }
        let mut charged = Vec::new();
        self.sharers.retain(|&(of, sharer)| {
            if let (true, Sharer::Queued(leaf)) = (of == id, sharer) {
                charged.push(leaf);
            }
            of != id
        });
        let submitter = match is_boosted {
            true => self.tree.leaf_to_charge(entry.charged),
            false => own,
        };
        for &leaf in charged.iter().filter(|leaf| **leaf != submitter) {
            self.tree.record_submitter(leaf, submitter);
        }
        for &leaf in charged.iter().chain([&own]).filter(|leaf| **leaf != picked) {
            self.tree.dequeue(leaf, entry.arrival, now);
        }
        if is_boosted && entry.leaf_shares {
            charged.push(own);
        }
        if !charged.contains(&submitter) {
            charged.push(submitter);
        }
        self.charge_all(&charged, picked, cost, now)
    }

    /// Charges the cost of a request that was dispatched in the slice of `picked`: to each group in full, and divided
    /// among the leaves of a group. Returns the part of `picked`, which its slice is charged for.
    fn charge_all(&mut self, leaves: &[usize], picked: usize, cost: u64, now: Nanos) -> u64 {
        let group = |leaf: &usize| self.tree.leaf(*leaf).key.group;
        let groups: Vec<GroupId> = leaves.iter().map(group).collect();
        let mut of_picked = 0;
        for (n, (&leaf, &group)) in leaves.iter().zip(&groups).enumerate() {
            let sharers = groups.iter().filter(|other| **other == group).count();
            let part = cost / sharers.max(1) as u64;
            if leaf == picked {
                of_picked = part;
                continue;
            }
            // The leaves of one group pass its later lanes once.
            if !groups[..n].contains(&group) {
                self.tree.record_service_beside(leaf, picked, cost, now);
            }
            self.tree.charge_shared(leaf, part);
        }
        of_picked
    }

    /// Dispatches a FLUSH, which goes before all other requests, and charges it to the owners that it serves.
    pub(super) fn dispatch_flush(&mut self, id: IoId, now: Nanos) -> IoId {
        if self.tree.active > 0 {
            let cost = self.flush_cost().flush;
            let own = (id, Sharer::Recorded(self.entry(id).charged));
            let mut leaves: Vec<(GroupId, usize)> = Vec::new();
            let others = std::mem::take(&mut self.sharers);
            for (flush, sharer) in std::iter::once(own).chain(others) {
                match sharer {
                    Sharer::Recorded(tag) if flush == id => {
                        let owner = (tag.group, self.tree.leaf_for(tag));
                        if !leaves.contains(&owner) {
                            // It passes the later lanes once.
                            let passed = if leaves.is_empty() { cost } else { 0 };
                            self.tree.record_service(owner.1, passed, now);
                            self.tree.record_dispatch(owner.1, 0);
                            self.sharers.push((id, Sharer::Charged(owner.1)));
                            leaves.push(owner);
                        }
                    }
                    other => self.sharers.push((flush, other)),
                }
            }
            for &(group, leaf) in &leaves {
                let sharers = leaves.iter().filter(|(g, _)| *g == group).count();
                self.tree.charge(leaf, cost / sharers as u64);
            }
        }
        self.dispatch(id, now)
    }

    /// A request has completed: forgets its sharers.
    pub(super) fn end_sharers(&mut self, id: IoId, now: Nanos) {
        if self.sharers.is_empty() {
            return;
        }
        for &(of, sharer) in &self.sharers {
            if let (true, Sharer::Charged(leaf)) = (of == id, sharer) {
                self.tree.record_completion(leaf, now);
            }
        }
        self.sharers.retain(|(of, _)| *of != id);
    }
}
