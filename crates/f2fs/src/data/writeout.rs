//! Write-back: blocks are allocated, written, and only then mapped.
//!
//! A block is overwritten in place (IPU) where the rules of [`placement`](super::placement) allow it. Otherwise a
//! new one is allocated from a curseg (OPU), and the node that maps it changes after the write. So a checkpoint or
//! node chain never refers to a block whose data is not on the device.

use std::ops::Range;

use steadfs_base::{IoTag, Urgency};
use steadfs_block::{Bio, IoError, Plug};
use steadfs_cache::{CollectedBlock, DirtyEpoch, DirtyFile, WritebackReason};
use steadfs_rt::inherit;
use steadfs_vfs::{FileKind, FsError, Result};

use super::placement::{self, FileHints, Occasion, VolumeState};
use super::run::{Extent, MapResult, WritebackRun, size_after};
use super::{BLOCK, MapTarget};
use crate::cp_lock::Change;
use crate::disk::{self, BlockAddr, DiskError, LogType, Structure};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::options::{GcPolicy, Mode};
use crate::segment::{BlockKind, Demand, Purpose, Run};

/// The most blocks of one file in flight at the same time, and while free sections are short (SSR).
const BATCH_BLOCKS: usize = (8 << 20) / BLOCK as usize;
const BATCH_BLOCKS_NEED_SSR: usize = (2 << 20) / BLOCK as usize;
/// Attempts to free segments without progress before write-back fails with `NoSpace`.
const SPACE_ATTEMPTS_MAX: u32 = 4;

impl F2fs {
    /// Writes what was dirty when the call began, and waits. Data whose write fails stays dirty. (Directories and
    /// symbolic links are written by checkpoints.) The caller holds no lock: this frees segments if the logs are
    /// full.
    pub(crate) fn write_out(&self, inode: &Inode, why: WritebackReason, tag: IoTag) -> Result<()> {
        self.write_out_epoch(inode, self.writeback.end_epoch(), why, tag)
    }

    /// As [`F2fs::write_out`], for what was dirty in `epoch`.
    pub(super) fn write_out_epoch(
        &self,
        inode: &Inode,
        epoch: DirtyEpoch,
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        let file = DirtyFile(inode.nid().0.into());
        // A throttled writer continues as soon as there is less dirty data than the limit.
        let throttled = why == WritebackReason::Throttle;
        // While it waits for the flusher's requests it must not boost them.
        let tag_of_his = tag.with_urgency(Urgency::Background);
        let _acting = throttled.then(|| inherit::set_task_tag(tag_of_his));
        let enough = || throttled && !self.writeback.must_throttle(file);
        self.write_while(enough, inode, epoch, occasion(why), tag)
    }

    /// As [`F2fs::write_out`], for a caller that knows the occasion of the write.
    pub(super) fn write_out_as(&self, inode: &Inode, occasion: Occasion, tag: IoTag) -> Result<()> {
        let epoch = self.writeback.end_epoch();
        self.write_while(|| false, inode, epoch, occasion, tag)
    }

    fn write_while(
        &self,
        enough: impl Fn() -> bool,
        inode: &Inode,
        epoch: DirtyEpoch,
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<()> {
        let tag = tag.with_urgency(urgency(occasion));
        let mut tries = 0;
        let mut from = 0;
        let end = inode.pages.dirty_end(epoch);
        let mut first_error = Ok(());
        while from < end && self.has_data_to_write(inode)? && !enough() {
            self.balance(tag)?;
            match self.write_batch(inode, from..end, epoch, occasion, tag) {
                Ok(None) => return first_error,
                Ok(Some(next)) => (from, tries) = (next, 0),
                // The blocks are reserved, but all free segments are in use until a checkpoint or GC frees some.
                Err((_, FsError::NoSpace)) if tries < SPACE_ATTEMPTS_MAX => {
                    tries += 1;
                    self.make_free_space(tag)?;
                }
                Err((next, error)) => {
                    from = next;
                    first_error = first_error.and(Err(error));
                }
            }
        }
        first_error
    }

    /// As [`F2fs::write_out`], for a caller that holds the inode's lock. On `NoSpace` it releases the lock, frees
    /// segments and retries.
    pub(super) fn write_out_locked(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.write_out_upto(inode, u64::MAX, tag)
    }

    /// As [`F2fs::write_out_locked`], at least for what is dirty before block `end`.
    pub(super) fn write_out_upto(&self, inode: &Inode, end: u64, tag: IoTag) -> Result<()> {
        let tag = tag.with_urgency(Urgency::Waited);
        let mut from = 0;
        let all = DirtyEpoch::ALL;
        while from < end && self.has_data_to_write(inode)? {
            match self.write_batch(inode, from..u64::MAX, all, Occasion::Sync, tag) {
                Ok(None) => return Ok(()),
                Ok(Some(next)) => from = next,
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    fn has_data_to_write(&self, inode: &Inode) -> Result<bool> {
        if inode.kind() != FileKind::Regular || inode.pages.is_empty() {
            return Ok(false);
        }
        // After an abort or a shutdown nothing reaches the device.
        self.check_writable()?;
        Ok(true)
    }

    /// Writes one batch of what was dirty in `epoch` in a range. Returns the block to continue from, `None` at the
    /// end. (It only moves forward: a block dirtied again before that position is left to the next call.)
    fn write_batch(
        &self,
        inode: &Inode,
        range: Range<u64>,
        epoch: DirtyEpoch,
        occasion: Occasion,
        tag: IoTag,
    ) -> Result<Option<u64>, (u64, FsError)> {
        if occasion != Occasion::Background {
            // Boost what the flusher has in flight: this task waits for it.
            inode.pages.boost(range.clone(), &self.queue, tag);
        }
        let file = self.file_hints(inode);
        let volume = self.placement_state();
        let limit = if volume.needs_ssr {
            BATCH_BLOCKS_NEED_SSR
        } else {
            BATCH_BLOCKS
        };
        let limit = limit.min(self.gc.blocks_at_once());
        let _one = inode.lock_flush();
        let stored = inode.core.read().size;
        let collected = inode
            .pages
            .collect_forward(range, limit, epoch, stored, || inode.size());
        let Some(last) = collected.0.last() else {
            return Ok(None);
        };
        let next = last.block.0 + 1;
        let mut wb_run = self.allocate_run(inode, (&volume, &file), collected, occasion, tag);
        self.submit_run(None, &mut wb_run, tag);
        let done = self.finish_runs(vec![wb_run]);
        done.map(|()| Some(next)).map_err(|error| (next, error))
    }

    /// The state of a file that placement depends on.
    pub(crate) fn file_hints(&self, inode: &Inode) -> FileHints {
        let core = inode.core.read();
        FileHints {
            advise: core.advise,
            inline: core.inline,
            few_dirty: inode.pages.dirty_bytes() <= placement::HOT_DIRTY_BLOCKS_MAX * BLOCK,
        }
    }

    /// The state of the volume that placement depends on.
    pub(super) fn placement_state(&self) -> VolumeState {
        let (lfs, temperature) = {
            let options = self.options.read();
            (
                options.mode == Mode::Lfs,
                options.gc_policy == GcPolicy::Linux618,
            )
        };
        let counts = self.space.counts();
        let used = counts.valid_blocks.saturating_mul(100) / counts.user_blocks.max(1);
        let segments = self.segments();
        let per_section = self.layout.segments_per_section;
        let free = segments.free_sections();
        VolumeState {
            policy: self.ipu_policy(),
            lfs,
            temperature,
            needs_ssr: segments
                .policy()
                .needs_ssr(free, Demand::default(), per_section),
            used_percent: u32::try_from(used).unwrap_or(u32::MAX),
            min_util: self.ipu_util(),
        }
    }

    /// The log that new blocks of a file are allocated from.
    pub(crate) fn data_log(&self, file: &FileHints, occasion: Occasion) -> LogType {
        let (logs, temperature) = {
            let options = self.options.read();
            (options.active_logs, options.gc_policy == GcPolicy::Linux618)
        };
        placement::data_log(logs, temperature, file, occasion)
    }

    /// Allocates or finds the device blocks of collected blocks.
    pub(super) fn allocate_run<'a>(
        &self,
        inode: &'a Inode,
        (volume, file): (&VolumeState, &FileHints),
        (collected, size): (Vec<CollectedBlock>, u64),
        occasion: Occasion,
        tag: IoTag,
    ) -> WritebackRun<'a> {
        let ipu = placement::ipu(volume, file, occasion);
        let log = self.data_log(file, occasion);
        let mut extents = Vec::new();
        let mut allocation = Ok(());
        let mut rest = &collected[..];
        while let Some(first) = rest.first() {
            let n = rest
                .iter()
                .zip(first.block.0..)
                .take_while(|(t, n)| t.block.0 == *n)
                .count();
            let (run, after) = rest.split_at(n);
            rest = after;
            if let Err(error) = self.allocate_extents(inode, run, (ipu, log), tag, &mut extents) {
                allocation = allocation.and(Err(error));
            }
        }
        allocation = allocation.and(drop_cross_linked(inode, &mut extents));
        WritebackRun {
            inode,
            size,
            collected,
            extents,
            ios: Vec::new(),
            allocation,
        }
    }

    /// Finds or allocates device blocks for each file block of a run. Blocks that get none are in no extent.
    fn allocate_extents(
        &self,
        inode: &Inode,
        run: &[CollectedBlock],
        (ipu, log): (bool, LogType),
        tag: IoTag,
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        let mut done = 0;
        while done < run.len() {
            let at = run[done].block.0;
            let left = (run.len() - done) as u64;
            // Looked up in any case: the node that maps the blocks is in memory when `cp_lock` is taken later.
            let mapped = self.map(inode, at, left, tag)?;
            let over = match mapped.target {
                MapTarget::Block(start) if ipu => {
                    let len = u32::try_from(mapped.len).unwrap_or(u32::MAX);
                    u64::from(self.segments().may_overwrite(start, len))
                }
                _ => 0,
            };
            let (start, n, allocated) = match mapped.target {
                MapTarget::Block(start) if over > 0 => {
                    self.check_own(inode, start, over)?;
                    (start, over, false)
                }
                MapTarget::Compressed => {
                    return Err(FsError::NotSupported("writing to compressed files"));
                }
                _ => {
                    let want = u32::try_from(mapped.len).unwrap_or(u32::MAX);
                    let run = self.segments().allocate(log, want, Purpose::User)?;
                    (run.start, run.len.into(), true)
                }
            };
            let reserved =
                |blocks: &[CollectedBlock]| blocks.iter().filter(|t| t.reserved).count() as u64;
            let reserved = reserved(&run[done..done + n as usize]);
            done += n as usize;
            // Allocations from one curseg are often consecutive: extend the last extent.
            if let Some(last) = extents.last_mut()
                && last.allocated == allocated
                && last.blocks.end == at
                && last.start.0 + last.len() == start.0
            {
                last.blocks.end += n;
                last.reserved += reserved;
                continue;
            }
            extents.push(Extent {
                blocks: at..at + n,
                start,
                allocated,
                reserved,
            });
        }
        Ok(())
    }

    /// A block that the SIT does not have as valid may be allocated again, and a node block belongs to another
    /// owner: a map that refers to one is corrupt, and nothing is written there.
    fn check_own(&self, inode: &Inode, start: BlockAddr, len: u64) -> Result<()> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let checked = self.segments().check_owned(start, len, BlockKind::Data);
        checked.map_err(|e| e.in_node(inode.nid()).into())
    }

    /// The most blocks of one write request with this tag.
    pub(super) fn blocks_to_write(&self, tag: IoTag) -> usize {
        (self.queue.max_transfer_for(tag) as usize / BLOCK as usize).max(1)
    }

    /// Submits the writes of every extent, directly or through a plug.
    pub(super) fn submit_run(
        &self,
        plug: Option<&Plug<'_>>,
        wb_run: &mut WritebackRun<'_>,
        tag: IoTag,
    ) {
        let WritebackRun {
            inode,
            collected,
            extents,
            ios,
            ..
        } = wb_run;
        let per_bio = self.blocks_to_write(tag);
        let mut rest = &collected[..];
        for extent in extents.iter() {
            if !extent.allocated {
                self.syncs.wrote_ipu(extent.len());
            }
            let before = |t: &&CollectedBlock| t.block.0 < extent.blocks.start;
            let skip = rest.iter().take_while(before).count();
            let (run, after) = rest[skip..].split_at(extent.len() as usize);
            rest = after;
            let mut handles = Vec::new();
            for (i, chunk) in run.chunks(per_bio).enumerate() {
                let at = extent.start.plus((i * per_bio) as u32);
                let bufs = chunk.iter().map(|t| t.data.clone()).collect();
                let tag = if tag.urgency == Urgency::Waited {
                    tag
                } else {
                    chunk[0].tag.with_urgency(tag.urgency)
                };
                let bio = Bio::write(u64::from(at.0) * BLOCK, bufs);
                let io = match plug {
                    Some(plug) => plug.submit(bio, tag),
                    None => self.queue.submit(bio, tag),
                };
                let blocks = chunk[0].block.0..chunk[chunk.len() - 1].block.0 + 1;
                inode.pages.mark_submitted(blocks, &io);
                handles.push(io);
            }
            ios.push(handles);
        }
    }

    /// Waits for submitted runs, maps their blocks and completes them. Returns the first error.
    pub(super) fn finish_runs(&self, runs: Vec<WritebackRun<'_>>) -> Result<()> {
        let mut result = Ok(());
        for wb_run in runs {
            let written = wb_run.wait();
            if let Some(error) = written.iter().find_map(|w| w.as_ref().err()) {
                tracing::warn!(ino = %wb_run.inode.nid(), %error, "cannot write file data");
            }
            let mapped = self.map_run(&wb_run, &written);
            let completed = self.complete_run(&wb_run, &written, &mapped);
            result = result.and(wb_run.allocation).and(completed);
        }
        result
    }

    /// Maps the written extents: node slots, SIT, size. An extent whose write failed is not mapped.
    fn map_run(
        &self,
        wb_run: &WritebackRun<'_>,
        written: &[Result<(), IoError>],
    ) -> Vec<MapResult> {
        let WritebackRun { inode, extents, .. } = wb_run;
        let stored = inode.core.read().size;
        let grows = |p: &Extent| size_after(wb_run.size, p) > stored;
        // The file does not grow over a block that failed: beyond its old end the device may hold old content.
        let gap = wb_run.first_failed(written);
        let gap = gap.filter(|(block, _)| *block >= stored / BLOCK);
        let result_of = |(extent, written): (&Extent, &Result<(), IoError>)| match (written, &gap) {
            (Err(error), _) => {
                let error = io_error(error.clone());
                self.notes.data_failed(inode.nid(), &error);
                MapResult::none(error)
            }
            (Ok(()), Some((block, error))) if extent.blocks.start > *block && grows(extent) => {
                MapResult::none(error.clone())
            }
            (Ok(()), _) => MapResult::all(extent),
        };
        let mut results: Vec<MapResult> = extents.iter().zip(written).map(result_of).collect();
        let todo: Vec<usize> = (0..extents.len())
            .filter(|&i| results[i].result.is_ok() && (extents[i].allocated || grows(&extents[i])))
            .collect();
        if !todo.is_empty() {
            self.map_extents(wb_run, &todo, &mut results);
        }
        results
    }

    /// Maps extents in order, up to one that fails; the remaining ones get its error.
    fn map_extents(&self, wb_run: &WritebackRun<'_>, todo: &[usize], results: &mut [MapResult]) {
        let WritebackRun { inode, extents, .. } = wb_run;
        let mut todo = todo.iter().copied();
        let failed = match self.change() {
            Ok(change) => {
                let mut core = inode.core.write();
                todo.find_map(|i| {
                    let extent = &extents[i];
                    let mut mapped = MapResult::all(extent);
                    mapped.result =
                        self.map_extent(&change, wb_run, &mut core, extent, &mut mapped);
                    results[i] = mapped;
                    results[i].result.clone().err()
                })
            }
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            todo.for_each(|i| results[i] = MapResult::none(error.clone()));
        }
    }

    fn map_extent(
        &self,
        change: &Change<'_>,
        wb_run: &WritebackRun<'_>,
        core: &mut disk::Inode,
        extent: &Extent,
        mapped: &mut MapResult,
    ) -> Result<()> {
        let (inode, tag) = (wb_run.inode, IoTag::default());
        self.mark_dirty(change, inode, tag)?;
        if extent.allocated {
            let reserved = extent.reserved;
            (mapped.blocks, mapped.used) = (0, 0);
            let run = extent.run();
            self.map_allocated(
                change,
                inode,
                core,
                (extent.blocks.start, run),
                reserved,
                mapped,
            )?;
        }
        let size = size_after(wb_run.size, extent);
        mapped.grew = size > core.size;
        core.size = core.size.max(size);
        Ok(())
    }

    /// Maps allocated and written blocks to the file from `block` on. `reserved` of them have a reservation, which
    /// those without a previous block use. `mapped` counts what was done, also on an error.
    fn map_allocated(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        (block, run): (u64, Run),
        reserved: u64,
        mapped: &mut MapResult,
    ) -> Result<()> {
        let tag = IoTag::default();
        while mapped.blocks < run.len {
            let at = block + u64::from(mapped.blocks);
            let mut slot = self.make_slot(change, inode, core, at, tag)?;
            for _ in 0..u32::from(slot.left).min(run.len - mapped.blocks) {
                let fresh = !core.counts(self.addr_in(core, &slot)?);
                if fresh && mapped.used == reserved {
                    let rule = "has no reservation";
                    let error = DiskError::field(Structure::Inode, "file block", at, rule);
                    return Err(error.in_node(inode.nid()).into());
                }
                let addr = run.start.plus(mapped.blocks);
                self.set_slot(change, inode, core, &slot, addr, tag)?;
                self.segments().set_valid(addr, slot.owner());
                mapped.used += u64::from(fresh);
                mapped.blocks += 1;
                slot.slot += 1;
            }
        }
        Ok(())
    }
}

fn occasion(why: WritebackReason) -> Occasion {
    match why {
        WritebackReason::Sync => Occasion::Sync,
        WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
            Occasion::Background
        }
    }
}

pub(super) fn urgency(occasion: Occasion) -> Urgency {
    match occasion {
        Occasion::Background | Occasion::Moved => Urgency::Background,
        Occasion::SmallSync | Occasion::Sync => Urgency::Waited,
    }
}

/// Drops extents that overlap another one in place: the map is corrupt, and both file ranges would read what was
/// written last. (Newly allocated blocks have no other owner.)
fn drop_cross_linked(inode: &Inode, extents: &mut Vec<Extent>) -> Result<()> {
    let mut order: Vec<usize> = (0..extents.len())
        .filter(|&i| !extents[i].allocated)
        .collect();
    if order.len() < 2 {
        return Ok(());
    }
    order.sort_unstable_by_key(|&i| extents[i].start);
    let mut shared = Vec::new();
    let mut end = BlockAddr(0);
    for &i in &order {
        let extent = &extents[i];
        if extent.start < end {
            shared.push(i);
        }
        end = end.max(extent.start.plus(extent.len()));
    }
    let Some(&first) = shared.first() else {
        return Ok(());
    };
    let addr = extents[first].start;
    let mut index = 0..;
    extents.retain(|_| index.next().is_some_and(|i| !shared.contains(&i)));
    let rule = "mapped more than once in a file";
    let error = DiskError::address(Structure::Inode, addr, rule);
    Err(error.in_node(inode.nid()).into())
}
