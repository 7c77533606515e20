//! Freeing log space: blocks are written home, then the tail moves (jbd2's "checkpoint").
//!
//! The order that keeps every crash harmless: home writes complete; a FLUSH makes them durable; the
//! superblock with the new tail is written durably; only then is the space before the tail free. If
//! any of these fails, the tail stays and the journal aborts. One task reclaims at a time, whoever
//! it is: the background, a handle that found too little space, or a flush.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::IoHandle;
use steadfs_rt::now;

use crate::io::{submit_writes, wait_all};
use crate::policy::{Advice, LogView};
use crate::sb::{Change, Order};
use crate::{Journal, JournalError};

/// Most blocks of one batch of home writes, in bytes.
const BATCH_BYTES: usize = 4 << 20;

/// Handles that wait for log space. Whoever reclaims meanwhile, for whatever reason and on whoever's
/// account, does it for them: what it has submitted is raised, what it submits goes out as theirs.
#[derive(Default)]
pub(crate) struct SpaceWaiters {
    count: usize,
    /// The best of their tags.
    tag: Option<IoTag>,
}

/// One of them.
struct SpaceWaiter<'j>(&'j Journal);

impl Drop for SpaceWaiter<'_> {
    fn drop(&mut self) {
        let waiters = &mut self.0.lists.lock().waiters;
        waiters.count -= 1;
        if waiters.count == 0 {
            waiters.tag = None;
        }
    }
}

impl Journal {
    fn batch_blocks(&self) -> usize {
        (BATCH_BYTES / self.block_size.bytes()).max(1)
    }

    /// Somebody of this tag waits for log space until the guard is dropped. Raises what is under way.
    fn await_space(&self, tag: IoTag) -> SpaceWaiter<'_> {
        let lists = &mut *self.lists.lock();
        let waiters = &mut lists.waiters;
        waiters.count += 1;
        let best = waiters.tag.map_or(tag, |now| self.queue.raised(now, tag));
        waiters.tag = Some(best);
        for io in &lists.in_flight {
            self.queue.boost(io, best);
        }
        SpaceWaiter(self)
    }

    /// What reclaim of tag `tag` is submitted as.
    fn for_waiters(&self, tag: IoTag, waiters: &SpaceWaiters) -> IoTag {
        waiters.tag.map_or(tag, |best| self.queue.raised(tag, best))
    }

    /// Lets those who wait for log space raise these requests, submitted with `tag`; raises them if one
    /// has come since.
    fn note_reclaim(&self, ios: &[IoHandle], tag: IoTag) {
        let lists = &mut *self.lists.lock();
        lists.in_flight = ios.to_vec();
        let raised = self.for_waiters(tag, &lists.waiters);
        if raised != tag {
            for io in ios {
                self.queue.boost(io, raised);
            }
        }
    }

    /// Waits until `need` log blocks are free, reclaiming them if nobody else does. `tag`: who waits.
    pub(crate) fn reclaim_space(&self, need: u32, tag: IoTag) -> Result<(), JournalError> {
        let _waits = self.await_space(tag);
        let _one = self.reclaiming.lock();
        loop {
            let free = {
                let state = self.state.lock();
                state.check()?;
                state.log.free()
            };
            if free >= need {
                return Ok(());
            }
            let freeable = self.lists.lock().tail().blocks;
            // Enough for the caller, and half as much again so that the next one finds some.
            let goal = need.saturating_add(need / 2) - free;
            if freeable < goal && self.write_home(tag, |_, before| before < goal)? > 0 {
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
        while self.write_home(tag, |_, _| true)? > 0 {}
        self.move_tail(tag)?;
        Ok(())
    }

    /// Writes home until no more than twice what the policy wants is kept in memory: the background has
    /// not kept up.
    pub(crate) fn bound_memory(&self) -> Result<(), JournalError> {
        let too_much = || self.lists.lock().is_twice_heavy(self.block_size);
        while too_much() {
            let _one = self.reclaiming.lock();
            self.state.lock().check()?;
            if self.write_home(IoTag::background(), |_, _| true)? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Does what the policy advises, one step; returns whether there may be more.
    pub(crate) fn reclaim_in_background(&self) -> Result<bool, JournalError> {
        let _one = self.reclaiming.lock();
        let tag = IoTag::background();
        let (advice, max_age, short_by) = self.advice()?;
        self.lists.lock().going = advice != Advice::Rest;
        match advice {
            Advice::Rest => Ok(false),
            Advice::MoveTail => {
                let moved = self.move_tail(tag)?;
                self.state.lock().stats.freed_in_background += u64::from(moved);
                Ok(moved > 0)
            }
            Advice::Write => {
                let wanted = |age: Duration, before: u32| age >= max_age || before < short_by;
                if self.write_home(tag, wanted)? == 0 {
                    // Memory, not log space or age, asks for it: the oldest first.
                    self.write_home(tag, |_, _| true)?;
                }
                Ok(true)
            }
        }
    }

    /// The policy's advice, its age limit, and the log blocks missing to its goal.
    fn advice(&self) -> Result<(Advice, Duration, u32), JournalError> {
        let (free, capacity) = {
            let state = self.state.lock();
            state.check()?;
            (state.log.free(), state.log.capacity())
        };
        let lists = self.lists.lock();
        let policy = &lists.policy;
        let view = LogView {
            capacity,
            free,
            freeable: lists.tail().blocks,
            oldest: lists.oldest_age(now()),
            unwritten: lists.unwritten() * self.block_size.bytes_u64(),
            going: lists.going,
        };
        let short_by = policy.goal(capacity).saturating_sub(free);
        Ok((policy.advise(&view), policy.max_age, short_by))
    }

    /// Writes one batch of blocks home and waits; returns how many. The caller reclaims alone.
    fn write_home(
        &self,
        tag: IoTag,
        wanted: impl FnMut(Duration, u32) -> bool,
    ) -> Result<usize, JournalError> {
        let max = self.batch_blocks();
        let (batch, tag) = {
            let mut lists = self.lists.lock();
            let tag = self.for_waiters(tag, &lists.waiters);
            (lists.take_batch(max, now(), wanted), tag)
        };
        if batch.is_empty() {
            return Ok(0);
        }
        let blocks = batch.iter().map(|b| (b.block, b.data.clone()));
        let ios = submit_writes(&self.queue, self.block_size, blocks, tag);
        self.note_reclaim(&ios, tag);
        let result = wait_all(&ios);
        self.lists.lock().end_batch(&batch, result.is_ok());
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
            let tag = self.for_waiters(tag, &lists.waiters);
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
            Order::AfterAll
        } else {
            Order::Plain
        };
        let change = Change::Tail { start, tid };
        let written = self
            .block0
            .lock()
            .write_telling(change, &self.queue, order, tag, |io| {
                self.note_reclaim(std::slice::from_ref(io), tag);
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
