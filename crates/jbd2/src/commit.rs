//! Commit: the running transaction becomes durable (group commit with a leader).
//!
//! No commit thread is between a caller and the device. The first task that needs a transaction durable is
//! its *leader* and does all the steps in its own thread. Tasks that arrive during the commit wait; when it
//! has ended, one of the tasks that wait for the next transaction leads that one. The commit task leads for
//! transactions that are old or full.
//!
//! A commit writes no file data: data is on the device before the handle begins that refers to it, or, for a lone
//! fsync, before the commit record is written (`beside.rs`).
//!
//! Steps: 1 lock, 2 switch, 3 log, 4 commit record, 5 finish.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_cache::{BatchedCommit, wait_for_callers};
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, MutexGuard, OnUnwind, PANICKED, now, waits, wall_clock};

use crate::callers::Callers;
use crate::io::{submit_writes, wait_all};
use crate::log_writer::{BlockSnapshot, encode, encoded_len};
use crate::sb::{SuperblockChange, WriteOrder};
use crate::stats::CommitTimes;
use crate::transaction::{CommittingTransaction, JournalState};
use crate::{Journal, JournalError};
use steadfs_jbd2_format::build_commit;

/// How a transaction became durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durable {
    /// By a FLUSH that began after the call: every write that had completed before the call is durable
    /// too. Never without barriers.
    Flushed,
    /// It was durable already, or the FLUSH had begun before the call: a caller that needs other writes
    /// durable must flush the device.
    Already,
}

/// A transaction that no handle changes any more.
pub(crate) struct ClosedTransaction {
    tid: Tid,
    /// Its blocks as they were, sorted by home location.
    pub(crate) snapshot: Vec<BlockSnapshot>,
    pub(crate) revokes: Vec<DevBlock>,
    waiters: Arc<Condvar>,
    times: CommitTimes,
}

/// A transaction written to the log, without its commit record.
struct LoggedTransaction {
    closed: ClosedTransaction,
    start: u32,
    /// Log blocks, commit record included.
    len: u32,
    /// CRC-32 for the commit record (checksum version 1).
    sum: u32,
}

impl Journal {
    /// Makes transaction `tid` durable and waits. Concurrent callers share one commit; the first one leads
    /// it. A commit under way is boosted to the caller's `tag`.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]: the transaction may not be durable.
    pub fn commit(&self, tid: Tid, tag: IoTag) -> Result<Durable, JournalError> {
        self.commit_as(tid, tag, true)
    }

    /// [`Journal::commit`]; `requested`: for a waiting caller, not because of age or size.
    pub(crate) fn commit_as(
        &self,
        tid: Tid,
        tag: IoTag,
        requested: bool,
    ) -> Result<Durable, JournalError> {
        self.may_wait();
        let mut state = self.state.lock();
        let flush = self.queue.next_flush();
        let mut counted = !requested;
        loop {
            if state.durable.at_least(tid) {
                return Ok(if self.queue.has_flushed(flush) {
                    Durable::Flushed
                } else {
                    Durable::Already
                });
            }
            state.check()?;
            if tid.at_least(state.next_tid) {
                // No handle has begun this transaction: there is nothing to make durable.
                return Ok(Durable::Already);
            }
            let inner = &mut *state;
            let outweighs = |a, b| self.queue.outweighs(a, b);
            let waiters = match (&mut inner.running, &mut inner.committing) {
                (Some(running), _) if running.tid == tid => {
                    // A locked one may appear empty while its blocks are snapshotted.
                    if running.is_empty() && running.open == 0 && !running.locked {
                        return Ok(Durable::Already);
                    }
                    if requested && running.requested.is_none() {
                        running.requested = Some(now());
                    }
                    if !std::mem::replace(&mut counted, true) {
                        running.callers.join(&mut inner.heaviest, tag, outweighs);
                        inner.late_groups.joined(tag.group, now());
                    }
                    if inner.batch.joined(running.callers.count()) {
                        self.batch_full.notify_one();
                    }
                    Arc::clone(&running.waiters)
                }
                (_, Some(committing)) => {
                    assert_eq!(committing.tid, tid, "older transactions are durable");
                    if !std::mem::replace(&mut counted, true) {
                        let callers = &mut committing.callers;
                        callers.join(&mut inner.heaviest, tag, outweighs);
                        inner.late_groups.joined(tag.group, now());
                    }
                    Arc::clone(&committing.waiters)
                }
                (_, None) => {
                    unreachable!("transaction {tid} is not durable, running or committing")
                }
            };
            if state.leading {
                self.wait_for_leader(&mut state, &waiters, tid, tag);
            } else {
                state.leading = true;
                state.leader = inherit::current_task();
                if requested {
                    self.await_batch(&mut state, tid, tag);
                }
                drop(state);
                self.lead(tag);
                state = self.state.lock();
            }
        }
    }

    /// Waits until `tid` is durable, or for a task that leads the commit of `tid`.
    pub(crate) fn wait_for_leader(
        &self,
        state: &mut MutexGuard<'_, JournalState>,
        waiters: &Condvar,
        tid: Tid,
        tag: IoTag,
    ) {
        self.boost_commit(state, tid, tag);
        let is_light = self.is_outweighed(state, tag);
        self.queue.begin_wait(tag, !is_light);
        let _edge = inherit::wait_for(&[state.leader]);
        let _step = waits::during(waits::WaitStep::Commit);
        waiters.wait(state);
    }

    /// Whether a usual caller weighs more than this one.
    fn is_outweighed(&self, state: &JournalState, tag: IoTag) -> bool {
        let heaviest = state.heaviest;
        heaviest.is_some_and(|heaviest| self.queue.outweighs(heaviest, tag))
    }

    /// Waits briefly for the usual fsync callers to join (group commit). The caller has made itself the leader.
    pub(crate) fn await_batch(
        &self,
        state: &mut MutexGuard<'_, JournalState>,
        tid: Tid,
        tag: IoTag,
    ) {
        assert!(state.leading, "only the leader waits for callers");
        if state
            .running
            .as_ref()
            .is_none_or(|running| running.tid != tid)
        {
            return;
        }
        let max_wait = state.tuning.max_batch;
        if self.is_outweighed(state, tag) {
            // It waits for the data of a heavier caller.
            self.queue.begin_wait(tag, false);
        }
        if let Some(waited) = wait_for_callers(&self.batch_full, state, max_wait) {
            state.stats.waited_batch.add(waited);
        }
    }

    /// Boosts the I/O of the commit under way to `tag`, also if `tid` is the next transaction, which waits
    /// for that commit.
    fn boost_commit(&self, state: &mut JournalState, tid: Tid, tag: IoTag) {
        if let Some(running) = &mut state.running
            && running.tid == tid
        {
            let boosted = running
                .waiter_tag
                .map(|now| self.queue.effective_tag(now, tag));
            running.waiter_tag = boosted.or(Some(tag));
        }
        self.boost_committing(state, tag);
    }

    /// Boosts the I/O of the commit under way to `tag`.
    pub(crate) fn boost_committing(&self, state: &mut JournalState, tag: IoTag) {
        if let Some(committing) = &mut state.committing {
            let boosted = self.queue.effective_tag(committing.tag, tag);
            if boosted != committing.tag {
                committing.tag = boosted;
                for io in &committing.ios {
                    self.queue.boost(io, boosted);
                }
            }
        }
        for io in &state.fast.ios {
            self.queue.boost(io, tag);
        }
    }

    /// Commits the running transaction. The caller has made itself the leader. An error aborts the
    /// journal, and the waiters get it from there.
    pub(crate) fn lead(&self, tag: IoTag) {
        let _step = waits::during(waits::WaitStep::Commit);
        let guard = OnUnwind::new(|| {
            self.shutdown(PANICKED);
            self.stop_leading();
        });
        let result = self.lead_steps(tag);
        if let Err(error) = result {
            self.fail(&error);
        }
        drop(guard);
        self.stop_leading();
    }

    pub(crate) fn stop_leading(&self) {
        let mut state = self.state.lock();
        assert!(state.leading, "only the leader stops leading");
        assert!(
            !state.batch.is_waiting(),
            "the leader has stopped waiting for callers"
        );
        state.leading = false;
        state.leader = TaskNo::default();
        if let Some(next) = &state.running {
            next.wake_leader();
        }
        drop(state);
        self.admission.notify_all();
        inherit::end_waits();
    }

    fn lead_steps(&self, tag: IoTag) -> Result<(), JournalError> {
        let Some(closed) = self.close_running()? else {
            return Ok(());
        };
        let (waiters, times, tid) = (Arc::clone(&closed.waiters), closed.times, closed.tid);
        let result = self
            .start_committing(closed, tag)
            .and_then(|written| self.write_record(&written).map(|()| written))
            .and_then(|written| self.finish(written));
        if let Err(error) = &result {
            self.fail(error);
        }
        waiters.notify_all();
        times.warn_if_slow(now(), tid);
        result.and_then(|()| self.clear_fast_area(tag))
    }

    /// Step 1, lock: no handle joins any more. Waits for the open ones, then takes the snapshot.
    fn close_running(&self) -> Result<Option<ClosedTransaction>, JournalError> {
        let mut state = self.state.lock();
        let lock_began = now();
        assert!(state.leading, "only the leader locks the transaction");
        let Some(running) = &mut state.running else {
            return Ok(None);
        };
        // A commit beside file data has locked it before.
        running.locked = true;
        while let Some(running) = state.running.as_ref().filter(|r| r.open > 0) {
            let _edge = inherit::wait_for(&running.holders);
            self.drained.wait(&mut state);
        }
        state.check()?;
        state.count_whole_commit();
        let running = state
            .running
            .as_mut()
            .expect("only the leader takes the running transaction");
        assert_eq!(running.reserved, 0, "credits end with their handles");
        assert!(
            running.holders.is_empty(),
            "every handle of a drained transaction has ended"
        );
        let blocks = std::mem::take(&mut running.blocks);
        let revokes = std::mem::take(&mut running.revokes);
        let mut closed = ClosedTransaction {
            tid: running.tid,
            snapshot: Vec::with_capacity(blocks.len()),
            revokes: revokes.into_iter().collect(),
            waiters: Arc::clone(&running.waiters),
            times: CommitTimes {
                started: running.started,
                requested: running.requested,
                lock_began,
                locked: now(),
                handles: running.handles,
                longest_wait: running.longest_wait,
            },
        };
        drop(state);
        for buf in blocks.into_values() {
            let mut content = buf.lock();
            assert_eq!(
                content.tid(),
                Some(closed.tid),
                "a block of the transaction carries its number until the snapshot"
            );
            content.set_tid(None);
            let data = content.snapshot();
            drop(content);
            let block = buf.block();
            closed.snapshot.push(BlockSnapshot { block, buf, data });
        }
        closed.snapshot.sort_unstable_by_key(|s| s.block);
        debug_assert!(
            closed.snapshot.is_sorted_by(|a, b| a.block < b.block),
            "a transaction has one buffer per block"
        );
        debug_assert!(
            closed
                .snapshot
                .iter()
                .all(|s| closed.revokes.binary_search(&s.block).is_err()),
            "a block is either logged or revoked by a transaction"
        );
        Ok(Some(closed))
    }

    /// Step 2, switch: takes the log blocks and allows the next transaction to start. Step 3, log: writes
    /// revoke blocks, descriptors and blocks, all at once and if they were not written ahead, and waits.
    fn start_committing(
        &self,
        closed: ClosedTransaction,
        tag: IoTag,
    ) -> Result<LoggedTransaction, JournalError> {
        let blocks = closed.snapshot.iter().map(|s| s.block).collect();
        let encoded = encoded_len(&self.format, closed.snapshot.len(), closed.revokes.len());
        let len = u32::try_from(encoded + 1).expect("bounded by the log's length");
        assert!(
            len <= self.costs.max_transaction,
            "credits bound the log blocks of a transaction"
        );
        let (start, tag, groups) = {
            let mut state = self.state.lock();
            state.check()?;
            let start = state.log.take(len);
            let running = state
                .running
                .take()
                .expect("only the leader takes the running transaction");
            assert!(
                running.tid == closed.tid && running.open == 0 && running.is_empty(),
                "no handle changes a locked transaction"
            );
            assert!(
                state.committing.is_none(),
                "one transaction at a time is committing"
            );
            // Other tasks than the leader may wait for it by now.
            let submitter = running.callers.submitter(tag);
            let boost = |waiter| self.queue.effective_tag(submitter, waiter);
            let groups = running.callers.groups().to_vec();
            state.committing = Some(CommittingTransaction {
                tid: closed.tid,
                start,
                blocks: Arc::new(blocks),
                waiters: Arc::clone(&closed.waiters),
                submitter,
                tag: running.waiter_tag.map_or(submitter, boost),
                ios: Vec::new(),
                callers: running.callers,
            });
            (start, submitter, groups)
        };
        self.admission.notify_all();
        let (sum, ios) = match self.take_log_ahead(&closed, start, tag) {
            Some(ahead) => ahead,
            None => self.submit_log(&closed, start, tag),
        };
        self.queue.share(&ios, &groups);
        self.track_ios(&ios, tag);
        let started = self.start_log(start, closed.tid, tag);
        let logged = wait_all(&ios);
        started?;
        logged?;
        Ok(LoggedTransaction {
            closed,
            start,
            len,
            sum,
        })
    }

    /// Starts to write revoke blocks, descriptors and blocks; returns the CRC for the commit record.
    fn submit_log(
        &self,
        closed: &ClosedTransaction,
        start: u32,
        tag: IoTag,
    ) -> (u32, Vec<IoHandle>) {
        let encoded = encode(&self.format, closed.tid, &closed.snapshot, &closed.revokes);
        let located = self.log_locations(start, encoded.blocks);
        let ios = submit_writes(&self.queue, self.block_size, located, tag);
        (encoded.sum, ios)
    }

    /// Log blocks from `start` on, with their locations on the device.
    pub(crate) fn log_locations(
        &self,
        start: u32,
        blocks: Vec<Buf>,
    ) -> impl Iterator<Item = (DevBlock, Buf)> {
        let ring = self.state.lock().log.clone();
        let indexed = blocks.into_iter().enumerate();
        indexed.map(move |(n, buf)| {
            let at = ring.after(start, n as u32);
            (self.map.locate(at).0, buf)
        })
    }

    /// If the superblock marks the log empty, it must record where the log starts before the first commit
    /// record is written.
    pub(crate) fn start_log(&self, start: u32, tid: Tid, tag: IoTag) -> Result<(), JournalError> {
        let barriers = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.marked_empty) {
                return Ok(());
            }
            state.tuning.barriers
        };
        self.clear_fast_area(tag)?;
        let order = if barriers {
            WriteOrder::Durable
        } else {
            WriteOrder::Plain
        };
        let mut block0 = self.block0.lock();
        assert_eq!(
            block0.raw.start.get(),
            0,
            "`marked_empty` is what the superblock has"
        );
        let change = SuperblockChange::Tail { start, tid };
        Ok(block0.write(change, &self.queue, order, tag)?)
    }

    /// Makes these requests, submitted with `tag`, known to callers that join the commit, so that they can
    /// boost them; boosts them if a caller with a better tag has joined since.
    fn track_ios(&self, ios: &[IoHandle], tag: IoTag) {
        let mut state = self.state.lock();
        let committing = state
            .committing
            .as_mut()
            .expect("only the leader ends the committing transaction");
        committing.ios = ios.to_vec();
        if committing.tag != tag {
            for io in ios {
                self.queue.boost(io, committing.tag);
            }
        }
    }

    /// Step 4, commit record: durable after everything before it (FLUSH before the write, FUA).
    fn write_record(&self, written: &LoggedTransaction) -> Result<(), JournalError> {
        let mut record = Buf::zeroed(self.block_size.bytes());
        let tid = written.closed.tid;
        build_commit(
            &self.format,
            tid,
            wall_clock(),
            written.sum,
            record.make_mut(),
        );
        let state = self.state.lock();
        // After an abort nothing more becomes durable.
        state.check()?;
        let at = state.log.after(written.start, written.len - 1);
        let offset = self.block_size.offset_of(self.map.locate(at).0);
        let mut bio = Bio::write(offset, vec![record]);
        if state.tuning.barriers {
            bio = bio.preflush_and_fua();
        }
        let committing = state.committing.as_ref();
        let committing = committing.expect("only the leader ends the committing transaction");
        assert_eq!(
            committing.tid, tid,
            "the record is that of the committing transaction"
        );
        let (tag, groups) = (committing.submitter, committing.callers.groups().to_vec());
        drop(state);
        let io = self.queue.submit(bio, tag);
        self.queue.share(std::slice::from_ref(&io), &groups);
        self.track_ios(std::slice::from_ref(&io), tag);
        io.wait()?;
        Ok(())
    }

    /// Step 5, finish: the blocks are listed for reclaim, revoked ones leave the lists, and the file system
    /// and then the waiters are notified.
    fn finish(&self, written: LoggedTransaction) -> Result<(), JournalError> {
        let LoggedTransaction {
            closed, start, len, ..
        } = written;
        let ended = now();
        let changed = closed.snapshot.len() as u64;
        let (blocks, tag) = {
            let state = self.state.lock();
            let committing = state.committing.as_ref();
            let committing = committing.expect("only the leader ends the committing transaction");
            (Arc::clone(&committing.blocks), committing.tag)
        };
        let mut dropped = {
            let mut lists = self.lists.lock();
            lists.push(closed.tid, start, len, ended, blocks, closed.snapshot)
        };
        dropped += self.drop_revoked(&closed.revokes, tag);
        let callbacks = self.callbacks.lock().on_commit.clone();
        for callback in callbacks {
            callback(closed.tid);
        }
        let mut state = self.state.lock();
        state.check()?;
        assert_eq!(
            state.durable.next(),
            closed.tid,
            "transactions become durable in the order of their numbers"
        );
        state.durable = closed.tid;
        let time = ended.since(closed.times.lock_began);
        self.end_batch(&mut state, time);
        let (free, capacity) = (state.log.free(), state.log.capacity());
        state.stats.dropped += dropped;
        state.stats.average_commit = state.batch.average();
        state
            .stats
            .record_commit(&closed.times, ended, changed, len);
        drop(state);
        let (wakes, over_memory_limit) = {
            let mut lists = self.lists.lock();
            let over_memory_limit = lists.exceeds_memory_limit(self.block_size);
            let due = over_memory_limit || lists.policy.is_low(free, capacity);
            (due && lists.worker.trigger(), over_memory_limit)
        };
        if wakes {
            self.reclaim_wake.notify_one();
        }
        if over_memory_limit {
            self.background_may_run.notify_all();
        }
        Ok(())
    }

    /// The commit of the committing transaction has taken `time`. Its callers submit their next requests soon, and those
    /// of the running transaction go on: the device idles for them.
    fn end_batch(&self, state: &mut JournalState, time: Duration) {
        let committing = state.committing.take();
        let mut callers = committing.map_or_else(Callers::default, |commit| commit.callers);
        let (served, waiting) = (callers.count(), state.callers());
        state.batch.commit_ended(served, waiting, time, now());
        if served + waiting == 0 {
            // The heaviest caller has stopped.
            state.heaviest = None;
        }
        if let Some(running) = &state.running {
            callers.add_groups(&running.callers);
        }
        self.queue.end_waits(callers.groups());
    }

    /// Takes revoked blocks out of the lists, after their home writes in flight have ended: the block may
    /// get another owner as soon as the file system is notified of the commit.
    fn drop_revoked(&self, revokes: &[DevBlock], tag: IoTag) -> u64 {
        let mut dropped = 0;
        let mut lists = self.lists.lock();
        for &block in revokes {
            while lists.is_writing(block) {
                for io in &lists.in_flight {
                    self.queue.boost(io, tag);
                }
                self.home_written.wait(&mut lists);
            }
            dropped += u64::from(lists.revoke(block));
        }
        dropped
    }
}
