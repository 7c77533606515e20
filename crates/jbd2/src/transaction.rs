//! Transactions in memory: the running one, the committing one, and the journal's state.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, FixedMap, IoTag, Tid};
use steadfs_block::IoHandle;
use steadfs_cache::MetaBuf;
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, Instant, now};

use crate::JournalError;
use crate::commit_batch::CommitBatch;
use crate::config::JournalTuning;
use crate::space::{LogCosts, LogRing};
use crate::stats::JournalStats;

/// The transaction that handles join.
pub(crate) struct RunningTransaction {
    pub tid: Tid,
    /// When its first handle began.
    pub started: Instant,
    /// The blocks its handles have changed.
    pub blocks: FixedMap<u64, Arc<MetaBuf>>,
    /// The blocks its handles have freed that may have older copies in the log.
    pub revokes: BTreeSet<DevBlock>,
    /// Handles open.
    pub open: u32,
    /// Whose they are.
    pub holders: Vec<TaskNo>,
    /// Credits of open handles not yet spent.
    pub reserved: u32,
    /// No handle joins any more: a commit waits for the open ones.
    pub locked: bool,
    /// When somebody first asked for its commit.
    pub requested: Option<Instant>,
    /// Who waits for it to become durable.
    pub waiters: Arc<Condvar>,
    /// The best of their tags, while another commit is under way.
    pub waiter_tag: Option<IoTag>,
    /// How many tasks have asked for its commit.
    pub callers: u32,
    /// Handles so far.
    pub handles: u64,
    /// The longest any of its handles had to wait to begin.
    pub longest_wait: Duration,
}

impl RunningTransaction {
    pub(crate) fn new(tid: Tid, now: Instant) -> Self {
        Self {
            tid,
            started: now,
            blocks: FixedMap::default(),
            revokes: BTreeSet::new(),
            open: 0,
            holders: Vec::new(),
            reserved: 0,
            locked: false,
            requested: None,
            waiters: Arc::new(Condvar::new()),
            waiter_tag: None,
            callers: 0,
            handles: 0,
            longest_wait: Duration::ZERO,
        }
    }

    /// Nothing has been changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revokes.is_empty()
    }

    /// Log blocks it may come to need if its handles spend `more` credits on top of theirs.
    pub(crate) fn log_blocks(&self, costs: &LogCosts, more: u32) -> u32 {
        let count = |n: usize| u32::try_from(n).expect("bounded by the log's length");
        let blocks = count(self.blocks.len())
            .saturating_add(self.reserved)
            .saturating_add(more);
        costs.log_blocks(blocks, count(self.revokes.len()))
    }
}

/// The transaction on its way into the log.
pub(crate) struct CommittingTransaction {
    pub tid: Tid,
    /// Where in the log it starts.
    pub start: u32,
    /// Its blocks, sorted.
    pub blocks: Arc<Vec<DevBlock>>,
    /// Who waits for it to become durable.
    pub waiters: Arc<Condvar>,
    /// Owner and urgency of its I/O: the most urgent of those who wait.
    pub tag: IoTag,
    /// Its requests, for raising them.
    pub ios: Vec<IoHandle>,
    /// How many tasks have asked for it.
    pub callers: u32,
}

/// What a handle that wants to begin finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// It may join.
    Join,
    /// The transaction is locked, or all updates are held back: wait.
    Locked,
    /// Open handles hold too many credits: wait until they return some.
    Credits,
    /// The transaction is full: it must be committed.
    Full(Tid),
    /// The log is full: so many blocks must be free.
    NoSpace(u32),
}

/// Everything under the journal's state lock.
pub(crate) struct JournalState {
    pub running: Option<RunningTransaction>,
    pub committing: Option<CommittingTransaction>,
    /// Some task is committing, from the lock on; it alone starts the next commit.
    pub leading: bool,
    /// Which.
    pub leader: TaskNo,
    /// Who will probably ask for the next commit.
    pub batch: CommitBatch,
    /// How many callers the leader waits for, before he begins.
    pub batch_target: Option<u32>,
    /// Number of the next transaction to be created.
    pub next_tid: Tid,
    /// The newest durable transaction.
    pub durable: Tid,
    pub log: LogRing,
    /// The superblock says that the log is empty.
    pub marked_empty: bool,
    /// Handles that wait for others' credits.
    pub waiting_credits: u32,
    /// New handles are held back this many times (flush, freeze).
    pub update_locks: u32,
    /// The first cause of an abort.
    pub aborted: Option<String>,
    /// The commit task should commit this transaction now.
    pub commit_request: Option<Tid>,
    /// The commit task runs.
    pub has_commit_task: bool,
    pub stopping: bool,
    /// Who ended a synchronous handle last.
    pub last_sync_writer: u64,
    pub tuning: JournalTuning,
    pub stats: JournalStats,
}

impl JournalState {
    /// An error if the journal has stopped.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        match &self.aborted {
            Some(cause) => Err(JournalError::Aborted(cause.clone())),
            None => Ok(()),
        }
    }

    /// The number that the next handle's transaction has.
    pub(crate) fn upcoming(&self) -> Tid {
        self.running.as_ref().map_or(self.next_tid, |r| r.tid)
    }

    /// Whether a handle of `credits` may join now.
    pub(crate) fn admit(&self, costs: &LogCosts, credits: u32) -> Admission {
        let need = match &self.running {
            _ if self.update_locks > 0 => return Admission::Locked,
            Some(running) if running.locked => return Admission::Locked,
            Some(running) => {
                let need = running.log_blocks(costs, credits);
                if need > costs.max_transaction {
                    let spent = need - running.reserved.min(need);
                    return if spent > costs.max_transaction || running.open == 0 {
                        Admission::Full(running.tid)
                    } else {
                        Admission::Credits
                    };
                }
                need
            }
            None => costs.log_blocks(credits, 1),
        };
        if need > self.log.free() {
            return Admission::NoSpace(need);
        }
        Admission::Join
    }

    /// Joins a handle of `credits` after [`JournalState::admit`] said so.
    pub(crate) fn join(&mut self, credits: u32, waited: Duration) -> Tid {
        let running = match &mut self.running {
            Some(running) => running,
            slot @ None => {
                let tid = self.next_tid;
                self.next_tid = tid.next();
                slot.insert(RunningTransaction::new(tid, now()))
            }
        };
        assert!(!running.locked, "a locked transaction takes no handle");
        running.open += 1;
        running.holders.push(inherit::current_task());
        running.handles += 1;
        running.reserved += credits;
        running.longest_wait = running.longest_wait.max(waited);
        running.tid
    }
}
