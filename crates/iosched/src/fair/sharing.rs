//! Requests that are for several accounts: FLUSHes that many wait for, and what one does for others.

use steadfs_base::{GroupId, IoTag};

use super::lanes::is_sync;
use super::options::Charge;
use super::{Entry, Fair};
use crate::{IoId, Nanos};

/// Somebody else whom a request serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharer {
    /// It is a FLUSH, or stands in no queue.
    Noted(IoTag),
    /// It stands in this queue, too.
    Queued(usize),
    /// It is a FLUSH in the device, on this queue's account; its owner's is among them.
    Charged(usize),
}

impl Fair {
    /// A queued request is for somebody of this tag, too.
    pub(super) fn add_sharer(&mut self, id: IoId, tag: IoTag, now: Nanos) {
        let entry = *self.entry(id);
        assert!(entry.queued, "only queued requests are shared");
        // What nobody waits for is raised by those who come to wait. Where turns are charged by their time
        // there is no telling what a request costs when it goes.
        let by_time = self.options.charge == Charge::Time;
        if !entry.is_flush() && (by_time || !is_sync(tag) || !is_sync(entry.tag)) {
            return;
        }
        self.sharers.push((id, Sharer::Noted(tag)));
        if entry.leaf.is_some() {
            self.enqueue_for_sharers(id, now);
        }
    }

    /// Puts a request that stands in its owner's queue in those of its sharers.
    pub(super) fn enqueue_for_sharers(&mut self, id: IoId, now: Nanos) {
        if self.sharers.is_empty() {
            return;
        }
        let Entry {
            arrival, leaf: own, ..
        } = *self.entry(id);
        for (of, sharer) in std::mem::take(&mut self.sharers) {
            let Sharer::Noted(tag) = sharer else {
                self.sharers.push((of, sharer));
                continue;
            };
            if of != id {
                self.sharers.push((of, sharer));
                continue;
            }
            let leaf = self.tree.leaf_for(tag);
            let queued = (id, Sharer::Queued(leaf));
            if own == Some(leaf) || self.sharers.contains(&queued) {
                continue;
            }
            self.sharers.push(queued);
            self.tree.stand(leaf, arrival, id, now);
            if self.turn.is_some_and(|turn| self.interrupts(tag, turn)) {
                self.end_turn(now);
            }
        }
    }

    /// Whether a request stands in this queue for a sharer: for its owner from now on.
    pub(super) fn stood_for_sharer(&mut self, id: IoId, leaf: usize) -> bool {
        let at = self
            .sharers
            .iter()
            .position(|s| *s == (id, Sharer::Queued(leaf)));
        at.map(|at| self.sharers.swap_remove(at)).is_some()
    }

    /// A request goes with the turn of `picked`: takes it out of all other queues that it stands in, and
    /// charges them. What `picked` has to pay comes back.
    pub(super) fn charge_others(&mut self, id: IoId, picked: usize, cost: u64, now: Nanos) -> u64 {
        if !self.sharers.iter().any(|(of, _)| *of == id) {
            return cost;
        }
        let Entry {
            arrival, leaf: own, ..
        } = *self.entry(id);
        let mut leaves = Vec::from_iter(own);
        self.sharers.retain(|&(of, sharer)| {
            if let (true, Sharer::Queued(leaf)) = (of == id, sharer) {
                leaves.push(leaf);
            }
            of != id
        });
        let group = |fair: &Self, leaf: usize| fair.tree.leaf(leaf).key.group;
        let groups: Vec<GroupId> = leaves.iter().map(|&leaf| group(self, leaf)).collect();
        if let Some(carrier) = own {
            for &leaf in leaves.iter().filter(|leaf| **leaf != carrier) {
                self.tree.note_carried(leaf, carrier);
            }
        }
        let part = |group: GroupId| {
            let among = groups.iter().filter(|other| **other == group).count();
            cost / among.max(1) as u64
        };
        for (n, (&leaf, &group)) in leaves.iter().zip(&groups).enumerate() {
            if leaf == picked {
                continue;
            }
            self.tree.take(leaf, arrival, now);
            // Those of one group pass who is behind them there once.
            if !groups[..n].contains(&group) {
                self.tree.pass_beside(leaf, picked, cost, now);
            }
            self.tree.charge_along(leaf, part(group));
        }
        part(group(self, picked))
    }

    /// A FLUSH: before everything else, and on the accounts of those whom it serves.
    pub(super) fn dispatch_flush(&mut self, id: IoId, now: Nanos) -> IoId {
        if self.tree.active > 0 {
            let cost = self.flush_cost();
            let own = (id, Sharer::Noted(self.entry(id).tag));
            let mut leaves: Vec<(GroupId, usize)> = Vec::new();
            let others = std::mem::take(&mut self.sharers);
            for (flush, sharer) in std::iter::once(own).chain(others) {
                match sharer {
                    Sharer::Noted(tag) if flush == id => {
                        let owner = (tag.group, self.tree.leaf_for(tag));
                        if !leaves.contains(&owner) {
                            // It passes those behind once.
                            let passes = if leaves.is_empty() { cost } else { 0 };
                            self.tree.pass(owner.1, passes, now);
                            self.tree.note_begun(owner.1, 0);
                            self.sharers.push((id, Sharer::Charged(owner.1)));
                            leaves.push(owner);
                        }
                    }
                    other => self.sharers.push((flush, other)),
                }
            }
            for &(group, leaf) in &leaves {
                let among = leaves.iter().filter(|(g, _)| *g == group).count();
                self.tree.charge(leaf, cost / among as u64);
            }
        }
        self.dispatch(id, now)
    }

    /// A request has ended.
    pub(super) fn end_sharers(&mut self, id: IoId, now: Nanos) {
        if self.sharers.is_empty() {
            return;
        }
        for &(of, sharer) in &self.sharers {
            if let (true, Sharer::Charged(leaf)) = (of == id, sharer) {
                self.tree.ended(leaf, now);
            }
        }
        self.sharers.retain(|(of, _)| *of != id);
    }
}
