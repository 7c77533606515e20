//! Writes of nodes that an fsync has begun: a checkpoint, and each later fsync, waits for those before
//! it, because it refers to them, or recovery comes to it only through them.

use std::collections::BTreeSet;

use steadfs_rt::{Condvar, Mutex, Rank};
use steadfs_vfs::{FsError, Result};

/// The writes under way.
pub struct NodeWrites {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// How many have begun.
    begun: u64,
    under_way: BTreeSet<u64>,
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
            state: Mutex::new(Rank::Leaf, State::default()),
            ended: Condvar::new(),
        }
    }

    /// Begins one; inside the change that gave its nodes their places.
    pub fn begin(&self) -> NodeWrite<'_> {
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.under_way.insert(number);
        NodeWrite {
            writes: self,
            number,
            ended: false,
        }
    }

    /// Whether one failed: a chain that goes on behind it cannot be followed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// How many have begun so far.
    pub fn begun(&self) -> u64 {
        self.state.lock().begun
    }

    /// Waits for the first `count` of all that have begun.
    ///
    /// # Errors
    /// One failed.
    pub fn wait(&self, count: u64) -> Result<()> {
        let mut state = self.state.lock();
        while state.under_way.first().is_some_and(|n| *n < count) {
            self.ended.wait(&mut state);
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
