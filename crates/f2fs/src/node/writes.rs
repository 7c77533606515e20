//! Node writes of fsyncs in flight. A checkpoint and each later fsync wait for those that began before: the checkpoint
//! refers to these nodes, and roll-forward reaches later nodes only through earlier ones.

use std::collections::BTreeMap;

use steadfs_base::IoTag;
use steadfs_block::{IoHandle, Queue};
use steadfs_rt::{Condvar, Mutex, MutexGuard, Rank};
use steadfs_vfs::{FsError, Result};

/// Node writes in flight, numbered in the order of their blocks in the log.
pub struct NodeWrites {
    /// Held while blocks are allocated for nodes, so that their order in the log is that of the numbers.
    order: Mutex<()>,
    state: Mutex<WritesState>,
    ended: Condvar,
}

#[derive(Default)]
struct WritesState {
    /// Writes begun since the mount.
    started: u64,
    /// Their requests by number.
    in_flight: BTreeMap<u64, Vec<IoHandle>>,
    /// Tags of waiters, each with the number of writes that it waits for.
    waiters: Vec<(u64, IoTag)>,
    /// A write has failed: nodes behind it cannot be found.
    failed: bool,
}

/// A node write in flight; it has failed if it is dropped without [`NodeWrite::end`].
pub struct NodeWrite<'w> {
    writes: &'w NodeWrites,
    number: u64,
    ended: bool,
}

impl NodeWrites {
    pub fn new() -> Self {
        Self {
            order: Mutex::new(Rank::InodeState, ()),
            state: Mutex::new(Rank::Leaf, WritesState::default()),
            ended: Condvar::new(),
        }
    }

    /// Begins a write, inside the change that allocates blocks for its nodes. Blocks are allocated while the caller
    /// holds the returned lock. (Otherwise a write with a lower number could be behind this one in the log, and would
    /// not wait for it: its nodes could not be found.)
    pub fn begin(&self) -> (NodeWrite<'_>, MutexGuard<'_, ()>) {
        let order = self.order.lock();
        let mut state = self.state.lock();
        let number = state.started;
        state.started += 1;
        let listed = state.in_flight.insert(number, Vec::new());
        assert!(listed.is_none(), "each write has a number of its own");
        let write = NodeWrite {
            writes: self,
            number,
            ended: false,
        };
        drop(state);
        (write, order)
    }

    /// Whether a write has failed: a chain behind it cannot be followed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// Number of writes begun since the mount.
    pub fn started(&self) -> u64 {
        self.state.lock().started
    }

    /// Waits for the first `count` writes, and boosts their requests to the waiter's tag.
    ///
    /// # Errors
    /// A write has failed.
    pub fn wait(&self, count: u64, queue: &Queue, tag: IoTag) -> Result<()> {
        let mut state = self.state.lock();
        assert!(
            count <= state.started,
            "a task waits only for writes that have begun"
        );
        let has_some =
            |state: &WritesState| state.in_flight.keys().next().is_some_and(|n| *n < count);
        if has_some(&state) {
            let ios: Vec<_> = state
                .in_flight
                .range(..count)
                .flat_map(|(_, ios)| ios.clone())
                .collect();
            state.waiters.push((count, tag));
            drop(state);
            for io in ios {
                queue.boost(&io, tag);
            }
            state = self.state.lock();
            while has_some(&state) {
                self.ended.wait(&mut state);
            }
            let mine = state
                .waiters
                .iter()
                .position(|waiter| *waiter == (count, tag));
            state
                .waiters
                .swap_remove(mine.expect("the waiter was added above"));
        }
        if state.failed {
            return Err(FsError::Io("a node could not be written".to_owned()));
        }
        Ok(())
    }
}

impl NodeWrite<'_> {
    /// Number of writes begun before this one.
    pub fn before(&self) -> u64 {
        self.number
    }

    /// Records requests of this write, and boosts them if there are waiters.
    pub fn note(&self, ios: &[IoHandle], queue: &Queue) {
        let waiters: Vec<IoTag> = {
            let state = &mut *self.writes.state.lock();
            let own = state.in_flight.get_mut(&self.number);
            own.expect("a write is listed until it ends")
                .extend_from_slice(ios);
            let for_it = state
                .waiters
                .iter()
                .filter(|(count, _)| self.number < *count);
            for_it.map(|(_, tag)| *tag).collect()
        };
        for tag in waiters {
            for io in ios {
                queue.boost(io, tag);
            }
        }
    }

    /// The write succeeded.
    pub fn end(mut self) {
        self.ended = true;
    }
}

impl Drop for NodeWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.writes.state.lock();
        state.in_flight.remove(&self.number);
        state.failed |= !self.ended;
        drop(state);
        self.writes.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_block::{MemDevice, QueueOptions};

    use super::*;

    /// Each write is added once and removed once, on success and on failure, so no task waits for a write that has
    /// ended.
    #[test]
    fn each_write_is_removed_once() {
        let queue = Queue::new(Arc::new(MemDevice::new(4096)), QueueOptions::default());
        let (tag, writes) = (IoTag::default(), NodeWrites::new());
        let (first, order) = writes.begin();
        drop(order);
        let (second, order) = writes.begin();
        drop(order);
        assert_eq!(
            (first.before(), second.before(), writes.started()),
            (0, 1, 2)
        );
        second.end();
        first.end();
        assert_eq!(writes.wait(writes.started(), &queue, tag), Ok(()));
        let (third, order) = writes.begin();
        drop(order);
        drop(third);
        assert!(writes.has_failed());
        assert!(writes.wait(writes.started(), &queue, tag).is_err());
        assert!(writes.state.lock().in_flight.is_empty());
        assert!(writes.state.lock().waiters.is_empty());
    }
}
