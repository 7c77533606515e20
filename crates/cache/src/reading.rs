//! Reading a range of a file: blocks in memory are used as they are, the others are read from the device as whole
//! blocks, both ends are cut to the range, and a sequential reader's next pieces are read ahead.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf, IoError, IoHandle, Queue};
use steadfs_vfs::ReadData;

use crate::{Mapping, ReadAheadWindow};

/// Longest request to the device, in bytes.
pub const READ_BYTES_MAX: u64 = 1 << 20;

/// Where consecutive blocks of a file that are not in memory come from.
pub enum BlockSource {
    /// No blocks are allocated; they read as zeros.
    Hole,
    /// They are on the device, from this byte on.
    Device(u64),
    /// The file system has their content in memory.
    Content(Buf),
}

/// A part of the result.
pub enum ReadPart {
    /// This many zero bytes.
    Zeros(usize),
    /// A range of a buffer of one or several blocks.
    Bytes(Buf, Range<usize>),
}

/// Reads one file's blocks.
///
/// The file system passes its block map as a function: it gets a block and the number of blocks wanted from there, and
/// returns where they come from and for how many of them that holds.
pub struct FileReader<'a> {
    /// The device's queue.
    pub queue: &'a Queue,
    /// The file's blocks in memory.
    pub pages: &'a Mapping,
    /// The file's read-ahead window.
    pub window: &'a ReadAheadWindow,
    /// The tag of the reader.
    pub tag: IoTag,
}

/// A read in progress.
pub struct FileRead {
    pieces: Vec<Piece>,
    /// Where the first piece begins in the file, in bytes.
    start: u64,
    /// Bytes to skip at the beginning.
    skip: usize,
    /// Bytes to return.
    len: usize,
}

/// Whole blocks of a read, in file order.
enum Piece {
    Zeros(usize),
    Content(Buf),
    Device(IoHandle),
}

impl<'a> FileReader<'a> {
    /// Reads a file with these blocks in memory and this window at `tag`.
    pub fn new(
        queue: &'a Queue,
        pages: &'a Mapping,
        window: &'a ReadAheadWindow,
        tag: IoTag,
    ) -> Self {
        Self {
            queue,
            pages,
            window,
            tag,
        }
    }

    /// Begins to read bytes `range`. All requests to the device are submitted when this returns.
    ///
    /// # Errors
    /// Those of `map`.
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
            start: self.blocks_of(&range).start << self.pages.block_size().bits(),
            skip: self.pages.block_size().offset_in_block(range.start),
            len: (range.end - range.start) as usize,
        })
    }

    /// Records a read of bytes `range` of a file of `size` bytes, and submits the read-ahead that it causes. An error of
    /// the map there ends the read-ahead; the task that reads the range later gets it.
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

    /// The same for content that is stored in another form (compressed): `find` reports the device ranges that a later
    /// read of a range of the file will submit, until one is refused.
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
            let mut accepted = true;
            let found = find(piece, &mut |at, len| {
                accepted = self.queue.read_ahead(at, len, self.tag);
                accepted
            });
            if !accepted || found.is_err() {
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

    /// Calls `each` with the source and byte count of the blocks that hold `range`, in file order, until it returns
    /// false.
    fn runs<E>(
        &self,
        range: &Range<u64>,
        mut map: impl FnMut(FileBlock, u64) -> Result<(BlockSource, u64), E>,
        mut each: impl FnMut(BlockSource, usize) -> bool,
    ) -> Result<(), E> {
        let size = self.pages.block_size();
        let blocks = self.blocks_of(range);
        // Memory first, then the map: a block that is written and dropped in between is mapped by then.
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
                    assert!(count > 0, "a map covers at least one block");
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
    /// Waits for the device and passes the parts to `out`, in file order.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn finish(self, out: impl FnMut(ReadPart)) -> Result<(), IoError> {
        self.finish_decoded(|_, _| {}, out)
    }

    fn finish_decoded(
        mut self,
        mut decode: impl FnMut(u64, &mut Buf),
        mut out: impl FnMut(ReadPart),
    ) -> Result<(), IoError> {
        let mut at = self.start;
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Zeros(whole) => {
                    at += whole as u64;
                    out(ReadPart::Zeros(self.cut(whole).len()));
                }
                Piece::Content(buf) => {
                    at += buf.len() as u64;
                    out(self.cut_buf(buf));
                }
                Piece::Device(io) => {
                    for mut buf in io.into_bio()?.bufs {
                        decode(at, &mut buf);
                        at += buf.len() as u64;
                        out(self.cut_buf(buf));
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the device and returns the bytes.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn into_data(self) -> Result<ReadData, IoError> {
        self.into_decoded(|_, _| {})
    }

    /// The same for content that is stored in another form of the same length (encrypted): `decode` gets whole blocks that
    /// were read from the device, and the byte of the file with which they begin.
    ///
    /// # Errors
    /// The first error of the device.
    pub fn into_decoded(self, decode: impl FnMut(u64, &mut Buf)) -> Result<ReadData, IoError> {
        let mut data = ReadData::new();
        self.finish_decoded(decode, |part| match part {
            ReadPart::Zeros(n) => data.push_zeros(n),
            ReadPart::Bytes(buf, wanted) => data.push(buf.into_shared(), wanted),
        })?;
        Ok(data)
    }

    /// The part of the next `whole` bytes that belongs to the result.
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
