//! Reads that were begun before anybody asked for them.
//!
//! Who knows what will be wanted next has it read ahead. A read of that very range that is submitted
//! later becomes the one that is under way, or has ended, and raises it; anything else ignores it.
//!
//! Problem: what was read ahead can be older than what is there when it is asked for. Rule: what a request
//! has changed on the device, or may have, the queue forgets before anybody learns of that request's end.
//! So what is answered from here was begun after every change that had ended when it was asked for, as if
//! it were begun then.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Instant, Mutex, Rank};

use super::handle::Io;
use super::stats::ReadAheadStats;
use crate::{Bio, Op};

/// How long what was read ahead is kept for whoever seemed to want it, when others want its place: longer than
/// a slow reader takes for what is read ahead of him, so that nothing is read twice.
const KEPT: Duration = Duration::from_secs(10);
/// Most bytes there are at a time, unless somebody says otherwise.
const MOST: u64 = 24 << 20;

/// What was read ahead and not asked for yet.
pub(super) struct Ahead {
    kept: Mutex<Kept>,
    /// How many there are, for those who need not look.
    count: AtomicUsize,
    most: AtomicU64,
}

#[derive(Default)]
struct Kept {
    /// By where they begin; none overlaps another.
    reads: BTreeMap<u64, Read>,
    /// Where they begin, in the order in which they were begun.
    order: BTreeMap<u64, u64>,
    /// Those under way that nobody can ask for any more, with their lengths. Their memory is in use.
    forgotten: Vec<(u64, Arc<Io>)>,
    /// Of all of these.
    bytes: u64,
    counts: ReadAheadStats,
}

struct Read {
    end: u64,
    /// How many were begun before.
    number: u64,
    begun: Instant,
    io: Arc<Io>,
}

impl Kept {
    /// Whoever asked for what begins there has it.
    fn take(&mut self, start: u64) -> Option<Arc<Io>> {
        let read = self.reads.remove(&start)?;
        self.order.remove(&read.number);
        self.bytes -= read.end - start;
        Some(read.io)
    }

    /// Nobody is to have what begins there.
    fn drop_at(&mut self, start: u64) {
        let Some(read) = self.reads.get(&start) else {
            return;
        };
        let len = read.end - start;
        let io = self.take(start).expect("it was found");
        self.counts.dropped += 1;
        if !io.is_done() {
            self.bytes += len;
            self.forgotten.push((len, io));
        }
    }

    fn forget(&mut self, range: &Range<u64>) {
        loop {
            let before = self.reads.range(..range.end).next_back();
            let Some((&start, _)) = before.filter(|(_, read)| read.end > range.start) else {
                return;
            };
            self.drop_at(start);
        }
    }

    /// The memory of those that have ended and nobody can ask for is free.
    fn tidy(&mut self) {
        let Self {
            forgotten, bytes, ..
        } = self;
        forgotten.retain(|(len, io)| {
            let done = io.is_done();
            *bytes -= if done { *len } else { 0 };
            !done
        });
    }

    /// Gives up what has ended and nobody seems to want any more.
    fn make_room(&mut self, now: Instant) {
        self.tidy();
        let old: Vec<u64> = self
            .order
            .values()
            .take_while(|start| now.since(self.reads[start].begun) > KEPT)
            .filter(|start| self.reads[start].io.is_done())
            .copied()
            .collect();
        old.into_iter().for_each(|start| self.drop_at(start));
    }
}

/// What became of a read that was to be begun.
pub(super) enum Begun {
    /// It has a place.
    Now,
    /// There is such a read.
    Before,
    /// There is no room.
    Full,
}

impl Ahead {
    pub(super) fn new() -> Self {
        Self {
            kept: Mutex::new(Rank::Leaf, Kept::default()),
            count: AtomicUsize::new(0),
            most: AtomicU64::new(MOST),
        }
    }

    pub(super) fn limit(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
    }

    /// Bytes for which there is room.
    pub(super) fn room(&self, now: Instant) -> u64 {
        let most = self.most.load(Ordering::Relaxed);
        let mut kept = self.kept.lock();
        // A lone reader may leave it as long as he likes.
        if kept.bytes > most / 2 {
            kept.make_room(now);
            self.note_count(&kept);
        }
        most.saturating_sub(kept.bytes)
    }

    fn note_count(&self, kept: &Kept) {
        self.count.store(kept.reads.len(), Ordering::Release);
    }

    /// Keeps a place for a read of `range`, which has to be submitted then.
    pub(super) fn begin(&self, range: Range<u64>, io: &Arc<Io>, now: Instant) -> Begun {
        let most = self.most.load(Ordering::Relaxed);
        let len = range.end - range.start;
        let mut kept = self.kept.lock();
        let there = kept.reads.get(&range.start);
        if there.is_some_and(|read| read.end == range.end) {
            return Begun::Before;
        }
        // Whoever wants it wants other pieces now.
        kept.forget(&range);
        if kept.bytes + len > most {
            kept.make_room(now);
        }
        let room = kept.bytes + len <= most;
        if room {
            let number = kept.counts.started;
            kept.counts.started += 1;
            kept.bytes += len;
            kept.order.insert(number, range.start);
            let read = Read {
                end: range.end,
                number,
                begun: now,
                io: Arc::clone(io),
            };
            kept.reads.insert(range.start, read);
        }
        self.note_count(&kept);
        if room { Begun::Now } else { Begun::Full }
    }

    /// The read of the very range that `bio` wants as `tag`, if it was begun and has not failed.
    pub(super) fn take(&self, bio: &Bio, tag: IoTag) -> Option<Arc<Io>> {
        if self.count.load(Ordering::Acquire) == 0 || bio.op != Op::Read {
            return None;
        }
        let mut kept = self.kept.lock();
        let there = kept.reads.get(&bio.offset);
        there.filter(|read| read.end == bio.end())?;
        let io = kept.take(bio.offset)?;
        kept.counts.used += 1;
        self.note_count(&kept);
        drop(kept);
        let joined = io.join(tag);
        if !joined {
            let counts = &mut self.kept.lock().counts;
            (counts.used, counts.dropped) = (counts.used - 1, counts.dropped + 1);
        }
        joined.then_some(io)
    }

    /// Forgets what was begun of a range that has changed.
    pub(super) fn forget(&self, range: &Range<u64>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        kept.forget(range);
        self.note_count(&kept);
    }

    /// Forgets all, and returns what is under way.
    pub(super) fn empty(&self) -> Vec<Arc<Io>> {
        let mut kept = self.kept.lock();
        kept.forget(&(0..u64::MAX));
        self.note_count(&kept);
        kept.bytes = 0;
        let under_way = std::mem::take(&mut kept.forgotten);
        under_way.into_iter().map(|(_, io)| io).collect()
    }

    pub(super) fn stats(&self) -> ReadAheadStats {
        let mut kept = self.kept.lock();
        kept.tidy();
        ReadAheadStats {
            kept: kept.reads.len() as u64,
            bytes: kept.bytes,
            ..kept.counts
        }
    }
}
