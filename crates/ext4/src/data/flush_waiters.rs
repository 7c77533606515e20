//! Boosting write-back that an fsync waits for (priority inheritance).
//!
//! **Problem.** An fsync finds its file's data in write-back by the flusher or a throttled writer, with background
//! requests.
//!
//! **Rule.** While an fsync waits, all requests that it depends on get its tag: those of the file, those of the files
//! in the same batch, and those submitted meanwhile.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{IoHandle, Queue};
use steadfs_rt::{Mutex, Rank};

/// The tasks that wait for one file's write-back.
pub(crate) struct FlushWaiters(Mutex<FlushWaitersState>);

#[derive(Default)]
struct FlushWaitersState {
    count: usize,
    /// The highest of their tags.
    tag: Option<IoTag>,
    /// The batch that the file is written in.
    batch: Option<Arc<SmallFileBatch>>,
}

impl FlushWaiters {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Rank::Table, FlushWaitersState::default()))
    }

    /// Registers a task of this tag as waiting until the guard is dropped. Boosts the requests in flight.
    pub(super) fn enter(&self, queue: &Queue, tag: IoTag) -> FlushWaiter<'_> {
        let batch = {
            let mut inner = self.0.lock();
            inner.count += 1;
            inner.tag = Some(inner.tag.map_or(tag, |now| queue.effective_tag(now, tag)));
            inner.batch.clone()
        };
        if let Some(batch) = batch {
            batch.boost(queue, tag);
        }
        FlushWaiter(self)
    }

    /// The highest tag of the waiting tasks.
    pub(super) fn tag(&self) -> Option<IoTag> {
        self.0.lock().tag
    }

    /// Sets the batch that the file is written in.
    pub(super) fn set_batch(&self, queue: &Queue, batch: Option<&Arc<SmallFileBatch>>) {
        let tag = {
            let mut inner = self.0.lock();
            inner.batch = batch.cloned();
            inner.tag
        };
        if let (Some(batch), Some(tag)) = (batch, tag) {
            batch.boost(queue, tag);
        }
    }
}

/// A waiting task.
pub(super) struct FlushWaiter<'a>(&'a FlushWaiters);

impl Drop for FlushWaiter<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.0.lock();
        inner.count -= 1;
        if inner.count == 0 {
            inner.tag = None;
        }
    }
}

/// Files written in one batch: each waits for the requests of all.
pub(super) struct SmallFileBatch(Mutex<BatchState>);

#[derive(Default)]
struct BatchState {
    ios: Vec<IoHandle>,
    /// The highest tag of the tasks that wait for one of them.
    tag: Option<IoTag>,
}

impl SmallFileBatch {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Rank::Table, BatchState::default())))
    }

    /// The effective tag of requests of tag `tag`.
    pub(super) fn raised(&self, queue: &Queue, tag: IoTag) -> IoTag {
        let waiter = self.0.lock().tag;
        waiter.map_or(tag, |waiter| queue.effective_tag(tag, waiter))
    }

    /// Adds requests to the batch.
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
