//! Fair shares for groups and processes, and what somebody waits for ahead of what nobody waits for.

mod lanes;
mod options;
mod pace;
mod pick;
mod sharing;
mod tree;
mod volatile;

pub use options::{AsyncRamp, Charge, FairOptions, PrioWeights, Slice};

use std::collections::VecDeque;
use std::fmt::Write;

use steadfs_base::{GroupId, IoTag, Urgency};

use crate::{BoostOutcome, Direction, Io, IoId, Nanos, Scheduler};
use lanes::{class, is_sync, lane_of};
use options::{CLASSES, WEIGHTS};
use pace::Pace;
use pick::Pick;
use sharing::Sharer;
use tree::{AHEAD, LeafKey, Tree};
use volatile::Volatile;

/// Hierarchical weighted fair queueing.
///
/// # Who is served
/// Groups (cgroups) form a tree. In a group compete its child groups, each by its weight, and the
/// group's own processes, each by the weight of its I/O priority, as in BFQ. Each level is a
/// start-time fair queue: the one with the least service divided by weight comes first. Who comes
/// after a pause starts level with the others.
///
/// A *turn* ([`Slice`]) is a few requests of one owner. When it ends its cost is charged to the owner
/// and to its groups.
///
/// Inside a group strictly in this order: real-time, best-effort, idle; and in each class what
/// somebody waits for (*sync*), then what nobody waits for (*async*: one queue for each priority,
/// and one for what is read ahead). Child groups stand with the best-effort sync owners. Reads are always sync,
/// but for those that were begun before anybody asked: a stream's are many, and others would wait for all that
/// the device has.
///
/// # What is bounded
/// - Async requests get one byte for [`FairOptions::sync_per_async`] bytes of sync service of their
///   group and class, and one request each [`FairOptions::async_max_wait`].
/// - A class gets one request each [`FairOptions::class_max_wait`] of its group's turns, whatever
///   better classes want.
/// - At most [`FairOptions::async_depth`] async requests and one of the idle class are in the device,
///   and no async one joins [`FairOptions::async_bytes`], so a sync request that comes first in line
///   waits for those at most.
/// - While FLUSHes come one after the other, the device is given no more async writes between two of them than
///   it can make durable in the time of one ([`FairOptions::flush_bytes_min`]): a FLUSH covers all that the device
///   has taken, whoever wrote it, and whoever waits for it waits for that. A group that weighs more than the
///   one that calls for them is not bound by that.
///
/// # Waiting for somebody
/// An owner of sync requests whose turn it is and who has nothing queued keeps its place while it
/// has requests in the device and [`FairOptions::slice_idle`] longer, if it usually comes back in
/// that time: else a process that waits for each request would get no more than one that does not.
/// This happens only where the weights or classes of those who compete differ (or with
/// [`FairOptions::always_idle`]); a lone owner never waits.
///
/// # Barriers
/// A FLUSH goes before everything that is queued. So nothing passes a FLUSH that it stood behind,
/// boosted or not.
///
/// It costs its owner what the device could have moved meanwhile (`Pace`), and so does a write that is
/// durable when it ends. One that serves several groups costs each what it would have cost alone, its
/// owners their parts of that: sharing is the device's gain, and no way to a larger share.
///
/// # What is done for others
/// A request that one does for others ([`Scheduler::share`]) stands in the lines of all of them and in its
/// owner's. It goes with the first whose turn comes, and is on everybody's account, by groups as a FLUSH is.
/// Those whose turn it was not go no deeper into debt by it than one such request. Between two such requests
/// they keep their places as if they had made them.
///
/// # A lone request
/// With nothing queued and nothing in the device a request takes no place in the tree.
#[derive(Debug)]
pub struct Fair {
    options: FairOptions,
    tree: Tree,
    /// By request number.
    entries: Vec<Option<Entry>>,
    arrivals: u64,
    queued: usize,
    flushes: VecDeque<IoId>,
    /// Whom else requests serve, until they end.
    sharers: Vec<(IoId, Sharer)>,
    pace: Pace,
    volatile: Volatile,
    /// The only request that is queued, in no queue of the tree.
    express: Option<IoId>,
    turn: Option<Turn>,
    in_flight: InFlight,
    rerun_at: Option<Nanos>,
    /// When a sync request last took long.
    delayed: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    tag: IoTag,
    bytes: u64,
    direction: Direction,
    /// How often data is made durable for it.
    flushes: u8,
    arrival: u64,
    arrived: Nanos,
    dispatched: Nanos,
    /// Its queue, unless it is express or a FLUSH that is queued.
    leaf: Option<usize>,
    queued: bool,
}

impl Entry {
    fn is_flush(&self) -> bool {
        self.direction == Direction::Flush
    }

    /// Whether it is a write that nobody waits for and that is not durable when it ends.
    fn is_volatile(&self) -> bool {
        self.direction == Direction::Write && self.flushes == 0 && !is_sync(self.tag)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct InFlight {
    sync: usize,
    background: usize,
    /// Of the background ones.
    background_bytes: u64,
    /// Of both, those of the idle class.
    idle: usize,
}

impl InFlight {
    fn all(self) -> usize {
        self.sync + self.background
    }

    fn count(&mut self, tag: IoTag, bytes: u64, more: bool) {
        let change = |n: &mut usize| *n = if more { *n + 1 } else { *n - 1 };
        if is_sync(tag) {
            change(&mut self.sync);
        } else {
            change(&mut self.background);
            self.background_bytes = if more {
                self.background_bytes + bytes
            } else {
                self.background_bytes - bytes
            };
        }
        if lane_of(tag) / 2 == CLASSES - 1 {
            change(&mut self.idle);
        }
    }
}

/// An owner's turn.
#[derive(Clone, Copy, Debug)]
struct Turn {
    leaf: usize,
    began: Nanos,
    bytes: u64,
    requests: usize,
}

impl Fair {
    /// A policy with nothing queued.
    pub fn new(options: FairOptions) -> Self {
        let options = options.settled();
        let raises = options.low_latency && options.charge == Charge::Bytes;
        Self {
            options,
            tree: Tree::new(options.prio_weights, raises),
            entries: Vec::new(),
            arrivals: 0,
            queued: 0,
            flushes: VecDeque::new(),
            sharers: Vec::new(),
            pace: Pace::default(),
            volatile: Volatile::default(),
            express: None,
            turn: None,
            in_flight: InFlight::default(),
            rerun_at: None,
            delayed: None,
        }
    }

    fn entry(&self, id: IoId) -> &Entry {
        self.entries
            .get(id.0 as usize)
            .and_then(Option::as_ref)
            .expect("the request was inserted and is not complete")
    }

    fn entry_mut(&mut self, id: IoId) -> &mut Entry {
        self.entries
            .get_mut(id.0 as usize)
            .and_then(Option::as_mut)
            .expect("the request was inserted and is not complete")
    }

    /// Puts a request in its owner's queue, and in those of its sharers.
    fn enqueue(&mut self, id: IoId, now: Nanos) {
        let Entry { tag, arrival, .. } = *self.entry(id);
        let leaf = self.tree.leaf_for(tag);
        self.entry_mut(id).leaf = Some(leaf);
        if !self.stood_for_sharer(id, leaf) {
            self.tree.push(leaf, arrival, id, now);
        }
        self.enqueue_for_sharers(id, now);
        if self.turn.is_some_and(|turn| self.interrupts(tag, turn)) {
            self.end_turn(now);
        }
    }

    /// Whether a new request ends a turn: of a better class, or the first that somebody waits for.
    fn interrupts(&self, tag: IoTag, turn: Turn) -> bool {
        lane_of(tag) < self.tree.leaf(turn.leaf).key.lane
    }

    /// Charges the turn to its owner.
    fn end_turn(&mut self, now: Nanos) {
        let Some(turn) = self.turn.take() else { return };
        let cost = match self.options.charge {
            Charge::Bytes => turn.bytes,
            Charge::Time => now.0.saturating_sub(turn.began.0),
        };
        self.tree.charge(turn.leaf, cost);
    }

    /// Nothing is queued or in the device: whoever is waited for in vain loses its place.
    fn forget_stragglers(&mut self, tag: IoTag, now: Nanos) {
        self.end_turn(now);
        let key = LeafKey::of(tag);
        for at in 0..self.tree.leaves.len() {
            let Some(leaf) = &self.tree.leaves[at] else {
                continue;
            };
            let waits = leaf.key != key && self.is_waited_for(at, now);
            if leaf.place.active && !waits {
                self.tree.deactivate(at);
            }
        }
        self.tree.tidy();
    }

    /// Whether the device may have one more async request.
    fn has_async_room(&self, now: Nanos) -> bool {
        self.in_flight.background < self.async_limit(now)
            && self.in_flight.background_bytes < self.options.async_bytes
    }

    /// How many async requests the device may have.
    fn async_limit(&self, now: Nanos) -> usize {
        let options = &self.options;
        if options.async_alone && self.in_flight.sync > 0 {
            return 0;
        }
        match (options.async_ramp, self.delayed) {
            (Some(ramp), Some(delayed)) => {
                let steps = now.0.saturating_sub(delayed.0) / ramp.step.0.max(1);
                let steps = usize::try_from(steps).unwrap_or(usize::MAX);
                steps.clamp(1, options.async_depth)
            }
            _ => options.async_depth,
        }
    }

    fn dispatch(&mut self, id: IoId, now: Nanos) -> IoId {
        self.queued -= 1;
        let entry = self.entry_mut(id);
        debug_assert!(entry.queued);
        entry.queued = false;
        entry.dispatched = now;
        let entry = *entry;
        if entry.flushes > 0 {
            self.volatile.flush_begins(entry.tag);
        } else if entry.is_volatile() {
            self.volatile.write_begins(entry.bytes);
        }
        self.in_flight.count(entry.tag, entry.bytes, true);
        self.pace.begin(entry.flushes, now);
        id
    }

    /// How many bytes that nobody waits for the next FLUSH may have to make durable.
    fn flush_bytes_min(&self) -> u64 {
        let moved = self.pace.flush_bytes().unwrap_or(0);
        self.options.flush_bytes_min.max(moved)
    }

    /// Whether a write of this tag, that nobody waits for, has to wait for a FLUSH, or for the end of a row of
    /// them. A group that weighs more than the flusher's has its share, however long FLUSHes take then.
    fn has_to_wait_for_flush(&self, tag: IoTag, now: Nanos) -> bool {
        self.volatile.is_full(self.flush_bytes_min(), now) && !self.outweighs_flusher(tag)
    }

    fn outweighs_flusher(&self, tag: IoTag) -> bool {
        let flusher = self.volatile.flusher();
        flusher.group != tag.group && self.tree.is_heavier(flusher, tag)
    }

    /// Whether an owner's next request has to wait for a FLUSH.
    fn is_held_back(&self, leaf: usize, now: Nanos) -> bool {
        let first = self.tree.leaf(leaf).requests.values().next();
        first.is_some_and(|&id| {
            let entry = self.entry(id);
            entry.is_volatile() && self.has_to_wait_for_flush(entry.tag, now)
        })
    }

    /// What making data durable costs.
    fn flush_cost(&self) -> u64 {
        let first = self.options.flush_cost;
        match self.options.charge {
            Charge::Bytes => self.pace.flush_bytes().unwrap_or(first),
            Charge::Time => self.pace.flush_time().unwrap_or(0),
        }
    }

    fn dispatch_from(&mut self, leaf: usize, now: Nanos) -> IoId {
        if self.turn.is_none() {
            self.tree.begin_turn(leaf);
            self.turn = Some(Turn {
                leaf,
                began: now,
                bytes: 0,
                requests: 0,
            });
        }
        let requests = &self.tree.leaf(leaf).requests;
        let (&arrival, &id) = requests
            .first_key_value()
            .expect("the owner has one queued");
        let entry = *self.entry(id);
        let durable = match self.options.charge {
            Charge::Bytes if entry.flushes > 0 => u64::from(entry.flushes) * self.flush_cost(),
            // A turn's time is measured whatever it does.
            Charge::Bytes | Charge::Time => 0,
        };
        // A request without content costs the device something, too.
        let cost = entry.bytes.max(512) + durable;
        self.tree.take(leaf, arrival, now);
        self.tree.pass(leaf, cost, now);
        let own = entry.leaf.expect("it stands in a queue");
        self.tree.note_begun(own, entry.bytes);
        let part = self.charge_others(id, leaf, cost, now);
        if let Some(turn) = &mut self.turn {
            turn.bytes = turn.bytes.saturating_add(part);
            turn.requests += 1;
        }
        self.dispatch(id, now)
    }
}

impl Scheduler for Fair {
    fn name(&self) -> &'static str {
        self.options.name
    }

    fn insert(&mut self, id: IoId, io: Io, now: Nanos) {
        // Whoever reads waits, also the flusher for a map that it needs, with locks that others want.
        let tag = match (io.direction, io.tag.urgency) {
            (Direction::Read, Urgency::Background) if io.readahead => IoTag {
                owner: AHEAD,
                ..io.tag
            },
            (Direction::Read, Urgency::Background) => io.tag.with_urgency(Urgency::Waited),
            _ => io.tag,
        };
        let entry = Entry {
            tag,
            bytes: io.bytes,
            direction: io.direction,
            flushes: io.flushes,
            arrival: self.arrivals,
            arrived: now,
            dispatched: now,
            leaf: None,
            queued: true,
        };
        self.arrivals += 1;
        let slot = id.0 as usize;
        if self.entries.len() <= slot {
            self.entries.resize(slot + 1, None);
        }
        assert!(self.entries[slot].is_none(), "the number is not in use");
        self.entries[slot] = Some(entry);
        let first = self.queued == 0;
        self.queued += 1;
        if entry.is_flush() {
            self.flushes.push_back(id);
            return;
        }
        let held_back = entry.is_volatile() && self.has_to_wait_for_flush(tag, now);
        if first && self.in_flight.all() == 0 && !held_back {
            if self.tree.active > 0 {
                self.forget_stragglers(tag, now);
            }
            if self.tree.active == 0 {
                self.express = Some(id);
                return;
            }
        }
        if let Some(express) = self.express.take() {
            self.enqueue(express, now);
        }
        self.enqueue(id, now);
    }

    fn grow(&mut self, id: IoId, bytes: u64) {
        let entry = self.entry_mut(id);
        assert!(entry.queued, "only queued requests grow");
        entry.bytes += bytes;
    }

    fn share(&mut self, id: IoId, tag: IoTag, now: Nanos) {
        self.add_sharer(id, tag, now);
    }

    fn boost(&mut self, id: IoId, tag: IoTag, now: Nanos) -> BoostOutcome {
        let entry = *self.entry(id);
        if !entry.queued {
            return BoostOutcome::AlreadyDispatched;
        }
        let raised = self.boosted_tag(entry.tag, tag);
        if raised == entry.tag {
            return BoostOutcome::AlreadyUrgent;
        }
        self.entry_mut(id).tag = raised;
        let Some(old) = entry.leaf else {
            return BoostOutcome::Boosted { overtaken: 0 };
        };
        let ahead = |leaf: &tree::Leaf| leaf.requests.range(..entry.arrival).count() as u64;
        let was = ahead(self.tree.leaf(old));
        self.tree.take(old, entry.arrival, now);
        self.enqueue(id, now);
        let new = self.entry(id).leaf.expect("it was put in a queue");
        let is = ahead(self.tree.leaf(new));
        let overtaken = if new == old {
            0
        } else {
            was.saturating_sub(is)
        };
        BoostOutcome::Boosted { overtaken }
    }

    fn next(&mut self, now: Nanos) -> Option<IoId> {
        self.rerun_at = None;
        if self.queued == 0 || self.in_flight.all() >= self.options.depth {
            return None;
        }
        if let Some(id) = self.flushes.pop_front() {
            return Some(self.dispatch_flush(id, now));
        }
        if let Some(id) = self.express.take() {
            return Some(self.dispatch(id, now));
        }
        let pick = self.pick(now);
        self.tree.tidy();
        match pick {
            Pick::Leaf(leaf) => Some(self.dispatch_from(leaf, now)),
            Pick::Late(leaf) => {
                let id = self.dispatch_from(leaf, now);
                self.end_turn(now);
                Some(id)
            }
            Pick::Wait(until) => {
                self.rerun_at = until;
                None
            }
            Pick::Nothing => {
                let full = self.volatile.is_full(self.flush_bytes_min(), now);
                self.rerun_at = self.volatile.lapses().filter(|_| full);
                None
            }
        }
    }

    fn complete(&mut self, id: IoId, now: Nanos) {
        let entry = *self.entry(id);
        assert!(!entry.queued, "only dispatched requests complete");
        self.entries[id.0 as usize] = None;
        self.in_flight.count(entry.tag, entry.bytes, false);
        if entry.flushes > 0 {
            self.volatile.flush_ends(now);
        } else if entry.is_volatile() {
            self.volatile.write_ends(entry.bytes);
        }
        self.pace
            .end(entry.flushes, entry.bytes, entry.dispatched, now);
        self.end_sharers(id, now);
        if let Some(leaf) = entry.leaf {
            self.tree.ended(leaf, now);
        }
        if let Some(ramp) = self.options.async_ramp
            && is_sync(entry.tag)
            && now.0.saturating_sub(entry.arrived.0) > ramp.delayed.0
        {
            self.delayed = Some(now);
        }
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn boosted_tag(&self, now: IoTag, waiter: IoTag) -> IoTag {
        let kind = |tag| (class(tag), !is_sync(tag));
        let raised = now.boosted_to(waiter);
        if now.group == waiter.group || kind(raised) != kind(now) {
            return raised;
        }
        // Of one kind, but on different accounts: the one that is served more is better, whatever the
        // priorities inside the groups are.
        if !self.tree.is_heavier(now, waiter) {
            return now;
        }
        IoTag {
            urgency: now.urgency.min(waiter.urgency),
            prio: now.prio.min(waiter.prio),
            group: waiter.group,
            owner: waiter.owner,
        }
    }

    fn rerun_at(&self) -> Option<Nanos> {
        self.rerun_at
    }

    fn max_write_bytes(&self, tag: IoTag, now: Nanos) -> u64 {
        let bound = !is_sync(tag) && self.volatile.flushes_go_on(now);
        match bound && !self.outweighs_flusher(tag) {
            true => self.options.flush_bytes_min,
            false => u64::MAX,
        }
    }

    fn set_group(&mut self, group: GroupId, parent: GroupId, weight: u32) {
        let weight = weight.clamp(*WEIGHTS.start(), *WEIGHTS.end());
        self.tree.set_group(group, parent, weight);
    }

    fn remove_group(&mut self, group: GroupId) {
        self.tree.remove_group(group);
    }

    fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        let flight = self.in_flight;
        writeln!(
            out,
            "{} queued ({} flushes), {} sync and {} background in the device",
            self.queued,
            self.flushes.len(),
            flight.sync,
            flight.background
        )?;
        self.tree.describe(out)
    }
}

#[cfg(test)]
mod tests;
