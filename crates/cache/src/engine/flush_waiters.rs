//! A file's flush lock, and the callers that wait for it.
//!
//! An fsync may find its file's data in flight for the flusher or for a throttled writer. It waits for them, so all
//! requests that they wait for are boosted to the fsync's tag: the file's own writes, those of the files that are written
//! together with it, and what is submitted while a caller waits.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{IoHandle, Queue};
use steadfs_rt::{Mutex, MutexGuard, Rank};

/// Allows one write-back of a file at a time. Taken through [`FlushGuard`](crate::FlushGuard).
pub struct FlushLock {
    lock: Mutex<()>,
    waiters: FlushWaiters,
}

impl FlushLock {
    /// The lock of the file with this number, by which locks of several files are ordered.
    pub fn new(number: u64) -> Self {
        Self {
            lock: Mutex::with_key(Rank::Writeback, number, ()),
            waiters: FlushWaiters(Mutex::new(Rank::Table, WaitersState::default())),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.lock.try_lock()
    }

    pub(super) fn waiters(&self) -> &FlushWaiters {
        &self.waiters
    }
}

/// The callers that wait for one file's write-back.
pub(super) struct FlushWaiters(Mutex<WaitersState>);

#[derive(Default)]
struct WaitersState {
    count: usize,
    /// Their highest effective tag.
    tag: Option<IoTag>,
    /// The files that are written together with this one.
    batch: Option<Arc<SmallFileBatch>>,
}

impl FlushWaiters {
    /// A caller with this tag waits until the guard is dropped. Boosts what is in flight.
    pub(super) fn enter(&self, queue: &Queue, tag: IoTag) -> FlushWaiter<'_> {
        let batch = {
            let mut state = self.0.lock();
            state.count += 1;
            state.tag = Some(state.tag.map_or(tag, |now| queue.effective_tag(now, tag)));
            state.batch.clone()
        };
        if let Some(batch) = batch {
            batch.boost(queue, tag);
        }
        FlushWaiter(self)
    }

    /// The highest tag of the waiters, if there are any.
    pub(super) fn tag(&self) -> Option<IoTag> {
        self.0.lock().tag
    }

    /// The file is written together with others from now on, or no longer.
    pub(super) fn set_batch(&self, queue: &Queue, batch: Option<&Arc<SmallFileBatch>>) {
        let tag = {
            let mut state = self.0.lock();
            state.batch = batch.cloned();
            state.tag
        };
        if let (Some(batch), Some(tag)) = (batch, tag) {
            batch.boost(queue, tag);
        }
    }
}

/// A caller waits for a file's write-back while this lives.
pub(super) struct FlushWaiter<'a>(&'a FlushWaiters);

impl Drop for FlushWaiter<'_> {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.count -= 1;
        if state.count == 0 {
            state.tag = None;
        }
    }
}

/// Files that are in flight together: a waiter for one waits for all.
pub(super) struct SmallFileBatch(Mutex<BatchState>);

#[derive(Default)]
struct BatchState {
    ios: Vec<IoHandle>,
    /// The highest tag of the waiters for one of the files.
    tag: Option<IoTag>,
}

impl SmallFileBatch {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Rank::Table, BatchState::default())))
    }

    /// The tag that requests of tag `tag` get.
    pub(super) fn effective(&self, queue: &Queue, tag: IoTag) -> IoTag {
        let waiter = self.0.lock().tag;
        waiter.map_or(tag, |waiter| queue.effective_tag(tag, waiter))
    }

    /// Adds requests of one more file.
    pub(super) fn add<'a>(&self, queue: &Queue, ios: impl Iterator<Item = &'a IoHandle>) {
        let mut state = self.0.lock();
        let from = state.ios.len();
        state.ios.extend(ios.cloned());
        if let Some(tag) = state.tag {
            for io in &state.ios[from..] {
                queue.boost(io, tag);
            }
        }
    }

    fn boost(&self, queue: &Queue, tag: IoTag) {
        let mut state = self.0.lock();
        let raised = state.tag.map_or(tag, |now| queue.effective_tag(now, tag));
        if state.tag.replace(raised) != Some(raised) {
            for io in &state.ios {
                queue.boost(io, raised);
            }
        }
    }
}
