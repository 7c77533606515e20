//! Fast commits: changes become durable as a record of a block or two, and their transaction stays open.
//!
//! **Problem.** A commit writes every block that its transaction changed, for an fsync that changed a few fields.
//!
//! **Rule.** The file system knows the changes of the running transaction in its own terms and records them in the area
//! behind the log. A recovery that finds no commit record of the transaction applies them to the volume as of the
//! transaction before. So:
//!
//! - The transaction before is durable: no fast commit is written while a commit is under way.
//! - A fast commit is the whole state of the running transaction at one moment: the leader locks the transaction, waits
//!   for its open handles and takes the changes since the fast commit before. Handles wait for that, not for the write.
//! - The write has a PREFLUSH: file data that the changes refer to is durable before them. Its checksum covers all of
//!   its blocks.
//! - The transaction stays as it is: its blocks are not written home, what it freed is not allocated. Its own commit
//!   makes its fast commits invalid, as they belong to no later transaction.
//!
//! **e2fsck** (1.47) drops the whole log if the area begins with a head of another transaction, or with a head and no
//! valid tail. So the first block has an empty fast commit of one sector, and is cleared after the transaction's own
//! commit and before the log is used. Between a commit and that write a power cut leaves what Linux leaves always: a log
//! that a mount replays, and e2fsck does not.
//!
//! **Group commit.** Callers that come before the changes are taken share the fast commit; the others wait for the next
//! one. A transaction that the file system cannot describe ([`Handle::refuse_fast_commits`]), or whose changes do not
//! fit the rest of the area, is committed as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{IoTag, Tid};
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_cache::BatchedCommit;
use steadfs_rt::inherit;
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{OnUnwind, PANICKED, now};

use crate::callers::Callers;
use crate::io::{submit_writes, wait_all};
use crate::transaction::JournalState;
use crate::{Durable, Handle, Journal, JournalError};
use steadfs_jbd2_format::{FastCommitChange, Superblock, encode_fast_commit};

/// Why a transaction is committed as a whole.
pub type FastCommitRefusal = &'static str;

/// The changes do not fit what is left of the area.
const AREA_FULL: FastCommitRefusal = "area full";

/// The fast-commit area of a journal.
#[derive(Default)]
pub(crate) struct FastCommitArea {
    /// Its first block.
    first: u32,
    /// Its blocks.
    blocks: u32,
    /// Its first block has no head.
    is_clear: bool,
    /// The running transaction, if it has used the area.
    tid: Tid,
    /// Blocks of the area that it has used.
    used: u32,
    /// Why it has no more fast commits.
    refused: Option<FastCommitRefusal>,
    /// Handles that it had begun when its changes were taken last.
    handles: u64,
    /// How often changes were taken, since the journal was opened.
    taken: u64,
    /// Changes up to this time are durable.
    durable: u64,
    /// The write under way.
    pub(crate) ios: Vec<IoHandle>,
    stats: FastCommitStats,
}

/// Counters of fast commits since the journal was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FastCommitStats {
    /// Fast commits written.
    pub commits: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Commits for waiting callers of transactions that could have no more fast commits, by reason.
    pub refused: BTreeMap<FastCommitRefusal, u64>,
}

impl FastCommitArea {
    /// The area behind the log.
    pub(crate) fn of(superblock: &Superblock) -> Self {
        let end = superblock.raw.max_len.get();
        let first = superblock.fast_commit.unwrap_or(end);
        Self {
            first,
            blocks: end.saturating_sub(first),
            ..Self::default()
        }
    }

    /// The state for transaction `tid`.
    fn for_tid(&mut self, tid: Tid) -> &mut Self {
        if self.tid != tid {
            (self.tid, self.used, self.refused, self.handles) = (tid, 0, None, 0);
        }
        self
    }

    pub(crate) fn stats(&self) -> &FastCommitStats {
        &self.stats
    }
}

impl Journal {
    /// Whether there is an area for fast commits.
    pub fn has_fast_commit_area(&self) -> bool {
        self.has_fast_area
    }

    /// Whether fast commits are on and possible for the running transaction as it is now.
    pub fn has_fast_commits(&self) -> bool {
        let state = self.state.lock();
        let refused = |area: &FastCommitArea, tid| area.tid == tid && area.refused.is_some();
        state.tuning.fast_commit
            && self.has_fast_area
            && state.running.as_ref().is_none_or(|running| {
                running.fast_refusal.is_none() && !refused(&state.fast, running.tid)
            })
    }

    /// Makes the changes of transaction `tid` so far durable without a commit. `changes` returns the changes since its
    /// last call, in their order; it is called while no handle is open. `None`: only a commit makes the transaction
    /// durable.
    ///
    /// # Errors
    /// [`JournalError::Aborted`].
    pub fn fast_commit(
        &self,
        tid: Tid,
        tag: IoTag,
        changes: &dyn Fn(Tid) -> Result<Vec<FastCommitChange>, FastCommitRefusal>,
    ) -> Result<Option<Durable>, JournalError> {
        self.may_wait();
        let mut state = self.state.lock();
        if !self.has_fast_area || !state.tuning.fast_commit {
            return Ok(None);
        }
        let flush = self.queue.next_flush();
        let (mut due, mut joined) = (None, None);
        loop {
            state.check()?;
            let inner = &mut *state;
            let Some(running) = inner.running.as_mut().filter(|running| running.tid == tid) else {
                // It is durable, or its commit is under way.
                return Ok(None);
            };
            let area = inner.fast.for_tid(tid);
            let all_taken = running.open == 0 && running.handles == area.handles;
            let due = *due.get_or_insert(area.taken + u64::from(!all_taken));
            if area.durable >= due {
                let flushed = self.queue.has_flushed(flush);
                return Ok(Some(match flushed {
                    true => Durable::Flushed,
                    false => Durable::Already,
                }));
            }
            if running.fast_refusal.or(area.refused).is_some() {
                return Ok(None);
            }
            if joined.replace(area.taken) != Some(area.taken) {
                let outweighs = |a, b| self.queue.outweighs(a, b);
                running.callers.join(&mut inner.heaviest, tag, outweighs);
                inner.late_groups.joined(tag.group, now());
            }
            if inner.batch.joined(running.callers.count()) {
                self.batch_full.notify_one();
            }
            let waiters = Arc::clone(&running.waiters);
            if state.leading {
                self.wait_for_leader(&mut state, &waiters, tid, tag);
            } else {
                state.leading = true;
                state.leader = inherit::current_task();
                self.await_batch(&mut state, tid, tag);
                drop(state);
                self.lead_fast(tid, tag, changes)?;
                state = self.state.lock();
            }
        }
    }

    /// Writes one fast commit. The caller has made itself the leader.
    fn lead_fast(
        &self,
        tid: Tid,
        tag: IoTag,
        changes: &dyn Fn(Tid) -> Result<Vec<FastCommitChange>, FastCommitRefusal>,
    ) -> Result<(), JournalError> {
        let guard = OnUnwind::new(|| {
            self.shutdown(PANICKED);
            self.stop_leading();
        });
        let began = now();
        let mut callers = Callers::default();
        let result = self.take_changes(tid, &mut callers, changes);
        let result = result.and_then(|taken| match taken {
            Some(taken) => self.write_fast(tid, tag, &callers, &taken),
            None => Ok(()),
        });
        if let Err(error) = &result {
            self.fail(error);
        }
        drop(guard);
        let waiters = {
            let mut state = self.state.lock();
            let (served, waiting) = (callers.count(), state.callers());
            let ended = now();
            let time = ended.since(began);
            state.batch.commit_ended(served, waiting, time, ended);
            if let Some(running) = &state.running {
                callers.add_groups(&running.callers);
            }
            self.queue.end_waits(callers.groups());
            state.running.as_ref().map(|r| Arc::clone(&r.waiters))
        };
        self.stop_leading();
        if let Some(waiters) = waiters {
            waiters.notify_all();
        }
        result
    }

    /// Locks the transaction, waits for its open handles and takes its changes; allows handles again. `None`: no fast
    /// commit is to be written.
    fn take_changes(
        &self,
        tid: Tid,
        callers: &mut Callers,
        changes: &dyn Fn(Tid) -> Result<Vec<FastCommitChange>, FastCommitRefusal>,
    ) -> Result<Option<Vec<FastCommitChange>>, JournalError> {
        let mut state = self.state.lock();
        match &mut state.running {
            Some(running) if running.tid == tid => running.locked = true,
            // Another leader has committed it.
            _ => return Ok(None),
        }
        let _step = waits::during(WaitStep::Commit);
        while let Some(running) = state.running.as_ref().filter(|r| r.open > 0) {
            let _edge = inherit::wait_for(&running.holders);
            self.drained.wait(&mut state);
        }
        state.check()?;
        let inner = &mut *state;
        let running = inner.running.as_mut();
        let running = running.expect("only the leader takes the running transaction");
        let refused = running.fast_refusal;
        let area = inner.fast.for_tid(tid);
        area.taken += 1;
        area.handles = running.handles;
        *callers = std::mem::take(&mut running.callers);
        drop(state);
        let taken = refused.map_or_else(|| changes(tid), Err);
        let mut state = self.state.lock();
        if let Some(running) = &mut state.running {
            running.locked = false;
        }
        let area = state.fast.for_tid(tid);
        let taken = match taken {
            Ok(taken) if taken.is_empty() => {
                area.durable = area.taken;
                None
            }
            Ok(taken) => Some(taken),
            Err(why) => {
                area.refused = Some(why);
                None
            }
        };
        drop(state);
        self.admission.notify_all();
        Ok(taken)
    }

    /// Encodes changes and writes them durably, if they fit the rest of the area.
    fn write_fast(
        &self,
        tid: Tid,
        tag: IoTag,
        callers: &Callers,
        changes: &[FastCommitChange],
    ) -> Result<(), JournalError> {
        let size = self.block_size.bytes();
        let (first, left, log_head, barriers, number) = {
            let mut state = self.state.lock();
            let (head, barriers) = (state.log.head(), state.tuning.barriers);
            let area = state.fast.for_tid(tid);
            let at = area.first + area.used;
            (at, area.blocks - area.used, head, barriers, area.taken)
        };
        let is_first = self.state.lock().fast.used == 0;
        let head = match is_first {
            true => encode_fast_commit(tid, size, true, &[]),
            false => Some(Vec::new()),
        };
        let encoded = encode_fast_commit(tid, size, false, changes);
        let encoded = head.zip(encoded).map(|(head, rest)| [head, rest].concat());
        let Some(bytes) = encoded.filter(|bytes| bytes.len() / size <= left as usize) else {
            self.state.lock().fast.for_tid(tid).refused = Some(AREA_FULL);
            return Ok(());
        };
        // A recovery reads the area only if the superblock says that there is a log.
        self.start_log(log_head, tid, tag)?;
        self.state.lock().fast.is_clear = false;
        let submitter = callers.submitter(tag);
        let count = (bytes.len() / size) as u32;
        let mut blocks = (first..).zip(bytes.chunks(size)).map(|(at, block)| {
            let mut buf = Buf::zeroed(size);
            buf.make_mut().copy_from_slice(block);
            (self.map.locate(at).0, buf)
        });
        let contiguous = self.map.locate(first).1 >= count;
        let ahead = if contiguous { 0 } else { count as usize - 1 };
        let ahead: Vec<_> = blocks.by_ref().take(ahead).collect();
        let ios = submit_writes(&self.queue, self.block_size, ahead, submitter);
        self.track_fast(&ios, callers);
        wait_all(&ios)?;
        let last: Vec<_> = blocks.collect();
        let at = last.first().expect("a fast commit has blocks").0;
        let bufs = last.into_iter().map(|(_, buf)| buf).collect();
        let mut bio = Bio::write(self.block_size.offset_of(at), bufs);
        if barriers {
            bio = bio.preflush_and_fua();
        }
        // After an abort nothing more becomes durable.
        self.state.lock().check()?;
        let io = [self.queue.submit(bio, submitter)];
        self.track_fast(&io, callers);
        let written = wait_all(&io);
        let mut state = self.state.lock();
        state.fast.ios.clear();
        written?;
        let area = state.fast.for_tid(tid);
        area.used += count;
        area.durable = number;
        area.stats.commits += 1;
        area.stats.blocks += u64::from(count);
        Ok(())
    }

    /// Removes the head of the area: no transaction has fast commits in it that a recovery needs. Only the leader calls
    /// this.
    ///
    /// # Errors
    /// The write failed.
    pub(crate) fn clear_fast_area(&self, tag: IoTag) -> Result<(), JournalError> {
        let (first, barriers) = {
            let mut state = self.state.lock();
            if !self.has_fast_area || std::mem::replace(&mut state.fast.is_clear, true) {
                return Ok(());
            }
            (state.fast.first, state.tuning.barriers)
        };
        let zeros = Buf::zeroed(self.block_size.bytes());
        let at = self.block_size.offset_of(self.map.locate(first).0);
        let mut bio = Bio::write(at, vec![zeros]);
        if barriers {
            bio = bio.with_fua();
        }
        Ok(self.queue.submit(bio, tag).wait()?)
    }

    /// Charges these requests to the callers' groups, and makes them known to tasks that boost them.
    fn track_fast(&self, ios: &[IoHandle], callers: &Callers) {
        self.queue.share(ios, callers.groups());
        self.state.lock().fast.ios = ios.to_vec();
    }

    /// Counters of fast commits.
    pub fn fast_commit_stats(&self) -> FastCommitStats {
        self.state.lock().fast.stats.clone()
    }
}

impl JournalState {
    /// The running transaction is committed as a whole: counts why, if a caller waits and a fast commit would have been
    /// written.
    pub(crate) fn count_whole_commit(&mut self) {
        let Some(running) = &self.running else {
            return;
        };
        let area = self.fast.for_tid(running.tid);
        if let Some(why) = running.fast_refusal.or(area.refused)
            && running.requested.is_some()
            && self.tuning.fast_commit
        {
            *area.stats.refused.entry(why).or_default() += 1;
        }
    }

    /// Why the running transaction has no fast commits, if so.
    pub(crate) fn refuse_fast_commits(&mut self, why: FastCommitRefusal) {
        if let Some(running) = &mut self.running {
            running.fast_refusal.get_or_insert(why);
        }
    }
}

impl Handle<'_> {
    /// The transaction gets a change that no fast commit describes: it is committed as a whole. The first reason counts.
    pub fn refuse_fast_commits(&mut self, why: FastCommitRefusal) {
        self.journal().state.lock().refuse_fast_commits(why);
    }
}
