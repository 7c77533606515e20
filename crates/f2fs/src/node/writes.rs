//! Node writes of fsyncs in flight. A checkpoint and each later fsync wait for those that began before: the checkpoint
//! refers to these nodes, and roll-forward reaches later nodes only through earlier ones.

mod group;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::IoTag;
use steadfs_block::{IoHandle, Queue};
use steadfs_cache::{BatchedCommit, CommitBatch};
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{Condvar, Mutex, MutexGuard, Rank};
use steadfs_vfs::{FsError, Result};

pub use group::{Group, GroupContent, GroupLead};

/// Held while blocks are allocated for the nodes of one write.
pub type ChainOrder<'w> = MutexGuard<'w, ()>;

/// Node writes in flight, numbered in the order of their blocks in the log.
pub struct NodeWrites {
    /// Held while blocks are allocated for nodes, so that their order in the log is that of the numbers.
    order: Mutex<()>,
    state: Mutex<WritesState>,
    ended: Condvar,
    /// Notified when the callers that the leader of a group waits for have joined.
    joined: Condvar,
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
    /// The group that chains join.
    open: Option<Arc<Group>>,
    /// How long its leader waits for callers.
    batch: CommitBatch,
    /// fsync callers that write their data and will then join a group, without those of lighter cgroups than `heaviest`.
    arriving: u32,
    /// The tag of the heaviest fsync caller of recent groups.
    heaviest: Option<IoTag>,
    /// fsyncs since the mount that joined the group of another one.
    members: u64,
}

impl WritesState {
    /// Begins a write; returns its number.
    fn start(&mut self) -> u64 {
        let number = self.started;
        self.started += 1;
        let listed = self.in_flight.insert(number, Vec::new());
        assert!(listed.is_none(), "each write has a number of its own");
        number
    }

    /// Whether chains still join this group.
    fn leads(&self, group: &Arc<Group>) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| Arc::ptr_eq(open, group))
    }
}

impl BatchedCommit for WritesState {
    fn batch(&mut self) -> &mut CommitBatch {
        &mut self.batch
    }

    fn callers(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.callers())
    }

    fn is_stopping(&self) -> bool {
        self.failed
    }
}

/// An fsync caller on its way to a group: expected by its leader. (On most devices its data write ends only after the
/// FLUSH of the group before. If it were counted only when it joins, callers would take turns, each with a FLUSH of its
/// own.) A caller of a light cgroup is not expected, as in jbd2: the scheduler holds its data back for the heavier ones.
pub struct Arrival<'w> {
    writes: &'w NodeWrites,
    is_light: bool,
    /// It has joined a group. Written under the lock of the state.
    joined: AtomicBool,
}

impl Arrival<'_> {
    fn end(&self, state: &mut WritesState) {
        if !self.joined.swap(true, Ordering::Relaxed) && !self.is_light {
            assert!(state.arriving > 0, "each arrival is counted until it ends");
            state.arriving -= 1;
        }
    }
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.end(&mut self.writes.state.lock());
    }
}

/// How the nodes of a chain are written.
pub enum ChainWrite<'w> {
    /// By its caller.
    Own(NodeWrite<'w>),
    /// By its caller, with the chains that have joined it.
    Lead(GroupLead<'w>),
    /// By the leader of this group.
    Member(Arc<Group>),
}

impl ChainWrite<'_> {
    /// The write of a chain that belongs to no group.
    pub fn own(&self) -> Option<&NodeWrite<'_>> {
        match self {
            Self::Own(write) => Some(write),
            Self::Lead(_) | Self::Member(_) => None,
        }
    }

    /// The group that the chain belongs to.
    pub fn group(&self) -> Option<&Group> {
        match self {
            Self::Own(_) => None,
            Self::Lead(lead) => Some(lead.group()),
            Self::Member(group) => Some(group),
        }
    }
}

fn write_failed() -> FsError {
    FsError::Io("a node could not be written".to_owned())
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
            joined: Condvar::new(),
        }
    }

    /// Begins a write, inside the change that allocates blocks for its nodes. Blocks are allocated while the caller
    /// holds the returned lock. (Otherwise a write with a lower number could be behind this one in the log, and would
    /// not wait for it: its nodes could not be found.)
    pub fn begin(&self) -> (NodeWrite<'_>, ChainOrder<'_>) {
        let order = self.order.lock();
        let number = self.state.lock().start();
        (self.write(number), order)
    }

    /// An fsync with this tag begins.
    pub fn arrive(&self, queue: &Queue, tag: IoTag) -> Arrival<'_> {
        let is_light = self.is_outweighed(queue, tag);
        let state = &mut *self.state.lock();
        if !is_light {
            // The latest one is remembered: the other may have stopped.
            state.heaviest = Some(tag);
            state.arriving += 1;
        }
        Arrival {
            writes: self,
            is_light,
            joined: AtomicBool::new(false),
        }
    }

    /// Whether a usual fsync caller weighs more than one with this tag.
    pub fn is_outweighed(&self, queue: &Queue, tag: IoTag) -> bool {
        let heaviest = self.state.lock().heaviest;
        heaviest.is_some_and(|heaviest| queue.outweighs(heaviest, tag))
    }

    /// Begins the write of a chain that follows the checkpoint `version`. It joins the open group if it can; `grouped`:
    /// otherwise it opens one. `caller`: of an fsync, not for a file that is clustered with one. See
    /// [`NodeWrites::begin`]; the blocks are then added to the group.
    pub fn begin_chain(
        &self,
        version: u64,
        grouped: bool,
        caller: Option<&Arrival<'_>>,
        tag: IoTag,
    ) -> (ChainWrite<'_>, ChainOrder<'_>) {
        let order = self.order.lock();
        let mut state = self.state.lock();
        if let Some(arrival) = caller {
            arrival.end(&mut state);
        }
        let calls = caller.is_some_and(|arrival| !arrival.is_light);
        let before = state.started;
        let follows = |group: &Arc<Group>| group.version == version && group.number + 1 == before;
        if let Some(group) = state.open.clone().filter(follows) {
            state.members += u64::from(caller.is_some());
            if state.batch.joined(group.add_caller(calls)) {
                self.joined.notify_one();
            }
            drop(state);
            group.join(tag);
            return (ChainWrite::Member(group), order);
        }
        let number = state.start();
        debug_assert!(
            number == before,
            "the number of a write is that of the writes before it"
        );
        let write = self.write(number);
        if !grouped {
            return (ChainWrite::Own(write), order);
        }
        let group = Group::new(number, version);
        group.add_caller(calls);
        state.open = Some(Arc::clone(&group));
        drop(state);
        group.join(tag);
        (ChainWrite::Lead(GroupLead { write, group }), order)
    }

    fn write(&self, number: u64) -> NodeWrite<'_> {
        NodeWrite {
            writes: self,
            number,
            ended: false,
        }
    }

    /// Whether a write has failed: a chain behind it cannot be followed.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    /// fsyncs since the mount whose chain another one wrote, in its group.
    pub fn members(&self) -> u64 {
        self.state.lock().members
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
            let _step = waits::during(WaitStep::Io);
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
            return Err(write_failed());
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
        assert!(!self.ended, "a write ends once");
        self.ended = true;
    }
}

impl Drop for NodeWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.writes.state.lock();
        let listed = state.in_flight.remove(&self.number);
        assert!(listed.is_some(), "a write is listed until it ends");
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
