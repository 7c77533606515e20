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
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// How many have begun.
    begun: u64,
    /// With the requests that they have made.
    under_way: BTreeMap<u64, Vec<IoHandle>>,
    /// Those who wait: for how many, and who.
    waiting: Vec<(u64, IoTag)>,
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
            state: Mutex::new(Rank::Leaf, State::default()),
            ended: Condvar::new(),
        }
    }

    /// Begins one, inside the change that gives its nodes their places; that happens under the lock that
    /// comes with it. (If places were taken in another order than numbers, a write with a lower number could
    /// lie behind this one, and would not wait for it: its nodes could then not be found.)
    pub fn begin(&self) -> (NodeWrite<'_>, MutexGuard<'_, ()>) {
        let order = self.order.lock();
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number, Vec::new());
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
    pub fn begun(&self) -> u64 {
        self.state.lock().begun
    }

    /// Waits for the first `count` of all that have begun. Their requests are raised to the waiter's tag:
    /// whoever began them is perhaps served less than he is.
    ///
    /// # Errors
    /// One failed.
    pub fn wait(&self, count: u64, queue: &Queue, tag: IoTag) -> Result<()> {
        let mut state = self.state.lock();
        let has_some = |state: &State| state.under_way.keys().next().is_some_and(|n| *n < count);
        if has_some(&state) {
            let ios: Vec<_> = state
                .under_way
                .range(..count)
                .flat_map(|(_, ios)| ios.clone())
                .collect();
            state.waiting.push((count, tag));
            drop(state);
            for io in ios {
                queue.boost(&io, tag);
            }
            state = self.state.lock();
            while has_some(&state) {
                self.ended.wait(&mut state);
            }
            let mine = state
                .waiting
                .iter()
                .position(|waiter| *waiter == (count, tag));
            state.waiting.swap_remove(mine.expect("put there above"));
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
        let waiting: Vec<IoTag> = {
            let state = &mut *self.writes.state.lock();
            if let Some(own) = state.under_way.get_mut(&self.number) {
                own.extend_from_slice(ios);
            }
            let for_it = state
                .waiting
                .iter()
                .filter(|(count, _)| self.number < *count);
            for_it.map(|(_, tag)| *tag).collect()
        };
        for tag in waiting {
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
        state.under_way.remove(&self.number);
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
        assert_eq!((first.before(), second.before(), writes.begun()), (0, 1, 2));
        second.end();
        first.end();
        assert_eq!(writes.wait(writes.begun(), &queue, tag), Ok(()));
        let (third, order) = writes.begin();
        drop(order);
        drop(third);
        assert!(writes.has_failed());
        assert!(writes.wait(writes.begun(), &queue, tag).is_err());
        assert!(writes.state.lock().under_way.is_empty());
        assert!(writes.state.lock().waiting.is_empty());
    }
}
