//! Reclaim of log space: blocks are written to their home locations, then the tail moves (jbd2's
//! "checkpoint").
//!
//! **Rule.** Home writes complete; a FLUSH makes them durable; the superblock with the new tail is
//! written durably; only then is the space before the tail free. If any of these steps fails, the tail
//! stays and the journal aborts. So a crash at any point leaves a log that replays correctly.
//!
//! One task reclaims at a time: the background reclaimer, a handle that finds too little space, or a flush.
//! For log space the background reclaimer writes at most 512 KiB per step, so that a handle that arrives
//! waits for one short step. It begins no step while a handle waits: the handle continues with what is
//! already written. For memory it writes 4 MiB per step, even if handles wait.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::IoHandle;
use steadfs_rt::now;

use crate::io::{submit_writes, wait_all};
use crate::policy::{Advice, LogView};
use crate::sb::{SuperblockChange, WriteOrder};
use crate::{Journal, JournalError};

/// Size limit of a batch of home writes, in bytes, for a waiting handle, a flush, or to relieve memory.
const HOME_WRITE_BYTES: usize = 4 << 20;
/// … and of the background reclaimer for log space: a handle that needs space waits for at most one of them.
const BACKGROUND_HOME_WRITE_BYTES: usize = 512 << 10;

/// Handles that wait for log space. Reclaim by any task serves them (priority inheritance): requests in
/// flight are boosted to their best tag, new ones are submitted with it.
#[derive(Default)]
pub(crate) struct SpaceWaiters {
    count: usize,
    /// Their best tag.
    tag: Option<IoTag>,
}

/// A handle that waits for log space, until this is dropped.
pub(crate) struct SpaceWaiter<'j>(&'j Journal);

impl Drop for SpaceWaiter<'_> {
    fn drop(&mut self) {
        let waiters = &mut self.0.lists.lock().waiters;
        assert!(waiters.count > 0, "a waiting handle is counted");
        waiters.count -= 1;
        if waiters.count == 0 {
            waiters.tag = None;
            self.0.background_may_run.notify_all();
        }
    }
}

impl Journal {
    /// Waits until no handle waits for log space, so that the background reclaimer does not take the
    /// `reclaiming` lock again before them. Does not wait if the memory limit is exceeded.
    fn yield_to_space_waiters(&self) {
        let mut lists = self.lists.lock();
        while lists.waiters.count > 0 && !lists.exceeds_memory_limit(self.block_size) {
            self.background_may_run.wait(&mut lists);
        }
    }

    /// A handle with this tag waits for log space until the guard is dropped. Boosts requests in flight.
    pub(crate) fn add_space_waiter(&self, tag: IoTag) -> SpaceWaiter<'_> {
        let lists = &mut *self.lists.lock();
        let waiters = &mut lists.waiters;
        waiters.count += 1;
        let best = waiters
            .tag
            .map_or(tag, |now| self.queue.effective_tag(now, tag));
        waiters.tag = Some(best);
        for io in &lists.in_flight {
            self.queue.boost(io, best);
        }
        SpaceWaiter(self)
    }

    /// The tag that reclaim with `tag` submits requests with.
    fn tag_for_waiters(&self, tag: IoTag, waiters: &SpaceWaiters) -> IoTag {
        waiters
            .tag
            .map_or(tag, |best| self.queue.effective_tag(tag, best))
    }

    /// Makes these requests, submitted with `tag`, known to handles that wait for log space, so that they can
    /// boost them; boosts them if such a handle has arrived since.
    fn track_reclaim(&self, ios: &[IoHandle], tag: IoTag) {
        let lists = &mut *self.lists.lock();
        lists.in_flight = ios.to_vec();
        let boosted = self.tag_for_waiters(tag, &lists.waiters);
        if boosted != tag {
            for io in ios {
                self.queue.boost(io, boosted);
            }
        }
    }

    /// Waits until `need` log blocks are free, and reclaims them if no other task does. `tag`: the caller's.
    pub(crate) fn reclaim_space(&self, need: u32, tag: IoTag) -> Result<(), JournalError> {
        assert!(
            need <= self.costs.max_transaction,
            "a transaction needs no more than its limit"
        );
        let _waits = self.add_space_waiter(tag);
        let _one = self.reclaiming.lock();
        loop {
            let (free, capacity) = self.checked_log_space()?;
            if free >= need {
                return Ok(());
            }
            let (freeable, helped) = {
                let lists = self.lists.lock();
                (lists.tail().blocks, lists.background_frees(free, capacity))
            };
            // Enough for the caller, and half of that again for the next one, unless the background
            // reclaimer is about to free more.
            let spare = if helped { 0 } else { need / 2 };
            let goal = need.saturating_add(spare) - free;
            if freeable < goal
                && self.write_home(tag, HOME_WRITE_BYTES, |_, before| before < goal)? > 0
            {
                continue;
            }
            let moved = self.move_tail(tag)?;
            assert!(
                moved > 0,
                "a transaction fits beside the committing one, so the tail can move"
            );
            self.state.lock().stats.freed_by_waiters += u64::from(moved);
        }
    }

    /// Writes all blocks to their home locations and moves the tail past all durable transactions.
    pub(crate) fn reclaim_all(&self, tag: IoTag) -> Result<(), JournalError> {
        let _one = self.reclaiming.lock();
        while self.write_home(tag, HOME_WRITE_BYTES, |_, _| true)? > 0 {}
        self.move_tail(tag)?;
        Ok(())
    }

    /// If unwritten blocks take more than twice the memory that the policy allows, the background reclaimer is
    /// too slow: writes blocks until they take less.
    pub(crate) fn bound_memory(&self) -> Result<(), JournalError> {
        let too_much = || {
            self.lists
                .lock()
                .exceeds_memory_limit_twice(self.block_size)
        };
        while too_much() {
            let _one = self.reclaiming.lock();
            self.state.lock().check()?;
            if self.write_home(IoTag::background(), HOME_WRITE_BYTES, |_, _| true)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Does one step that the policy advises; returns whether there may be more to do.
    pub(crate) fn reclaim_in_background(&self) -> Result<bool, JournalError> {
        self.yield_to_space_waiters();
        let _one = self.reclaiming.lock();
        let tag = IoTag::background();
        let (advice, max_age, short_by) = self.advice()?;
        self.lists.lock().reclaiming_space = advice != Advice::Idle;
        match advice {
            Advice::Idle => Ok(false),
            Advice::MoveTail => {
                let moved = self.move_tail(tag)?;
                self.state.lock().stats.freed_in_background += u64::from(moved);
                Ok(moved > 0)
            }
            Advice::Write => {
                let wanted = |age: Duration, before: u32| age >= max_age || before < short_by;
                self.write_home(tag, BACKGROUND_HOME_WRITE_BYTES, wanted)?;
                Ok(true)
            }
            Advice::RelieveMemory => {
                self.write_home(tag, HOME_WRITE_BYTES, |_, _| true)?;
                Ok(true)
            }
        }
    }

    /// Free log blocks and the log's capacity in blocks.
    fn checked_log_space(&self) -> Result<(u32, u32), JournalError> {
        let state = self.state.lock();
        state.check()?;
        Ok((state.log.free(), state.log.capacity()))
    }

    /// The policy's advice, its age limit, and the number of log blocks to free until its goal.
    fn advice(&self) -> Result<(Advice, Duration, u32), JournalError> {
        let (free, capacity) = self.checked_log_space()?;
        let mut lists = self.lists.lock();
        lists.relieving_memory = lists.exceeds_memory_limit(self.block_size);
        let policy = &lists.policy;
        let view = LogView {
            capacity,
            free,
            freeable: lists.tail().blocks,
            oldest: lists.oldest_age(now()),
            over_memory_limit: lists.relieving_memory,
            reclaiming_space: lists.reclaiming_space,
            largest: self.costs.max_transaction,
        };
        let short_by = policy.goal(capacity).saturating_sub(free);
        Ok((policy.advise(&view), policy.max_age, short_by))
    }

    /// Writes one batch of at most `bytes` bytes to the home locations and waits; returns the number of
    /// blocks. The caller holds `reclaiming`.
    fn write_home(
        &self,
        tag: IoTag,
        bytes: usize,
        wanted: impl FnMut(Duration, u32) -> bool,
    ) -> Result<usize, JournalError> {
        let max = (bytes / self.block_size.bytes()).max(1);
        let (batch, tag) = {
            let mut lists = self.lists.lock();
            let tag = self.tag_for_waiters(tag, &lists.waiters);
            (lists.start_home_writes(max, now(), wanted), tag)
        };
        assert!(batch.len() <= max, "a batch of home writes is bounded");
        if batch.is_empty() {
            return Ok(0);
        }
        let blocks = batch.iter().map(|b| (b.block, b.data.clone()));
        let ios = submit_writes(&self.queue, self.block_size, blocks, tag);
        self.track_reclaim(&ios, tag);
        let result = wait_all(&ios);
        self.lists.lock().end_home_writes(&batch, result.is_ok());
        self.home_written.notify_all();
        if let Err(error) = result {
            return Err(self.fail(&error.into()));
        }
        self.state.lock().stats.written_home += batch.len() as u64;
        Ok(batch.len())
    }

    /// Moves the tail past the transactions whose blocks are all written to their home locations; returns
    /// the number of log blocks freed. The caller holds `reclaiming`.
    fn move_tail(&self, tag: IoTag) -> Result<u32, JournalError> {
        let (tail, tid, start, barriers, tag) = {
            let lists = self.lists.lock();
            let tail = lists.tail();
            let tag = self.tag_for_waiters(tag, &lists.waiters);
            // Under both locks a transaction that becomes durable now is either in the lists already or
            // still the committing one.
            let state = self.state.lock();
            state.check()?;
            let (tid, start) = match (tail.first, &state.committing) {
                (Some(first), _) => first,
                (None, Some(committing)) => (committing.tid, committing.start),
                (None, None) => (state.upcoming(), state.log.head()),
            };
            (tail, tid, start, state.tuning.barriers, tag)
        };
        if tail.transactions == 0 {
            return Ok(0);
        }
        assert!(
            tail.blocks as usize >= tail.transactions,
            "every transaction takes log space"
        );
        let order = if barriers {
            WriteOrder::AfterFlush
        } else {
            WriteOrder::Plain
        };
        let change = SuperblockChange::Tail { start, tid };
        let written = self
            .block0
            .lock()
            .write_tracked(change, &self.queue, order, tag, |io| {
                self.track_reclaim(std::slice::from_ref(io), tag);
            });
        self.lists.lock().in_flight.clear();
        if let Err(error) = written {
            return Err(self.fail(&error.into()));
        }
        self.lists.lock().release(tail.transactions);
        let mut state = self.state.lock();
        state.log.release(tail.blocks);
        state.stats.tail_moves += 1;
        drop(state);
        self.admission.notify_all();
        Ok(tail.blocks)
    }
}
