//! Freeing log space: blocks are written home, then the tail moves (jbd2's "checkpoint").
//!
//! The order that keeps every crash harmless: home writes complete; a FLUSH makes them durable; the
//! superblock with the new tail is written durably; only then is the space before the tail free. If
//! any of these fails, the tail stays and the journal aborts. One task reclaims at a time, whoever
//! it is: the background, a handle that found too little space, or a flush. For log space the background
//! works in steps short enough to be waited for, and begins none while a handle waits: that one goes on
//! from what is written already. For memory it writes much at a time, whoever waits.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::IoHandle;
use steadfs_rt::now;

use crate::io::{submit_writes, wait_all};
use crate::policy::{Advice, LogView};
use crate::sb::{SuperblockChange, WriteOrder};
use crate::{Journal, JournalError};

/// Most of one batch of home writes, in bytes, of those who wait for it and where memory is short.
const BATCH_BYTES: usize = 4 << 20;
/// … and of the background otherwise: who comes to wait for log space stands behind one of these.
const STEP_BYTES: usize = 512 << 10;

/// Handles that wait for log space. Whoever reclaims meanwhile, for whatever reason and on whoever's
/// account, does it for them: what it has submitted is raised, what it submits goes out as theirs.
#[derive(Default)]
pub(crate) struct SpaceWaiters {
    count: usize,
    /// The best of their tags.
    tag: Option<IoTag>,
}

/// One of them.
pub(crate) struct SpaceWaiter<'j>(&'j Journal);

impl Drop for SpaceWaiter<'_> {
    fn drop(&mut self) {
        let waiters = &mut self.0.lists.lock().waiters;
        waiters.count -= 1;
        if waiters.count == 0 {
            waiters.tag = None;
            self.0.background_may_run.notify_all();
        }
    }
}

impl Journal {
    /// WaitStats until no handle waits for log space, so that the background does not take the lock of
    /// reclaim again before them; not where memory is short.
    fn yield_to_space_waiters(&self) {
        let mut lists = self.lists.lock();
        while lists.waiters.count > 0 && !lists.exceeds_memory_limit(self.block_size) {
            self.background_may_run.wait(&mut lists);
        }
    }

    /// Somebody of this tag waits for log space until the guard is dropped. Raises what is under way.
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

    /// What reclaim of tag `tag` is submitted as.
    fn tag_for_waiters(&self, tag: IoTag, waiters: &SpaceWaiters) -> IoTag {
        waiters
            .tag
            .map_or(tag, |best| self.queue.effective_tag(tag, best))
    }

    /// Lets those who wait for log space raise these requests, submitted with `tag`; raises them if one
    /// has come since.
    fn track_reclaim(&self, ios: &[IoHandle], tag: IoTag) {
        let lists = &mut *self.lists.lock();
        lists.in_flight = ios.to_vec();
        let raised = self.tag_for_waiters(tag, &lists.waiters);
        if raised != tag {
            for io in ios {
                self.queue.boost(io, raised);
            }
        }
    }

    /// WaitStats until `need` log blocks are free, reclaiming them if nobody else does. `tag`: who waits.
    pub(crate) fn reclaim_space(&self, need: u32, tag: IoTag) -> Result<(), JournalError> {
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
            // Enough for the caller, and half as much again so that the next one finds some; the
            // background sees to that one where there is a background.
            let spare = if helped { 0 } else { need / 2 };
            let goal = need.saturating_add(spare) - free;
            if freeable < goal && self.write_home(tag, BATCH_BYTES, |_, before| before < goal)? > 0
            {
                continue;
            }
            let moved = self.move_tail(tag)?;
            assert!(moved > 0, "a transaction fits beside the committing one");
            self.state.lock().stats.freed_by_waiters += u64::from(moved);
        }
    }

    /// Writes everything home and moves the tail past all durable transactions.
    pub(crate) fn reclaim_all(&self, tag: IoTag) -> Result<(), JournalError> {
        let _one = self.reclaiming.lock();
        while self.write_home(tag, BATCH_BYTES, |_, _| true)? > 0 {}
        self.move_tail(tag)?;
        Ok(())
    }

    /// Writes home until no more than twice what the policy wants is kept in memory: the background has
    /// not kept up.
    pub(crate) fn bound_memory(&self) -> Result<(), JournalError> {
        let too_much = || {
            self.lists
                .lock()
                .exceeds_memory_limit_twice(self.block_size)
        };
        while too_much() {
            let _one = self.reclaiming.lock();
            self.state.lock().check()?;
            if self.write_home(IoTag::background(), BATCH_BYTES, |_, _| true)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Does what the policy advises, one step; returns whether there may be more.
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
                self.write_home(tag, STEP_BYTES, wanted)?;
                Ok(true)
            }
            Advice::RelieveMemory => {
                self.write_home(tag, BATCH_BYTES, |_, _| true)?;
                Ok(true)
            }
        }
    }

    /// Log blocks that are free, and all of them.
    fn checked_log_space(&self) -> Result<(u32, u32), JournalError> {
        let state = self.state.lock();
        state.check()?;
        Ok((state.log.free(), state.log.capacity()))
    }

    /// The policy's advice, its age limit, and the log blocks missing to its goal.
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

    /// Writes one batch of blocks, of `bytes` at most, home and waits; returns how many. The caller
    /// reclaims alone.
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

    /// Moves the tail past the transactions whose blocks are all home; returns the log blocks freed.
    /// The caller reclaims alone.
    fn move_tail(&self, tag: IoTag) -> Result<u32, JournalError> {
        let (tail, tid, start, barriers, tag) = {
            let lists = self.lists.lock();
            let tail = lists.tail();
            let tag = self.tag_for_waiters(tag, &lists.waiters);
            // Both locks: a transaction that becomes durable now is either in the lists already or
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
