//! Writes without delayed allocation: with `nodelalloc`, and on a volume with too little space for reservations.
//!
//! **Problem.** On a nearly full volume the worst case of a write does not fit, although the write itself may. Its
//! error must be reported by write(2), not by a later fsync.
//!
//! **Rule.** The write proceeds through the file in order. Blocks that are mapped or reserved are copied into the
//! cache, as they need no space. New blocks are allocated, written and mapped before the write is acknowledged, piece
//! by piece. The first block without space ends the write: the caller gets the number of bytes that fitted, and the
//! rest of the file is unchanged.

use std::ops::Range;

use steadfs_base::FileBlock;
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_cache::{CacheWrite, MapAction, MapRequest, Piece, WritebackFs};
use steadfs_vfs::{Cx, FsError, Result};

use super::writeout::{BATCH_BYTES, run_of};
use crate::clusters::HoleRequest;
use crate::extent::Tree;
use crate::freeing::Shortage;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::mballoc::Run;
use crate::place::BlockPlace;
use crate::quota::QuotaHold;

/// Blocks of a file that are written the same way.
enum Stretch {
    /// They are mapped, or have a reservation: copied into the cache.
    Cacheable(u64),
    /// They are not cached, and are a hole or unwritten: the number of blocks, and the first one's place.
    New(u64, BlockPlace),
}

/// The part of a write that is not done.
#[derive(Clone, Copy)]
struct Rest<'a> {
    offset: u64,
    data: &'a [u8],
    /// The size up to which the file may grow.
    limit: u64,
}

impl Rest<'_> {
    fn skip(self, bytes: usize) -> Self {
        Self {
            offset: self.offset + bytes as u64,
            data: &self.data[bytes..],
            ..self
        }
    }
}

impl Ext4 {
    /// Writes as much of `data` as fits; returns the number of bytes, and the error if not all. Where an error
    /// ends the write, nothing after the bytes that count was changed.
    pub(super) fn write_without_delalloc(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        data: &[u8],
        limit: u64,
    ) -> (usize, Result<()>) {
        let mut done = 0;
        let all = Rest {
            offset,
            data,
            limit,
        };
        let result = self.with_space(cx, || {
            let _one = inode.lock_flush();
            while done < data.len() {
                done += self.write_stretch(cx, inode, all.skip(done))?;
            }
            Ok(())
        });
        (done, result)
    }

    /// Repeats an attempt to allocate blocks until it succeeds or no more blocks are about to become free: reservations
    /// of other files may exceed their need, and freed blocks may wait for a commit. The attempt continues where it
    /// failed, and holds no handle and no flush lock between two calls.
    pub(crate) fn with_space<T>(
        &self,
        cx: &Cx,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut result = attempt();
        if !result.as_ref().is_err_and(is_full) {
            return result;
        }
        let mut shortage = Shortage::new(self);
        if self.alloc.totals().is_uncertain() {
            self.make_room(cx)?;
        }
        loop {
            result = shortage.attempt(&mut attempt);
            if !result.as_ref().is_err_and(is_full) || !shortage.should_retry(cx.tag)? {
                return result;
            }
        }
    }

    /// Writes the next bytes, at least one. The caller holds `inode.flush`.
    fn write_stretch(&self, cx: &Cx, inode: &Inode, rest: Rest<'_>) -> Result<usize> {
        let bs = self.geo.block_size;
        let at = bs.file_block(rest.offset);
        let end = bs.blocks_for(rest.offset + rest.data.len() as u64);
        // The bytes of a number of blocks from `at` on.
        let bytes_of = |blocks: u64| {
            let upto = (at.0 + blocks) << bs.bits();
            ((upto - rest.offset) as usize).min(rest.data.len())
        };
        let (bytes, result) = match self.stretch(cx, inode, at.0..end)? {
            Stretch::Cacheable(n) => {
                let write = CacheWrite {
                    offset: rest.offset,
                    data: &rest.data[..bytes_of(n)],
                    tag: cx.tag,
                };
                let written = self.write_cached(inode, write, false, rest.limit);
                (written.bytes, written.error.map_or(Ok(()), Err))
            }
            Stretch::New(n, place) => {
                let n = n.min((BATCH_BYTES >> bs.bits()) as u64);
                let data = &rest.data[..bytes_of(n)];
                let rest = Rest { data, ..rest };
                let blocks = self.write_new(cx, inode, rest, at.0..at.0 + n, place)?;
                (bytes_of(blocks), Ok(()))
            }
        };
        if bytes == 0 {
            result?;
        }
        Ok(bytes)
    }

    /// How the first of `blocks` is written, and the number of blocks to which that applies. No data of the file is in
    /// flight, so cached blocks are dirty: they are mapped or have a reservation.
    fn stretch(&self, cx: &Cx, inode: &Inode, blocks: Range<u64>) -> Result<Stretch> {
        let at = FileBlock(blocks.start);
        let mapped = self.map(inode.ino(), &inode.core.read(), at, cx.tag)?;
        let n = mapped.len.min(blocks.end - blocks.start);
        if matches!(mapped.place, BlockPlace::Written(_)) {
            return Ok(Stretch::Cacheable(n));
        }
        Ok(match inode.pages.next_cached(at) {
            Some(cached) if cached == at => Stretch::Cacheable(1),
            Some(cached) => Stretch::New(n.min(cached.0 - at.0), mapped.place),
            None => Stretch::New(n, mapped.place),
        })
    }

    /// Writes blocks of `rest` that read as zeros now; returns how many from the first on.
    fn write_new(
        &self,
        cx: &Cx,
        inode: &Inode,
        rest: Rest<'_>,
        blocks: Range<u64>,
        place: BlockPlace,
    ) -> Result<u64> {
        let at = FileBlock(blocks.start);
        let last = blocks.end;
        let mut held = QuotaHold::default();
        let mut piece = match place {
            BlockPlace::Hole => {
                let goal = self.goal_after(inode.ino(), &inode.core.read(), at);
                let keep = self.root_reserved_clusters(cx);
                let (len, hold) = self.hold_blocks(cx, inode, at, last - blocks.start)?;
                held = hold;
                let hole = HoleRequest {
                    ino: inode.ino(),
                    at,
                    len,
                    goal,
                };
                let run = self.allocate_hole(inode, hole, cx.tag, |_, goal, want| {
                    self.alloc.allocate_spare(self, goal, want, keep)
                })?;
                allocated(at, run)
            }
            BlockPlace::Unwritten(start) | BlockPlace::Written(start) => Piece {
                blocks,
                start,
                action: MapAction::Convert,
                reserved: 0,
            },
        };
        let written = self.write_piece(cx, inode, rest, &piece);
        inode.mark_unflushed(self.queue.next_flush());
        let mut mapped = match written {
            Ok(()) => self.map_new(cx, inode, rest, &piece),
            Err(error) => Err(error),
        };
        while mapped.as_ref().is_err_and(is_full) {
            // The map needs a block: write fewer data blocks, or a piece that can be mapped without.
            let other = match piece.action {
                MapAction::Insert => self.release_half(&piece),
                MapAction::Convert | MapAction::None => {
                    self.zero_rest_of_extent(cx, inode, rest, &piece)?
                }
            };
            let Some(other) = other else {
                break;
            };
            piece = other;
            mapped = self.map_new(cx, inode, rest, &piece);
        }
        if let Err(error) = mapped {
            if piece.action == MapAction::Insert {
                self.release_unmapped(run_of(&piece), &error);
            }
            return Err(error);
        }
        drop(held);
        Ok(piece.blocks.end.min(last) - at.0)
    }

    /// Writes a piece's content to the device and waits.
    fn write_piece(&self, cx: &Cx, inode: &Inode, rest: Rest<'_>, piece: &Piece) -> Result<()> {
        let bs = self.geo.block_size;
        let per_bio = (self.queue.geometry().max_transfer as usize >> bs.bits()).max(1);
        let bufs: Vec<Buf> = piece
            .blocks
            .clone()
            .map(|block| {
                let plain = content(rest, block << bs.bits(), bs.bytes());
                self.stored_form(inode, FileBlock(block), &plain)
            })
            .collect();
        let mut at = piece.start;
        let mut ios = Vec::new();
        for bufs in bufs.chunks(per_bio) {
            let bio = Bio::write(bs.offset_of(at), bufs.to_vec());
            at = at.plus(bufs.len() as u64);
            ios.push(self.queue.submit(bio, cx.tag));
        }
        let written = ios.iter().map(IoHandle::wait).fold(Ok(()), Result::and);
        written.map_err(|error| {
            self.record_data_error(&error);
            io_error(error)
        })
    }

    /// Maps a written piece and grows the file over it.
    fn map_new(&self, cx: &Cx, inode: &Inode, rest: Rest<'_>, piece: &Piece) -> Result<()> {
        let bs = self.geo.block_size;
        let end = rest.offset + rest.data.len() as u64;
        let reached = end.min(piece.blocks.end << bs.bits()).min(rest.limit);
        let on_disk = inode.core.read().size;
        if on_disk < reached {
            // Dirty data before the piece will be covered by the new size.
            let before = bs.file_block(on_disk).0..piece.blocks.start;
            if !before.is_empty() {
                self.write_out_locked(inode, before, cx.tag)?;
            }
        }
        let size = inode.size().max(reached);
        let mut handle = None;
        let request = MapRequest {
            file: inode,
            size,
            pieces: std::slice::from_ref(piece),
            todo: vec![0],
            outcomes: Vec::new(),
        };
        let mapped = self.map_pieces(&mut handle, &request);
        let mapped = mapped.map_err(|(_, error)| error);
        match handle {
            Some(handle) => handle.end(mapped)?,
            None => mapped?,
        }
        inode.set_size(size);
        Ok(())
    }

    /// Extends an unwritten piece to its whole extent by writing zeros around it, as converting a whole extent needs no
    /// block. Blocks beyond the end of the file are left out, as they must stay unwritten: then the extent is split in
    /// two, and the first part may merge with the written extent before it. `None` if the piece is the whole extent.
    fn zero_rest_of_extent(
        &self,
        cx: &Cx,
        inode: &Inode,
        rest: Rest<'_>,
        piece: &Piece,
    ) -> Result<Option<Piece>> {
        let bs = self.geo.block_size;
        let at = FileBlock(piece.blocks.start);
        let extent = Tree::new(self, inode.ino(), &mut inode.core.write()).extent_at(at)?;
        let Some(extent) = extent.filter(|extent| extent.unwritten) else {
            return Ok(None);
        };
        let reached = rest.limit.min(rest.offset + rest.data.len() as u64);
        let size = inode.size().max(reached);
        let end = extent.end().0.min(bs.blocks_for(size));
        let whole = extent.block.0..end.max(piece.blocks.end);
        if whole == piece.blocks {
            return Ok(None);
        }
        let around = [whole.start..at.0, piece.blocks.end..whole.end];
        // At an end of the extent one side is empty and has no first block.
        for around in around.into_iter().filter(|blocks| !blocks.is_empty()) {
            let start = extent.device_block(FileBlock(around.start));
            let blocks = (FileBlock(around.start), start);
            self.zero_on_device(cx, inode, blocks, around.end - around.start)?;
        }
        Ok(Some(Piece {
            blocks: whole,
            start: extent.start,
            action: MapAction::Convert,
            reserved: 0,
        }))
    }

    /// The first half of an allocated piece; the other half is freed.
    fn release_half(&self, piece: &Piece) -> Option<Piece> {
        if piece.action != MapAction::Insert {
            return None;
        }
        let run = run_of(piece);
        let len = run.len / 2;
        if len == 0 {
            return None;
        }
        let upper = Run {
            start: run.start.plus(len.into()),
            len: run.len - len,
        };
        self.alloc.release(self, upper);
        let first = Run { len, ..run };
        Some(allocated(FileBlock(piece.blocks.start), first))
    }
}

/// Blocks that were allocated for the file's blocks from `at` on, without a reservation.
fn allocated(at: FileBlock, run: Run) -> Piece {
    Piece {
        blocks: at.0..at.0 + u64::from(run.len),
        start: run.start,
        action: MapAction::Insert,
        reserved: 0,
    }
}

fn is_full(error: &FsError) -> bool {
    *error == FsError::NoSpace
}

/// The content of the block that begins at byte `start` of the file: the write's bytes, else zeros.
fn content(rest: Rest<'_>, start: u64, len: usize) -> Buf {
    let end = start + len as u64;
    let (from, to) = (
        rest.offset.max(start),
        end.min(rest.offset + rest.data.len() as u64),
    );
    let bytes = &rest.data[(from - rest.offset) as usize..(to - rest.offset) as usize];
    if bytes.len() == len {
        return Buf::copy_of(bytes);
    }
    let mut buf = Buf::zeroed(len);
    let within = (from - start) as usize;
    buf.make_mut()[within..within + bytes.len()].copy_from_slice(bytes);
    buf
}
