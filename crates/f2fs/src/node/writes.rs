//! Writes of nodes that an fsync has begun: a checkpoint, and each later fsync, waits for those before
//! it, because it refers to them, or recovery comes to it only through them.

use std::collections::BTreeMap;

use steadfs_base::IoTag;
use steadfs_block::{IoHandle, Queue};
use steadfs_rt::{Condvar, Mutex, MutexGuard, Rank};
use steadfs_vfs::{FsError, Result};

/// The writes under way.
pub struct NodeWrites {
    /// Held while nodes are given their places: they lie in the log in the order in which writes begin.
    order: Mutex<()>,
    state: Mutex<WritesState>,
    ended: Condvar,
}

#[derive(Default)]
struct WritesState {
    /// How many have begun.
    started: u64,
    /// With the requests that they have made.
    in_flight: BTreeMap<u64, Vec<IoHandle>>,
    /// Those who wait: for how many, and who.
    waiters: Vec<(u64, IoTag)>,
    /// One failed: nothing behind it can be reached.
    failed: bool,
}

/// One write under way: it has failed if it is dropped without [`NodeWrite::end`].
pub struct NodeWrite<'w> {
    writes: &'w NodeWrites,
    number: u64,
    ended: bool,
}

impl NodeWrites {
    /// None.
    pub fn new() -> Self {
        Self {
            order: Mutex::new(Rank::InodeState, ()),
            state: Mutex::new(Rank::Leaf, WritesState::default()),
            ended: Condvar::new(),
        }
    }

    /// Begins one, inside the change that gives its nodes their places; that happens under the lock that
    /// comes with it. (If places were taken in another order than numbers, a write with a lower number could
    /// lie behind this one, and would not wait for it: its nodes could then not be found.)
    pub fn begin(&self) -> (NodeWrite<'_>, MutexGuard<'_, ()>) {
        let order = self.order.lock();
        let mut state = self.state.lock();
        let number = state.started;
        state.started += 1;
        state.in_flight.insert(number, Vec::new());
        let write = NodeWrite {
            writes: self,
            number,
            ended: false,
        };
        drop(state);
        (write, order)
    }

    /// Whether one failed: a chain that goes on behind it cannot be followed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// How many have begun so far.
    pub fn started(&self) -> u64 {
        self.state.lock().started
    }

    /// Waits for the first `count` of all that have begun. Their requests are raised to the waiter's tag:
    /// whoever began them is perhaps served less than he is.
    ///
    /// # Errors
    /// One failed.
    pub fn wait(&self, count: u64, queue: &Queue, tag: IoTag) -> Result<()> {
        let mut state = self.state.lock();
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
            state.waiters.swap_remove(mine.expect("put there above"));
        }
        if state.failed {
            return Err(FsError::Io("a node could not be written".to_owned()));
        }
        Ok(())
    }
}

impl NodeWrite<'_> {
    /// How many had begun before it.
    pub fn before(&self) -> u64 {
        self.number
    }

    /// Notes requests that it has made; raises them if somebody waits already.
    pub fn note(&self, ios: &[IoHandle], queue: &Queue) {
        let waiters: Vec<IoTag> = {
            let state = &mut *self.writes.state.lock();
            if let Some(own) = state.in_flight.get_mut(&self.number) {
                own.extend_from_slice(ios);
            }
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

    /// It ended well.
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

    /// A write is counted once when it begins and once when it ends, whatever it came to: nobody waits for
    /// what is over.
    #[test]
    fn each_ends_as_often_as_it_began() {
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
