//! Changing a file's size.

use steadfs_base::IoTag;
use steadfs_vfs::{Cx, FsError, Result};

use super::BLOCK;
use super::write::LARGEST_SIZE;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;

impl F2fs {
    /// Sets a regular file's size. The caller holds `inode.lock` for writing and has checked that the
    /// inode may be changed by him. `NoSpace`: he lets go and tries again with room ([`F2fs::with_space`]).
    pub(crate) fn truncate(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        Self::check_readable(inode)?;
        self.check_may_change(inode)?;
        // There may be larger ones, which can be cut.
        if size > LARGEST_SIZE && size > inode.size() {
            return Err(FsError::FileTooBig);
        }
        if self.fits_inline(inode, size) {
            return self.resize_inline(inode, size, cx.tag);
        }
        self.leave_inline(cx, inode)?;
        let old = inode.size();
        if size > old {
            self.grow(cx, inode, old, size)
        } else {
            self.shrink(cx, inode, size)
        }
    }

    /// Larger: a hole. What lies behind the old end in its last block must read as zeros first, and
    /// delayed data be on the device before the size covers it.
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

    /// Smaller: what lies behind is freed, in as many steps as it takes.
    fn shrink(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        let first_gone = size.div_ceil(BLOCK);
        if inode.core.read().size < size {
            // What is left must be on the device before the size covers it. If it cannot be, nothing is cut.
            self.write_out_upto(inode, first_gone, cx.tag)?;
        }
        self.drop_pages(inode, first_gone..u64::MAX);
        self.release_nodes(inode, first_gone);
        inode.set_size(size);
        {
            // What is being written may have been taken with what is cut off.
            let _one = inode.lock_flush();
            if !size.is_multiple_of(BLOCK) {
                let block = steadfs_base::FileBlock(size / BLOCK);
                inode.pages.zero_tail(block, (size % BLOCK) as usize);
            }
            inode.record_truncation(size);
        }
        let cut = self.cut_to(inode, size, cx.tag);
        if cut.is_err() {
            // What could not be freed is still there, and the size on the device covers it.
            inode.set_size(inode.core.read().size);
        }
        cut
    }

    /// Stores the size and frees what lies behind it. The stored size is never less than what is
    /// still there, so that nothing behind the end outlives a crash; and never covers what is freed: a crash
    /// between two steps leaves the file shorter, not with zeros at its end.
    fn cut_to(&self, inode: &Inode, size: u64, tag: IoTag) -> Result<()> {
        /// Nodes freed while the gate is held once.
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
            if freed_from == first_gone {
                core.size = size;
                return Ok(());
            }
            core.size = core.size.min(freed_from.saturating_mul(BLOCK));
        }
    }

    /// Drops blocks from the cache, with their promises; what is being written is waited for.
    pub(super) fn drop_pages(&self, inode: &Inode, blocks: std::ops::Range<u64>) {
        let _one = inode.lock_flush();
        let blocks = inode.pages.discard(blocks);
        self.space.release(Need { blocks, nodes: 0 });
    }
}
