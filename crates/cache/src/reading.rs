//! FileRead a range of a file: what is in memory from there, the rest from the device, whole blocks; then the
//! ends are cut off, and what a stream will ask for next is read ahead.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf, IoError, IoHandle, Queue};

use crate::{Mapping, ReadAheadWindow};

/// Longest single read of the device, in bytes.
pub const READ_BYTES_MAX: u64 = 1 << 20;

/// Where consecutive blocks of a file come from that are not in memory.
pub enum BlockSource {
    /// From nowhere: they are zeros.
    Hole,
    /// From the device, from this byte on.
    Device(u64),
    /// The file system has their content already.
    Content(Buf),
}

/// A part of what is read.
pub enum ReadPart {
    /// So many zeros.
    Zeros(usize),
    /// Bytes of a block, or of several.
    Bytes(Buf, Range<usize>),
}

/// How one file's blocks are read.
///
/// The file system's part is its map, a function that is given a block and how many of those behind it are
/// wanted as well, and tells where they come from and for how many that is so.
pub struct FileReader<'a> {
    /// The device's.
    pub queue: &'a Queue,
    /// What is in memory of the file.
    pub pages: &'a Mapping,
    /// How the file has been read lately.
    pub window: &'a ReadAheadWindow,
    /// Whose reads they are.
    pub tag: IoTag,
}

/// A read under way.
pub struct FileRead {
    pieces: Vec<Piece>,
    /// Bytes of the first blocks that are not wanted.
    skip: usize,
    /// Bytes that are wanted.
    len: usize,
}

/// Whole blocks of a read, in file order.
enum Piece {
    Zeros(usize),
    Content(Buf),
    Device(IoHandle),
}

impl FileReader<'_> {
    /// Begins to read bytes `range`: what comes from the device has been asked for when this returns.
    ///
    /// # Errors
    /// The map's.
    pub fn begin<E>(
        &self,
        range: Range<u64>,
        map: impl FnMut(FileBlock, u64) -> Result<(BlockSource, u64), E>,
    ) -> Result<FileRead, E> {
        let mut pieces = Vec::new();
        self.runs(&range, map, |source, len| {
            pieces.push(match source {
                BlockSource::Hole => Piece::Zeros(len),
                BlockSource::Content(buf) => Piece::Content(buf),
                BlockSource::Device(at) => {
                    Piece::Device(self.queue.submit(Bio::read(at, len), self.tag))
                }
            });
            true
        })?;
        Ok(FileRead {
            pieces,
            skip: self.pages.block_size().offset_in_block(range.start),
            len: (range.end - range.start) as usize,
        })
    }

    /// Bytes `range` of a file of `size` bytes are read: has the device read on where a stream will be. What is wrong
    /// with the map there is told to whoever reads there.
    pub fn read_ahead<E>(
        &self,
        range: Range<u64>,
        size: u64,
        mut map: impl FnMut(FileBlock, u64) -> Result<(BlockSource, u64), E>,
    ) {
        self.read_ahead_with(range, size, |piece, begin| {
            self.runs(&piece, &mut map, |source, len| match source {
                BlockSource::Device(at) => begin(at, len),
                BlockSource::Hole | BlockSource::Content(_) => true,
            })
        });
    }

    /// The same where content does not lie on the device as it is: `find` passes on the runs of the device that a later
    /// read of a range of the file will submit, until one is not taken.
    pub fn read_ahead_with<E>(
        &self,
        range: Range<u64>,
        size: u64,
        mut find: impl FnMut(Range<u64>, &mut dyn FnMut(u64, usize) -> bool) -> Result<(), E>,
    ) {
        if !self.window.record_read(range, size) {
            return;
        }
        for piece in self
            .window
            .next_pieces(size, self.queue.read_ahead_available())
        {
            let start = piece.start;
            let mut room = true;
            let found = find(piece, &mut |at, len| {
                room = self.queue.read_ahead(at, len, self.tag);
                room
            });
            if !room || found.is_err() {
                self.window.shrink_to(start);
                break;
            }
        }
    }

    /// The blocks that hold these bytes.
    pub fn blocks_of(&self, range: &Range<u64>) -> Range<u64> {
        let size = self.pages.block_size();
        size.file_block(range.start).0..size.blocks_for(range.end)
    }

    /// Tells `each` where the blocks that hold `range` come from, and for how many bytes, in file order, until it has
    /// had enough.
    fn runs<E>(
        &self,
        range: &Range<u64>,
        mut map: impl FnMut(FileBlock, u64) -> Result<(BlockSource, u64), E>,
        mut each: impl FnMut(BlockSource, usize) -> bool,
    ) -> Result<(), E> {
        let size = self.pages.block_size();
        let blocks = self.blocks_of(range);
        // Memory first, then the map: a block that leaves memory in between is mapped by then.
        let cached = self.pages.cached(blocks.clone());
        let mut cached = cached.into_iter().peekable();
        let mut at = blocks.start;
        while at < blocks.end {
            let (source, count) = match cached.next_if(|(n, _)| n.0 == at) {
                Some((_, buf)) => (BlockSource::Content(buf), 1),
                None => {
                    let until = cached.peek().map_or(blocks.end, |(n, _)| n.0);
                    let most = (until - at).min(READ_BYTES_MAX >> size.bits());
                    let (source, count) = map(FileBlock(at), most)?;
                    assert!(count > 0, "a map goes on");
                    (source, count.min(most))
                }
            };
            at += count;
            if !each(source, (count << size.bits()) as usize) {
                break;
            }
        }
        Ok(())
    }
}

impl FileRead {
    /// Waits for the device, and gives `out` all that was asked for, in file order.
    ///
    /// # Errors
    /// The device's first one.
    pub fn finish(mut self, mut out: impl FnMut(ReadPart)) -> Result<(), IoError> {
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Zeros(whole) => out(ReadPart::Zeros(self.cut(whole).len())),
                Piece::Content(buf) => out(self.cut_buf(buf)),
                Piece::Device(io) => {
                    for buf in io.into_bio()?.bufs {
                        out(self.cut_buf(buf));
                    }
                }
            }
        }
        Ok(())
    }

    /// Which of the next `whole` bytes are wanted.
    fn cut(&mut self, whole: usize) -> Range<usize> {
        let from = self.skip.min(whole);
        let to = (from + self.len).min(whole);
        self.skip -= from;
        self.len -= to - from;
        from..to
    }

    fn cut_buf(&mut self, buf: Buf) -> ReadPart {
        let wanted = self.cut(buf.len());
        ReadPart::Bytes(buf, wanted)
    }
}

#[cfg(test)]
mod tests;
