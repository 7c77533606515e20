//! Transactions in memory: the running one, the committing one, and the journal's state.
//!
//! Rule: at most one transaction is running and at most one is committing. Numbers have no gaps: the durable
//! one, the committing one, the running one, then `next_tid`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, FixedMap, IoTag, Tid};
use steadfs_block::IoHandle;
use steadfs_cache::{BatchedCommit, CommitBatch, MetaBuf};
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, Instant, now};

use crate::JournalError;
use crate::beside::LogAhead;
use crate::callers::{Callers, LateGroups};
use crate::config::JournalTuning;
use crate::fast_write::{FastCommitArea, FastCommitRefusal};
use crate::space::{LogCosts, LogRing};
use crate::stats::JournalStats;

/// The transaction that handles join.
pub(crate) struct RunningTransaction {
    pub tid: Tid,
    /// When its first handle began.
    pub started: Instant,
    /// Blocks that its handles have changed.
    pub blocks: FixedMap<u64, Arc<MetaBuf>>,
    /// Blocks that its handles have freed and that may have older copies in the log.
    pub revokes: BTreeSet<DevBlock>,
    /// Open handles.
    pub open: u32,
    /// The tasks of the open handles.
    pub holders: Vec<TaskNo>,
    /// Unspent credits of the open handles.
    pub reserved: u32,
    /// No handle joins any more: a commit waits for the open ones.
    pub locked: bool,
    /// When its commit was first requested.
    pub requested: Option<Instant>,
    /// Tasks wait here for it to become durable.
    pub waiters: Arc<Condvar>,
    /// The best tag of these tasks, while another commit is under way.
    pub waiter_tag: Option<IoTag>,
    /// Tasks that have requested its commit.
    pub callers: Callers,
    /// Handles begun so far.
    pub handles: u64,
    /// Longest wait of a handle before it could join.
    pub longest_wait: Duration,
    /// Why it cannot have fast commits.
    pub fast_refusal: Option<FastCommitRefusal>,
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
            callers: Callers::default(),
            handles: 0,
            longest_wait: Duration::ZERO,
            fast_refusal: None,
        }
    }

    /// One of the waiters leads it; the others stay asleep. Of an empty one none may have to, and the first would return
    /// without waking the next.
    pub(crate) fn wake_leader(&self) {
        match self.is_empty() {
            true => self.waiters.notify_all(),
            false => self.waiters.notify_one(),
        };
    }

    /// Whether nothing has been changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.revokes.is_empty()
    }

    /// Log blocks that it needs at most if its handles spend `more` credits in addition to the reserved ones.
    pub(crate) fn log_blocks(&self, costs: &LogCosts, more: u32) -> u32 {
        let count = |n: usize| u32::try_from(n).expect("bounded by the log's length");
        let blocks = count(self.blocks.len())
            .saturating_add(self.reserved)
            .saturating_add(more);
        costs.log_blocks(blocks, count(self.revokes.len()))
    }
}

/// The transaction that is being written to the log.
pub(crate) struct CommittingTransaction {
    pub tid: Tid,
    /// Where in the log it starts.
    pub start: u32,
    /// Its blocks, sorted.
    pub blocks: Arc<Vec<DevBlock>>,
    /// Tasks wait here for it to become durable.
    pub waiters: Arc<Condvar>,
    /// Owner of its I/O.
    pub submitter: IoTag,
    /// The same, boosted to the most urgent waiter.
    pub tag: IoTag,
    /// Its requests, so that they can be boosted.
    pub ios: Vec<IoHandle>,
    /// Tasks that have requested the commit.
    pub callers: Callers,
}

/// Whether a new handle may join the running transaction, or what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    /// It may join.
    Join,
    /// The transaction or all updates are locked: wait.
    Locked,
    /// Open handles hold too many credits: wait until they return some.
    Credits,
    /// The transaction is full: it must be committed.
    Full(Tid),
    /// The log is full: this number of log blocks must be free.
    NoSpace(u32),
}

/// The fields under the journal's state lock.
pub(crate) struct JournalState {
    pub running: Option<RunningTransaction>,
    pub committing: Option<CommittingTransaction>,
    /// A task leads a commit; no other task starts one.
    pub leading: bool,
    /// The leader's task.
    pub leader: TaskNo,
    /// Group commit: the usual fsync callers.
    pub batch: CommitBatch,
    /// The heaviest of them, by the weight of its group.
    pub heaviest: Option<IoTag>,
    /// The groups of the last callers.
    pub late_groups: LateGroups,
    /// Number of the next transaction to be created.
    pub next_tid: Tid,
    /// The newest durable transaction.
    pub durable: Tid,
    pub log: LogRing,
    /// Log blocks of the running transaction that the leader has written before it closes it.
    pub log_ahead: Option<LogAhead>,
    /// The fast-commit area behind the log.
    pub fast: FastCommitArea,
    /// The superblock marks the log empty.
    pub marked_empty: bool,
    /// Handles that wait for credits of other handles.
    pub waiting_credits: u32,
    /// While this is not 0, new handles wait (flush, freeze; `jbd2_journal_lock_updates` in Linux).
    pub update_locks: u32,
    /// The error of new handles, and of those that wait ([`crate::Journal::close`]).
    pub closed: Option<JournalError>,
    /// The first cause of an abort.
    pub aborted: Option<String>,
    /// The transaction that the commit task should commit now.
    pub commit_request: Option<Tid>,
    /// Whether the commit task runs.
    pub has_commit_task: bool,
    pub stopping: bool,
    /// The last caller of [`crate::Journal::wait_for_batch`].
    pub last_sync_writer: u64,
    pub tuning: JournalTuning,
    pub stats: JournalStats,
}

impl BatchedCommit for JournalState {
    fn batch(&mut self) -> &mut CommitBatch {
        &mut self.batch
    }

    fn callers(&self) -> u32 {
        self.running
            .as_ref()
            .map_or(0, |running| running.callers.count())
    }

    fn is_stopping(&self) -> bool {
        self.aborted.is_some()
    }
}

impl JournalState {
    /// The state of a clean journal.
    pub(crate) fn new(
        next_tid: Tid,
        log: LogRing,
        fast: FastCommitArea,
        tuning: JournalTuning,
    ) -> Self {
        Self {
            running: None,
            committing: None,
            leading: false,
            leader: TaskNo::default(),
            batch: CommitBatch::default(),
            heaviest: None,
            late_groups: LateGroups::default(),
            next_tid,
            durable: Tid(next_tid.0.wrapping_sub(1)),
            log,
            log_ahead: None,
            fast,
            marked_empty: true,
            update_locks: 0,
            waiting_credits: 0,
            closed: None,
            aborted: None,
            commit_request: None,
            has_commit_task: false,
            stopping: false,
            last_sync_writer: 0,
            tuning,
            stats: JournalStats::default(),
        }
    }

    /// Fails if the journal is aborted.
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        match &self.aborted {
            Some(cause) => Err(JournalError::Aborted(cause.clone())),
            None => Ok(()),
        }
    }

    /// The number of the transaction that the next handle joins.
    pub(crate) fn upcoming(&self) -> Tid {
        assert!(
            self.running
                .as_ref()
                .is_none_or(|running| running.tid.next() == self.next_tid),
            "the running transaction is the newest"
        );
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

    /// Joins a handle of `credits` to the running transaction, after [`JournalState::admit`] has returned
    /// [`Admission::Join`].
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
        assert_eq!(
            running.holders.len(),
            running.open as usize,
            "every open handle has its task listed"
        );
        running.handles += 1;
        running.reserved += credits;
        running.longest_wait = running.longest_wait.max(waited);
        running.tid
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::BlockSize;
    use steadfs_jbd2_format::{Checksum, Format};

    use super::*;

    #[test]
    fn a_handle_joins_waits_for_credits_or_needs_a_commit_or_space() {
        let size = BlockSize::new(1024).unwrap();
        let format = Format::new(size, false, Checksum::None, [0; 16]);
        let log = LogRing::new(1, 100);
        let costs = LogCosts::new(&format, log.capacity(), Some(20));
        let (area, tuning) = (FastCommitArea::default(), JournalTuning::default());
        let mut state = JournalState::new(Tid(1), log, area, tuning);
        // With a descriptor, a revoke block and the commit record.
        assert_eq!(state.admit(&costs, 95), Admission::Join);
        assert_eq!(state.admit(&costs, 96), Admission::NoSpace(99));
        assert_eq!(state.join(10, Duration::ZERO), Tid(1));
        // 10 + 8 blocks, a descriptor and the commit record: the limit.
        assert_eq!(state.admit(&costs, 8), Admission::Join);
        // It fits when the open handle has ended without spending its credits, or never.
        for credits in [9, 18] {
            assert_eq!(state.admit(&costs, credits), Admission::Credits);
        }
        assert_eq!(state.admit(&costs, 19), Admission::Full(Tid(1)));
        state.log.take(78);
        assert_eq!(state.admit(&costs, 8), Admission::Join);
        state.log.take(1);
        assert_eq!(state.admit(&costs, 8), Admission::NoSpace(20));
        state.update_locks = 1;
        assert_eq!(state.admit(&costs, 1), Admission::Locked);
        state.update_locks = 0;
        let running = state.running.as_mut().unwrap();
        running.locked = true;
        assert_eq!(state.admit(&costs, 1), Admission::Locked);
        assert!(!state.is_stopping());
        state.aborted = Some("a test".to_owned());
        assert!(state.is_stopping());
    }
}
