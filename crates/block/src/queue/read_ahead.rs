//! Read-aheads: reads that are started before a task requests them.
//!
//! A later read of exactly the same range joins the read-ahead, whether it is in flight or has ended, and boosts
//! it. Any other read ignores it.
//!
//! **Problem.** The cached content can be older than the device's when it is read. **Rule.** A range that a
//! request has changed, or may have changed, is dropped here before that request's end is reported. So a read
//! that is served from here was started on the device after every change that had ended before the read, as if
//! it were started then.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Instant, Mutex, Rank};

use super::handle::IoCompletion;
use super::stats::ReadAheadStats;
use crate::{Bio, Op};

/// Shortest time that an unused read-ahead is kept if memory is needed for others: longer than a slow reader
/// takes for its read-ahead window, so that nothing is read twice.
const MIN_LIFETIME: Duration = Duration::from_secs(10);
/// Default limit of read-ahead memory in bytes.
const DEFAULT_LIMIT_BYTES: u64 = 24 << 20;

/// Unused read-aheads.
pub(super) struct ReadAheadCache {
    state: Mutex<ReadAheadState>,
    /// Their number, for a check without the lock.
    count: AtomicUsize,
    limit: AtomicU64,
}

#[derive(Default)]
struct ReadAheadState {
    /// By start; none overlaps another.
    reads: BTreeMap<u64, ReadAheadEntry>,
    /// Their starts, by age.
    order: BTreeMap<u64, u64>,
    /// Dropped ones that are still in flight, with their lengths. Their memory is in use.
    dropped_in_flight: Vec<(u64, Arc<IoCompletion>)>,
    /// Memory of all of these.
    bytes: u64,
    counts: ReadAheadStats,
}

struct ReadAheadEntry {
    end: u64,
    /// Number of read-aheads that were started before.
    number: u64,
    started_at: Instant,
    io: Arc<IoCompletion>,
}

impl ReadAheadState {
    /// Removes the read-ahead that begins at `start`, for a read.
    fn take(&mut self, start: u64) -> Option<Arc<IoCompletion>> {
        let read = self.reads.remove(&start)?;
        self.order.remove(&read.number);
        self.bytes -= read.end - start;
        Some(read.io)
    }

    /// Drops the read-ahead that begins at `start`.
    fn drop_at(&mut self, start: u64) {
        let Some(read) = self.reads.get(&start) else {
            return;
        };
        let len = read.end - start;
        let io = self.take(start).expect("the entry was found above");
        self.counts.dropped += 1;
        if !io.is_done() {
            self.bytes += len;
            self.dropped_in_flight.push((len, io));
        }
    }

    fn drop_range(&mut self, range: &Range<u64>) {
        loop {
            let before = self.reads.range(..range.end).next_back();
            let Some((&start, _)) = before.filter(|(_, read)| read.end > range.start) else {
                return;
            };
            self.drop_at(start);
        }
    }

    /// Counts the memory of dropped read-aheads that have ended as free.
    fn release_ended(&mut self) {
        let Self {
            dropped_in_flight,
            bytes,
            ..
        } = self;
        dropped_in_flight.retain(|(len, io)| {
            let done = io.is_done();
            *bytes -= if done { *len } else { 0 };
            !done
        });
    }

    /// Drops ended read-aheads that have been unused for [`MIN_LIFETIME`].
    fn evict_old(&mut self, now: Instant) {
        self.release_ended();
        let old: Vec<u64> = self
            .order
            .values()
            .take_while(|start| now.since(self.reads[start].started_at) > MIN_LIFETIME)
            .filter(|start| self.reads[start].io.is_done())
            .copied()
            .collect();
        old.into_iter().for_each(|start| self.drop_at(start));
    }
}

/// Whether a read-ahead may be started.
pub(super) enum Reservation {
    /// Yes, its memory is reserved.
    New,
    /// The same range is read ahead already.
    Exists,
    /// The limit is reached.
    Full,
}

impl ReadAheadCache {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, ReadAheadState::default()),
            count: AtomicUsize::new(0),
            limit: AtomicU64::new(DEFAULT_LIMIT_BYTES),
        }
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes below the limit.
    pub(super) fn available(&self, now: Instant) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        let mut state = self.state.lock();
        // Below half the limit even old ones are kept, for a single slow reader.
        if state.bytes > limit / 2 {
            state.evict_old(now);
            self.update_count(&state);
        }
        limit.saturating_sub(state.bytes)
    }

    fn update_count(&self, state: &ReadAheadState) {
        self.count.store(state.reads.len(), Ordering::Release);
    }

    /// Reserves memory for a read-ahead of `range`. The caller then submits it.
    pub(super) fn reserve(
        &self,
        range: Range<u64>,
        io: &Arc<IoCompletion>,
        now: Instant,
    ) -> Reservation {
        let limit = self.limit.load(Ordering::Relaxed);
        let len = range.end - range.start;
        let mut state = self.state.lock();
        let there = state.reads.get(&range.start);
        if there.is_some_and(|read| read.end == range.end) {
            return Reservation::Exists;
        }
        // The reader's pieces have other limits now.
        state.drop_range(&range);
        if state.bytes + len > limit {
            state.evict_old(now);
        }
        let fits = state.bytes + len <= limit;
        if fits {
            let number = state.counts.started;
            state.counts.started += 1;
            state.bytes += len;
            state.order.insert(number, range.start);
            let read = ReadAheadEntry {
                end: range.end,
                number,
                started_at: now,
                io: Arc::clone(io),
            };
            state.reads.insert(range.start, read);
        }
        self.update_count(&state);
        if fits {
            Reservation::New
        } else {
            Reservation::Full
        }
    }

    /// The read-ahead of exactly the range of `bio`, unless it has failed; `tag`: the reader's.
    pub(super) fn take(&self, bio: &Bio, tag: IoTag) -> Option<Arc<IoCompletion>> {
        if self.count.load(Ordering::Acquire) == 0 || bio.op != Op::Read {
            return None;
        }
        let mut state = self.state.lock();
        let there = state.reads.get(&bio.offset);
        there.filter(|read| read.end == bio.end())?;
        let io = state.take(bio.offset)?;
        state.counts.used += 1;
        self.update_count(&state);
        drop(state);
        let joined = io.join(tag);
        if !joined {
            let counts = &mut self.state.lock().counts;
            (counts.used, counts.dropped) = (counts.used - 1, counts.dropped + 1);
        }
        joined.then_some(io)
    }

    /// Drops read-aheads of a range that has changed.
    pub(super) fn drop_range(&self, range: &Range<u64>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.drop_range(range);
        self.update_count(&state);
    }

    /// Drops all read-aheads and returns those in flight.
    pub(super) fn drain(&self) -> Vec<Arc<IoCompletion>> {
        let mut state = self.state.lock();
        state.drop_range(&(0..u64::MAX));
        self.update_count(&state);
        state.bytes = 0;
        let under_way = std::mem::take(&mut state.dropped_in_flight);
        under_way.into_iter().map(|(_, io)| io).collect()
    }

    pub(super) fn stats(&self) -> ReadAheadStats {
        let mut state = self.state.lock();
        state.release_ended();
        ReadAheadStats {
            kept: state.reads.len() as u64,
            bytes: state.bytes,
            ..state.counts
        }
    }
}
