//! Which async requests wait: for the next FLUSH of a series, for the end of an fsync, or for async requests in flight.

use steadfs_base::IoTag;

use super::FairQueue;
use super::entry::Entry;
use super::fsync_latency::{FsyncLatency, Share};
use super::lanes::{class, is_sync};
use super::rules::Rules;
use crate::Nanos;

impl<R: Rules> FairQueue<R> {
    /// Whether the device has as many async bytes as fsync callers allow this tag. A group that weighs more than that of
    /// the callers keeps its share, even if it delays them.
    pub(super) fn reaches_fsync_bound(&self, tag: IoTag, now: Nanos) -> bool {
        let Some(fsync) = self.rules.fsync() else {
            return false;
        };
        self.in_flight.background_bytes >= fsync.async_bytes(now)
            && fsync
                .caller(now)
                .is_some_and(|caller| self.share_beside(caller, tag).is_some())
    }

    /// The smallest bound on the bytes of async writes between two FLUSHes of a series.
    pub(super) fn volatile_limit_min(&self) -> u64 {
        let moved = self.speed.flush_bytes().unwrap_or(0);
        self.options.flush_bytes_min.max(moved)
    }

    /// Most bytes of async writes between two FLUSHes of a series.
    pub(super) fn volatile_limit(&self) -> u64 {
        self.volatile.limit(self.volatile_limit_min())
    }

    /// The largest single async write in a series of FLUSHes.
    pub(super) fn volatile_write_max(&self) -> u64 {
        self.options
            .flush_bytes_min
            .max(self.volatile.learned() / 4)
    }

    /// Whether an async write of this tag has to wait for the next FLUSH or the end of the series. A group that weighs
    /// more than that of the FLUSHes keeps its share, even if it delays them.
    pub(super) fn has_to_wait_for_flush(&self, tag: IoTag, now: Nanos) -> bool {
        self.volatile.is_full(self.volatile_limit(), now) && !self.outweighs_flush_requester(tag)
    }

    pub(super) fn outweighs_flush_requester(&self, tag: IoTag) -> bool {
        let requester = self.volatile.flush_requester();
        requester.group != tag.group && self.tree.is_heavier(requester, tag)
    }

    /// The share of the device that async requests of `tag` keep beside an fsync; `None` if their group weighs more than
    /// that of the fsync: they are not held back then.
    pub(super) fn share_beside(&self, fsync: IoTag, tag: IoTag) -> Option<Share> {
        if fsync.group == tag.group {
            return Some(Share::QUARTER);
        }
        match self.tree.competing_weights(fsync, tag) {
            Some((of_fsync, own)) if own > of_fsync => None,
            Some((of_fsync, own)) => Some(Share {
                part: own,
                of: own + of_fsync,
            }),
            None => Some(Share::QUARTER),
        }
    }

    /// Whether an async request of this tag has to wait for the end of an fsync.
    pub(super) fn is_held_for_fsync(&self, tag: IoTag, now: Nanos) -> bool {
        let Some(fsync) = self.rules.fsync() else {
            return false;
        };
        let share = fsync
            .holder(now)
            .and_then(|holder| self.share_beside(holder, tag));
        share.is_some_and(|share| fsync.has_had_share(tag.group, share, now))
    }

    /// Whether an async request is due by its floor beside fsync callers. A later class than theirs has no floor.
    pub(super) fn is_due_beside_fsyncs(&self, entry: &Entry, now: Nanos) -> bool {
        let Some(fsync) = self.rules.fsync() else {
            return false;
        };
        let caller = fsync.caller(now);
        let caller = caller.filter(|caller| class(entry.tag) <= class(*caller));
        caller.is_some_and(|caller| {
            // A heavier group has more than a quarter by its weight, but not before sync requests of its own.
            let share = self.share_beside(caller, entry.tag);
            let share = share.unwrap_or(Share::QUARTER);
            fsync.is_due(entry, share, &self.speed, now)
        })
    }

    /// Whether the first request of a leaf goes before sync requests of its group, because it is due by its floor and
    /// would be held back for the fsync in progress otherwise.
    pub(super) fn is_due(&self, leaf: usize, now: Nanos) -> bool {
        let is_held = |fsync: &FsyncLatency| fsync.holder(now).is_some();
        let first = self.tree.leaf(leaf).requests.values().next();
        self.rules.fsync().is_some_and(is_held)
            && first.is_some_and(|&id| self.is_due_beside_fsyncs(self.entry(id), now))
    }

    /// Records that a leaf of async requests without requests queues one.
    pub(super) fn record_stream(&mut self, at: usize, now: Nanos) {
        let leaf = self.tree.leaf(at);
        let begins = !leaf.is_sync() && leaf.requests.is_empty() && leaf.in_flight == 0;
        let group = leaf.key.group;
        if let Some(fsync) = self.rules.fsync_mut().filter(|_| begins) {
            fsync.stream_begins(group, now);
        }
    }

    /// Whether a request has to wait for a FLUSH, for the end of an fsync or for async requests in flight.
    pub(super) fn has_to_wait(&self, entry: &Entry, now: Nanos) -> bool {
        let waits_for_flush = || entry.is_volatile() && self.has_to_wait_for_flush(entry.tag, now);
        !is_sync(entry.tag)
            && (waits_for_flush()
                || self.is_held_for_fsync(entry.tag, now)
                || self.reaches_fsync_bound(entry.tag, now))
            && !self.is_due_beside_fsyncs(entry, now)
    }

    /// When a request that has to wait may go, unless something completes earlier.
    pub(super) fn waits_until(&self, now: Nanos) -> Option<Nanos> {
        let is_full = self.volatile.is_full(self.volatile_limit(), now);
        let series = self.volatile.series_ends_at().filter(|_| is_full);
        let fsync = self.rules.fsync().and_then(|fsync| fsync.held_until(now));
        series.into_iter().chain(fsync).min()
    }

    /// Whether the first request of an owner has to wait for a FLUSH or for the end of an fsync.
    pub(super) fn is_held_back(&self, leaf: usize, now: Nanos) -> bool {
        let first = self.tree.leaf(leaf).requests.values().next();
        first.is_some_and(|&id| self.has_to_wait(self.entry(id), now))
    }
}
