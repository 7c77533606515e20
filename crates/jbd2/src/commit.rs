//! Committing: the running transaction becomes durable.
//!
//! There is no commit thread between a caller and the device: the first task that needs a
//! transaction durable leads, that is, does all the steps itself; those who come while it is under
//! way wait, and when it has ended one of those that wait for the next transaction leads that one.
//! The commit task leads for transactions that grew old or full.
//!
//! A commit writes no file data: data is on the device before the handle begins that refers to it.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_rt::inherit::{self, TaskNo};
use steadfs_rt::{Condvar, Instant, MutexGuard, OnUnwind, PANICKED, now, wall_clock};

use crate::io::{submit_writes, wait_all};
use crate::log_writer::{BlockSnapshot, encode, encoded_len};
use crate::sb::{SuperblockChange, WriteOrder};
use crate::transaction::{CommittingTransaction, JournalState};
use crate::{Journal, JournalError};
use steadfs_jbd2_format::build_commit;

/// How a transaction became durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Durable {
    /// A FLUSH that began after the call made it so: every write that had completed before the call
    /// is durable too. Never without barriers.
    Flushed,
    /// It was durable already, or the FLUSH had begun before the call: whoever needs other writes
    /// durable flushes the device.
    Already,
}

/// A transaction that no handle changes any more.
struct ClosedTransaction {
    tid: Tid,
    /// Its blocks as they were, sorted by home.
    snapshot: Vec<BlockSnapshot>,
    revokes: Vec<DevBlock>,
    waiters: Arc<Condvar>,
    times: CommitTimes,
}

/// What the statistics want to know of a commit.
struct CommitTimes {
    started: Instant,
    requested: Option<Instant>,
    lock_began: Instant,
    locked: Instant,
    handles: u64,
    longest_wait: Duration,
}

/// A transaction written to the log, its commit record excepted.
struct LoggedTransaction {
    closed: ClosedTransaction,
    start: u32,
    /// Log blocks, commit record included.
    len: u32,
    /// CRC-32 for the commit record (checksum version 1).
    sum: u32,
}

impl Journal {
    /// Makes transaction `tid` durable and waits. Callers share a commit; the first one does it.
    /// `tag` says who waits: a commit under way is raised to it.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]: it may not be durable.
    pub fn commit(&self, tid: Tid, tag: IoTag) -> Result<Durable, JournalError> {
        self.commit_as(tid, tag, true)
    }

    /// [`Journal::commit`]; `requested`: because somebody waits, not because of age or size.
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
                // No handle has this number yet: there is nothing to make durable.
                return Ok(Durable::Already);
            }
            let inner = &mut *state;
            let waiters = match (&mut inner.running, &mut inner.committing) {
                (Some(running), _) if running.tid == tid => {
                    // A locked one may look empty: its blocks are being snapshotted.
                    if running.is_empty() && running.open == 0 && !running.locked {
                        return Ok(Durable::Already);
                    }
                    if requested && running.requested.is_none() {
                        running.requested = Some(now());
                    }
                    running.callers += u32::from(!std::mem::replace(&mut counted, true));
                    if inner.batch_target.is_some_and(|all| running.callers >= all) {
                        inner.batch_target = None;
                        self.batch_full.notify_one();
                    }
                    Arc::clone(&running.waiters)
                }
                (_, Some(committing)) => {
                    assert_eq!(committing.tid, tid, "older transactions are durable");
                    committing.callers += u32::from(!std::mem::replace(&mut counted, true));
                    Arc::clone(&committing.waiters)
                }
                (_, None) => unreachable!("transaction {tid} is neither durable nor anywhere"),
            };
            if state.leading {
                self.boost_commit(&mut state, tid, tag);
                let _for = inherit::wait_for(&[state.leader]);
                waiters.wait(&mut state);
            } else {
                state.leading = true;
                state.leader = inherit::current_task();
                if requested {
                    state = self.await_batch(state, tid);
                }
                drop(state);
                self.lead(tag);
                state = self.state.lock();
            }
        }
    }

    /// WaitStats for those who will probably ask for this transaction, too. The caller has made itself the leader.
    fn await_batch<'a>(
        &'a self,
        mut state: MutexGuard<'a, JournalState>,
        tid: Tid,
    ) -> MutexGuard<'a, JournalState> {
        let callers =
            |state: &JournalState| state.running.as_ref().map_or(0, |running| running.callers);
        let (here, began) = (callers(&state), now());
        if state
            .running
            .as_ref()
            .is_none_or(|running| running.tid != tid)
        {
            return state;
        }
        let (usual, longest) = (state.stats.average_commit, state.tuning.max_batch);
        let Some((all, patience)) = state.batch.wait_for(here, usual, longest, began) else {
            return state;
        };
        state.batch_target = Some(all);
        while state.batch_target.is_some() && state.aborted.is_none() {
            let Some(rest) = patience
                .checked_sub(began.elapsed())
                .filter(|d| !d.is_zero())
            else {
                break;
            };
            self.batch_full.wait_for(&mut state, rest);
        }
        state.batch_target = None;
        let came = callers(&state).saturating_sub(here);
        state.batch.waited(came, all - here);
        state.stats.waited_batch.add(began.elapsed());
        state
    }

    /// Raises the I/O of the commit under way to `tag`, also when `tid` is the next one: that waits
    /// for it.
    fn boost_commit(&self, state: &mut JournalState, tid: Tid, tag: IoTag) {
        if let Some(running) = &mut state.running
            && running.tid == tid
        {
            let raised = running
                .waiter_tag
                .map(|now| self.queue.effective_tag(now, tag));
            running.waiter_tag = raised.or(Some(tag));
        }
        self.boost_committing(state, tag);
    }

    /// Raises the I/O of the commit under way to `tag`.
    pub(crate) fn boost_committing(&self, state: &mut JournalState, tag: IoTag) {
        if let Some(committing) = &mut state.committing {
            let raised = self.queue.effective_tag(committing.tag, tag);
            if raised != committing.tag {
                committing.tag = raised;
                for io in &committing.ios {
                    self.queue.boost(io, raised);
                }
            }
        }
    }

    /// Commits the running transaction. The caller has made itself the leader. An error aborts the
    /// journal; the callers find it there.
    fn lead(&self, tag: IoTag) {
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

    fn stop_leading(&self) {
        let mut state = self.state.lock();
        assert!(state.leading);
        state.leading = false;
        state.leader = TaskNo::default();
        let next = state.running.as_ref().map(|r| Arc::clone(&r.waiters));
        drop(state);
        // One of those who wait for the next transaction leads it; the others go on sleeping.
        if let Some(next) = next {
            next.notify_one();
        }
        self.admission.notify_all();
    }

    fn lead_steps(&self, tag: IoTag) -> Result<(), JournalError> {
        let Some(closed) = self.close_running()? else {
            return Ok(());
        };
        let waiters = Arc::clone(&closed.waiters);
        let result = self
            .start_committing(closed, tag)
            .and_then(|written| self.write_record(&written).map(|()| written))
            .and_then(|written| self.finish(written));
        if let Err(error) = &result {
            self.fail(error);
        }
        waiters.notify_all();
        result
    }

    /// Step 1, lock: no handle joins any more; waits for the open ones, then takes the snapshot.
    fn close_running(&self) -> Result<Option<ClosedTransaction>, JournalError> {
        let mut state = self.state.lock();
        let lock_began = now();
        let Some(running) = &mut state.running else {
            return Ok(None);
        };
        assert!(!running.locked, "one leader at a time");
        running.locked = true;
        while let Some(running) = state.running.as_ref().filter(|r| r.open > 0) {
            let _for = inherit::wait_for(&running.holders);
            self.drained.wait(&mut state);
        }
        state.check()?;
        let running = state.running.as_mut().expect("only the leader takes it");
        assert_eq!(running.reserved, 0, "credits end with their handles");
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
            assert_eq!(content.tid(), Some(closed.tid));
            content.set_tid(None);
            let data = content.snapshot();
            drop(content);
            let block = buf.block();
            closed.snapshot.push(BlockSnapshot { block, buf, data });
        }
        closed.snapshot.sort_unstable_by_key(|s| s.block);
        Ok(Some(closed))
    }

    /// Step 2, switch: takes the log blocks, lets the next transaction start; step 3, log: writes
    /// revoke blocks, descriptors and blocks, all at once, and waits.
    fn start_committing(
        &self,
        closed: ClosedTransaction,
        tag: IoTag,
    ) -> Result<LoggedTransaction, JournalError> {
        let blocks = closed.snapshot.iter().map(|s| s.block).collect();
        let encoded = encoded_len(&self.format, closed.snapshot.len(), closed.revokes.len());
        let len = u32::try_from(encoded + 1).expect("bounded by the log's length");
        assert!(len <= self.costs.max_transaction, "credits are counted");
        let (start, tag) = {
            let mut state = self.state.lock();
            state.check()?;
            let start = state.log.take(len);
            let running = state.running.take().expect("only the leader takes it");
            assert!(running.tid == closed.tid && running.open == 0);
            // Others than the leader may wait for it by now.
            let waiter = running.waiter_tag;
            let tag = waiter.map_or(tag, |waiter| self.queue.effective_tag(tag, waiter));
            state.committing = Some(CommittingTransaction {
                tid: closed.tid,
                start,
                blocks: Arc::new(blocks),
                waiters: Arc::clone(&closed.waiters),
                tag,
                ios: Vec::new(),
                callers: running.callers,
            });
            (start, tag)
        };
        self.admission.notify_all();
        let encoded = encode(&self.format, closed.tid, &closed.snapshot, &closed.revokes);
        let located = self.log_locations(start, encoded.blocks);
        let ios = submit_writes(&self.queue, self.block_size, located, tag);
        self.track_ios(&ios, tag);
        let started = self.start_log(start, closed.tid, tag);
        let logged = wait_all(&ios);
        started?;
        logged?;
        Ok(LoggedTransaction {
            closed,
            start,
            len,
            sum: encoded.sum,
        })
    }

    /// Log blocks from `start` on, with their indexed on the device.
    fn log_locations(&self, start: u32, blocks: Vec<Buf>) -> impl Iterator<Item = (DevBlock, Buf)> {
        let ring = self.state.lock().log.clone();
        let indexed = blocks.into_iter().enumerate();
        indexed.map(move |(n, buf)| {
            let at = ring.after(start, n as u32);
            (self.map.locate(at).0, buf)
        })
    }

    /// If the superblock says that the log is empty, it must say where the log starts before the
    /// first commit record is there.
    fn start_log(&self, start: u32, tid: Tid, tag: IoTag) -> Result<(), JournalError> {
        let barriers = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.marked_empty) {
                return Ok(());
            }
            state.tuning.barriers
        };
        let order = if barriers {
            WriteOrder::Durable
        } else {
            WriteOrder::Plain
        };
        let mut block0 = self.block0.lock();
        assert_eq!(block0.raw.start.get(), 0);
        let change = SuperblockChange::Tail { start, tid };
        Ok(block0.write(change, &self.queue, order, tag)?)
    }

    /// Lets those who join the commit raise these requests, submitted with `tag`; raises them if one
    /// has joined since.
    fn track_ios(&self, ios: &[IoHandle], tag: IoTag) {
        let mut state = self.state.lock();
        let committing = state.committing.as_mut().expect("the leader's");
        committing.ios = ios.to_vec();
        if committing.tag != tag {
            for io in ios {
                self.queue.boost(io, committing.tag);
            }
        }
    }

    /// Step 4, record: the commit record, after everything before it, durable itself.
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
        // After an abort nothing becomes durable that was not.
        state.check()?;
        let at = state.log.after(written.start, written.len - 1);
        let offset = self.block_size.offset_of(self.map.locate(at).0);
        let mut bio = Bio::write(offset, vec![record]);
        if state.tuning.barriers {
            bio = bio.preflush_and_fua();
        }
        let tag = state.committing.as_ref().expect("the leader's").tag;
        drop(state);
        let io = self.queue.submit(bio, tag);
        self.track_ios(std::slice::from_ref(&io), tag);
        io.wait()?;
        Ok(())
    }

    /// Step 5, done: the blocks are listed for reclaim, revoked ones leave the lists, the file system
    /// hears of it, and everyone who waits does.
    fn finish(&self, written: LoggedTransaction) -> Result<(), JournalError> {
        let LoggedTransaction {
            closed, start, len, ..
        } = written;
        let ended = now();
        let changed = closed.snapshot.len() as u64;
        let (blocks, tag) = {
            let state = self.state.lock();
            let committing = state.committing.as_ref().expect("the leader's");
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
        assert_eq!(state.durable.next(), closed.tid);
        state.durable = closed.tid;
        let served = state.committing.take().map_or(0, |commit| commit.callers);
        let waiting = state.running.as_ref().map_or(0, |running| running.callers);
        state.batch.commit_ended(served, waiting, now());
        let (free, capacity) = (state.log.free(), state.log.capacity());
        state.stats.dropped += dropped;
        record_commit(&mut state, &closed.times, ended, changed, len);
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

    /// Takes revoked blocks out of the lists; waits for writes home of them that are in flight: the
    /// block may get another owner as soon as the file system hears of the commit.
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

fn record_commit(
    state: &mut JournalState,
    times: &CommitTimes,
    ended: Instant,
    changed: u64,
    len: u32,
) {
    let stats = &mut state.stats;
    stats.record_commit_time(ended.since(times.lock_began));
    stats.transactions += 1;
    if let Some(requested) = times.requested {
        stats.requested += 1;
        stats.request_delay += times.lock_began.since(requested);
    }
    stats.wait += times.longest_wait;
    stats.running += times.lock_began.since(times.started);
    stats.locked += times.locked.since(times.lock_began);
    stats.logging += ended.since(times.locked);
    stats.handles += times.handles;
    stats.blocks += changed;
    stats.logged += u64::from(len);
}
