//! Who waits for write-back that others do.
//!
//! An fsync finds its file's data in the hands of the flusher, or of a writer who makes room: it waits
//! for them, so all that they wait for becomes as urgent as the fsync is. That is the file's own writes,
//! those of the files that go together with it, and what they begin while somebody waits.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{IoHandle, Queue};
use steadfs_rt::{Mutex, Rank};

/// Who waits for one file's write-back.
pub(crate) struct FlushWaiters(Mutex<FlushWaitersState>);

#[derive(Default)]
struct FlushWaitersState {
    count: usize,
    /// The best of their tags.
    tag: Option<IoTag>,
    /// The files whose write-back its own waits for.
    batch: Option<Arc<SmallFileBatch>>,
}

impl FlushWaiters {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Rank::Table, FlushWaitersState::default()))
    }

    /// Somebody of this tag waits until the guard is dropped. Raises what is under way.
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

    /// The tag of those who wait, if anybody does.
    pub(super) fn tag(&self) -> Option<IoTag> {
        self.0.lock().tag
    }

    /// The file's data goes together with that of others from now on, or no longer.
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

/// Somebody waits.
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

/// Files whose data is in flight together: each has to wait for all.
pub(super) struct SmallFileBatch(Mutex<BatchState>);

#[derive(Default)]
struct BatchState {
    ios: Vec<IoHandle>,
    /// The best tag of those who wait for one of them.
    tag: Option<IoTag>,
}

impl SmallFileBatch {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(Rank::Table, BatchState::default())))
    }

    /// The tag that requests of tag `tag` have.
    pub(super) fn raised(&self, queue: &Queue, tag: IoTag) -> IoTag {
        let waiter = self.0.lock().tag;
        waiter.map_or(tag, |waiter| queue.effective_tag(tag, waiter))
    }

    /// These requests are waited for, too.
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
