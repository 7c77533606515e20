//! Reading of file content.

use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_vfs::{Cx, ReadData, Result};

use super::inline_content;
use crate::disk::inode::INLINE_DATA;
use crate::fs::{Ext4, io_error};
use crate::inode::Inode;
use crate::options::Atime;
use crate::place::Place;

/// Longest single read, in bytes.
const MAX_READ: u64 = 1 << 20;

/// Where consecutive blocks of a file come from.
enum Run {
    /// Nowhere: so many zeros.
    Zeros(usize),
    /// Memory.
    Cached(Buf),
    /// The device: offset and length in bytes.
    Device(u64, usize),
}

/// A piece of a read, in file order.
enum Piece {
    Zeros(usize),
    Cached(Buf),
    /// Blocks on their way from the device.
    Device(IoHandle),
}

impl Ext4 {
    /// Reads up to `len` bytes from `offset`.
    pub fn read_file(&self, cx: &Cx, inode: &Inode, offset: u64, len: usize) -> Result<ReadData> {
        let out = self.read_unnoticed(cx, inode, offset, len)?;
        if !out.is_empty() {
            self.touch_atime(inode);
        }
        Ok(out)
    }

    /// The same, but the file's access time stays.
    pub(crate) fn read_unnoticed(
        &self,
        cx: &Cx,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<ReadData> {
        Self::regular(inode)?;
        let _shared = inode.lock.read();
        let size = inode.size();
        let mut out = ReadData::new();
        if offset >= size || len == 0 {
            return Ok(out);
        }
        let end = size.min(offset.saturating_add(len as u64));
        {
            let core = inode.core.read();
            if core.has(INLINE_DATA) {
                return inline_content(&core, size, offset..end);
            }
        }
        let bs = self.geo.block_size;
        let blocks = bs.file_block(offset).0..bs.blocks_for(end);
        let pieces = self.gather(cx, inode, blocks)?;
        self.read_ahead(cx, inode, offset..end, size);
        // Cut what lies before the offset and behind the end off the whole blocks.
        let mut skip = bs.within(offset);
        let mut left = (end - offset) as usize;
        let mut push = |out: &mut ReadData, data: Option<Buf>, whole: usize| {
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
                Piece::Zeros(n) => push(&mut out, None, n),
                Piece::Cached(buf) => {
                    let len = buf.len();
                    push(&mut out, Some(buf), len);
                }
                Piece::Device(io) => {
                    for buf in io.into_bio().map_err(io_error)?.bufs {
                        let len = buf.len();
                        push(&mut out, Some(buf), len);
                    }
                }
            }
        }
        Ok(out)
    }

    /// Where each block of a range comes from; device reads are under way when this returns.
    fn gather(&self, cx: &Cx, inode: &Inode, blocks: Range<u64>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        self.runs(inode, blocks, cx.tag, |run| {
            pieces.push(match run {
                Run::Zeros(n) => Piece::Zeros(n),
                Run::Cached(buf) => Piece::Cached(buf),
                Run::Device(offset, len) => {
                    Piece::Device(self.queue.submit(Bio::read(offset, len), cx.tag))
                }
            });
            true
        })?;
        Ok(pieces)
    }

    /// Tells `each` where the blocks of a range come from, in file order, until it has had enough.
    fn runs(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        tag: IoTag,
        mut each: impl FnMut(Run) -> bool,
    ) -> Result<()> {
        let bs = self.geo.block_size;
        // The cache first, then the map: a block that leaves the cache in between is mapped by then.
        let cached = inode.pages.cached(blocks.clone());
        let mut cached = cached.into_iter().peekable();
        let core = inode.core.read();
        let mut at = blocks.start;
        while at < blocks.end {
            let run;
            if let Some((_, buf)) = cached.next_if(|(n, _)| n.0 == at) {
                run = Run::Cached(buf);
                at += 1;
            } else {
                let upto = cached.peek().map_or(blocks.end, |(n, _)| n.0);
                let mapped = self.map(inode.ino(), &core, FileBlock(at), tag)?;
                let n = mapped.len.min(upto - at).min(MAX_READ >> bs.bits());
                let bytes = (n as usize) << bs.bits();
                run = match mapped.place {
                    Place::Written(start) => Run::Device(bs.offset_of(start), bytes),
                    Place::Hole | Place::Unwritten(_) => Run::Zeros(bytes),
                };
                at += n;
            }
            if !each(run) {
                break;
            }
        }
        Ok(())
    }

    /// Has the device read on where a stream will be. A damaged map is told to whoever reads there.
    fn read_ahead(&self, cx: &Cx, inode: &Inode, range: Range<u64>, size: u64) {
        let bs = self.geo.block_size;
        for piece in inode.stream.read(range, size) {
            let blocks = bs.file_block(piece.start).0..bs.blocks_for(piece.end);
            let mut room = true;
            let found = self.runs(inode, blocks, cx.tag, |run| {
                if let Run::Device(offset, len) = run {
                    room = self.queue.read_ahead(offset, len, cx.tag);
                }
                room
            });
            if !room || found.is_err() {
                inode.stream.stopped_at(piece.start);
                break;
            }
        }
    }

    /// Notes an access as relatime does: at most once a day unless the file changed since.
    pub(crate) fn touch_atime(&self, inode: &Inode) {
        let wanted = self.options.read().atime == Atime::Relative;
        if !wanted || self.check_writable().is_err() {
            return;
        }
        let (now, due) = {
            let core = inode.core.read();
            let now = self.now(&core);
            let due = core.atime <= core.mtime
                || core.atime <= core.ctime
                || now.secs - core.atime.secs >= 86400;
            (now, due)
        };
        if due {
            inode.core.write().atime = now;
            inode.mark_core_dirty();
        }
    }
}
