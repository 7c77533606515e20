//! What the log still protects: per committed transaction, the blocks that must be written home
//! before its log space is free.
//!
//! A block is listed under the newest durable transaction that logged it, with the content that
//! transaction committed. That content, never the block's present one, is written home: reclaim
//! needs no running transaction to end and forces no commit.

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
    /// Blocks before this one have been taken up for writing, or moved on.
    cursor: usize,
    /// Blocks listed under this transaction that are not home yet.
    unwritten: u32,
}

/// A block with a copy in the log.
struct BlockEntry {
    /// The newest durable transaction with a copy.
    tid: Tid,
    /// The content to write home, until it is there, and the buffer, so that the cache keeps it:
    /// the device has older content.
    home: Option<(Arc<MetaBuf>, Buf)>,
    /// A write home is in flight, perhaps of older content.
    writing: bool,
}

/// A block taken up for writing home.
pub(crate) struct HomeWrite {
    pub block: DevBlock,
    pub data: Buf,
    tid: Tid,
}

/// Where the log could start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogTail {
    /// The transaction that comes first then; `None`: none of the durable ones.
    pub first: Option<(Tid, u32)>,
    /// Durable transactions before it.
    pub transactions: usize,
    /// Their log blocks.
    pub blocks: u32,
}

/// The lists, under their lock.
pub(crate) struct ReclaimLists {
    /// Oldest first, numbers without gaps.
    transactions: VecDeque<CommittedTransaction>,
    /// Every block with a copy in the log that recovery would replay.
    entries: FixedMap<u64, BlockEntry>,
    /// Entries not home yet.
    unwritten: u64,
    /// Writes home in flight, or that of the tail: for raising them.
    pub in_flight: Vec<IoHandle>,
    /// Those who wait for log space.
    pub waiters: SpaceWaiters,
    /// What the background reclaimer is doing.
    pub worker: ReclaimWorker,
    /// The last advice was to go on (the policy's hysteresis).
    pub reclaiming_space: bool,
    /// The last look found too much in memory (the same for that).
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

    /// Whether a write home of the block is in flight.
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
        assert_eq!(logged.tid, tid);
        logged
    }

    /// An entry is not to be written any more under its old transaction.
    fn forget_unwritten(&mut self, tid: Tid) {
        let logged = self.transaction(tid);
        logged.unwritten -= 1;
        self.unwritten -= 1;
    }

    /// Lists a transaction that has become durable. Returns how many older contents need not be
    /// written home any more.
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
        assert_eq!(blocks.len(), snapshot.len());
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

    /// Takes a block out that a durable transaction has revoked: no copy is replayed, none may be
    /// written home. No write home of it is in flight. Returns whether one was due.
    pub(crate) fn revoke(&mut self, block: DevBlock) -> bool {
        let Some(entry) = self.entries.remove(&block.0) else {
            return false;
        };
        assert!(
            !entry.writing,
            "a late write would meet the block's next owner"
        );
        let due = entry.home.is_some();
        if due {
            self.forget_unwritten(entry.tid);
        }
        due
    }

    /// Takes up to `max` blocks for writing home, from the oldest transactions on, sorted. Only
    /// transactions for which `wanted` (its age, log blocks of those before it) is true.
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
                    assert!(!entry.writing, "one write home of a block at a time");
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

    /// Notes that a batch has ended; `written`: all of it is on the device.
    pub(crate) fn end_home_writes(&mut self, batch: &[HomeWrite], written: bool) {
        self.in_flight.clear();
        for write in batch {
            let entry = self.entries.get_mut(&write.block.0);
            let entry = entry.expect("an entry stays while its write is in flight");
            assert!(entry.writing);
            entry.writing = false;
            if written && entry.tid == write.tid && entry.home.take().is_some() {
                self.forget_unwritten(write.tid);
            }
        }
    }

    /// The tail that what is home now allows.
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

    /// Takes the oldest transactions out: the superblock on the device starts after them.
    pub(crate) fn release(&mut self, transactions: usize) {
        for logged in self.transactions.drain(..transactions) {
            assert_eq!(
                logged.unwritten, 0,
                "the tail never passes a block that is not home"
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

    /// Whether content waits in memory that the policy wants written for that alone.
    pub(crate) fn exceeds_memory_limit(&self, block_size: BlockSize) -> bool {
        let bytes = self.unwritten * block_size.bytes_u64();
        self.policy
            .exceeds_memory_limit(bytes, self.relieving_memory)
    }

    /// Whether more than twice as much waits as the policy wants.
    pub(crate) fn exceeds_memory_limit_twice(&self, block_size: BlockSize) -> bool {
        self.unwritten * block_size.bytes_u64() / 2 > self.policy.max_unwritten_bytes
    }

    /// Whether the background is at work and goes on to free log space when so few of its blocks are.
    pub(crate) fn background_frees(&self, free: u32, capacity: u32) -> bool {
        self.worker != ReclaimWorker::Idle && self.policy.is_low(free, capacity)
    }

    /// Age of the oldest transaction with blocks to write.
    pub(crate) fn oldest_age(&self, now: Instant) -> Option<Duration> {
        let oldest = self
            .transactions
            .iter()
            .find(|logged| logged.unwritten > 0)?;
        Some(now.since(oldest.committed))
    }
}
