//! The open journal: opening, admission of handles, abort, flush.
//!
//! # The ways to end it
//! | call | what it does | handles and commits afterwards |
//! |---|---|---|
//! | [`Journal::abort`] | records EIO in the superblock; every waiter gets the cause | fail |
//! | [`Journal::shutdown`] | the same without the record: the volume is healthy | fail |
//! | [`Journal::flush_all`] | commits, writes all blocks to their home locations, marks the log empty | wait meanwhile |
//! | [`Journal::freeze`] | the same, and new handles wait until [`Journal::thaw`] | wait until the thaw |
//! | [`Journal::join_tasks`] | ends the commit task and the background reclaimer and joins them | work |
//!
//! An unmount is `flush_all`, then `join_tasks`. An error of the device in the journal is an abort.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::Queue;
use steadfs_cache::MetaCache;
use steadfs_rt::inherit;
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{Condvar, JoinHandle, Mutex, MutexGuard, Rank, RankScope, now, sleep};

use crate::config::{JournalConfig, JournalTuning};
use crate::fast_write::FastCommitArea;
use crate::handle::Handle;
use crate::lists::ReclaimLists;
use crate::recover::load_superblock;
use crate::sb::{Block0, SuperblockChange, WriteOrder};
use crate::space::{LogCosts, LogRing};
use crate::transaction::{Admission, JournalState, RunningTransaction};
use crate::{JournalError, JournalMap, ReclaimPolicy};
use steadfs_jbd2_format::Format;

/// EIO: the `s_errno` that an abort records.
const EIO: u32 = 5;
/// After this number of waits for credits of other handles a handle requests a commit.
const MAX_CREDIT_WAITS: u32 = 16;

type OnCommit = Arc<dyn Fn(Tid) + Send + Sync>;
type OnAbort = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Default)]
pub(crate) struct Callbacks {
    pub on_commit: Vec<OnCommit>,
    pub on_abort: Vec<OnAbort>,
}

/// An open journal.
///
/// Lock order: `reclaiming`, a metadata buffer, `block0`, `lists`, `state`. `block0` and `reclaiming`
/// are held during I/O, `lists` and `state` never.
pub struct Journal {
    pub(crate) cache: Arc<MetaCache>,
    pub(crate) queue: Arc<Queue>,
    pub(crate) block_size: BlockSize,
    pub(crate) map: JournalMap,
    pub(crate) format: Format,
    pub(crate) costs: LogCosts,
    read_only: bool,
    /// There is a fast-commit area behind the log.
    pub(crate) has_fast_area: bool,
    /// The rank of an open handle in the lock order.
    pub(crate) open_handle: RankScope,
    pub(crate) state: Mutex<JournalState>,
    /// Handles wait here to begin.
    pub(crate) admission: Condvar,
    /// The leader waits here for more fsync callers (group commit).
    pub(crate) batch_full: Condvar,
    /// The leader waits here for the open handles to end.
    pub(crate) drained: Condvar,
    /// The commit task waits here.
    pub(crate) task_wake: Condvar,
    pub(crate) block0: Mutex<Block0>,
    pub(crate) lists: Mutex<ReclaimLists>,
    /// Notified when a batch of home writes has ended.
    pub(crate) home_written: Condvar,
    /// The background reclaimer waits here.
    pub(crate) reclaim_wake: Condvar,
    /// … and here until no handle waits for log space, or the memory limit is exceeded.
    pub(crate) background_may_run: Condvar,
    /// Held by the one task that reclaims.
    pub(crate) reclaiming: Mutex<()>,
    pub(crate) callbacks: Mutex<Callbacks>,
    pub(crate) tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Journal {
    /// Opens the clean journal at `map` of the volume that `cache` caches.
    ///
    /// # Errors
    /// [`JournalError::NeedsRecovery`] if the log is not empty, and those of [`crate::recover()`] for a
    /// superblock.
    pub fn open(
        cache: Arc<MetaCache>,
        map: JournalMap,
        config: JournalConfig,
    ) -> Result<Arc<Self>, JournalError> {
        let queue = Arc::clone(cache.queue());
        let block_size = cache.block_size();
        let tag = IoTag::default();
        let (data, mut superblock) = load_superblock(&queue, block_size, &map, tag)?;
        if superblock.raw.start.get() != 0 {
            return Err(JournalError::NeedsRecovery);
        }
        if !config.read_only {
            superblock.set_features(config.wide, config.checksum);
            if config.fast_commit {
                superblock.use_fast_commits();
            }
        }
        let next_tid = superblock.sequence();
        let log = LogRing::new(superblock.first, superblock.last);
        let format = superblock.format;
        let costs = LogCosts::new(&format, log.capacity(), config.max_transaction);
        let (at, _) = map.locate(0);
        let fast = FastCommitArea::of(&superblock);
        let superblock_has_area = superblock.fast_commit.is_some();
        let block0 = Block0::new(superblock.raw, data, at, block_size);
        let state = JournalState::new(next_tid, log, fast, config.tuning);
        Ok(Arc::new(Self {
            cache,
            queue,
            block_size,
            map,
            format,
            costs,
            read_only: config.read_only,
            has_fast_area: superblock_has_area,
            open_handle: RankScope::new(Rank::TxnHandle),
            state: Mutex::new(Rank::JournalState, state),
            admission: Condvar::new(),
            batch_full: Condvar::new(),
            drained: Condvar::new(),
            task_wake: Condvar::new(),
            block0: Mutex::new(Rank::JournalSuper, block0),
            lists: Mutex::new(Rank::JournalLists, ReclaimLists::new(config.reclaim)),
            home_written: Condvar::new(),
            reclaim_wake: Condvar::new(),
            background_may_run: Condvar::new(),
            reclaiming: Mutex::new(Rank::JournalReclaim, ()),
            callbacks: Mutex::new(Rank::Leaf, Callbacks::default()),
            tasks: Mutex::new(Rank::Leaf, Vec::new()),
        }))
    }

    /// Begins a handle that may change or revoke up to `credits` blocks. Waits while the transaction is
    /// locked for its commit or full, or the log has too little space. Log space for the credits is
    /// reserved here, so a commit never waits for log space.
    ///
    /// # Errors
    /// [`JournalError::TooManyCredits`], [`JournalError::ReadOnly`], [`JournalError::Aborted`].
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>, JournalError> {
        self.begin_as(credits, IoTag::default())
    }

    /// [`Journal::begin`] for a caller with `tag`: if the handle waits for log space or for a commit, the
    /// I/O of that is boosted to the tag.
    ///
    /// # Errors
    /// As [`Journal::begin`].
    pub fn begin_as(&self, credits: u32, tag: IoTag) -> Result<Handle<'_>, JournalError> {
        let tid = self.join(credits, tag)?;
        Ok(Handle::new(self, tid, credits, tag))
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// The checksum version of the log.
    pub fn checksum(&self) -> crate::Checksum {
        self.format.checksum
    }

    /// The most credits a handle can have.
    pub fn max_credits(&self) -> u32 {
        self.costs.max_credits()
    }

    /// Waits until a handle of `credits` may join the running transaction, and joins it.
    pub(crate) fn join(&self, credits: u32, tag: IoTag) -> Result<Tid, JournalError> {
        self.may_wait();
        if self.read_only {
            return Err(JournalError::ReadOnly);
        }
        let limit = self.max_credits();
        if credits > limit {
            let requested = credits;
            return Err(JournalError::TooManyCredits { requested, limit });
        }
        let mut waited = Duration::ZERO;
        let mut credit_waits_left = MAX_CREDIT_WAITS;
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if let Some(refusal) = &state.closed {
                return Err(refusal.clone());
            }
            let mut admission = state.admit(&self.costs, credits);
            if admission == Admission::Join {
                return Ok(state.join(credits, waited));
            }
            if admission == Admission::Credits {
                credit_waits_left = credit_waits_left.saturating_sub(1);
                if credit_waits_left == 0 {
                    admission = Admission::Full(state.upcoming());
                }
            }
            let waits_from = now();
            state = self.await_admission(state, admission, tag)?;
            let wait = waits_from.elapsed();
            state.stats.wait_stats_for(admission).add(wait);
            waited += wait;
        }
    }

    /// Waits once for what keeps a handle from joining, or does it: a commit, or reclaim.
    fn await_admission<'a>(
        &'a self,
        mut state: MutexGuard<'a, JournalState>,
        admission: Admission,
        tag: IoTag,
    ) -> Result<MutexGuard<'a, JournalState>, JournalError> {
        let _step = waits::during(match admission {
            Admission::NoSpace(_) => WaitStep::LogSpace,
            _ => WaitStep::Commit,
        });
        match admission {
            Admission::Join => unreachable!("a handle that may join does not wait"),
            Admission::Locked => {
                let _edge = inherit::wait_for(&[state.leader]);
                self.admission.wait(&mut state);
            }
            Admission::Credits => {
                let running = state.running.as_ref();
                let holders = running.map_or(&[][..], |running| &running.holders);
                let _edge = inherit::wait_for(holders);
                state.waiting_credits += 1;
                self.admission.wait(&mut state);
                state.waiting_credits -= 1;
            }
            Admission::Full(tid) if state.has_commit_task || state.leading => {
                self.boost_committing(&mut state, tag);
                state.commit_request = Some(tid);
                self.task_wake.notify_one();
                let _edge = inherit::wait_for(&[state.leader]);
                self.admission.wait(&mut state);
            }
            Admission::Full(tid) => {
                drop(state);
                self.commit_as(tid, tag, false)?;
                return Ok(self.state.lock());
            }
            Admission::NoSpace(need) => {
                drop(state);
                self.reclaim_space(need, tag)?;
                return Ok(self.state.lock());
            }
        }
        Ok(state)
    }

    /// Panics, where the lock order is checked, if the caller has an open handle or holds a lock that a
    /// task with an open handle may wait for.
    pub(crate) fn may_wait(&self) {
        self.open_handle.check();
    }

    /// The transaction that handles join now, if one has begun.
    pub fn running_tid(&self) -> Option<Tid> {
        self.state
            .lock()
            .running
            .as_ref()
            .map(|running| running.tid)
    }

    /// The newest durable transaction.
    pub fn durable_tid(&self) -> Tid {
        self.state.lock().durable
    }

    /// Commits what was changed before the call and waits.
    ///
    /// # Errors
    /// As [`Journal::commit`].
    pub fn commit_all(&self, tag: IoTag) -> Result<crate::Durable, JournalError> {
        let (committing, newest) = {
            let state = self.state.lock();
            state.check()?;
            let committing = state.committing.as_ref().map(|c| c.tid);
            (committing, Tid(state.next_tid.0.wrapping_sub(1)))
        };
        // If the newest one is empty it stays open, and its commit returns before this one is durable.
        if let Some(tid) = committing {
            self.commit(tid, tag)?;
        }
        self.commit(newest, tag)
    }

    /// `f` is called in the committing task when a transaction has become durable, before its waiters are
    /// woken: the file system makes the blocks that the transaction freed allocatable there. `f` must not
    /// begin a handle or wait for a commit.
    pub fn on_commit(&self, f: Box<dyn Fn(Tid) + Send + Sync>) {
        self.callbacks.lock().on_commit.push(Arc::from(f));
    }

    /// `f` is called once, with the cause, when the journal is aborted. It must not wait for the journal.
    pub fn on_abort(&self, f: Box<dyn Fn(&str) + Send + Sync>) {
        self.callbacks.lock().on_abort.push(Arc::from(f));
    }

    /// Aborts the journal and records that in its superblock: nothing becomes durable any more, and every
    /// waiter gets `cause`. The first of several causes is kept.
    pub fn abort(&self, cause: &str) {
        self.abort_with(cause, true);
    }

    /// Like [`Journal::abort`], without the record in the superblock: the volume is healthy, but is not
    /// used any more.
    pub fn shutdown(&self, cause: &str) {
        self.abort_with(cause, false);
    }

    /// Aborts because of `error`; returns the error for the caller, with the first cause.
    pub(crate) fn fail(&self, error: &JournalError) -> JournalError {
        if let JournalError::Aborted(_) = error {
            return error.clone();
        }
        self.abort_with(&error.to_string(), true);
        match self.state.lock().check() {
            Err(aborted) => aborted,
            Ok(()) => unreachable!("the journal was aborted above"),
        }
    }

    fn abort_with(&self, cause: &str, record: bool) {
        let mut state = self.state.lock();
        if state.aborted.is_some() {
            return;
        }
        state.aborted = Some(cause.to_owned());
        let mut waiters = Vec::new();
        waiters.extend(state.running.as_ref().map(|r| Arc::clone(&r.waiters)));
        waiters.extend(state.committing.as_ref().map(|c| Arc::clone(&c.waiters)));
        drop(state);
        tracing::error!(cause, "journal aborted");
        for waiter in waiters {
            waiter.notify_all();
        }
        self.admission.notify_all();
        self.batch_full.notify_all();
        self.drained.notify_all();
        self.reclaim_wake.notify_all();
        // First, so that the volume accepts no change while the abort is recorded.
        let callbacks = self.callbacks.lock().on_abort.clone();
        for callback in callbacks {
            callback(cause);
        }
        if record && !self.read_only {
            let (change, tag) = (SuperblockChange::Errno(EIO), IoTag::default());
            let mut block0 = self.block0.lock();
            if let Err(error) = block0.write(change, &self.queue, WriteOrder::Durable, tag) {
                tracing::error!(%error, "cannot record the abort in the journal's superblock");
            }
        }
    }

    /// Why the journal was aborted, if it was.
    pub fn abort_reason(&self) -> Option<String> {
        self.state.lock().aborted.clone()
    }

    /// Group commit for synchronous operations, as Linux does in `jbd2_journal_stop` (`min_batch_time`,
    /// `max_batch_time`). An operation of `writer` has ended and will commit its transaction next: this
    /// waits for as long as a commit takes on average, if the transaction is younger than that, so that
    /// other writers join it. It does not wait if `writer` was also the previous caller: that writer is
    /// alone. The caller holds no handle, so that a commit by another task can proceed.
    pub fn wait_for_batch(&self, writer: u64) {
        let wait = self.batch_wait(writer);
        if !wait.is_zero() {
            sleep(wait);
        }
    }

    fn batch_wait(&self, writer: u64) -> Duration {
        let mut state = self.state.lock();
        let alone = std::mem::replace(&mut state.last_sync_writer, writer) == writer;
        let JournalTuning {
            min_batch,
            max_batch,
            ..
        } = state.tuning;
        if alone || max_batch.is_zero() || state.aborted.is_some() {
            return Duration::ZERO;
        }
        let wait = state.batch.average().max(min_batch).min(max_batch);
        let young =
            |running: &RunningTransaction| !running.locked && now().since(running.started) < wait;
        if state.running.as_ref().is_some_and(young) {
            wait
        } else {
            Duration::ZERO
        }
    }

    /// The error (a positive number) that an earlier abort recorded in the superblock.
    pub fn recorded_errno(&self) -> Option<u32> {
        match self.block0.lock().raw.errno.get() {
            0 => None,
            errno => Some(errno.cast_signed().unsigned_abs()),
        }
    }

    /// Clears the record of an earlier abort in the superblock, after the file system has recorded the
    /// error in its own.
    ///
    /// # Errors
    /// [`JournalError::Io`], which aborts.
    pub fn clear_errno(&self) -> Result<(), JournalError> {
        let mut block0 = self.block0.lock();
        if block0.raw.errno.get() == 0 || self.read_only {
            return Ok(());
        }
        let (change, tag) = (SuperblockChange::Errno(0), IoTag::default());
        let written = block0.write(change, &self.queue, WriteOrder::Durable, tag);
        drop(block0);
        written.map_err(|error| self.fail(&error.into()))
    }

    /// Commits everything, writes all blocks to their home locations and marks the log empty: the volume
    /// can then be used without its journal. New handles wait meanwhile. The caller holds no handle.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]: the log is not empty.
    pub fn flush_all(&self) -> Result<(), JournalError> {
        self.lock_updates();
        let result = self.flush_with_updates_locked();
        self.unlock_updates();
        result
    }

    /// [`Journal::flush_all`], and new handles wait until [`Journal::thaw`].
    ///
    /// # Errors
    /// As [`Journal::flush_all`]; handles do not wait then.
    pub fn freeze(&self) -> Result<(), JournalError> {
        self.lock_updates();
        let result = self.flush_with_updates_locked();
        if result.is_err() {
            self.unlock_updates();
        }
        result
    }

    /// Ends [`Journal::freeze`].
    pub fn thaw(&self) {
        self.unlock_updates();
    }

    /// [`Journal::flush_all`], and from then on new handles fail with `refusal`, also those that have begun to wait
    /// meanwhile, until [`Journal::reopen`]: nothing is written to the log behind the caller's clean mark.
    ///
    /// # Errors
    /// As [`Journal::flush_all`]; handles do not fail then.
    pub fn close(&self, refusal: JournalError) -> Result<(), JournalError> {
        self.freeze()?;
        self.state.lock().closed = Some(refusal);
        self.thaw();
        Ok(())
    }

    /// Ends [`Journal::close`].
    pub fn reopen(&self) {
        self.state.lock().closed = None;
    }

    fn lock_updates(&self) {
        self.state.lock().update_locks += 1;
    }

    fn unlock_updates(&self) {
        let mut state = self.state.lock();
        assert!(
            state.update_locks > 0,
            "updates are unlocked as often as they were locked"
        );
        state.update_locks -= 1;
        drop(state);
        self.admission.notify_all();
    }

    fn flush_with_updates_locked(&self) -> Result<(), JournalError> {
        if self.read_only {
            return Ok(());
        }
        let tag = IoTag::default();
        self.commit_all(tag)?;
        self.reclaim_all(tag)?;
        self.mark_empty(tag)
    }

    /// Marks the log empty in the superblock, unless it is marked already. Updates are locked.
    fn mark_empty(&self, tag: IoTag) -> Result<(), JournalError> {
        let (next, order) = {
            let mut state = self.state.lock();
            // The leader of the last commit may not have returned yet.
            while state.leading {
                self.admission.wait(&mut state);
            }
            state.check()?;
            assert!(state.update_locks > 0, "updates are locked");
            let changed = state
                .running
                .as_ref()
                .is_some_and(|r| r.open > 0 || !r.is_empty());
            assert!(!changed, "new handles wait and the old ones are committed");
            if state.marked_empty {
                return Ok(());
            }
            assert_eq!(
                state.log.free(),
                state.log.capacity(),
                "a log that is marked empty has no transaction"
            );
            assert!(state.committing.is_none(), "reclaim_all waits for commits");
            // No commit starts meanwhile: only a handle that waits now could change anything.
            state.marked_empty = true;
            let order = if state.tuning.barriers {
                WriteOrder::AfterFlush
            } else {
                WriteOrder::Plain
            };
            (state.upcoming(), order)
        };
        let change = SuperblockChange::Tail {
            start: 0,
            tid: next,
        };
        let written = self.block0.lock().write(change, &self.queue, order, tag);
        written.map_err(|error| self.fail(&error.into()))
    }

    /// Whether recovery could replay a copy of the block.
    pub(crate) fn log_has_copy(&self, block: DevBlock) -> bool {
        // The committing transaction first: it enters the lists before it leaves `state`.
        let committing = {
            let state = self.state.lock();
            state.committing.as_ref().map(|c| Arc::clone(&c.blocks))
        };
        committing.is_some_and(|blocks| blocks.binary_search(&block).is_ok())
            || self.lists.lock().has_copy(block)
    }

    /// The settings that a remount may change.
    pub fn tuning(&self) -> JournalTuning {
        self.state.lock().tuning.clone()
    }

    /// Changes the settings that a remount may change.
    pub fn set_tuning(&self, tuning: JournalTuning) {
        self.state.lock().tuning = tuning;
        self.task_wake.notify_all();
    }

    /// When the background reclaimer works.
    pub fn reclaim_policy(&self) -> ReclaimPolicy {
        self.lists.lock().policy.clone()
    }

    /// Changes when the background reclaimer works. When this returns, no step that the old policy
    /// advised is still under way.
    pub fn set_reclaim_policy(&self, policy: ReclaimPolicy) {
        {
            let mut lists = self.lists.lock();
            lists.policy = policy;
            lists.worker.trigger();
        }
        self.reclaim_wake.notify_all();
        drop(self.reclaiming.lock());
    }
}
