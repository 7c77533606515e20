//! Reads that were begun before anybody asked for them.
//!
//! Who knows what will be wanted next has it read ahead. A read of that very range that is submitted
//! later becomes the one that is under way, or has ended, and raises it; anything else ignores it.
//!
//! Problem: what was read ahead can be older than what is there when it is asked for. Rule: what a request
//! has changed on the device, or may have, the queue forgets before anybody learns of that request's end.
//! So what is answered from here was begun after every change that had ended when it was asked for, as if
//! it were begun then.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Instant, Mutex, Rank};

use super::handle::Io;
use crate::{Bio, Op};

/// How long what was read ahead is kept for whoever seemed to want it, when others want its place.
const KEPT: Duration = Duration::from_secs(2);
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
    /// In the order in which they were begun.
    reads: VecDeque<Read>,
    bytes: u64,
}

struct Read {
    range: Range<u64>,
    begun: Instant,
    io: Arc<Io>,
}

impl Kept {
    fn remove(&mut self, at: usize) -> Option<Arc<Io>> {
        let read = self.reads.remove(at)?;
        self.bytes -= read.range.end - read.range.start;
        Some(read.io)
    }

    fn forget(&mut self, range: &Range<u64>) {
        while let Some(at) = self.reads.iter().position(|r| overlap(&r.range, range)) {
            self.remove(at);
        }
    }

    /// Whether the first has been here for long.
    fn has_old(&self, now: Instant) -> bool {
        let first = self.reads.front();
        first.is_some_and(|read| now.since(read.begun) > KEPT)
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

    /// Keeps a place for a read of `range`, which has to be submitted then.
    pub(super) fn begin(&self, range: Range<u64>, io: &Arc<Io>, now: Instant) -> Begun {
        let most = self.most.load(Ordering::Relaxed);
        let len = range.end - range.start;
        let mut kept = self.kept.lock();
        if kept.reads.iter().any(|r| r.range == range) {
            return Begun::Before;
        }
        // Whoever wants it wants other pieces now.
        kept.forget(&range);
        while kept.bytes + len > most && kept.has_old(now) {
            kept.remove(0);
        }
        let room = kept.bytes + len <= most;
        if room {
            kept.bytes += len;
            kept.reads.push_back(Read {
                range,
                begun: now,
                io: Arc::clone(io),
            });
        }
        self.count.store(kept.reads.len(), Ordering::Release);
        if room { Begun::Now } else { Begun::Full }
    }

    /// The read of the very range that `bio` wants as `tag`, if it was begun and has not failed.
    pub(super) fn take(&self, bio: &Bio, tag: IoTag) -> Option<Arc<Io>> {
        if self.count.load(Ordering::Acquire) == 0 || bio.op != Op::Read {
            return None;
        }
        let range = bio.offset..bio.end();
        let mut kept = self.kept.lock();
        let at = kept.reads.iter().position(|r| r.range == range)?;
        let io = kept.remove(at);
        self.count.store(kept.reads.len(), Ordering::Release);
        drop(kept);
        io.filter(|io| io.join(tag))
    }

    /// Forgets what was begun of a range that has changed.
    pub(super) fn forget(&self, range: &Range<u64>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut kept = self.kept.lock();
        kept.forget(range);
        self.count.store(kept.reads.len(), Ordering::Release);
    }

    /// Forgets all, and returns it.
    pub(super) fn empty(&self) -> Vec<Arc<Io>> {
        let kept = std::mem::take(&mut *self.kept.lock());
        self.count.store(0, Ordering::Release);
        kept.reads.into_iter().map(|read| read.io).collect()
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}
