//! lseek(2) with SEEK_DATA and SEEK_HOLE; copy_file_range(2).

use steadfs_base::FileBlock;
use steadfs_vfs::names::in_pieces;
use steadfs_vfs::{Cx, FsError, Result, Seek, Segment};

use super::write::LARGEST_SIZE;
use super::{BLOCK, MapTarget};
use crate::fs::F2fs;
use crate::inode::Inode;

/// Bytes copied in one step.
const COPY_STEP_BYTES: u64 = 1 << 20;

impl F2fs {
    /// The next data or hole at or after `offset`. As in the kernel, reserved blocks count as neither.
    pub(crate) fn seek_file(&self, cx: &Cx, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        self.check_readable(inode, cx.tag)?;
        let _shared = inode.lock.read();
        let size = inode.size();
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        // Where staged blocks are is known to the commit only: all of the file counts as data.
        if inode.is_content_inline() || self.atomic_writes.of(inode).is_some() {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let end = size.div_ceil(BLOCK);
        let mut at = offset / BLOCK;
        while at < end {
            // The cache before the map: a block leaves the cache only after it is mapped.
            let next = inode.pages.next_cached(FileBlock(at)).map(|n| n.0);
            let (found, len) = if next == Some(at) {
                (what == Seek::Data, 1)
            } else {
                let upto = next.map_or(end, |next| next.min(end));
                let mapped = self.map(inode, at, upto - at, cx.tag)?;
                let found = match mapped.target {
                    MapTarget::Hole => what == Seek::Hole,
                    MapTarget::Reserved => false,
                    MapTarget::Block(_) | MapTarget::Compressed => what == Seek::Data,
                };
                (found, mapped.len)
            };
            if found {
                return Ok((at * BLOCK).max(offset));
            }
            at += len;
        }
        match what {
            Seek::Data => Err(FsError::NoSuchOffset),
            // The end of the file is a hole.
            Seek::Hole => Ok(size),
        }
    }

    /// Copies a range in steps; holes are copied as zeros.
    pub(crate) fn copy_between(
        &self,
        cx: &Cx,
        from: (&Inode, u64),
        to: (&Inode, u64),
        len: u64,
    ) -> Result<u64> {
        self.check_readable(from.0, cx.tag)?;
        self.check_readable(to.0, cx.tag)?;
        if to.1 >= LARGEST_SIZE {
            return Err(FsError::FileTooBig);
        }
        // A copy within a file does not copy again what it has appended.
        let len = len.min(from.0.size().saturating_sub(from.1));
        if from.0.nid() == to.0.nid() && from.1.abs_diff(to.1) < len {
            return Err(FsError::Invalid("source and destination overlap"));
        }
        in_pieces(len, COPY_STEP_BYTES, |done, n| {
            self.copy_piece(cx, (from.0, from.1 + done), (to.0, to.1 + done), n)
        })
    }

    /// Copies at most `len` bytes, fewer if a write is short; 0 only at the end of the source.
    fn copy_piece(&self, cx: &Cx, from: (&Inode, u64), to: (&Inode, u64), len: u64) -> Result<u64> {
        let data = self.read_file(cx, from.0, from.1, len as usize)?;
        let mut done = 0;
        for segment in data.segments() {
            let zeros;
            let bytes = match segment {
                Segment::Bytes(owner, range) => &(**owner).as_ref()[range.clone()],
                Segment::Zeros(n) => {
                    zeros = vec![0; *n];
                    &zeros
                }
            };
            match self.write_file(cx, to.0, to.1 + done, bytes, !cx.fsetid) {
                Ok(written) => {
                    done += written as u64;
                    if written < bytes.len() {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}
