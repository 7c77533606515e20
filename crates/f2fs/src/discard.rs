//! Discards free blocks.
//!
//! **Rule.** Only blocks that no checkpoint refers to are discarded: those that a durable checkpoint freed. A run is
//! allocated while it is being discarded, so nothing is written to it.
//!
//! With the option `discard` the task `f2fs_discard` discards the blocks that each checkpoint freed, at idle priority,
//! at most 8 runs each 50 ms. FITRIM discards all free blocks.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use steadfs_base::{IoTag, Urgency};
use steadfs_block::Bio;
use steadfs_rt::{Condvar, JoinHandle, Mutex, Rank, try_spawn};
use steadfs_vfs::{Cx, FsError, Result};

use crate::checkpoint::Reason;
use crate::disk::{BLOCK_SIZE, SEGMENT_BLOCKS, SegNo};
use crate::fs::F2fs;
use crate::options::{DiscardUnit, MountOptions};
use crate::segment::{BlockBitmap, Run};

/// Runs shorter than this (64 KiB) are not discarded (`discard_granularity`).
const MIN_DISCARD_BLOCKS: u32 = 16;
/// Runs discarded between two pauses of the task.
const RUNS_PER_BATCH: u32 = 8;
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

impl F2fs {
    /// Whether the options and the device call for the task.
    pub(crate) fn wants_discards(&self, options: &MountOptions) -> bool {
        let can = self.queue.geometry().discard_granularity.is_some();
        can && options.discard.unwrap_or(true)
    }

    /// Whether the task runs.
    pub(crate) fn is_discarding(&self) -> bool {
        self.discards.state.lock().running.is_some()
    }

    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub(crate) fn start_discards(&self) -> io::Result<()> {
        let mut state = self.discards.state.lock();
        if state.running.is_none() {
            let fs = Weak::clone(self.weak());
            let discards = Arc::clone(&self.discards);
            let running = try_spawn("f2fs_discard", move || run(&fs, &discards))?;
            state.stop = false;
            state.running = Some(running);
        }
        Ok(())
    }

    /// Stops the task and waits for its end; pending blocks are forgotten, which loses no data.
    pub(crate) fn stop_discards(&self) {
        let running = {
            let mut state = self.discards.state.lock();
            state.stop = true;
            state.pending.clear();
            self.discards.work.notify_all();
            state.running.take()
        };
        if let Some(task) = running {
            // A panic of the task has aborted the volume already.
            let _ = task.join_panicked();
        }
    }

    /// Discards free blocks in a byte range; returns the number of bytes.
    pub(crate) fn trim_range(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        self.check_writable()?;
        let tag = cx.tag;
        let Some(granularity) = self.queue.geometry().discard_granularity else {
            return Err(FsError::NotSupported("discard on this device"));
        };
        let block = BLOCK_SIZE as u64;
        let size = self.layout.block_count.saturating_mul(block);
        if start >= size || len < block {
            return Err(FsError::Invalid("range to trim"));
        }
        // Blocks that the last operations freed can be discarded only after a checkpoint.
        self.checkpoint(Reason::Sync, tag)?;
        let main = u64::from(self.layout.main_start);
        let within = |byte: u64| {
            let blocks = (byte / block).saturating_sub(main);
            u32::try_from(blocks).unwrap_or(u32::MAX)
        };
        let end = start.saturating_add(len).min(size);
        let mut at = within(start.saturating_add(block - 1));
        let end = within(end).min(self.layout.main_blocks());
        let min = u32::try_from(min_len.max(granularity).div_ceil(block)).unwrap_or(u32::MAX);
        let mut blocks = 0;
        while let Some(run) = self.segments().allocate_free_run(at..end, min) {
            if cx.is_killed() {
                self.segments().release(run);
                return Err(FsError::Interrupted);
            }
            at = run.start.0 - self.layout.main_start + run.len;
            let result = self.discard_run(run, tag);
            self.segments().release(run);
            result?;
            blocks += u64::from(run.len);
            self.check_writable()?;
        }
        Ok(blocks * block)
    }

    /// Discards an allocated run.
    fn discard_run(&self, run: Run, tag: IoTag) -> Result<()> {
        let block = BLOCK_SIZE as u64;
        let bio = Bio::discard(u64::from(run.start.0) * block, u64::from(run.len) * block);
        let result = self.queue.submit(bio, tag).wait();
        let mut state = self.discards.state.lock();
        state.done.0 += 1;
        state.done.1 += u64::from(run.len);
        drop(state);
        result.map_err(crate::fs::io_error)
    }

    /// Discards those of a segment's pending blocks that are still free; returns the number of runs.
    fn discard_pending(&self, segment: SegNo, blocks: BlockBitmap, tag: IoTag) -> u32 {
        let base = segment.0 * SEGMENT_BLOCKS;
        let (blocks, least) = match self.options.read().discard_unit {
            DiscardUnit::Block => (blocks, MIN_DISCARD_BLOCKS),
            DiscardUnit::Segment | DiscardUnit::Section => (BlockBitmap::FULL, SEGMENT_BLOCKS),
        };
        let mut runs = 0;
        let mut at = 0;
        while let Some(first) = blocks.next_set(at) {
            at = blocks.next_clear(first).unwrap_or(SEGMENT_BLOCKS);
            let mut from = base + first;
            while let Some(run) = self.segments().allocate_free_run(from..base + at, least) {
                from = run.start.0 - self.layout.main_start + run.len;
                if let Err(error) = self.discard_run(run, tag) {
                    tracing::debug!(%error, "the device rejected a discard");
                }
                self.segments().release(run);
                runs += 1;
            }
        }
        runs
    }
}

fn run(fs: &Weak<F2fs>, discards: &Discards) {
    let tag = IoTag {
        urgency: Urgency::Idle,
        ..IoTag::default()
    };
    let _guard = steadfs_rt::OnUnwind::new(|| {
        if let Some(fs) = fs.upgrade() {
            fs.abort_for_panic();
        }
    });
    let mut runs = 0;
    while let Some((segment, blocks)) = discards.next(runs >= RUNS_PER_BATCH) {
        steadfs_rt::fault_point("f2fs.discard");
        if runs >= RUNS_PER_BATCH {
            runs = 0;
        }
        let Some(fs) = fs.upgrade() else { return };
        let open = fs.open_to_changes();
        if open.is_err() {
            // The volume was frozen since.
            discards.add(vec![(segment, blocks)]);
        } else if fs.check_writable().is_ok() {
            runs += fs.discard_pending(segment, blocks, tag);
        }
    }
}
