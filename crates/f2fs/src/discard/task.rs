//! The task `f2fs_discard`, and FITRIM.

use std::io;
use std::sync::{Arc, Weak};

use steadfs_base::{IoTag, Urgency};
use steadfs_block::Bio;
use steadfs_rt::{OnUnwind, fault_point, try_spawn};
use steadfs_vfs::{Cx, FsError, Result};

use super::Discards;
use crate::checkpoint::Reason;
use crate::disk::{BLOCK_SIZE, SEGMENT_BLOCKS, SegNo};
use crate::fs::{F2fs, io_error};
use crate::options::{DiscardUnit, MountOptions};
use crate::segment::{BlockBitmap, Run};

/// Runs shorter than this (64 KiB) are not discarded (`discard_granularity`).
const MIN_DISCARD_BLOCKS: u32 = 16;
/// Runs discarded between two pauses of the task.
const RUNS_PER_BATCH: u32 = 8;

impl F2fs {
    /// Whether the options and the device call for the task.
    pub(crate) fn wants_discards(&self, options: &MountOptions) -> bool {
        let can = self.queue.geometry().discard_granularity.is_some();
        can && options.discard.unwrap_or(true)
    }

    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub(crate) fn start_discards(&self) -> io::Result<()> {
        self.discards.start(|| {
            let fs = Weak::clone(self.weak());
            let discards = Arc::clone(&self.discards);
            try_spawn("f2fs_discard", move || run(&fs, &discards))
        })
    }

    /// Discards free blocks in a byte range; returns the number of bytes.
    pub(crate) fn trim_range(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let open = self.open_to_changes()?;
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
        drop(open);
        loop {
            // For one run: a freeze waits for it, and changes wait for the freeze.
            let _open = self.open_to_changes()?;
            self.check_writable()?;
            cx.check_killed()?;
            let Some(run) = self.segments().allocate_free_run(at..end, min) else {
                break;
            };
            at = run.start.0 - self.layout.main_start + run.len;
            let result = self.discard_run(run, tag);
            self.segments().release(run);
            result?;
            blocks += u64::from(run.len);
        }
        Ok(blocks * block)
    }

    /// Discards an allocated run.
    fn discard_run(&self, run: Run, tag: IoTag) -> Result<()> {
        let block = BLOCK_SIZE as u64;
        let bio = Bio::discard(u64::from(run.start.0) * block, u64::from(run.len) * block);
        let result = self.queue.submit(bio, tag).wait();
        self.discards.count(run.len);
        result.map_err(io_error)
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
    let _guard = OnUnwind::new(|| {
        if let Some(fs) = fs.upgrade() {
            fs.abort_for_panic();
        }
    });
    let mut runs = 0;
    while let Some((segment, blocks)) = discards.next(runs >= RUNS_PER_BATCH) {
        fault_point("f2fs.discard");
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
