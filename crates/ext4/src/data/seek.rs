//! Finding data and holes; copying ranges.

use steadfs_base::FileBlock;
use steadfs_vfs::names::in_pieces;
use steadfs_vfs::{Cx, FsError, Result, Seek};

use crate::disk::inode::INLINE_DATA;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::has_extents;
use crate::place::BlockPlace;

/// Bytes copied in one step.
const COPY_STEP_BYTES: u64 = 1 << 20;

impl Ext4 {
    /// The next data or hole at or after `offset`.
    pub fn seek_file(&self, cx: &Cx, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        self.check_readable(inode, cx.tag)?;
        let _shared = inode.lock.read();
        let size = inode.size();
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        if inode.core.read().has(INLINE_DATA) {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let bs = self.geo.block_size;
        let end = bs.blocks_for(size);
        let mut at = bs.file_block(offset).0;
        while at < end {
            let (is_data, n) = self.is_data(cx, inode, at)?;
            let n = n.min(end - at);
            if is_data == (what == Seek::Data) {
                return Ok((at << bs.bits()).max(offset));
            }
            at += n;
        }
        match what {
            Seek::Data => Err(FsError::NoSuchOffset),
            // The end of the file is a hole.
            Seek::Hole => Ok(size),
        }
    }

    /// Whether a block holds data, and the number of blocks for which that is known to hold.
    fn is_data(&self, cx: &Cx, inode: &Inode, at: u64) -> Result<(bool, u64)> {
        // The cache first, as in `read_mapped`.
        let next = inode.pages.next_cached(FileBlock(at)).map(|b| b.0);
        if next == Some(at) {
            return Ok((true, 1));
        }
        let mapped = self.map(inode.ino(), &inode.core.read(), FileBlock(at), cx.tag)?;
        let n = next.map_or(mapped.len, |next| mapped.len.min(next - at));
        Ok((matches!(mapped.place, BlockPlace::Written(_)), n))
    }

    /// Copies between two files, piece by piece; holes are copied as zeros.
    pub fn copy_between(
        &self,
        cx: &Cx,
        from: (&Inode, u64),
        to: (&Inode, u64),
        len: u64,
    ) -> Result<u64> {
        self.check_readable(from.0, cx.tag)?;
        self.check_content(to.0, cx.tag)?;
        if to.1 >= self.geo.max_file_size(has_extents(&to.0.core.read())) {
            return Err(FsError::FileTooBig);
        }
        // Data that a copy into the same file appends is not copied again.
        let len = len.min(from.0.size().saturating_sub(from.1));
        if from.0.ino() == to.0.ino() && from.1.abs_diff(to.1) < len {
            return Err(FsError::Invalid("source and destination overlap"));
        }
        in_pieces(len, COPY_STEP_BYTES, |done, n| {
            self.copy_piece(cx, (from.0, from.1 + done), (to.0, to.1 + done), n)
        })
    }

    /// Copies at most `len` bytes, fewer if a write takes fewer; 0 only at the source's end.
    fn copy_piece(&self, cx: &Cx, from: (&Inode, u64), to: (&Inode, u64), len: u64) -> Result<u64> {
        let data = self.read_without_atime(cx, from.0, from.1, len as usize)?;
        // In one write, so that a crash leaves whole blocks of the target.
        let written = self.write_file(cx, to.0, to.1, &data.to_vec(), !cx.fsetid)?;
        if written > 0 {
            self.touch_atime(from.0);
        }
        Ok(written as u64)
    }
}
