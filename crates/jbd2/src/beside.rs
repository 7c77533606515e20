//! Log blocks that are written at the same time as the file data that they refer to.
//!
//! **Problem.** An fsync of appended data waits for five accesses to the device in sequence: data, log blocks, FLUSH,
//! commit record, and the FLUSH of its FUA where the device has none. Only the commit record must come after the data.
//!
//! **Rule.** The task leads the commit of its own change ([`Journal::commit_beside`]). It locks the running transaction
//! with its own handle in it as the only one, changes the metadata while the device writes the data, writes the log
//! blocks ahead ([`Handle::write_log_ahead`]) and waits for the data. If the data is written, the transaction is closed
//! and gets its commit record. If not, the task undoes its change in the same handle, and nothing is committed: log
//! blocks without a commit record are free space. A commit uses the blocks written ahead only if it would write the same
//! content to the same place.
//!
//! **When.** Other handles wait for the data meanwhile. So the transaction has had few handles, no commit is under way,
//! no other caller is expected (group commit shares the commit, which saves more), and no caller of another cgroup has
//! committed lately: the log blocks would not be charged to the groups that share the commit, and the scheduler may delay
//! the data of the lighter group.

use std::time::Duration;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::IoHandle;
use steadfs_rt::inherit;
use steadfs_rt::{OnUnwind, PANICKED, now};

use crate::commit::ClosedTransaction;
use crate::io::{submit_writes, wait_all};
use crate::log_writer::{BlockSnapshot, encode};
use crate::transaction::Admission;
use crate::{Handle, Journal, JournalError};

/// Handles that the transaction has had at most. More belong to tasks that would wait for the data.
const HANDLES_MAX: u64 = 2;

/// Log blocks of the running transaction that are written before it is closed.
pub(crate) struct LogAhead {
    start: u32,
    snapshot: Vec<BlockSnapshot>,
    revokes: Vec<DevBlock>,
    /// As [`crate::log_writer::EncodedLog`] has it.
    sum: u32,
    ios: Vec<IoHandle>,
}

impl LogAhead {
    /// Whether these are the log blocks that the transaction has at `start`.
    fn matches(&self, closed: &ClosedTransaction, start: u32) -> bool {
        let same = |(a, b): (&BlockSnapshot, &BlockSnapshot)| {
            a.block == b.block && a.data[..] == b.data[..]
        };
        let (ours, others) = (&self.snapshot, &closed.snapshot);
        self.start == start
            && self.revokes == closed.revokes
            && ours.len() == others.len()
            && ours.iter().zip(others).all(same)
    }
}

impl Journal {
    /// Commits the running transaction with one more change, of at most `credits` blocks, that depends on file data in
    /// flight: `change` makes the change, calls [`Handle::write_log_ahead`], waits for the data, and returns true. If the
    /// data was not written, it undoes the change and returns false, and nothing is committed. It drops the handle.
    ///
    /// Returns false, without a call of `change`, if other tasks use the journal.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]: the transaction may not be durable.
    pub fn commit_beside(
        &self,
        credits: u32,
        tag: IoTag,
        change: impl FnOnce(Handle<'_>) -> bool,
    ) -> Result<bool, JournalError> {
        self.may_wait();
        let Some(tid) = self.lock_alone(credits, tag) else {
            return Ok(false);
        };
        let guard = OnUnwind::new(|| {
            self.shutdown(PANICKED);
            self.stop_leading();
        });
        let commits = change(Handle::new(self, tid, credits, tag));
        drop(guard);
        if !commits {
            self.unlock_alone();
            return Ok(true);
        }
        self.lead(tag);
        let state = self.state.lock();
        match state.durable.at_least(tid) {
            true => Ok(true),
            false => state.check().map(|()| true),
        }
    }

    /// Locks the running transaction with a handle of the caller in it as the only one, and makes the caller the leader
    /// of its commit. `None`: another task is about to commit, or would wait.
    fn lock_alone(&self, credits: u32, tag: IoTag) -> Option<Tid> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let running = state.running.as_ref();
        let is_alone = running.is_none_or(|running| {
            running.open == 0 && running.callers.count() == 0 && running.handles <= HANDLES_MAX
        });
        if !is_alone
            || self.is_read_only()
            || state.aborted.is_some()
            || state.closed.is_some()
            || state.leading
            || state.committing.is_some()
            || credits > self.max_credits()
            || state.batch.expects_more(1, now())
            || !state.late_groups.are_only(tag.group, now())
            || state.admit(&self.costs, credits) != Admission::Join
        {
            return None;
        }
        let tid = state.join(credits, Duration::ZERO);
        let running = state.running.as_mut();
        let running = running.expect("a transaction runs while a handle of it is open");
        running.locked = true;
        running.requested.get_or_insert_with(now);
        let outweighs = |a, b| self.queue.outweighs(a, b);
        running.callers.join(&mut state.heaviest, tag, outweighs);
        state.late_groups.joined(tag.group, now());
        state.leading = true;
        state.leader = inherit::current_task();
        Some(tid)
    }

    /// Opens the transaction again, which is not committed.
    fn unlock_alone(&self) {
        let ahead = self.state.lock().log_ahead.take();
        if let Some(ahead) = ahead {
            // The next commit writes the same log blocks, and meets an error of the device itself.
            let _ = wait_all(&ahead.ios);
        }
        if let Some(running) = &mut self.state.lock().running {
            assert_eq!(running.open, 0, "the only handle has ended");
            running.locked = false;
        }
        self.stop_leading();
    }

    /// The log blocks of the closed transaction, if they were written ahead from `start` on: their CRC and requests.
    pub(crate) fn take_log_ahead(
        &self,
        closed: &ClosedTransaction,
        start: u32,
        tag: IoTag,
    ) -> Option<(u32, Vec<IoHandle>)> {
        let ahead = self.state.lock().log_ahead.take()?;
        if ahead.matches(closed, start) {
            ahead.ios.iter().for_each(|io| self.queue.boost(io, tag));
            self.state.lock().stats.beside_data += 1;
            return Some((ahead.sum, ahead.ios));
        }
        // The same blocks are written again.
        let _ = wait_all(&ahead.ios);
        None
    }
}

impl Handle<'_> {
    /// Starts to write the log blocks of the transaction as it is now. For [`Journal::commit_beside`] only.
    pub fn write_log_ahead(&mut self) {
        let (journal, tid) = (self.journal(), self.tid());
        let (bufs, revokes, start) = {
            let state = journal.state.lock();
            let running = state.running.as_ref();
            let running = running.expect("a transaction runs while a handle of it is open");
            assert!(
                state.leading && running.locked && running.open == 1,
                "only the leader's handle is open"
            );
            let bufs: Vec<_> = running.blocks.values().cloned().collect();
            let revokes: Vec<_> = running.revokes.iter().copied().collect();
            (bufs, revokes, state.log.head())
        };
        let snapshots = bufs.into_iter().map(|buf| {
            let data = buf.lock().snapshot();
            let block = buf.block();
            BlockSnapshot { block, buf, data }
        });
        let mut snapshot: Vec<_> = snapshots.collect();
        snapshot.sort_unstable_by_key(|s| s.block);
        let encoded = encode(&journal.format, tid, &snapshot, &revokes);
        let located = journal.log_locations(start, encoded.blocks);
        let ios = submit_writes(&journal.queue, journal.block_size, located, self.tag());
        journal.state.lock().log_ahead = Some(LogAhead {
            start,
            snapshot,
            revokes,
            sum: encoded.sum,
            ios,
        });
    }
}
