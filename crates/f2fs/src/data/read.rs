//! Reading of file content.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_vfs::{Cx, FileKind, FsError, ReadData, Result};

use super::{BLOCK, MAX_READ, Place};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;

/// Where consecutive blocks of a file come from.
enum Run {
    /// Nowhere: so many zeros.
    Zeros(usize),
    /// Memory.
    Whole(Buf),
    /// The device: offset and length in bytes.
    Device(u64, usize),
    /// A compressed cluster: its first block here, and how many are wanted.
    Compressed(u64, u64),
}

/// A piece of a read, in file order.
enum Piece {
    Zeros(usize),
    Whole(Buf),
    /// Blocks on their way from the device.
    Device(IoHandle),
}

impl F2fs {
    /// Refuses what is not a regular file whose content can be shown.
    pub(super) fn readable(inode: &Inode) -> Result<()> {
        match inode.kind() {
            FileKind::Regular if inode.is_encrypted() => Err(FsError::NoKey),
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDir),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Reads up to `len` bytes from `offset`.
    pub(crate) fn read_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<ReadData> {
        Self::readable(inode)?;
        let _shared = inode.lock.read();
        let size = inode.size();
        if offset >= size || len == 0 {
            return Ok(ReadData::new());
        }
        let end = size.min(offset.saturating_add(len as u64));
        let read = if inode.has_inline_data() {
            self.inline_content(inode, offset..end, cx.tag)?
        } else {
            self.read_blocks(inode, offset..end, cx.tag)?
        };
        self.touch_atime(inode, cx.tag);
        Ok(read)
    }

    /// Bytes of content that lies in blocks.
    pub(super) fn read_blocks(
        &self,
        inode: &Inode,
        range: Range<u64>,
        tag: IoTag,
    ) -> Result<ReadData> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        let pieces = self.gather(inode, blocks, tag)?;
        self.read_ahead(inode, range.clone(), tag);
        // Cut what lies before the offset and behind the end off the whole blocks.
        let mut out = ReadData::new();
        let mut skip = (range.start % BLOCK) as usize;
        let mut left = (range.end - range.start) as usize;
        let mut push = |data: Option<Buf>, whole: usize| {
            let from = skip.min(whole);
            let to = (from + left).min(whole);
            skip -= from;
            left -= to - from;
            match data {
                Some(buf) => out.push(buf.into_shared(), from..to),
                None => out.push_zeros(to - from),
            }
        };
        for piece in pieces {
            match piece {
                Piece::Zeros(n) => push(None, n),
                Piece::Whole(buf) => {
                    let len = buf.len();
                    push(Some(buf), len);
                }
                Piece::Device(io) => {
                    for buf in io.into_bio().map_err(io_error)?.bufs {
                        let len = buf.len();
                        push(Some(buf), len);
                    }
                }
            }
        }
        Ok(out)
    }

    /// Where each block of a range comes from; device reads are under way when this returns.
    fn gather(&self, inode: &Inode, blocks: Range<u64>, tag: IoTag) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        self.runs(inode, blocks, tag, |run| {
            pieces.push(match run {
                Run::Zeros(n) => Piece::Zeros(n),
                Run::Whole(buf) => Piece::Whole(buf),
                Run::Device(offset, len) => {
                    Piece::Device(self.queue.submit(Bio::read(offset, len), tag))
                }
                Run::Compressed(at, n) => {
                    Piece::Whole(self.read_cluster(inode, at, tag)?.part(at, n))
                }
            });
            Ok(true)
        })?;
        Ok(pieces)
    }

    /// Tells `each` where the blocks of a range come from, in file order, until it has had enough.
    fn runs(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        tag: IoTag,
        mut each: impl FnMut(Run) -> Result<bool>,
    ) -> Result<()> {
        // The cache first, then the map: a block that leaves the cache in between is mapped by then.
        let cached = inode.pages.cached(blocks.clone());
        let mut cached = cached.into_iter().peekable();
        let mut at = blocks.start;
        while at < blocks.end {
            let run;
            if let Some((_, buf)) = cached.next_if(|(n, _)| *n == FileBlock(at)) {
                run = Run::Whole(buf);
                at += 1;
            } else {
                let upto = cached.peek().map_or(blocks.end, |(n, _)| n.0);
                let limit = (upto - at).min(MAX_READ / BLOCK);
                let mapped = self.map(inode, at, limit, tag)?;
                let bytes = (mapped.len * BLOCK) as usize;
                run = match mapped.place {
                    Place::Hole | Place::Promised => Run::Zeros(bytes),
                    Place::At(first) => Run::Device(u64::from(first.0) * BLOCK, bytes),
                    Place::Compressed => Run::Compressed(at, mapped.len),
                };
                at += mapped.len;
            }
            if !each(run)? {
                break;
            }
        }
        Ok(())
    }

    /// Has the device read on where a stream will be. A damaged map is told to whoever reads there.
    fn read_ahead(&self, inode: &Inode, range: Range<u64>, tag: IoTag) {
        for piece in inode.stream.read(range, inode.size()) {
            let blocks = piece.start / BLOCK..piece.end.div_ceil(BLOCK);
            let mut room = true;
            let found = self.runs(inode, blocks, tag, |run| {
                if let Run::Device(offset, len) = run {
                    room = self.queue.read_ahead(offset, len, tag);
                }
                Ok(room)
            });
            if !room || found.is_err() {
                inode.stream.stopped_at(piece.start);
                break;
            }
        }
    }
}
