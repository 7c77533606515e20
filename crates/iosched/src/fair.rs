//! Hierarchical weighted fair queueing: fair shares for cgroups and processes, and sync requests before async ones.

mod beside_fsync;
mod cfq;
mod device_speed;
mod entry;
mod flush_delay;
mod fsync_latency;
mod lanes;
mod options;
mod pick;
mod rules;
mod sharing;
mod tree;
mod volatile_cache;
mod window_min;

pub use cfq::CfqRules;
pub use fsync_latency::FsyncTarget;
pub use options::{FairOptions, Slice};
pub use rules::{FairRules, Rules};

use std::collections::VecDeque;
use std::fmt::Write;

use steadfs_base::{GroupId, IoTag, OwnerId, Urgency};

use crate::{BoostOutcome, Direction, Io, IoId, Nanos, Scheduler};
use device_speed::DeviceSpeed;
use entry::{Entry, InFlight, cost_bytes};
use fsync_latency::Share;
use lanes::{class, is_sync, lane_of};
use options::WEIGHTS;
use pick::Pick;
use rules::FlushCost;
use sharing::Sharer;
use tree::{LeafKey, READAHEAD_OWNER, Tree};
use volatile_cache::VolatileCache;

/// Hierarchical weighted fair queueing, after BFQ: start-time fair queueing at each level of a tree of cgroups.
///
/// Sync requests are those for which a task waits, async requests are the others. An *owner* is a process.
///
/// # Order of service
/// Groups (cgroups) form a tree. In a group its child groups compete by their weights, and the group's own processes by
/// the weights of their I/O priorities, as in BFQ. Each level serves the entity with the smallest start tag (service
/// divided by weight). An entity that becomes active after a pause starts at the vtime of its lane.
///
/// A *slice* ([`Slice`]) is a few requests of one owner. When it expires, its cost is charged to the owner and to its
/// groups.
///
/// Inside a group the order is strict: real-time, best-effort, idle; and in each class sync, then async requests. Async
/// requests of one priority share one queue; read-ahead has another. Child groups are served in the best-effort sync
/// lane. Reads are always sync, except read-ahead: a stream has many read-ahead requests, and other owners would wait
/// for all of them that are in flight.
///
/// # Bounds
/// - Async requests get one byte for [`FairOptions::sync_per_async`] bytes of sync service of their group and class,
///   and at least one request in [`FairOptions::async_max_wait`].
/// - A class gets at least one request in [`FairOptions::class_max_wait`], whatever its group's earlier classes request.
/// - At most [`FairOptions::async_depth`] async requests and one request of the idle class are in flight, and no async
///   request is dispatched while [`FairOptions::async_bytes`] bytes of them are in flight. So the first sync request
///   waits for these at most.
/// - In a series of FLUSHes, the device gets no more async writes between two of them than it can make durable in the
///   time of one FLUSH ([`FairOptions::flush_bytes_min`]), since a FLUSH writes the whole volatile cache, whose data may
///   be other owners', and its caller waits for that; more where they do not delay it (`flush_delay`). A group that
///   weighs more than that of the FLUSHes is not bound.
///
/// - While fsync callers are known, the async bytes in flight are bounded by the time that an fsync takes, and async
///   requests wait for the steps of an fsync (`fsync_latency`). A stream keeps a quarter of the device's time, or its
///   group's share if that is less: async requests that are due by this floor wait for no FLUSH or fsync.
///
/// - With [`FairOptions::low_latency`] a new sync owner, or one after a pause of 300 ms, is charged a thirtieth of its
///   first 512 KiB. So an owner whose weight is not raised waits, beyond its share, for 512 KiB of each owner of its group
///   whose weight is: beside a group of five times the weight, eight new owners that append 4 KiB and call fsync on a
///   device of 10 MiB/s wait 0.16 s in the median, 0.35 s at the 99th percentile, and 0.7 s at most, in the first second.
///
/// # Idling
/// If an owner of sync requests is in service and its queue is empty, the device idles for it while requests of it are
/// in flight, and for [`FairOptions::slice_idle`] afterwards, if its usual think time is shorter. Otherwise a process
/// that waits for each request would get no larger share than one that does not. The device idles only if the weights
/// or classes of the competing owners differ (or with [`FairOptions::always_idle`]), and never for a lone owner.
///
/// An owner may wait for other owners ([`Scheduler::begin_wait`]), as for a commit that another task leads. That time is
/// not its think time, and the end of the wait counts as a completion of a request of its own.
///
/// # FLUSH
/// A FLUSH is dispatched before all queued requests. So no request overtakes a FLUSH that was queued before it, boosted
/// or not.
///
/// A FLUSH costs its owner the bytes that the device could have transferred meanwhile (`DeviceSpeed`), and so does a
/// durable write. A FLUSH for several groups is charged to each group in full, and divided among the owners of a group:
/// sharing is a gain of the device, and does not increase the share of an owner.
///
/// # Shared requests
/// A request that an owner submits for others ([`Scheduler::share`]) is queued for its submitter and for all others. It
/// is dispatched in the first slice of one of them and charged to all of them, by groups like a FLUSH. Those that were
/// not in service go at most the cost of two such requests beyond the vtime. Between two such requests the device idles
/// for them as if they had submitted the requests themselves.
///
/// # Boost
/// A boost changes the order of a request, not its account: a request that is boosted to another group goes in a slice
/// of that group, and is charged to the group that submitted it, and to its sharers. Otherwise a heavy group would pay
/// for the commits of a light one, for which it has to wait.
///
/// # A lone request
/// A request that is alone, with no other queued or in flight, is not entered in the tree, unless it was boosted to
/// another group: that one waits for it, and the group that submitted it is charged.
#[derive(Debug)]
pub struct FairQueue<R> {
    options: FairOptions,
    rules: R,
    tree: Tree,
    /// By request number.
    entries: Vec<Option<Entry>>,
    arrivals: u64,
    queued: usize,
    flushes: VecDeque<IoId>,
    /// Other owners that requests serve, until the requests complete.
    sharers: Vec<(IoId, Sharer)>,
    speed: DeviceSpeed,
    volatile: VolatileCache,
    /// The only queued request, if it is not in the tree.
    lone: Option<IoId>,
    in_service: Option<InService>,
    in_flight: InFlight,
    rerun_at: Option<Nanos>,
}

/// The policy of the product.
pub type Fair = FairQueue<FairRules>;

/// The same tree with CFQ's rules, for experiments.
pub type Cfq = FairQueue<CfqRules>;

/// The owner in service, and what its slice has used so far.
#[derive(Clone, Copy, Debug)]
struct InService {
    leaf: usize,
    began: Nanos,
    bytes: u64,
    requests: usize,
}

impl<R: Rules> FairQueue<R> {
    /// A policy with nothing queued.
    pub fn new(options: FairOptions) -> Self {
        let options = options.with_implied();
        Self {
            rules: R::new(&options),
            tree: Tree::new(R::weight, options.low_latency && R::RAISES_WEIGHT),
            options,
            entries: Vec::new(),
            arrivals: 0,
            queued: 0,
            flushes: VecDeque::new(),
            sharers: Vec::new(),
            speed: DeviceSpeed::default(),
            volatile: VolatileCache::default(),
            lone: None,
            in_service: None,
            in_flight: InFlight::default(),
            rerun_at: None,
        }
    }

    /// The policy's own parameters.
    pub fn preset() -> FairOptions {
        R::options()
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

    /// Queues a request in its owner's leaf, and in the leaves of its sharers.
    fn enqueue(&mut self, id: IoId, now: Nanos) {
        let Entry { tag, arrival, .. } = *self.entry(id);
        let leaf = self.tree.leaf_for(tag);
        self.entry_mut(id).leaf = Some(leaf);
        self.record_stream(leaf, now);
        if !self.take_over_from_sharer(id, leaf) {
            self.tree.push_own(leaf, arrival, id, now);
        }
        self.enqueue_for_sharers(id, now);
        if self
            .in_service
            .is_some_and(|in_service| self.interrupts(tag, in_service))
        {
            self.expire_slice(now);
        }
    }

    /// Whether a new request ends a slice: its lane is served before the lane in service.
    fn interrupts(&self, tag: IoTag, in_service: InService) -> bool {
        lane_of(tag) < self.tree.leaf(in_service.leaf).key.lane
    }

    /// Ends the slice and charges it to its owner.
    fn expire_slice(&mut self, now: Nanos) {
        let Some(in_service) = self.in_service.take() else {
            return;
        };
        let time = Nanos(now.0.saturating_sub(in_service.began.0));
        let cost = R::slice_cost(in_service.bytes, time);
        self.tree.charge(in_service.leaf, cost);
    }

    /// No request is queued or in flight: owners for which the device idles no longer become inactive.
    fn expire_idle_leaves(&mut self, tag: IoTag, now: Nanos) {
        self.expire_slice(now);
        let key = LeafKey::of(tag);
        for at in 0..self.tree.leaves.len() {
            let Some(leaf) = &self.tree.leaves[at] else {
                continue;
            };
            let is_idled_for = leaf.key != key && self.is_idled_for(at, now);
            if leaf.entity.active && !is_idled_for {
                self.tree.deactivate(at);
            }
        }
        self.tree.remove_empty_groups();
    }

    /// Whether one more async request may be dispatched.
    fn may_dispatch_async(&self, now: Nanos) -> bool {
        self.in_flight.background < self.rules.async_limit(self.in_flight, now)
            && self.in_flight.background_bytes < self.options.async_bytes
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
        self.in_flight.count(&entry, true);
        if entry.is_transfer() {
            self.speed.begin(entry.flushes, now);
        }
        let share = match self.rules.fsync().and_then(|fsync| fsync.caller(now)) {
            Some(caller) if !is_sync(entry.tag) => self.share_beside(caller, entry.tag),
            _ => None,
        };
        if let Some(fsync) = self.rules.fsync_mut() {
            let share = share.unwrap_or(Share::QUARTER);
            fsync.dispatched(&entry, self.in_flight, share, &self.speed, now);
        }
        id
    }

    /// The cost of making data durable once.
    fn flush_cost(&self) -> FlushCost {
        R::flush_cost(&self.speed, &self.options)
    }

    fn dispatch_from(&mut self, leaf: usize, now: Nanos) -> IoId {
        if self.in_service.is_none() {
            self.tree.begin_slice(leaf);
            self.in_service = Some(InService {
                leaf,
                began: now,
                bytes: 0,
                requests: 0,
            });
        }
        let requests = &self.tree.leaf(leaf).requests;
        let (&arrival, &id) = requests
            .first_key_value()
            .expect("the picked owner has a queued request");
        let entry = *self.entry(id);
        let durable = match entry.flushes {
            0 => 0,
            times => u64::from(times) * self.flush_cost().durable_write,
        };
        // A request without data costs one sector.
        let cost = entry.bytes.max(512) + durable;
        self.tree.dequeue(leaf, arrival, now);
        self.tree.record_service(leaf, cost, now);
        let own = entry
            .leaf
            .expect("a request that is picked from a leaf has a leaf");
        self.tree.record_dispatch(own, entry.bytes);
        let part = self.charge_others(id, leaf, cost, now);
        if let Some(in_service) = &mut self.in_service {
            in_service.bytes = in_service.bytes.saturating_add(part);
            in_service.requests += 1;
        }
        self.dispatch(id, now)
    }
}

impl<R: Rules> Scheduler for FairQueue<R> {
    fn name(&self) -> &'static str {
        R::NAME
    }

    fn insert(&mut self, id: IoId, io: Io, now: Nanos) {
        // A background read is sync, for example that of a block map by the flusher: the task waits for it, perhaps
        // with locks held.
        let tag = match (io.direction, io.tag.urgency) {
            (Direction::Read, Urgency::Background) if io.readahead => IoTag {
                owner: READAHEAD_OWNER,
                ..io.tag
            },
            (Direction::Read, Urgency::Background) => io.tag.with_urgency(Urgency::Waited),
            _ => io.tag,
        };
        let entry = Entry {
            tag,
            charged: if io.charged == io.tag {
                tag
            } else {
                io.charged
            },
            leaf_shares: false,
            bytes: cost_bytes(io.direction, io.bytes),
            direction: io.direction,
            flushes: io.flushes,
            arrival: self.arrivals,
            arrived: now,
            dispatched: now,
            leaf: None,
            queued: true,
            task_waits: tag.owner != OwnerId(0),
        };
        self.arrivals += 1;
        let slot = id.0 as usize;
        if self.entries.len() <= slot {
            self.entries.resize(slot + 1, None);
        }
        assert!(
            self.entries[slot].is_none(),
            "the request number is not in use"
        );
        self.entries[slot] = Some(entry);
        let is_first = self.queued == 0;
        self.queued += 1;
        if entry.is_flush() {
            self.flushes.push_back(id);
            return;
        }
        if is_first && self.in_flight.all() == 0 && !self.has_to_wait(&entry, now) {
            if self.tree.active > 0 {
                self.expire_idle_leaves(tag, now);
            }
            if self.tree.active == 0 && !Self::is_in_other_slice(&entry) {
                self.lone = Some(id);
                return;
            }
        }
        if let Some(lone) = self.lone.take() {
            self.enqueue(lone, now);
        }
        self.enqueue(id, now);
    }

    fn grow(&mut self, id: IoId, bytes: u64) {
        let entry = self.entry_mut(id);
        assert!(entry.queued, "only queued requests grow");
        entry.bytes = cost_bytes(entry.direction, entry.bytes + bytes);
    }

    fn share(&mut self, id: IoId, tag: IoTag, now: Nanos) {
        self.add_sharer(id, tag, now);
    }

    fn boost(&mut self, id: IoId, tag: IoTag, now: Nanos) -> BoostOutcome {
        // In flight, too: the waiter may be an fsync caller.
        self.entry_mut(id).task_waits |= is_sync(tag) && tag.owner != OwnerId(0);
        let entry = *self.entry(id);
        if !entry.queued {
            return BoostOutcome::AlreadyDispatched;
        }
        let boosted = self.boosted_tag(entry.tag, tag);
        if boosted == entry.tag {
            return BoostOutcome::AlreadyUrgent;
        }
        self.entry_mut(id).tag = boosted;
        let Some(old) = entry.leaf else {
            let is_charged = Self::is_in_other_slice(self.entry(id));
            if is_charged && self.lone.take_if(|lone| *lone == id).is_some() {
                self.enqueue(id, now);
            }
            return BoostOutcome::Boosted { overtaken: 0 };
        };
        let before = |leaf: &tree::Leaf| leaf.requests.range(..entry.arrival).count() as u64;
        let old_position = before(self.tree.leaf(old));
        self.tree.dequeue(old, entry.arrival, now);
        if std::mem::take(&mut self.entry_mut(id).leaf_shares) {
            self.sharers.push((id, Sharer::Recorded(entry.tag)));
        }
        self.enqueue(id, now);
        let new = self.entry(id).leaf.expect("enqueue has set the leaf");
        let new_position = before(self.tree.leaf(new));
        let overtaken = if new == old {
            0
        } else {
            old_position.saturating_sub(new_position)
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
        if let Some(id) = self.lone.take() {
            return Some(self.dispatch(id, now));
        }
        let pick = self.pick(now);
        self.tree.remove_empty_groups();
        match pick {
            Pick::Leaf(leaf) => Some(self.dispatch_from(leaf, now)),
            Pick::Overdue(leaf) => {
                let id = self.dispatch_from(leaf, now);
                self.expire_slice(now);
                Some(id)
            }
            Pick::Wait(until) => {
                self.rerun_at = until;
                None
            }
            Pick::Nothing => {
                self.rerun_at = self.waits_until(now);
                None
            }
        }
    }

    fn complete(&mut self, id: IoId, now: Nanos) {
        let entry = *self.entry(id);
        assert!(!entry.queued, "only dispatched requests complete");
        self.entries[id.0 as usize] = None;
        if let Some(fsync) = self.rules.fsync_mut() {
            fsync.completed(&entry, self.in_flight, &self.speed, now);
        }
        self.in_flight.count(&entry, false);
        if entry.flushes > 0 {
            let took = now.0.saturating_sub(entry.dispatched.0) / u64::from(entry.flushes);
            self.volatile
                .flush_ends(took, self.volatile_limit_min(), now);
        } else if entry.is_volatile() {
            self.volatile.write_ends(entry.bytes);
        }
        if entry.is_transfer() {
            self.speed
                .end(entry.flushes, entry.bytes, entry.dispatched, now);
        }
        self.end_sharers(id, now);
        if let Some(leaf) = entry.leaf {
            self.tree.record_completion(leaf, now);
        }
        self.rules.completed(&entry, now);
    }

    fn queued(&self) -> usize {
        self.queued
    }

    fn boosted_tag(&self, now: IoTag, waiter: IoTag) -> IoTag {
        let kind = |tag| (class(tag), !is_sync(tag));
        let boosted = now.boosted_to(waiter);
        if now.group == waiter.group || kind(boosted) != kind(now) {
            return boosted;
        }
        // Both are served in the same lane, but charged to different groups: the group that is served more decides,
        // whatever the priorities inside the groups are.
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

    fn begin_wait(&mut self, tag: IoTag, idles: bool) -> bool {
        self.tree.begin_wait(tag, idles)
    }

    fn end_wait(&mut self, tag: IoTag, now: Nanos) {
        self.tree.end_wait(tag, now);
    }

    fn outweighs(&self, a: IoTag, b: IoTag) -> bool {
        a.group != b.group && self.tree.is_heavier(b, a)
    }

    fn rerun_at(&self) -> Option<Nanos> {
        self.rerun_at
    }

    fn max_write_bytes(&self, tag: IoTag, now: Nanos) -> u64 {
        if is_sync(tag) {
            return u64::MAX;
        }
        let is_volatile =
            self.volatile.in_flush_series(now) && !self.outweighs_flush_requester(tag);
        let between_flushes = match is_volatile {
            true => self.volatile_write_max(),
            false => u64::MAX,
        };
        let fsync = self.rules.fsync();
        let beside_fsync = fsync.map_or(u64::MAX, |fsync| fsync.async_write_max(now));
        between_flushes.min(beside_fsync)
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
        if let Some(fsync) = self.rules.fsync() {
            fsync.describe(out)?;
            let bytes = self.volatile_limit();
            writeln!(
                out,
                "background bytes from one FLUSH to the next at most {bytes}"
            )?;
        }
        self.tree.describe(out)
    }
}

#[cfg(test)]
mod tests;
