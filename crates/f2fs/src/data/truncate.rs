//! Changing a file's size.

use steadfs_base::IoTag;
use steadfs_vfs::{Cx, FsError, Result};

use super::BLOCK;
use super::write::LARGEST_SIZE;
use crate::disk::inode::Inline;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;

impl F2fs {
    /// Sets a regular file's size. The caller holds `inode.lock` for writing and has checked permissions. On
    /// `NoSpace` it releases the lock and retries with space ([`F2fs::with_space`]).
    pub(crate) fn truncate(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        self.check_readable(inode, cx.tag)?;
        self.check_may_change(inode)?;
        self.check_released_size(inode, size, cx.tag)?;
        // Larger files may exist and can be truncated.
        if size > LARGEST_SIZE && size > inode.size() {
            return Err(FsError::FileTooBig);
        }
        if let Some(write) = self.atomic_writes.of(inode) {
            return self.truncate_staged(cx, inode, &write, size);
        }
        if size == 0 {
            self.return_to_inline(inode);
        }
        if self.fits_inline(inode, size) {
            return self.resize_inline(inode, size, cx.tag);
        }
        self.leave_inline(cx, inode)?;
        let old = inode.size();
        if size > old {
            return self.grow(cx, inode, old, size);
        }
        self.shrink(cx, inode, size)
    }

    /// Truncates the file, and zeroes the rest of its last block.
    pub(crate) fn shrink(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        self.cut(cx, inode, size)?;
        if let Err(error) = self.zero_tail(cx, inode, size, u64::MAX) {
            // The file is truncated. What grows it zeroes the rest of its block, too, but for kernels that do not.
            tracing::debug!(ino = %inode.nid(), %error, "the rest of the last block keeps its content");
        }
        Ok(())
    }

    /// Extends the file by a hole. The rest of the block at the old end must read as zeros, and delayed data must
    /// be on the device, before the size covers them.
    fn grow(&self, cx: &Cx, inode: &Inode, old: u64, size: u64) -> Result<()> {
        self.zero_tail(cx, inode, old, size)?;
        self.write_out_locked(inode, cx.tag)?;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, cx.tag)?;
        inode.set_size(size);
        core.size = size;
        let now = self.now();
        (core.mtime, core.ctime) = (now, now);
        Ok(())
    }

    /// Truncates the file. Blocks beyond the new end are freed in steps.
    fn cut(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        let first_gone = size.div_ceil(BLOCK);
        inode.pages.boost(0..first_gone, &self.queue, cx.tag);
        // Until everything is done, no write-back collects blocks with the truncated content.
        let _flush = inode.lock_flush();
        self.unpack_at(inode, size, cx.tag)?;
        if inode.core.read().size < size {
            self.write_kept_content(inode, size, cx.tag)?;
        }
        inode.set_size(size);
        let cut = self.cut_to(inode, size, cx.tag);
        if cut.is_err() {
            // Blocks that could not be freed are still mapped, and the stored size covers them.
            inode.set_size(inode.core.read().size);
        }
        // The file was dirty until now: a sync of another task has waited, and checkpoints no size from before the cut.
        let blocks = inode.pages.discard(first_gone..u64::MAX);
        self.end_delay(inode, blocks);
        self.space.release(Need { blocks, nodes: 0 });
        self.release_nodes(inode, first_gone);
        if !size.is_multiple_of(BLOCK) {
            let block = steadfs_base::FileBlock(size / BLOCK);
            inode.pages.zero_tail(block, (size % BLOCK) as usize);
        }
        inode.record_truncation(size);
        cut
    }

    /// Writes the data before the new end: it must be on the device before the size covers it. The write stores the new
    /// size: a checkpoint of another task meets no size between the two. If the data cannot be written, nothing is
    /// truncated.
    fn write_kept_content(&self, inode: &Inode, size: u64, tag: IoTag) -> Result<()> {
        let old = inode.size();
        inode.set_size(size);
        let written = self.write_out_upto_locked(inode, size.div_ceil(BLOCK), tag);
        inode.set_size(old);
        written
    }

    /// Stores the size and frees the blocks beyond it. The stored size never ends before a block that is still
    /// mapped, so that no block beyond the end survives a crash. It never covers a freed block: a crash between two
    /// steps leaves the file shorter, not with zeros at its end.
    fn cut_to(&self, inode: &Inode, size: u64, tag: IoTag) -> Result<()> {
        /// Nodes freed per hold of `cp_lock`.
        const NODES_PER_CHANGE: u32 = 256;
        loop {
            let change = self.change()?;
            let mut core = inode.core.write();
            self.mark_dirty(&change, inode, tag)?;
            let now = self.now();
            (core.mtime, core.ctime) = (now, now);
            let first_gone = size.div_ceil(BLOCK);
            let freed_from =
                self.truncate_nodes(&change, inode, &mut core, first_gone, NODES_PER_CHANGE, tag)?;
            self.charge(inode, &core);
            if freed_from == first_gone {
                core.size = size;
                if size == 0 {
                    // Nothing is left that was released.
                    core.inline = core.inline.without(Inline::COMPRESS_RELEASED);
                }
                return Ok(());
            }
            core.size = core.size.min(freed_from.saturating_mul(BLOCK));
        }
    }

    /// Drops blocks from the cache and releases their reservations, after waiting for write-back in flight.
    pub(crate) fn drop_pages(&self, inode: &Inode, blocks: std::ops::Range<u64>) {
        let _flush = inode.lock_flush();
        let blocks = inode.pages.discard(blocks);
        self.end_delay(inode, blocks);
        self.space.release(Need { blocks, nodes: 0 });
    }
}
