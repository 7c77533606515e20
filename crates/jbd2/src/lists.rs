//! Lists for reclaim: per committed transaction, the blocks that must be written to their home locations
//! before its log space is free (jbd2's `t_checkpoint_list`).
//!
//! Rule: a block is listed under the newest durable transaction that logged it, with the content that
//! the transaction committed. That content is written to the home location, never the block's present
//! one. So reclaim does not wait for the running transaction and forces no commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{BlockSize, DevBlock, FixedMap, Tid};
use steadfs_block::{Buf, IoHandle};
use steadfs_cache::MetaBuf;
use steadfs_rt::Instant;

use crate::ReclaimPolicy;
use crate::log_writer::BlockSnapshot;
use crate::reclaim::SpaceWaiters;
use crate::worker::ReclaimWorker;

/// A durable transaction whose log space is in use.
struct CommittedTransaction {
    tid: Tid,
    /// Where in the log it starts.
    start: u32,
    /// Log blocks it takes.
    len: u32,
    committed: Instant,
    blocks: Arc<Vec<DevBlock>>,
    /// Index in `blocks` of the first one that reclaim has not visited.
    cursor: usize,
    /// Blocks listed under this transaction that are not written to their home locations yet.
    unwritten: u32,
}

/// A block with a copy in the log.
struct BlockEntry {
    /// The newest durable transaction with a copy.
    tid: Tid,
    /// The content to write, until the device has it, and the buffer, which keeps the block in the
    /// cache: the device has older content.
    home: Option<(Arc<MetaBuf>, Buf)>,
    /// A home write is in flight, perhaps of older content.
    writing: bool,
}

/// A home write: a block to be written to its home location.
pub(crate) struct HomeWrite {
    pub block: DevBlock,
    pub data: Buf,
    tid: Tid,
}

/// The tail that the log could have now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogTail {
    /// The first transaction after the tail and its start; `None`: no durable one.
    pub first: Option<(Tid, u32)>,
    /// Durable transactions before the tail.
    pub transactions: usize,
    /// Their log blocks.
    pub blocks: u32,
}

/// The lists and the reclaimer's state, under one lock.
pub(crate) struct ReclaimLists {
    /// Oldest first, numbers without gaps.
    transactions: VecDeque<CommittedTransaction>,
    /// Every block with a copy in the log that recovery would replay.
    entries: FixedMap<u64, BlockEntry>,
    /// Entries that are not written to their home locations yet.
    unwritten: u64,
    /// Home writes in flight, or the superblock's: so that they can be boosted.
    pub in_flight: Vec<IoHandle>,
    /// Handles that wait for log space.
    pub waiters: SpaceWaiters,
    /// State of the background reclaimer.
    pub worker: ReclaimWorker,
    /// The last advice was to reclaim (hysteresis for log space).
    pub reclaiming_space: bool,
    /// The memory limit was exceeded at the last check (hysteresis for memory).
    pub relieving_memory: bool,
    pub stopping: bool,
    pub policy: ReclaimPolicy,
}

impl ReclaimLists {
    pub(crate) fn new(policy: ReclaimPolicy) -> Self {
        Self {
            transactions: VecDeque::new(),
            entries: FixedMap::default(),
            unwritten: 0,
            in_flight: Vec::new(),
            waiters: SpaceWaiters::default(),
            worker: ReclaimWorker::default(),
            reclaiming_space: false,
            relieving_memory: false,
            stopping: false,
            policy,
        }
    }

    /// Whether recovery could replay a copy of the block.
    pub(crate) fn has_copy(&self, block: DevBlock) -> bool {
        self.entries.contains_key(&block.0)
    }

    /// Whether a home write of the block is in flight.
    pub(crate) fn is_writing(&self, block: DevBlock) -> bool {
        self.entries
            .get(&block.0)
            .is_some_and(|entry| entry.writing)
    }

    fn transaction(&mut self, tid: Tid) -> &mut CommittedTransaction {
        let first = self
            .transactions
            .front()
            .expect("an entry's transaction is listed")
            .tid;
        let at = tid.0.wrapping_sub(first.0) as usize;
        let logged = self
            .transactions
            .get_mut(at)
            .expect("an entry's transaction is listed");
        assert_eq!(logged.tid, tid, "numbers in the log have no gaps");
        logged
    }

    /// An entry need not be written any more under transaction `tid`.
    fn forget_unwritten(&mut self, tid: Tid) {
        assert!(self.unwritten > 0, "an unwritten block is counted");
        let logged = self.transaction(tid);
        assert!(
            logged.unwritten > 0,
            "an unwritten block is counted in its transaction"
        );
        logged.unwritten -= 1;
        self.unwritten -= 1;
    }

    /// Lists a transaction that has become durable. Returns the number of older contents that need not be
    /// written to their home locations any more.
    pub(crate) fn push(
        &mut self,
        tid: Tid,
        start: u32,
        len: u32,
        committed: Instant,
        blocks: Arc<Vec<DevBlock>>,
        snapshot: Vec<BlockSnapshot>,
    ) -> u64 {
        if let Some(last) = self.transactions.back() {
            assert_eq!(last.tid.next(), tid, "numbers in the log have no gaps");
        }
        assert_eq!(
            blocks.len(),
            snapshot.len(),
            "each block of a transaction has its content"
        );
        assert!(len > 0, "a committed transaction takes log space");
        debug_assert!(blocks.is_sorted(), "a transaction's blocks are sorted");
        self.transactions.push_back(CommittedTransaction {
            tid,
            start,
            len,
            committed,
            blocks,
            cursor: 0,
            unwritten: snapshot.len() as u32,
        });
        self.unwritten += snapshot.len() as u64;
        let mut dropped = 0;
        for BlockSnapshot { block, buf, data } in snapshot {
            let home = Some((buf, data));
            let entry = BlockEntry {
                tid,
                home,
                writing: self.is_writing(block),
            };
            if let Some(old) = self.entries.insert(block.0, entry)
                && old.home.is_some()
            {
                self.forget_unwritten(old.tid);
                dropped += 1;
            }
        }
        dropped
    }

    /// Removes a block that a durable transaction has revoked: its copies are not replayed and must not be
    /// written to the home location. No home write of it is in flight. Returns whether one was due.
    pub(crate) fn revoke(&mut self, block: DevBlock) -> bool {
        let Some(entry) = self.entries.remove(&block.0) else {
            return false;
        };
        assert!(
            !entry.writing,
            "a late home write would overwrite the block's next owner"
        );
        let due = entry.home.is_some();
        if due {
            self.forget_unwritten(entry.tid);
        }
        due
    }

    /// Takes up to `max` blocks for home writes, from the oldest transactions on, sorted. Only
    /// transactions for which `wanted` (its age, log blocks of the transactions before it) is true.
    pub(crate) fn start_home_writes(
        &mut self,
        max: usize,
        now: Instant,
        mut wanted: impl FnMut(Duration, u32) -> bool,
    ) -> Vec<HomeWrite> {
        let mut batch = Vec::new();
        let mut before = 0;
        for logged in &mut self.transactions {
            if logged.unwritten > 0 {
                if batch.len() >= max || !wanted(now.since(logged.committed), before) {
                    break;
                }
                while let Some(&block) = logged.blocks.get(logged.cursor) {
                    if batch.len() >= max {
                        break;
                    }
                    logged.cursor += 1;
                    let Some(entry) = self.entries.get_mut(&block.0) else {
                        continue;
                    };
                    if entry.tid != logged.tid {
                        continue;
                    }
                    let Some((_, data)) = &entry.home else {
                        continue;
                    };
                    assert!(!entry.writing, "one home write of a block at a time");
                    entry.writing = true;
                    batch.push(HomeWrite {
                        block,
                        data: data.clone(),
                        tid: logged.tid,
                    });
                }
            }
            before += logged.len;
        }
        batch.sort_unstable_by_key(|write| write.block);
        batch
    }

    /// A batch of home writes has ended; `written`: the device has all of it.
    pub(crate) fn end_home_writes(&mut self, batch: &[HomeWrite], written: bool) {
        self.in_flight.clear();
        for write in batch {
            let entry = self.entries.get_mut(&write.block.0);
            let entry = entry.expect("an entry stays while its home write is in flight");
            assert!(entry.writing, "a home write ends once");
            entry.writing = false;
            if written && entry.tid == write.tid && entry.home.take().is_some() {
                self.forget_unwritten(write.tid);
            }
        }
    }

    /// The tail after the oldest transactions whose blocks are all written to their home locations.
    pub(crate) fn tail(&self) -> LogTail {
        let mut tail = LogTail {
            first: None,
            transactions: 0,
            blocks: 0,
        };
        for logged in &self.transactions {
            if logged.unwritten > 0 {
                tail.first = Some((logged.tid, logged.start));
                break;
            }
            tail.transactions += 1;
            tail.blocks += logged.len;
        }
        tail
    }

    /// Removes the oldest transactions: the log in the device's superblock starts after them.
    pub(crate) fn release(&mut self, transactions: usize) {
        assert!(
            transactions <= self.transactions.len(),
            "the tail is inside the log"
        );
        for logged in self.transactions.drain(..transactions) {
            assert_eq!(
                logged.unwritten, 0,
                "the tail never passes a block that is not written to its home location"
            );
            for block in logged.blocks.iter() {
                if self
                    .entries
                    .get(&block.0)
                    .is_some_and(|e| e.tid == logged.tid)
                {
                    self.entries.remove(&block.0);
                }
            }
        }
    }

    /// Whether unwritten blocks take more memory than the policy allows.
    pub(crate) fn exceeds_memory_limit(&self, block_size: BlockSize) -> bool {
        let bytes = self.unwritten * block_size.bytes_u64();
        self.policy
            .exceeds_memory_limit(bytes, self.relieving_memory)
    }

    /// Whether unwritten blocks take more than twice the memory that the policy allows.
    pub(crate) fn exceeds_memory_limit_twice(&self, block_size: BlockSize) -> bool {
        self.unwritten * block_size.bytes_u64() / 2 > self.policy.max_unwritten_bytes
    }

    /// Whether the background reclaimer is at work because of log space.
    pub(crate) fn background_frees(&self, free: u32, capacity: u32) -> bool {
        self.worker != ReclaimWorker::Idle && self.policy.is_low(free, capacity)
    }

    /// Age of the oldest transaction with unwritten blocks.
    pub(crate) fn oldest_age(&self, now: Instant) -> Option<Duration> {
        let oldest = self
            .transactions
            .iter()
            .find(|logged| logged.unwritten > 0)?;
        Some(now.since(oldest.committed))
    }
}
