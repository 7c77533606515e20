//! Write-back of f2fs files: what the engine ([`steadfs_cache::Engine`]) leaves to the file system.
//!
//! A block is overwritten in place (IPU) where the rules of [`placement`](super::placement) allow it; otherwise a new one
//! is allocated at the end of a log (OPU), and the node that maps it changes after the device has written it. So no
//! block that a checkpoint or an fsync's node chain refers to is ever missing on the device, and no checkpoint waits for
//! data.

use std::sync::Arc;

use steadfs_base::{DevBlock, FileBlock, IoTag};
use steadfs_block::{Buf, IoError, Queue};
use steadfs_cache::{
    ClusterMark, CollectedBlock, DirtyFile, Engine, FlushLock, FsyncClustering, Intent, MapAction,
    MapRequest, MappedPiece, Mapping, Piece, Settlement, Writeback, WritebackFile, WritebackFs,
    WritebackLimits, WritebackReason, WritebackRun,
};
use steadfs_vfs::{FsError, Result};

use super::placement::{self, FileHints, Occasion, VolumeState};
use super::{BLOCK, MapTarget};
use crate::cp_lock::Change;
use crate::disk::{self, BlockAddr, DiskError, LogType, Nid, Structure};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::options::Mode;
use crate::segment::{BlockKind, Demand, Purpose, Run};
use crate::space::Need;

/// The most blocks of a file written before the free space is checked again, and while free sections are short.
const TURN_BLOCKS: usize = (8 << 20) / BLOCK as usize;
const TURN_BLOCKS_NEED_SSR: usize = (2 << 20) / BLOCK as usize;
/// Files up to this size are mostly written once: their nodes are packed after write-back.
const PACKED_SIZE_MAX: u64 = 64 << 10;
const LIMITS: WritebackLimits = WritebackLimits {
    small_file_bytes: 1 << 20,
    small_batch_bytes: 4 << 20,
};

impl WritebackFile for Inode {
    fn number(&self) -> DirtyFile {
        DirtyFile(self.nid().0.into())
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

/// The address of a device block that this file system has allocated or mapped.
fn addr(block: DevBlock) -> BlockAddr {
    BlockAddr(u32::try_from(block.0).expect("the engine passes back addresses of this volume"))
}

fn run_of(start: DevBlock, blocks: u64) -> Run {
    Run {
        start: addr(start),
        len: u32::try_from(blocks).expect("a piece is within a segment"),
    }
}

impl WritebackFs for F2fs {
    type File = Inode;
    type Hint = Occasion;
    /// Whether blocks are overwritten, and the log that new ones come from.
    type Placement = (bool, LogType);

    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    fn clustering(&self) -> &FsyncClustering {
        self.syncs.clustering()
    }

    fn limits(&self) -> WritebackLimits {
        LIMITS
    }

    fn file(&self, number: u64) -> Option<Arc<Inode>> {
        let inode = self.inodes.find(Nid(u32::try_from(number).ok()?)).ok()?;
        (!inode.is_written_by_cp()).then_some(inode)
    }

    fn stored_form(&self, inode: &Inode, block: FileBlock, content: &Buf) -> Buf {
        if !self.has_encryption() || !inode.is_encrypted() {
            return content.clone();
        }
        let key = inode.held_key.lock().clone();
        let key = key.expect("the key was held before the block became dirty");
        let mut stored = content.clone();
        key.encrypt(block.0 * BLOCK, stored.make_mut());
        stored
    }

    fn hint(&self, reason: WritebackReason) -> Occasion {
        match reason {
            WritebackReason::Sync => Occasion::Sync,
            WritebackReason::Background | WritebackReason::Throttle | WritebackReason::Early => {
                Occasion::Background
            }
        }
    }

    fn check_writable(&self) -> Result<()> {
        Self::check_writable(self)
    }

    fn before_turn(&self, tag: IoTag) -> Result<()> {
        Self::check_writable(self)?;
        self.balance(tag)
    }

    /// A change may dirty one node per block that it maps, so the free sections limit the blocks per turn.
    fn turn(&self, _reason: WritebackReason) -> (usize, usize) {
        let most = self.gc.blocks_at_once();
        match self.placement_state().needs_ssr {
            true => (TURN_BLOCKS_NEED_SSR.min(most), 1),
            false => ((TURN_BLOCKS.min(most) / 2).max(1), 2),
        }
    }

    /// The blocks are reserved, but all free segments are in use until a checkpoint or GC frees some.
    fn is_retried(&self, error: &FsError) -> bool {
        *error == FsError::NoSpace
    }

    fn make_space(&self, tag: IoTag) -> Result<()> {
        self.make_free_space(tag)
    }

    /// Newly allocated blocks would add a node to the fsync that is expected.
    fn may_write_early(&self, inode: &Inode) -> bool {
        let volume = self.placement_state();
        placement::ipu(&volume, &self.file_hints(inode), Occasion::Background)
    }

    fn encoded_end(&self, inode: &Inode, block: u64) -> Option<u64> {
        let per = self.cluster_blocks(&inode.core.read())?;
        Some((block / per * per).saturating_add(per))
    }

    fn write_encoded(
        &self,
        inode: &Inode,
        (collected, size): (Vec<CollectedBlock>, u64),
        intent: &Intent<Occasion>,
    ) -> Result<()> {
        self.write_clusters(inode, (&collected, size), intent.hint, intent.tag)
    }

    fn placement(&self, inode: &Inode, intent: &Intent<Occasion>) -> (bool, LogType) {
        let file = self.file_hints(inode);
        let ipu = placement::ipu(&self.placement_state(), &file, intent.hint);
        (ipu, self.data_log(&file, intent.hint))
    }

    fn allocate(
        &self,
        inode: &Inode,
        run: &[CollectedBlock],
        _before: Option<&Piece>,
        &(ipu, log): &(bool, LogType),
        tag: IoTag,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        let mut done = 0;
        while done < run.len() {
            let at = run[done].block.0;
            let left = (run.len() - done) as u64;
            // Looked up in any case: the node that maps the blocks is in memory when `cp_lock` is held.
            let mapped = Self::map(self, inode, at, left, tag)?;
            let over = match mapped.target {
                // As in Linux, also over blocks of the last checkpoint while checkpoints are disabled.
                MapTarget::Block(_) if inode.is_pinned() => mapped.len,
                MapTarget::Block(start) if ipu => {
                    let len = u32::try_from(mapped.len).unwrap_or(u32::MAX);
                    u64::from(self.segments().may_overwrite(start, len))
                }
                _ => 0,
            };
            let (start, n, action) = match mapped.target {
                MapTarget::Block(start) if over > 0 => {
                    self.check_own(inode, start, over)?;
                    self.syncs
                        .wrote_ipu(u32::try_from(over).unwrap_or(u32::MAX));
                    (start, over, MapAction::None)
                }
                MapTarget::Compressed => unreachable!("only an encoded file has such clusters"),
                _ => {
                    let want = u32::try_from(mapped.len).unwrap_or(u32::MAX);
                    let run = self.segments().allocate(log, want, Purpose::User)?;
                    (run.start, run.len.into(), MapAction::Insert)
                }
            };
            let start = DevBlock(start.0.into());
            let blocks = &run[done..done + n as usize];
            let reserved = blocks.iter().filter(|block| block.reserved).count() as u64;
            done += n as usize;
            // Blocks of a file that are allocated in turn are consecutive in the log, too.
            if let Some(last) = pieces.last_mut()
                && last.action == action
                && last.blocks.end == at
                && last.end() == start
            {
                last.blocks.end += n;
                last.reserved += reserved;
                continue;
            }
            pieces.push(Piece {
                blocks: at..at + n,
                start,
                action,
                reserved,
            });
        }
        Ok(())
    }

    fn shared_block(&self, inode: &Inode, block: DevBlock) -> FsError {
        let rule = "more than once in a file";
        let error = DiskError::address(Structure::Inode, addr(block), rule);
        error.in_node(inode.nid()).into()
    }

    fn map(&self, requests: &mut [MapRequest<'_, Inode>]) {
        for request in requests {
            if !request.todo.is_empty() {
                self.map_pieces(request);
            }
        }
    }

    fn release_unmapped(&self, start: DevBlock, blocks: u64, _why: &FsError) {
        self.segments().release(run_of(start, blocks));
    }

    fn settle(&self, inode: &Inode, settlement: Settlement) {
        let Settlement { held, used, kept } = settlement;
        assert!(
            used + kept <= held,
            "a run cannot use and keep more reservations than it held"
        );
        let blocks = held - used - kept;
        self.end_delay(inode, blocks);
        self.space.release(Need { blocks, nodes: 0 });
    }

    fn data_failed(&self, inode: &Inode, error: &IoError) {
        tracing::warn!(ino = %inode.nid(), %error, "cannot write file data");
        let error = io_error(error.clone());
        self.errors.data_failed(inode.nid(), &error);
    }

    fn before_complete(&self, run: &WritebackRun<'_, Inode>, outcomes: &[MappedPiece]) {
        let inode = run.file;
        // A size that covers more needs the same FLUSH as newly allocated blocks: recovery must not find it without
        // the data.
        let is_new = |piece: &Piece| piece.action == MapAction::Insert;
        let mut opu = run.pieces.iter().any(is_new) || outcomes.iter().any(|mapped| mapped.grew);
        if let Some(from) = inode.stale_tail()
            && run.collected.iter().any(|b| b.block.0 == from / BLOCK)
        {
            // Treated like newly allocated blocks: the old content of the device is not content of the file.
            opu = true;
            if outcomes.iter().all(|mapped| mapped.result.is_ok()) {
                inode.clear_stale_tail();
            }
        }
        inode.record_written(opu, self.queue.next_flush());
    }
}

impl F2fs {
    /// Writes what was dirty when the call began, and waits. Data whose write fails stays dirty. (Dirty blocks of
    /// directories and symbolic links are written by checkpoints.) The caller holds no lock: this frees segments if
    /// the logs are full.
    pub(crate) fn write_out(&self, inode: &Inode, why: WritebackReason, tag: IoTag) -> Result<()> {
        self.write_out_as(inode, why, WritebackFs::hint(self, why), tag)
    }

    /// As [`F2fs::write_out`], for a caller that knows the occasion of the write.
    pub(super) fn write_out_as(
        &self,
        inode: &Inode,
        reason: WritebackReason,
        hint: Occasion,
        tag: IoTag,
    ) -> Result<()> {
        if inode.is_written_by_cp() {
            return Ok(());
        }
        let intent = Intent { reason, hint, tag };
        Engine(self).write_out(inode, self.writeback.end_epoch(), intent)
    }

    /// As [`F2fs::write_out`], for many files; small ones are batched.
    pub(crate) fn write_out_files(
        &self,
        files: &[u64],
        why: WritebackReason,
        tag: IoTag,
    ) -> Result<()> {
        let engine = Engine(self);
        engine.write_out_files(files, engine.intent(why, tag))
    }

    /// As [`F2fs::write_out`], for a caller that holds the inode's lock.
    ///
    /// # Errors
    /// `NoSpace` if the logs are full: the caller releases the lock, frees segments and retries.
    pub(crate) fn write_out_locked(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.write_out_upto(inode, u64::MAX, tag)
    }

    /// [`F2fs::write_out_locked`] for the blocks before `end`.
    pub(crate) fn write_out_upto(&self, inode: &Inode, end: u64, tag: IoTag) -> Result<()> {
        if inode.is_written_by_cp() || inode.pages.is_empty() {
            return Ok(());
        }
        // After an abort or a shutdown nothing reaches the device.
        self.check_writable()?;
        inode.pages.boost(0..end, &self.queue, tag);
        let _flush = inode.lock_flush();
        self.write_out_upto_locked(inode, end, tag)
    }

    /// [`F2fs::write_out_upto`] under the flush lock.
    pub(super) fn write_out_upto_locked(&self, inode: &Inode, end: u64, tag: IoTag) -> Result<()> {
        self.check_writable()?;
        let engine = Engine(self);
        let intent = engine.intent(WritebackReason::Sync, tag);
        engine.write_out_locked(inode, 0..end, intent)
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
                options.gc_policy.places_by_temperature(),
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
            (
                options.active_logs,
                options.gc_policy.places_by_temperature(),
            )
        };
        placement::data_log(logs, temperature, file, occasion)
    }

    /// A block that the SIT does not have as valid may be allocated again, and a node block belongs to another
    /// owner: a map that refers to one is corrupt, and nothing is written there.
    fn check_own(&self, inode: &Inode, start: BlockAddr, len: u64) -> Result<()> {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let checked = self.segments().check_owned(start, len, BlockKind::Data);
        checked.map_err(|e| e.in_node(inode.nid()).into())
    }

    /// The most blocks of one write request with this tag.
    pub(crate) fn blocks_to_write(&self, tag: IoTag) -> usize {
        (self.queue.max_transfer_for(tag) as usize / BLOCK as usize).max(1)
    }

    /// Maps pieces in order, up to one that fails; the remaining ones get its error.
    fn map_pieces(&self, request: &mut MapRequest<'_, Inode>) {
        let inode = request.file;
        let mut todo = std::mem::take(&mut request.todo).into_iter();
        let failed = match self.change() {
            Ok(change) => {
                let mut core = inode.core.write();
                let failed = self.map_inline_first(&change, request, &mut core).err();
                let failed = failed.or_else(|| {
                    todo.find_map(|i| {
                        let mapped =
                            self.map_piece(&change, request, &mut core, &request.pieces[i]);
                        let failed = mapped.result.clone().err();
                        request.outcomes[i] = mapped;
                        failed
                    })
                });
                let used = request.outcomes.iter().map(|mapped| mapped.used).sum();
                self.charge_mapped(inode, &core, used);
                if core.size <= PACKED_SIZE_MAX
                    && let Ok(node) = self.inode_node(inode.nid(), IoTag::default())
                {
                    self.nodes.pack(&node);
                }
                failed
            }
            Err(error) => Some(error),
        };
        if let Some(error) = failed {
            todo.for_each(|i| request.outcomes[i] = MappedPiece::none(error.clone()));
        }
    }

    /// Before the first block is mapped: clears content that the node holds inline. Without that block nothing is mapped.
    fn map_inline_first(
        &self,
        change: &Change<'_>,
        request: &MapRequest<'_, Inode>,
        core: &mut disk::Inode,
    ) -> Result<()> {
        if !request.file.leaves_inline() {
            return Ok(());
        }
        match (request.pieces.first(), request.outcomes.first()) {
            (Some(piece), Some(outcome)) if piece.blocks.start == 0 => outcome.result.clone()?,
            _ => {
                let cause = "the file's first block, which was inline, is not written";
                return Err(FsError::Io(cause.to_owned()));
            }
        }
        self.end_leaving_inline(change, request.file, core)
    }

    fn map_piece(
        &self,
        change: &Change<'_>,
        request: &MapRequest<'_, Inode>,
        core: &mut disk::Inode,
        piece: &Piece,
    ) -> MappedPiece {
        let inode = request.file;
        let mut mapped = MappedPiece::all(piece);
        if let Err(error) = self.mark_dirty(change, inode, IoTag::default()) {
            return MappedPiece::none(error);
        }
        if piece.action == MapAction::Insert {
            mapped.blocks = 0;
            mapped.result = self.map_allocated(change, inode, core, piece, &mut mapped);
            if mapped.result.is_err() {
                return mapped;
            }
        }
        let size = request.size_after(piece, BLOCK.ilog2());
        mapped.grew = size > core.size;
        core.size = core.size.max(size);
        mapped
    }

    /// Maps allocated and written blocks to the file; those without a previous block use the piece's reservations.
    /// What was done is counted also on an error.
    fn map_allocated(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        piece: &Piece,
        mapped: &mut MappedPiece,
    ) -> Result<()> {
        let tag = IoTag::default();
        while mapped.blocks < piece.len() {
            let at = piece.blocks.start + mapped.blocks;
            let mut slot = self.make_slot(change, inode, core, at, tag)?;
            for _ in 0..u64::from(slot.left).min(piece.len() - mapped.blocks) {
                let fresh = !core.counts(self.addr_in(core, &slot)?);
                if fresh && mapped.used == piece.reserved {
                    let rule = "has no reservation";
                    let error = DiskError::field(Structure::Inode, "file block", at, rule);
                    return Err(error.in_node(inode.nid()).into());
                }
                let addr = addr(piece.start.plus(mapped.blocks));
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
