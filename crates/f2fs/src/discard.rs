//! Discards free blocks.
//!
//! **Rule.** Only blocks that no checkpoint refers to are discarded: those that a durable checkpoint freed. A run is
//! allocated while it is being discarded, so nothing is written to it.
//!
//! With the option `discard` the task `f2fs_discard` discards the blocks that each checkpoint freed, at idle priority,
//! at most 8 runs each 50 ms. FITRIM discards all free blocks.

mod task;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use steadfs_rt::{Condvar, JoinHandle, Mutex, Rank};

use crate::disk::SegNo;
use crate::segment::BlockBitmap;

/// Length of the pause (`min_discard_issue_time`).
const BATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Blocks to be discarded, and the task that does it.
pub struct Discards {
    state: Mutex<DiscardState>,
    work: Condvar,
}

#[derive(Default)]
struct DiscardState {
    /// Blocks to be discarded, by segment.
    pending: BTreeMap<u32, BlockBitmap>,
    running: Option<JoinHandle<()>>,
    stop: bool,
    /// The task waits while the volume is frozen.
    suspended: bool,
    /// Runs and blocks discarded.
    done: (u64, u64),
}

impl Discards {
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, DiscardState::default()),
            work: Condvar::new(),
        }
    }

    /// Runs and blocks discarded, and segments with pending blocks.
    pub fn counts(&self) -> (u64, u64, usize) {
        let state = self.state.lock();
        (state.done.0, state.done.1, state.pending.len())
    }

    /// Adds blocks that a checkpoint freed, if the task runs.
    pub fn add(&self, freed: Vec<(SegNo, BlockBitmap)>) {
        let mut state = self.state.lock();
        if state.running.is_none() || freed.is_empty() {
            return;
        }
        for (segment, map) in freed {
            let pending = state.pending.entry(segment.0).or_insert(BlockBitmap::EMPTY);
            *pending = pending.or(map);
        }
        self.work.notify_one();
    }

    /// Whether the task runs.
    pub fn is_running(&self) -> bool {
        self.state.lock().running.is_some()
    }

    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn start(&self, spawn: impl FnOnce() -> io::Result<JoinHandle<()>>) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.running.is_none() {
            assert!(
                state.pending.is_empty(),
                "blocks are collected only while the task runs"
            );
            state.running = Some(spawn()?);
            state.stop = false;
        }
        Ok(())
    }

    /// Stops the task and waits for its end; pending blocks are forgotten, which loses no data.
    pub fn stop(&self) {
        let running = {
            let mut state = self.state.lock();
            state.stop = true;
            state.pending.clear();
            self.work.notify_all();
            state.running.take()
        };
        if let Some(task) = running {
            // A panic of the task has aborted the volume already.
            let _ = task.join_panicked();
        }
    }

    /// Counts a discarded run.
    fn count(&self, blocks: u32) {
        let mut state = self.state.lock();
        state.done.0 += 1;
        state.done.1 += u64::from(blocks);
    }

    /// Makes the task wait, or continue.
    pub fn suspend(&self, suspended: bool) {
        self.state.lock().suspended = suspended;
        self.work.notify_one();
    }

    /// The next segment with pending blocks, after a pause if `rest`; `None` if the task has to end.
    fn next(&self, rest: bool) -> Option<(SegNo, BlockBitmap)> {
        let mut state = self.state.lock();
        if rest && !state.stop {
            self.work.wait_for(&mut state, BATCH_INTERVAL);
        }
        loop {
            if state.stop {
                return None;
            }
            if !state.suspended
                && let Some((segment, map)) = state.pending.pop_first()
            {
                return Some((SegNo(segment), map));
            }
            self.work.wait_idle(&mut state);
        }
    }
}
