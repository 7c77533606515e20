//! One write-back run: blocks of a file on their way to the device.

use std::ops::Range;

use steadfs_base::{DevBlock, IoTag, Urgency};
use steadfs_block::{Bio, IoError, IoHandle, Plug};
use steadfs_vfs::{FsError, Result};

use super::{Engine, Intent, WritebackFile, WritebackFs};
use crate::CollectedBlock;

/// What mapping changes once a piece is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAction {
    /// Nothing: the blocks are mapped and are overwritten.
    None,
    /// The blocks are mapped as unwritten and become written.
    Convert,
    /// The blocks were allocated for this run and become mapped.
    Insert,
}

/// Consecutive blocks of a file that are consecutive on the device, too.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Blocks of the file.
    pub blocks: Range<u64>,
    /// The first one on the device.
    pub start: DevBlock,
    /// What mapping changes.
    pub action: MapAction,
    /// How many of its blocks hold a reservation.
    pub reserved: u64,
}

impl Piece {
    /// Number of blocks.
    pub fn len(&self) -> u64 {
        self.blocks.end - self.blocks.start
    }

    /// Whether it has no block.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Behind its last block on the device.
    pub fn end(&self) -> DevBlock {
        self.start.plus(self.len())
    }
}

/// Blocks of a file on their way to the device.
pub struct WritebackRun<'a, F> {
    /// The file.
    pub file: &'a F,
    /// Its size when the blocks were collected: how far it may grow on disk by them.
    pub size: u64,
    /// The blocks, in order.
    pub collected: Vec<CollectedBlock>,
    /// Where they are written, in the file's order.
    pub pieces: Vec<Piece>,
    /// The requests of each piece.
    pub(super) ios: Vec<Vec<IoHandle>>,
    /// Why some block has no place, if so.
    pub(super) alloc_result: Result<()>,
}

impl<F> WritebackRun<'_, F> {
    /// First block and length of each piece on the device.
    pub(super) fn device_runs(&self) -> impl Iterator<Item = (DevBlock, u64)> {
        self.pieces.iter().map(|piece| (piece.start, piece.len()))
    }

    /// The first block that was not written, from block `from` on, and why.
    pub(super) fn first_failed(
        &self,
        written: &[Result<(), IoError>],
        from: u64,
    ) -> Option<(u64, FsError)> {
        let both = || self.pieces.iter().zip(written);
        let good = both().filter(|(_, written)| written.is_ok());
        let good = good.map(|(piece, _)| piece.blocks.start.max(from)..piece.blocks.end);
        let before = self.collected.partition_point(|b| b.block.0 < from);
        let first = CollectedBlock::first_not_in(&self.collected[before..], good)?;
        let its = both().find(|(piece, _)| piece.blocks.contains(&first));
        let its = its.and_then(|(_, written)| written.clone().err());
        let error = its
            .map(|error| FsError::Io(error.to_string()))
            .or(self.alloc_result.clone().err())?;
        Some((first, error))
    }

    /// Whether all its blocks were allocated for it.
    pub(super) fn is_all_new(&self) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.all(|piece| piece.action == MapAction::Insert)
    }

    /// Whether it writes no device block that the other run writes.
    pub(super) fn is_apart_from(&self, other: &Self) -> bool {
        let mut all: Vec<_> = self.device_runs().chain(other.device_runs()).collect();
        all.sort_unstable();
        all.is_sorted_by(|a, b| a.0.plus(a.1) <= b.0)
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

/// Pieces of a file that are to be mapped.
pub struct MapRequest<'r, F> {
    /// The file.
    pub file: &'r F,
    /// How far it may grow by them, in bytes.
    pub size: u64,
    /// All pieces of the run.
    pub pieces: &'r [Piece],
    /// Indices of those that are to be mapped, in order.
    pub todo: Vec<usize>,
    /// The outcome of each piece.
    pub outcomes: Vec<MappedPiece>,
}

impl<F> MapRequest<'_, F> {
    /// The file's size on the device once the piece is mapped, in bytes; `bits`: the block size.
    pub fn size_after(&self, piece: &Piece, bits: u32) -> u64 {
        size_after(self.size, piece, bits)
    }
}

/// What a file of `size` bytes may have on disk once the piece is mapped.
pub(super) fn size_after(size: u64, piece: &Piece, bits: u32) -> u64 {
    let end = piece.blocks.end.checked_shl(bits).unwrap_or(u64::MAX);
    size.min(end)
}

/// The outcome of mapping a piece.
#[derive(Clone, Debug)]
pub struct MappedPiece {
    /// Blocks that are mapped, from the first.
    pub blocks: u64,
    /// Reservations that they used.
    pub used: u64,
    /// Whether the file's size on the device covers more than before.
    pub grew: bool,
    /// Why not all, if so.
    pub result: Result<()>,
}

impl MappedPiece {
    /// All blocks of a piece, which used no reservation by themselves.
    pub fn all(piece: &Piece) -> Self {
        Self {
            blocks: piece.len(),
            used: 0,
            grew: false,
            result: Ok(()),
        }
    }

    /// None, because of an error.
    pub fn none(error: FsError) -> Self {
        Self {
            blocks: 0,
            used: 0,
            grew: false,
            result: Err(error),
        }
    }
}

impl<S: WritebackFs> Engine<'_, S> {
    /// Allocates for collected blocks; the file had that size when they were collected.
    pub(super) fn allocate_run<'f>(
        &self,
        file: &'f S::File,
        (collected, size): (Vec<CollectedBlock>, u64),
        before: Option<&Piece>,
        intent: &Intent<S::Hint>,
    ) -> WritebackRun<'f, S::File> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut alloc_result = Ok(());
        let placement = self.0.placement(file, intent);
        let mut rest = &collected[..];
        while let Some(first) = rest.first() {
            let consecutive = rest.iter().zip(first.block.0..);
            let n = consecutive.take_while(|(b, n)| b.block.0 == *n).count();
            let (run, after) = rest.split_at(n);
            rest = after;
            let allocated = self
                .0
                .allocate(file, run, before, &placement, intent.tag, &mut pieces);
            alloc_result = alloc_result.and(allocated);
        }
        let shared = drop_shared(&mut pieces);
        if let Some(block) = shared {
            alloc_result = alloc_result.and(Err(self.0.shared_block(file, block)));
        }
        WritebackRun {
            file,
            size,
            collected,
            pieces,
            ios: Vec::new(),
            alloc_result,
        }
    }

    /// Starts the writes of every piece, or hands them to a plug.
    pub(super) fn submit_run(
        &self,
        plug: Option<&Plug<'_>>,
        run: &mut WritebackRun<'_, S::File>,
        tag: IoTag,
    ) {
        let queue = self.0.queue();
        let (file, bs) = (run.file, run.file.pages().block_size());
        let waiter = file.flush().waiters().tag();
        let boosted = |tag| waiter.map_or(tag, |waiter| queue.effective_tag(tag, waiter));
        let per_bio = (queue.max_transfer_for(boosted(tag)) as usize >> bs.bits()).max(1);
        let mut rest = &run.collected[..];
        for piece in &run.pieces {
            let before = |b: &&CollectedBlock| b.block.0 < piece.blocks.start;
            let skip = rest.iter().take_while(before).count();
            let (blocks, after) = rest[skip..].split_at(piece.len() as usize);
            rest = after;
            let mut handles = Vec::new();
            for (i, chunk) in blocks.chunks(per_bio).enumerate() {
                let at = piece.start.plus((i * per_bio) as u64);
                let form = |b: &CollectedBlock| self.0.stored_form(file, b.block, &b.data);
                let bufs = chunk.iter().map(form).collect();
                let tag = match tag.urgency {
                    Urgency::Waited => tag,
                    urgency => chunk[0].tag.with_urgency(urgency),
                };
                let bio = Bio::write(bs.offset_of(at), bufs);
                let io = match plug {
                    Some(plug) => plug.submit(bio, boosted(tag)),
                    None => queue.submit(bio, boosted(tag)),
                };
                let range = chunk[0].block.0..chunk[chunk.len() - 1].block.0 + 1;
                file.pages().mark_submitted(range, &io);
                handles.push(io);
            }
            run.ios.push(handles);
        }
    }
}

/// Takes out pieces on device blocks that another piece has, too: the map is damaged, and both would read what is written
/// last. An allocated piece is never taken out. The first such block.
fn drop_shared(pieces: &mut Vec<Piece>) -> Option<DevBlock> {
    if pieces.len() < 2 {
        return None;
    }
    let is_new = |p: &Piece| p.action == MapAction::Insert;
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|&i| (pieces[i].start, !is_new(&pieces[i])));
    let mut shared = None;
    let mut keep = vec![true; pieces.len()];
    let mut last = order[0];
    for &i in &order[1..] {
        let (a, b) = (&pieces[last], &pieces[i]);
        if b.start >= a.end() {
            last = i;
            continue;
        }
        shared.get_or_insert(b.start);
        if is_new(b) && !is_new(a) {
            keep[last] = false;
            last = i;
        } else {
            keep[i] = false;
        }
    }
    if shared.is_some() {
        let mut keep = keep.into_iter();
        pieces.retain(|_| keep.next().unwrap_or(true));
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(block: u64, start: u64, len: u64, action: MapAction) -> Piece {
        Piece {
            blocks: block..block + len,
            start: DevBlock(start),
            action,
            reserved: 0,
        }
    }

    #[test]
    fn of_pieces_on_one_device_block_one_is_written_and_a_new_one_always() {
        use MapAction::{Insert, None};
        let mut pieces = vec![
            piece(0, 100, 4, None),
            piece(4, 102, 4, None),
            piece(8, 300, 2, None),
            piece(10, 301, 1, Insert),
        ];
        assert_eq!(drop_shared(&mut pieces), Some(DevBlock(102)));
        let left: Vec<u64> = pieces.iter().map(|p| p.blocks.start).collect();
        assert_eq!(left, [0, 10]);
        assert_eq!(drop_shared(&mut pieces), Option::None);
    }

    #[test]
    fn the_size_on_disk_follows_the_last_mapped_block() {
        let end = piece(0, 0, 4, MapAction::None);
        assert_eq!(size_after(10_000, &end, 10), 4096);
        assert_eq!(size_after(4000, &end, 10), 4000);
    }
}
