//! Chain groups: the node chains of concurrent fsyncs become durable by one write with PREFLUSH and FUA (group commit).
//!
//! **Problem.** A marked node must not be found before the data that its chain maps is durable. With a PREFLUSH of its
//! own for each chain, one after the other in the log, fsyncs of eight tasks took as long as eight fsyncs of one task.
//!
//! **Rule.** Chains that follow each other in the log form a group. Their data is on the device when they join. Roll-
//! forward finds the nodes of the log only in their order, so it finds none of the group before the first one. The
//! *gate* is the run of consecutive blocks at the group's start. All other blocks are written and waited for, then the
//! gate is written with PREFLUSH and FUA. What roll-forward finds of a group whose gate was torn by a power cut is a
//! prefix of the log, and the data of all its chains is durable.
//!
//! The task whose chain is first leads the group. While it waits for the node writes before its own, which are mostly
//! those of the group before, other chains join; then it waits briefly for the usual callers
//! ([`steadfs_cache::CommitBatch`]). Members hand over their blocks and sleep until the leader has written them. An
//! fsync that is alone is one write, waits for no caller and wakes no task.
//!
//! As in jbd2 (`jbd2/callers.rs`), a leader waits for no caller of a lighter cgroup, and a group's blocks are charged in
//! full to each cgroup that has a member.
//!
//! No other node write begins inside a group, and all its chains follow the same checkpoint: otherwise the next chain
//! opens another group.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Buf, Queue};
use steadfs_cache::{BatchedCommit, wait_for_callers};
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, Mutex, Rank, now};
use steadfs_vfs::Result;

use super::{ChainOrder, NodeWrite, NodeWrites, write_failed};
use crate::disk::BlockAddr;
use crate::node::cache::Node;

/// Longest wait for the usual callers, as the default of ext4's `max_batch_time`.
const MAX_BATCH_WAIT: Duration = Duration::from_millis(15);
/// Blocks of the gate: more would delay the FLUSHes of other tasks.
const GATE_BLOCKS_MAX: usize = 32;
/// Members that are charged one by one for the gate.
const MAX_SHARERS: usize = 64;

/// Chains that become durable together.
pub struct Group {
    /// Number of its node write.
    pub(super) number: u64,
    /// Version of the checkpoint that its chains follow.
    pub(super) version: u64,
    leader: TaskNo,
    /// fsync callers that have joined, without those of light cgroups.
    callers: AtomicU32,
    state: Mutex<GroupState>,
    /// Notified when there is a result.
    ended: Condvar,
}

#[derive(Default)]
struct GroupState {
    content: GroupContent,
    /// Blocks are being allocated for a chain; if that panics, the chain is missing.
    placing: bool,
    result: Option<Result<()>>,
}

/// A node's new address and its block.
pub type NodeBlock = (BlockAddr, Buf);

/// What the members have handed over.
#[derive(Default)]
pub struct GroupContent {
    /// Blocks in the order of the log.
    blocks: Vec<NodeBlock>,
    /// The same nodes in memory, so that a node being written is not evicted and read again.
    pub in_flight_nodes: Vec<Arc<Node>>,
    /// Tags of the members, each once.
    pub tags: Vec<IoTag>,
}

impl GroupContent {
    /// The gate and the blocks behind it.
    pub fn split_at_gate(&self) -> (&[NodeBlock], &[NodeBlock]) {
        let run = self.blocks.chunk_by(|a, b| a.0.0 + 1 == b.0.0).next();
        let gate = run.map_or(0, |run| run.len().min(GATE_BLOCKS_MAX));
        debug_assert!(
            (gate == 0) == self.blocks.is_empty(),
            "blocks behind the gate have a gate"
        );
        self.blocks.split_at(gate)
    }

    /// The tag of the group's requests: the effective one of all members.
    pub fn tag(&self, queue: &Queue) -> IoTag {
        assert!(!self.tags.is_empty(), "a group has the tag of its leader");
        let tags = self.tags.iter().copied();
        let effective = |now, tag| queue.effective_tag(now, tag);
        tags.reduce(effective).unwrap_or_default()
    }
}

impl Group {
    pub(super) fn new(number: u64, version: u64) -> Arc<Self> {
        Arc::new(Self {
            number,
            version,
            leader: inherit::current_task(),
            callers: AtomicU32::new(0),
            state: Mutex::new(Rank::Leaf, GroupState::default()),
            ended: Condvar::new(),
        })
    }

    /// fsync callers that have joined, without those of light cgroups.
    pub(super) fn callers(&self) -> u32 {
        self.callers.load(Ordering::Relaxed)
    }

    /// Counts an fsync caller, if a chain that joins has one; returns their number.
    pub(super) fn add_caller(&self, calls: bool) -> u32 {
        let before = self.callers.fetch_add(calls.into(), Ordering::Relaxed);
        before + u32::from(calls)
    }

    /// A chain joins; the caller holds the order of the log until its blocks are added.
    pub(super) fn join(&self, tag: IoTag) {
        let state = &mut *self.state.lock();
        assert!(!state.placing, "chains are allocated one after the other");
        assert!(
            state.result.is_none(),
            "no chain joins a group that has ended"
        );
        state.placing = true;
        let tags = &mut state.content.tags;
        if tags.len() < MAX_SHARERS && !tags.contains(&tag) {
            tags.push(tag);
        }
    }

    /// Adds the blocks of the chain that has joined last.
    pub fn add(&self, _: &ChainOrder<'_>, blocks: Vec<NodeBlock>, nodes: Vec<Arc<Node>>) {
        let state = &mut *self.state.lock();
        assert!(state.placing, "a chain joins before it is allocated");
        assert!(
            blocks.len() <= nodes.len(),
            "each block of a chain is that of a node"
        );
        state.placing = false;
        state.content.blocks.extend(blocks);
        state.content.in_flight_nodes.extend(nodes);
    }

    /// Waits until the group is durable.
    ///
    /// # Errors
    /// A write of the group failed; the leader has aborted the volume.
    pub fn wait(&self) -> Result<()> {
        let _edge = inherit::wait_for(&[self.leader]);
        let mut state = self.state.lock();
        loop {
            if let Some(result) = &state.result {
                return result.clone();
            }
            self.ended.wait(&mut state);
        }
    }
}

/// The right and duty to write a group. The group has failed if it is dropped without [`GroupLead::end`].
pub struct GroupLead<'w> {
    pub(super) write: NodeWrite<'w>,
    pub(super) group: Arc<Group>,
}

impl<'w> GroupLead<'w> {
    /// The group's node write.
    pub fn write(&self) -> &NodeWrite<'w> {
        &self.write
    }

    /// The group that it leads.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Waits briefly for the usual callers, then closes the group and returns what its members handed over.
    ///
    /// # Errors
    /// The allocation of a chain's blocks did not end: later chains could not be found.
    pub fn close(&self) -> Result<GroupContent> {
        let writes = self.write.writes;
        let mut state = writes.state.lock();
        if state.leads(&self.group) {
            wait_for_callers(&writes.joined, &mut state, MAX_BATCH_WAIT);
        }
        drop(state);
        self.stop_joining(writes);
        let state = &mut *self.group.state.lock();
        assert!(
            state.result.is_none(),
            "a group is closed before it has a result"
        );
        if state.placing {
            return Err(write_failed());
        }
        Ok(std::mem::take(&mut state.content))
    }

    fn stop_joining(&self, writes: &NodeWrites) {
        // A chain that has joined adds its blocks under this lock.
        let _order = writes.order.lock();
        let mut state = writes.state.lock();
        if state.leads(&self.group) {
            state.open = None;
        }
    }

    /// The group is durable. `took`: the time of its writes.
    pub fn end(mut self, took: Duration) {
        {
            let state = &mut *self.write.writes.state.lock();
            assert!(!state.leads(&self.group), "a group is closed, then written");
            assert!(
                self.group.number == self.write.number,
                "a group is one node write"
            );
            let waiting = state.callers() + state.arriving;
            let served = self.group.callers();
            state.batch.commit_ended(served, waiting, took, now());
            if served + waiting == 0 {
                // The heaviest caller has stopped.
                state.heaviest = None;
            }
        }
        self.write.ended = true;
        self.set_result(Ok(()));
    }

    fn set_result(&self, result: Result<()>) {
        let earlier = self.group.state.lock().result.replace(result);
        assert!(earlier.is_none(), "a group has one result");
        self.group.ended.notify_all();
    }
}

impl Drop for GroupLead<'_> {
    fn drop(&mut self) {
        if !self.write.ended {
            self.stop_joining(self.write.writes);
            self.set_result(Err(write_failed()));
        }
    }
}
