//! Write-back: dirty blocks get their place, reach the device, and only then their names.

use std::ops::Range;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag, Urgency};
use steadfs_block::{Bio, IoError, IoHandle, Plug};
use steadfs_cache::{CollectedBlock, DirtyEpoch, DirtyFile, WriteError, WritebackReason};
use steadfs_rt::inherit;
use steadfs_vfs::{FsError, Result};

use crate::disk::{self, Ino};
use crate::extent::Tree;
use crate::freeing::Shortage;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::mballoc::Run;
use crate::pins::Pins;
use crate::place::BlockPlace;
use crate::txn::Handle;

/// What the map has to learn once a piece is written.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapAction {
    /// Nothing: the block had its place and was written before.
    None,
    /// The blocks were allocated but unwritten.
    Convert,
    /// The blocks are allocated.
    Insert(Run),
}

/// Blocks of a file on their way to the device.
pub(super) struct WritebackRun<'a> {
    inode: &'a Inode,
    collected: Vec<CollectedBlock>,
    /// The file's size when they were collected: how far it may grow on disk by them.
    pub(super) size: u64,
    pub(super) pieces: Vec<Piece>,
    /// The requests of each piece.
    ios: Vec<Vec<IoHandle>>,
    /// WritebackReason some block has no place, if so.
    alloc_result: Result<()>,
}

impl WritebackRun<'_> {
    /// Where its blocks lie on the device: first block and length of each piece.
    pub(super) fn device_runs(&self) -> impl Iterator<Item = (DevBlock, u64)> {
        self.pieces
            .iter()
            .map(|p| (p.start, p.blocks.end - p.blocks.start))
    }

    /// The first block that was not written, and why.
    fn first_failed(&self, written: &[Result<(), IoError>]) -> Option<(u64, FsError)> {
        let both = || self.pieces.iter().zip(written);
        let good = both().filter(|(_, written)| written.is_ok());
        let good = good.map(|(piece, _)| piece.blocks.clone());
        let first = CollectedBlock::first_not_in(&self.collected, good)?;
        let its = both().find(|(piece, _)| piece.blocks.contains(&first));
        let its = its.and_then(|(_, written)| written.clone().err());
        let error = its.map(io_error).or(self.alloc_result.clone().err())?;
        Some((first, error))
    }

    /// Its requests.
    pub(super) fn ios(&self) -> impl Iterator<Item = &IoHandle> {
        self.ios.iter().flatten()
    }

    /// Waits for the device; results in the pieces' order.
    pub(super) fn wait(&self) -> Vec<Result<(), IoError>> {
        let each = |ios: &Vec<IoHandle>| ios.iter().map(IoHandle::wait).fold(Ok(()), Result::and);
        self.ios.iter().map(each).collect()
    }
}

/// A run of blocks that lies in one piece in the file and on the device.
pub(super) struct Piece {
    pub(super) blocks: Range<u64>,
    pub(super) start: DevBlock,
    pub(super) action: MapAction,
    /// How many of its blocks hold a promise.
    pub(super) reserved: u64,
}

impl Piece {
    /// A claim for the blocks from `at` on, without a promise.
    pub(super) fn allocated(at: FileBlock, run: Run) -> Self {
        Self {
            blocks: at.0..at.0 + u64::from(run.len),
            start: run.start,
            action: MapAction::Insert(run),
            reserved: 0,
        }
    }
}

impl Ext4 {
    /// Writes the file's dirty data and waits: all that was dirty when this began. An error leaves what
    /// failed dirty.
    pub fn write_out(&self, inode: &Inode, why: WritebackReason, tag: IoTag) -> Result<()> {
        self.write_out_of(inode, self.writeback.end_epoch(), why, tag)
    }

    /// The same for what was dirty in `epoch`.
    pub(super) fn write_out_of(
        &self,
        inode: &Inode,
        epoch: DirtyEpoch,
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        if inode.pages.is_empty() {
            return Ok(());
        }
        // After a power cut, real or asked for, nothing reaches the device.
        self.check_writable()?;
        let tag = match why {
            WritebackReason::Sync => tag.with_urgency(Urgency::Waited),
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                tag.with_urgency(Urgency::Background)
            }
        };
        if why != WritebackReason::Sync {
            // A writer who is held up waits for the flusher's turns, and must not make them urgent.
            let _acting = inherit::set_task_tag(tag);
            let file = DirtyFile(inode.ino().0.into());
            let throttled = why == WritebackReason::Throttle;
            let enough = || throttled && !self.writeback.must_throttle(file);
            return self.write_in_turns(inode, enough, epoch, tag);
        }
        // What the flusher has under way is waited for now.
        let _waiter = inode.flush_waiters.enter(&self.queue, tag);
        inode.pages.boost(0..u64::MAX, &self.queue, tag);
        let _one = inode.lock_flush();
        let mut range = 0..inode.pages.dirty_end(epoch);
        self.write_batches(inode, &mut range, epoch, usize::MAX, tag)
            .1
    }

    /// Gives collected blocks their place, behind the piece `before` if they continue that; the file had that
    /// size when they were collected.
    pub(super) fn allocate_run<'a>(
        &self,
        inode: &'a Inode,
        (collected, size): (Vec<CollectedBlock>, u64),
        before: Option<&Piece>,
        tag: IoTag,
    ) -> WritebackRun<'a> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut alloc_result = Ok(());
        let mut rest = &collected[..];
        while let Some(first) = rest.first() {
            let n = rest
                .iter()
                .zip(first.block.0..)
                .take_while(|(t, n)| t.block.0 == *n)
                .count();
            let (run, after) = rest.split_at(n);
            rest = after;
            if let Err(error) = self.map_or_allocate(inode, run, before, tag, &mut pieces) {
                alloc_result = alloc_result.and(Err(error));
            }
        }
        alloc_result = alloc_result.and(self.drop_shared(inode, &mut pieces));
        WritebackRun {
            inode,
            collected,
            size,
            pieces,
            ios: Vec::new(),
            alloc_result,
        }
    }

    /// Waits for launched blocks, names them (of all files in one handle where it can) and ends their
    /// wb_runs. The first error of all.
    pub(super) fn finish_runs(&self, wb_runs: Vec<WritebackRun<'_>>) -> Result<()> {
        let written: Vec<Vec<_>> = wb_runs.iter().map(WritebackRun::wait).collect();
        let mut handle = None;
        let mapped: Vec<Vec<_>> = wb_runs
            .iter()
            .zip(&written)
            .map(|(wb_run, written)| self.map_run(&mut handle, wb_run, written))
            .collect();
        if let Some(handle) = handle {
            let _: Result<()> = handle.end(Ok(()));
        }
        let mut result = Ok(());
        for ((wb_run, written), mapped) in wb_runs.into_iter().zip(written).zip(mapped) {
            if let Some(error) = written.iter().find_map(|w| w.as_ref().err()) {
                self.data_failed(error);
            }
            let completed = self.complete_run(&wb_run, &written, &mapped);
            result = result.and(wb_run.alloc_result).and(completed);
        }
        result
    }

    /// Remembered for `.steadfs/errors`. `data_err=abort`: a volume whose data cannot be written stops.
    pub(super) fn data_failed(&self, error: &IoError) {
        *self.data_error.lock() = Some(error.to_string());
        let aborts = self.options.read().abort_on_data_error;
        if let Some(journal) = self.txns.journal().filter(|_| aborts) {
            journal.abort(&error.to_string());
        }
    }

    /// Finds or claims a place for each block of a run. What gets none is not among the pieces.
    fn map_or_allocate(
        &self,
        inode: &Inode,
        run: &[CollectedBlock],
        before: Option<&Piece>,
        tag: IoTag,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        let mut done = 0;
        while done < run.len() {
            let at = run[done].block;
            let left = (run.len() - done) as u64;
            let (mapped, goal, grows) = {
                let core = inode.core.read();
                let mapped = self.map(inode.ino(), &core, at, tag)?;
                let last = pieces.last().or(before);
                let continues = last.filter(|p| p.blocks.end == at.0);
                let goal = match continues {
                    Some(p) => p.start.plus(p.blocks.end - p.blocks.start),
                    None if mapped.place == BlockPlace::Hole => {
                        self.goal_after(inode.ino(), &core, at)
                    }
                    None => DevBlock(0),
                };
                let end = self.geo.block_size.blocks_for(core.size);
                (mapped, goal, at.0 > 0 && at.0 >= end)
            };
            let n = mapped.len.min(left);
            let (start, n, action) = match mapped.place {
                BlockPlace::Written(start) => (start, n, MapAction::None),
                BlockPlace::Unwritten(start) => (start, n, MapAction::Convert),
                BlockPlace::Hole => {
                    let grows = grows.then_some((inode.ino(), at));
                    let run = self.allocate_for_data(grows, goal, n as u32, tag)?;
                    (run.start, run.len.into(), MapAction::Insert(run))
                }
            };
            let reserved = run[done..done + n as usize]
                .iter()
                .filter(|t| t.reserved)
                .count();
            let blocks = at.0..at.0 + n;
            pieces.push(Piece {
                blocks,
                start,
                action,
                reserved: reserved as u64,
            });
            done += n as usize;
        }
        Ok(())
    }

    /// Takes out pieces on device blocks that another piece has too: the map is damaged, and whichever
    /// was written last would be what both read. A claim is never the one to go.
    fn drop_shared(&self, inode: &Inode, pieces: &mut Vec<Piece>) -> Result<()> {
        if pieces.len() < 2 {
            return Ok(());
        }
        let allocated = |p: &Piece| matches!(p.action, MapAction::Insert(_));
        let mut order: Vec<usize> = (0..pieces.len()).collect();
        order.sort_unstable_by_key(|&i| (pieces[i].start, !allocated(&pieces[i])));
        let mut shared = None;
        let mut keep = vec![true; pieces.len()];
        let mut last = order[0];
        for &i in &order[1..] {
            let (a, b) = (&pieces[last], &pieces[i]);
            let end = a.start.plus(a.blocks.end - a.blocks.start);
            if b.start >= end {
                last = i;
                continue;
            }
            shared.get_or_insert(b.start);
            if allocated(b) && !allocated(a) {
                keep[last] = false;
                last = i;
            } else {
                keep[i] = false;
            }
        }
        let Some(block) = shared else {
            return Ok(());
        };
        let mut keep = keep.into_iter();
        pieces.retain(|_| keep.next().unwrap_or(true));
        Err(Corruption::new("is mapped more than once")
            .in_inode(inode.ino())
            .in_block(block)
            .into())
    }

    /// Claims blocks for data, at a file's end if `grows` says of which; if none is free but some wait
    /// for a commit, commits first.
    fn allocate_for_data(
        &self,
        grows: Option<(Ino, FileBlock)>,
        goal: DevBlock,
        want: u32,
        tag: IoTag,
    ) -> Result<Run> {
        let allocate = || match grows {
            Some(at) => self.alloc.allocate_growing(self, at, goal, want),
            None => self.alloc.allocate(self, goal, want),
        };
        let mut result = allocate();
        if result != Err(FsError::NoSpace) {
            return result;
        }
        let mut shortage = Shortage::new(self);
        loop {
            result = shortage.attempt(allocate);
            if result != Err(FsError::NoSpace) || !shortage.should_retry(tag)? {
                return result;
            }
        }
    }

    /// Starts the writes of every piece, or hands them to a plug.
    pub(super) fn submit_run(
        &self,
        plug: Option<&Plug<'_>>,
        wb_run: &mut WritebackRun<'_>,
        tag: IoTag,
    ) {
        let WritebackRun {
            inode,
            collected,
            pieces,
            ios,
            ..
        } = wb_run;
        let bs = self.geo.block_size;
        let waiter = inode.flush_waiters.tag();
        let urgent = waiter.map_or(tag, |waiter| self.queue.effective_tag(tag, waiter));
        let per_bio = (self.queue.max_transfer_for(urgent) as usize >> bs.bits()).max(1);
        let mut rest = &collected[..];
        for piece in pieces.iter() {
            let skip = rest
                .iter()
                .take_while(|t| t.block.0 < piece.blocks.start)
                .count();
            let (run, after) =
                rest[skip..].split_at((piece.blocks.end - piece.blocks.start) as usize);
            rest = after;
            let mut handles = Vec::new();
            for (i, chunk) in run.chunks(per_bio).enumerate() {
                let at = piece.start.plus((i * per_bio) as u64);
                let bufs = chunk.iter().map(|t| t.data.clone()).collect();
                let tag = if tag.urgency == Urgency::Waited {
                    tag
                } else {
                    chunk[0].tag.with_urgency(tag.urgency)
                };
                let tag = waiter.map_or(tag, |waiter| self.queue.effective_tag(tag, waiter));
                let bio = Bio::write(bs.offset_of(at), bufs);
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

    /// Gives the written pieces their names: map, bitmap, size. A piece that failed is not mapped. Goes
    /// on in `handle` if there is one, and leaves it for the next file.
    fn map_run<'h>(
        &'h self,
        handle: &mut Option<Handle<'h>>,
        wb_run: &WritebackRun<'_>,
        written: &[Result<(), IoError>],
    ) -> Vec<Result<()>> {
        let WritebackRun { inode, pieces, .. } = wb_run;
        let size = wb_run.size;
        let mut results: Vec<Result<()>> = written
            .iter()
            .map(|w| w.clone().map_err(io_error))
            .collect();
        let on_disk = inode.core.read().size;
        let grows = |p: &Piece| self.size_after(size, p) > on_disk;
        // The file does not grow over what has failed: behind its old end there may be anything.
        let tail = self.geo.block_size.file_block(on_disk).0;
        if let Some((block, error)) = wb_run.first_failed(written).filter(|f| f.0 >= tail) {
            for (piece, result) in pieces.iter().zip(&mut results) {
                if result.is_ok() && piece.blocks.start > block && grows(piece) {
                    *result = Err(error.clone());
                }
            }
        }
        let needs = |p: &Piece| !matches!(p.action, MapAction::None) || grows(p);
        let todo: Vec<usize> = (0..pieces.len())
            .filter(|&i| results[i].is_ok() && needs(&pieces[i]))
            .collect();
        if todo.is_empty() {
            return results;
        }
        if let Err((done, error)) = self.map_pieces(handle, inode, size, pieces, &todo) {
            if let Some(handle) = handle.take() {
                let _: Result<()> = handle.end(Err(error.clone()));
            }
            for &i in &todo[done..] {
                results[i] = Err(error.clone());
            }
        }
        results
    }

    /// The size that a file of `size` bytes may have on disk once the piece is there.
    fn size_after(&self, size: u64, piece: &Piece) -> u64 {
        size.min(piece.blocks.end << self.geo.block_size.bits())
    }

    /// Names pieces of a file that may grow by them up to `size`. In one handle, or in several one after
    /// the other; on error how many pieces were done.
    pub(super) fn map_pieces<'h>(
        &'h self,
        slot: &mut Option<Handle<'h>>,
        inode: &Inode,
        size: u64,
        pieces: &[Piece],
        todo: &[usize],
    ) -> Result<(), (usize, FsError)> {
        let fail = |done| move |error| (done, error);
        let _pins = Pins::of_inodes(self, &[inode.ino()], IoTag::default()).map_err(fail(0))?;
        let first = self.map_piece_credits(inode, &pieces[todo[0]]);
        let handle = match slot {
            Some(handle) => {
                if !handle.extend(first) {
                    handle.restart(first).map_err(fail(0))?;
                }
                handle
            }
            None => slot.insert(self.txns.begin(first).map_err(fail(0))?),
        };
        let mut stored = 0;
        for (done, &i) in todo.iter().enumerate() {
            let piece = &pieces[i];
            let credits = self.map_piece_credits(inode, piece);
            if done > 0 && !handle.extend(credits) {
                self.store_now(handle, inode).map_err(fail(stored))?;
                stored = done;
                handle.restart(credits).map_err(fail(stored))?;
            }
            let mut core = inode.core.write();
            handle.use_reservation(piece.reserved > 0);
            let mapped = self.map_piece(handle, inode, &mut core, piece);
            if mapped.is_ok() {
                core.size = core.size.max(self.size_after(size, piece));
            }
            drop(core);
            if let Err(error) = mapped {
                // The pieces before it have their names.
                self.store_now(handle, inode).map_err(fail(stored))?;
                inode.record_tid(handle, true);
                handle.consistent();
                return Err((done, error));
            }
        }
        self.store_now(handle, inode).map_err(fail(stored))?;
        inode.record_tid(handle, true);
        handle.consistent();
        Ok(())
    }

    fn map_piece_credits(&self, inode: &Inode, piece: &Piece) -> u32 {
        let len = (piece.blocks.end - piece.blocks.start) as u32;
        let core = inode.core.read();
        // The inode itself, and up to three insertions where an unwritten extent is split.
        1 + match piece.action {
            MapAction::None => 0,
            MapAction::Convert => 3 * self.map_credits(&core, len),
            MapAction::Insert(_) => self.map_credits(&core, len),
        }
    }

    fn map_piece(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        piece: &Piece,
    ) -> Result<()> {
        let at = FileBlock(piece.blocks.start);
        match piece.action {
            MapAction::None => Ok(()),
            MapAction::Insert(run) => {
                self.map_allocation(handle, inode.ino(), core, at, run, false)
            }
            MapAction::Convert => {
                let range = at..FileBlock(piece.blocks.end);
                let end = range.end;
                let left = Tree::new(self, inode.ino(), core).convert(handle, range, false)?;
                if left < end {
                    return Err(Corruption::new(
                        "a run of unwritten blocks is in more extents than it was",
                    )
                    .in_inode(inode.ino())
                    .at_file_block(left)
                    .into());
                }
                Ok(())
            }
        }
    }

    pub(crate) fn store_now(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let core = inode.core.write();
        self.store_inode(handle, inode, &core)
    }

    /// Ends the wb_runs: clean what is written and mapped, dirty again what is not.
    pub(super) fn complete_run(
        &self,
        wb_run: &WritebackRun<'_>,
        written: &[Result<(), IoError>],
        mapped: &[Result<()>],
    ) -> Result<()> {
        let WritebackRun {
            inode,
            collected,
            pieces,
            alloc_result,
            ..
        } = wb_run;
        let per_block = self.reserve_per_block(inode);
        let mut first_error = Ok(());
        // First: whoever finds no block in memory any more must find this.
        inode.mark_unflushed(self.queue.next_flush());
        let mut covered = collected[0].block.0;
        let end = collected[collected.len() - 1].block.0 + 1;
        let unallocated = |range: Range<u64>| {
            let inside = collected.iter().filter(|t| range.contains(&t.block.0));
            if inside.clone().next().is_none() {
                return; // a gap in what was dirty
            }
            let error = alloc_result.clone().err().map(WriteError::from);
            let error = error.expect("a block without a place has a cause");
            let reserved = inside.filter(|t| t.reserved).count() as u64;
            let kept = inode.pages.complete(range, Err(&error), true);
            self.alloc
                .with_totals(|t| t.adjust(reserved * per_block, kept * per_block));
        };
        for ((piece, written), mapped) in pieces.iter().zip(written).zip(mapped) {
            if covered < piece.blocks.start {
                unallocated(covered..piece.blocks.start);
            }
            covered = piece.blocks.end;
            let result = match (written, mapped) {
                (Err(error), _) => Err(WriteError::from(error.clone())),
                (Ok(()), Err(error)) => Err(WriteError::from(error.clone())),
                (Ok(()), Ok(())) => Ok(()),
            };
            if let (MapAction::Insert(run), Err(error)) = (piece.action, mapped) {
                self.release_unmapped(run, error);
            }
            let kept = inode
                .pages
                .complete(piece.blocks.clone(), result.as_ref().copied(), true);
            self.alloc
                .with_totals(|t| t.adjust(piece.reserved * per_block, kept * per_block));
            first_error = first_error.and(mapped.clone());
        }
        if covered < end {
            unallocated(covered..end);
        }
        first_error
    }

    /// A claim that got no name is given back, unless the journal failed, after which nothing is
    /// allocated any more anyway and the bitmap may have it.
    pub(crate) fn release_unmapped(&self, run: Run, why: &FsError) {
        if !why.is_stop() && *why != FsError::ReadOnly {
            self.alloc.release(self, run);
        }
    }
}
