//! Write-back of ext4 files: the part of the engine ([`steadfs_cache::Engine`]) that depends on the file system.
//!
//! Blocks are allocated in memory, and mapped in a handle after the device has written them: bitmap bit, extent and
//! size in one transaction. So a commit has no data to wait for, `data=ordered` and `data=writeback` are the same code,
//! and an aborted run leaks nothing.

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_block::{Buf, IoError, Queue};
use steadfs_cache::{
    ClusterMark, CollectedBlock, DirtyFile, Engine, FlushLock, FsyncClustering, Intent, MapAction,
    MapRequest, MappedPiece, Mapping, Piece, Settlement, Writeback, WritebackFile, WritebackFs,
    WritebackLimits, WritebackReason, WritebackRun,
};
use steadfs_vfs::{FsError, Result};

use crate::clusters::HoleRequest;
use crate::disk::{self, Ino};
use crate::extent::Tree;
use crate::freeing::Shortage;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::mballoc::{Goal, Run};
use crate::place::BlockPlace;
use crate::txn::Handle;

/// Bytes of a batch; up to twice as much of a file is in flight.
pub(super) const BATCH_BYTES: usize = 4 << 20;
/// Batches after which background write-back releases the file's flush lock for waiting tasks.
const TURN_BATCHES: usize = 4;
const LIMITS: WritebackLimits = WritebackLimits {
    small_file_bytes: 128 << 10,
    small_batch_bytes: 8 << 20,
};

impl WritebackFile for Inode {
    fn number(&self) -> DirtyFile {
        DirtyFile(self.ino().0.into())
    }

    fn pages(&self) -> &Mapping {
        &self.pages
    }

    fn flush(&self) -> &FlushLock {
        &self.flush
    }

    fn size(&self) -> u64 {
        Self::size(self)
    }

    fn stored_size(&self) -> u64 {
        self.core.read().size
    }

    fn cluster_mark(&self) -> &ClusterMark {
        &self.clustered
    }
}

/// The blocks of a piece that was allocated for its run.
pub(super) fn run_of(piece: &Piece) -> Run {
    Run {
        start: piece.start,
        len: piece.len() as u32,
    }
}

impl WritebackFs for Ext4 {
    type File = Inode;
    type Hint = ();
    type Placement = ();

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    fn clustering(&self) -> &FsyncClustering {
        &self.fsync_clustering
    }

    fn limits(&self) -> WritebackLimits {
        LIMITS
    }

    fn file(&self, number: u64) -> Option<Arc<Inode>> {
        self.inodes.get(Ino(u32::try_from(number).ok()?))
    }

    fn hint(&self, _reason: WritebackReason) {}

    fn check_writable(&self) -> Result<()> {
        Self::check_writable(self)
    }

    fn stored_form(&self, inode: &Inode, block: FileBlock, content: &Buf) -> Buf {
        if !inode.is_encrypted() {
            return content.clone();
        }
        let key = inode.held_key.lock().clone();
        let key = key.expect("the key was held before the block became dirty");
        let mut stored = content.clone();
        key.encrypt(block.0 << self.geo.block_size.bits(), stored.make_mut());
        stored
    }

    fn turn(&self, reason: WritebackReason) -> (usize, usize) {
        let blocks = BATCH_BYTES >> self.geo.block_size.bits();
        match reason {
            WritebackReason::Sync => (blocks, usize::MAX),
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                (blocks, TURN_BATCHES)
            }
        }
    }

    fn clusters(&self) -> bool {
        self.txns.is_journaled()
    }

    fn placement(&self, _inode: &Inode, _intent: &Intent<()>) {}

    fn allocate(
        &self,
        inode: &Inode,
        run: &[CollectedBlock],
        before: Option<&Piece>,
        (): &(),
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
                    Some(piece) => self.goal_near(&core, piece.end()),
                    None if mapped.place == BlockPlace::Hole => {
                        self.goal_after(inode.ino(), &core, at)
                    }
                    None => DevBlock(0).into(),
                };
                let end = self.geo.block_size.blocks_for(core.size);
                (mapped, goal, at.0 > 0 && at.0 >= end)
            };
            let n = mapped.len.min(left);
            let (start, n, action) = match mapped.place {
                BlockPlace::Written(start) => (start, n, MapAction::None),
                BlockPlace::Unwritten(start) => (start, n, MapAction::Convert),
                BlockPlace::Hole => {
                    let hole = HoleRequest {
                        ino: inode.ino(),
                        at,
                        len: n,
                        goal,
                    };
                    let run = self.allocate_hole(inode, hole, tag, |at, goal, want| {
                        let grows = grows.then_some((inode.ino(), at));
                        self.allocate_for_data(grows, goal, want, tag)
                    })?;
                    (run.start, run.len.into(), MapAction::Insert)
                }
            };
            let blocks = &run[done..done + n as usize];
            pieces.push(Piece {
                blocks: at.0..at.0 + n,
                start,
                action,
                reserved: blocks.iter().filter(|block| block.reserved).count() as u64,
            });
            done += n as usize;
        }
        Ok(())
    }

    fn shared_block(&self, inode: &Inode, block: DevBlock) -> FsError {
        Corruption::new("is mapped more than once")
            .in_inode(inode.ino())
            .in_block(block)
            .into()
    }

    /// Maps the pieces of all files in one handle if possible.
    fn map(&self, requests: &mut [MapRequest<'_, Inode>]) {
        let mut handle = None;
        for request in requests {
            if request.todo.is_empty() {
                continue;
            }
            let Err((done, error)) = self.map_pieces(&mut handle, request) else {
                continue;
            };
            if let Some(handle) = handle.take() {
                let _: Result<()> = handle.end(Err(error.clone()));
            }
            for &i in &request.todo[done..] {
                request.outcomes[i] = MappedPiece::none(error.clone());
            }
        }
        if let Some(handle) = handle {
            let _: Result<()> = handle.end(Ok(()));
        }
    }

    fn release_unmapped(&self, start: DevBlock, blocks: u64, why: &FsError) {
        let len = blocks as u32;
        Self::release_unmapped(self, Run { start, len }, why);
    }

    fn settle(&self, inode: &Inode, settlement: Settlement) {
        let per_block = self.reserve_per_block(inode);
        let Settlement { held, kept, .. } = settlement;
        self.alloc
            .with_totals(|t| t.adjust(held * per_block, kept * per_block));
        self.end_delay(inode, held.saturating_sub(kept));
    }

    /// Records the error for `.steadfs/errors`; with `data_err=abort` the volume stops.
    fn data_failed(&self, _inode: &Inode, error: &IoError) {
        self.record_data_error(error);
    }

    fn before_complete(&self, run: &WritebackRun<'_, Inode>, _outcomes: &[MappedPiece]) {
        run.file.mark_unflushed(self.queue.next_flush());
    }
}

impl Ext4 {
    /// Writes all data of the file that is dirty at the start, and waits. Data that fails stays dirty.
    pub fn write_out(&self, inode: &Inode, why: WritebackReason, tag: IoTag) -> Result<()> {
        let engine = Engine(self);
        engine.write_out(inode, self.writeback.end_epoch(), engine.intent(why, tag))
    }

    /// Writes the dirty data of a range of blocks. The caller holds the flush lock, and the inode's lock against
    /// writers.
    pub(crate) fn write_out_locked(
        &self,
        inode: &Inode,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<()> {
        let engine = Engine(self);
        engine.write_out_locked(inode, range, engine.intent(WritebackReason::Sync, tag))
    }

    /// Writes the dirty data of many files; small ones are batched.
    pub fn write_out_files(&self, files: &[u64], why: WritebackReason, tag: IoTag) -> Result<()> {
        let engine = Engine(self);
        engine.write_out_files(files, engine.intent(why, tag))
    }

    /// Called before the data of `inode` is written for an fsync: writes it in one batch with that of its fsync
    /// cluster.
    pub(super) fn write_cluster(&self, inode: &Inode, tag: IoTag) {
        let engine = Engine(self);
        engine.write_cluster(inode, engine.intent(WritebackReason::Sync, tag));
    }

    /// Records the error for `.steadfs/errors`; with `data_err=abort` the volume stops.
    pub(super) fn record_data_error(&self, error: &IoError) {
        self.errors.record_data_error(error);
        let aborts = self.options.read().abort_on_data_error;
        if let Some(journal) = self.txns.journal().filter(|_| aborts) {
            journal.abort(&error.to_string());
        }
    }

    /// Allocates blocks for data; `grows` is the file and block if this extends the file. If no block is free, commits
    /// so that freed blocks become free.
    fn allocate_for_data(
        &self,
        grows: Option<(Ino, FileBlock)>,
        goal: Goal,
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

    /// Maps the pieces `todo` of a request, in one handle or in several in sequence. On error returns the number of
    /// pieces done.
    pub(super) fn map_pieces<'h>(
        &'h self,
        slot: &mut Option<Handle<'h>>,
        request: &MapRequest<'_, Inode>,
    ) -> Result<(), (usize, FsError)> {
        let fail = |done| move |error| (done, error);
        let (inode, bits) = (request.file, self.geo.block_size.bits());
        let piece = |i: usize| &request.pieces[i];
        let _pins = self
            .pin_inodes(&[inode.ino()], IoTag::default())
            .map_err(fail(0))?;
        let first = self.map_piece_credits(inode, piece(request.todo[0]));
        let handle = match slot {
            Some(handle) => {
                if !handle.extend(first) {
                    handle.restart(first).map_err(fail(0))?;
                }
                handle
            }
            None => slot.insert(self.txns.begin(first).map_err(fail(0))?),
        };
        // A replay of fast commits does not know which blocks beyond the end are a hash tree.
        if !inode.marks.becomes_verity() {
            handle.track();
        }
        let mut stored = 0;
        for (done, &i) in request.todo.iter().enumerate() {
            let piece = piece(i);
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
                core.size = core.size.max(request.size_after(piece, bits));
            }
            drop(core);
            if let Err(error) = mapped {
                // The pieces before it are mapped.
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

    pub(super) fn map_piece_credits(&self, inode: &Inode, piece: &Piece) -> u32 {
        let len = piece.len() as u32;
        let core = inode.core.read();
        // The inode itself, and up to three insertions where an unwritten extent is split.
        1 + match piece.action {
            MapAction::None => 0,
            MapAction::Convert => 3 * self.map_credits(&core, len),
            MapAction::Insert => self.map_credits(&core, len),
        }
    }

    pub(super) fn map_piece(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        piece: &Piece,
    ) -> Result<()> {
        let at = FileBlock(piece.blocks.start);
        if piece.action != MapAction::None && handle.is_tracked() {
            let blocks = piece.blocks.clone();
            self.fast_commits.mapped(handle, inode.ino(), blocks);
        }
        match piece.action {
            MapAction::None => Ok(()),
            MapAction::Insert => {
                self.map_allocation(handle, inode.ino(), core, at, run_of(piece), false)
            }
            MapAction::Convert => {
                let range = at..FileBlock(piece.blocks.end);
                let end = range.end;
                let left = Tree::new(self, inode.ino(), core).convert(handle, range, false)?;
                if left < end {
                    let what = "a run of unwritten blocks is in more extents than it was";
                    return Err(Corruption::new(what)
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

    /// Frees an allocation that was not mapped. Not if the journal failed: then nothing is allocated any more, and the
    /// bitmap may have the blocks as used.
    pub(crate) fn release_unmapped(&self, run: Run, why: &FsError) {
        if !why.is_stop() && *why != FsError::ReadOnly {
            self.alloc.release(self, run);
        }
    }
}
