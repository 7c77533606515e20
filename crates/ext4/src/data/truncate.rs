//! Changing a file's size, and freeing unlinked inodes.

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::WritebackReason;
use steadfs_rt::wall_clock;
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use crate::disk;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::{UNMAP_CREDITS, has_extents};
use crate::txn::Handle;

/// Credits of a handle that frees blocks: those of the largest step, so that each handle has room for one, and for the inode
/// and the orphan list (its head in the superblock or a block of the orphan file).
pub(super) const FIRST_CREDITS: u32 = UNMAP_CREDITS + 4;

/// The end of all file blocks.
const END: FileBlock = FileBlock(u32::MAX as u64);

impl Ext4 {
    /// Sets a regular file's size. The caller holds `inode.lock` for writing and has checked that the
    /// inode may be changed.
    pub fn truncate(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        let old = inode.size();
        if size > self.geo.max_file_size(has_extents(&inode.core.read())) {
            return Err(FsError::FileTooBig);
        }
        if size > old {
            return self.grow(cx, inode, old, size);
        }
        if size == 0 && old > 0 && self.options.read().auto_da_alloc {
            self.replaced.lock().insert(inode.ino());
        }
        self.shrink(cx, inode, old, size)?;
        if let Err(error) = self.zero_tail(cx, inode, size, u64::MAX) {
            // The file is truncated. What grows it zeroes the rest of its block, too, but for Linux before 6.13.
            tracing::debug!(ino = %inode.ino(), %error, "the rest of the last block keeps its content");
        }
        Ok(())
    }

    fn shrink(&self, cx: &Cx, inode: &Inode, old: u64, size: u64) -> Result<()> {
        let _one = inode.lock_flush();
        let bs = self.geo.block_size;
        let first_freed = FileBlock(bs.blocks_for(size));
        if inode.core.read().size < size {
            // The remaining data must be on disk before the size covers it. The write stores the new size: another
            // task's commit meets no size between the two. If it fails, nothing is freed.
            inode.set_size(size);
            let written = self.write_out_locked(inode, 0..first_freed.0, cx.tag);
            inode.set_size(old);
            written?;
        }
        inode.set_size(size);
        self.cut_to(inode, old, size, first_freed)
            .inspect_err(|_| inode.set_size(old))?;
        // The file was dirty until now: a sync of another task has waited, and commits no size from before the cut.
        let dropped = inode.pages.discard(first_freed.0..u64::MAX);
        self.release_delayed(inode, dropped);
        Ok(())
    }

    /// Writes the new content of files that were truncated to 0 bytes (`auto_da_alloc`): programs that replace a file
    /// this way expect a crash to leave the old or the new content. (The kernel writes on close, which FUSE does not
    /// report; the next flusher period is no later than the next commit, which makes the truncation durable.)
    pub(crate) fn write_replaced(&self) {
        let replaced = std::mem::take(&mut *self.replaced.lock());
        let files: Vec<u64> = replaced.into_iter().map(|ino| ino.0.into()).collect();
        if let Err(error) = self.report_corruption(self.write_out_files(
            &files,
            WritebackReason::Background,
            IoTag::background(),
        )) {
            tracing::warn!(%error, "writing files that replace others");
        }
    }

    /// Grows the file by a hole. Before the size changes, the rest of the old last block is zeroed and dirty data is
    /// written.
    fn grow(&self, cx: &Cx, inode: &Inode, old: u64, size: u64) -> Result<()> {
        self.zero_tail(cx, inode, old, size)?;
        self.write_out(inode, WritebackReason::Sync, cx.tag)?;
        let _pins = self.pin_inodes(&[inode.ino()], cx.tag)?;
        self.txns.run(1, cx.tag, |handle| {
            handle.track();
            inode.set_size(size);
            let mut core = inode.core.write();
            core.size = size;
            let now = self.now(&core);
            core.mtime = now;
            core.ctime = now;
            self.store_inode(handle, inode, &core)?;
            inode.record_tid(handle, true);
            Ok(())
        })
    }

    /// Stores a smaller size than `old` and frees the blocks beyond it, in as many transactions as needed; the inode is
    /// on the orphan list between them. On an error the file keeps its old size: it covers the blocks still mapped, and
    /// freed ranges read as zeros.
    pub(crate) fn cut_to(
        &self,
        inode: &Inode,
        old: u64,
        size: u64,
        first_freed: FileBlock,
    ) -> Result<()> {
        let ino = inode.ino();
        let mut pins = self.pin_inodes(&[ino], IoTag::default())?;
        self.orphans.pin_to_add(self, &mut pins)?;
        self.alloc.drop_prealloc(self, ino);
        self.txns.run(FIRST_CREDITS, IoTag::default(), |handle| {
            self.cut_in(handle, inode, (old, size), first_freed)
        })
    }

    /// [`Ext4::cut_to`] in a handle. The inode's slot and what puts it on the orphan list are kept in memory.
    fn cut_in(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        (old, size): (u64, u64),
        first_freed: FileBlock,
    ) -> Result<()> {
        let ino = inode.ino();
        let mut listed = false;
        let mut end = END;
        {
            let mut core = inode.core.write();
            core.size = size;
            let now = self.now(&core);
            core.mtime = now;
            core.ctime = now;
        }
        loop {
            let left = {
                let mut core = inode.core.write();
                let left = match self.has_map(&core) {
                    true => self.unmap(handle, ino, &mut core, first_freed..end, false),
                    // Inline content of a truncation that a crash interrupted: the size ends it.
                    false => Ok(first_freed),
                };
                if left.is_err() {
                    core.size = old;
                    inode.set_size(old);
                }
                // In any case, as the upper nodes of the map may have changed.
                self.store_inode(handle, inode, &core)?;
                left
            };
            inode.record_tid(handle, true);
            if left.is_err() {
                // The rest of the map and the inode are consistent.
                handle.consistent();
            }
            end = left?;
            if end <= first_freed {
                break;
            }
            // An inode without names is an orphan already, and stays one.
            if !listed && inode.core.read().links > 0 {
                self.orphans.add(self, handle, inode)?;
                listed = true;
            }
            handle.restart(FIRST_CREDITS)?;
        }
        handle.consistent();
        if listed {
            if !handle.extend(4) {
                handle.restart(FIRST_CREDITS)?;
            }
            self.orphans.remove_named(self, handle, inode)?;
        }
        Ok(())
    }

    /// Finishes a truncation that a crash interrupted. The caller holds `inode.lock` for writing.
    pub(crate) fn finish_truncation(&self, inode: &Inode) -> Result<()> {
        let _one = inode.lock_flush();
        let size = inode.size();
        let first_freed = FileBlock(self.geo.block_size.blocks_for(size));
        self.cut_to(inode, size, size, first_freed)
    }

    /// Frees an inode without names or references, and everything it owns. It is on the orphan list. The caller holds no
    /// lock.
    pub fn evict(&self, inode: &Inode) -> Result<()> {
        let evicted = self.evict_one(inode);
        self.free_values();
        evicted
    }

    /// [`Ext4::evict`], without the values that it no longer refers to ([`Ext4::free_values`]).
    pub(crate) fn evict_one(&self, inode: &Inode) -> Result<()> {
        let _under_way = self.freeing.begin();
        let _alone = inode.lock.write();
        // Freed by another task, or looked up again: then the last `forget` frees it.
        if inode.marks.is_dead() || inode.is_looked_up() {
            return Ok(());
        }
        let _one = inode.lock_flush();
        let dropped = inode.pages.discard(0..u64::MAX);
        self.release_delayed(inode, dropped);
        self.alloc.drop_prealloc(self, inode.ino());
        let _pins = self.pin_inodes(&[inode.ino()], IoTag::default())?;
        self.txns.run(FIRST_CREDITS, IoTag::default(), |handle| {
            self.free_content(handle, inode)?;
            self.drop_values(handle, inode)?;
            if !handle.extend(FIRST_CREDITS / 2) {
                handle.restart(FIRST_CREDITS)?;
            }
            self.free_inode(handle, inode)
        })
    }

    /// Frees the blocks of an inode without names, in as many transactions as needed. After an error the rest is
    /// consistent. The inode's slot is pinned.
    fn free_content(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mapped = self.has_map(&inode.core.read());
        let metadata = inode.kind() != FileKind::Regular || inode.is_value();
        let mut end = if mapped { END } else { FileBlock(0) };
        while end > FileBlock(0) {
            let mut core = inode.core.write();
            let all = FileBlock(0)..end;
            let left = self.unmap(handle, inode.ino(), &mut core, all, metadata);
            core.size = 0;
            // In any case, as the upper nodes of the map may have changed.
            self.store_inode(handle, inode, &core)?;
            drop(core);
            handle.consistent();
            end = left?;
            if end > FileBlock(0) {
                handle.restart(FIRST_CREDITS)?;
            }
        }
        Ok(())
    }

    /// Frees the rest: attributes, the orphan entry, the inode. The inode's slot is pinned.
    fn free_inode(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let ino = inode.ino();
        let mut pins = self.pin_to_change_attrs(inode, IoTag::default())?;
        self.orphans.pin_to_remove(self, &mut pins, ino)?;
        self.alloc.pin_to_free_inode(self, &mut pins, ino)?;
        self.drop_xattrs(handle, inode)?;
        self.orphans.remove(self, handle, inode)?;
        {
            let mut core = inode.core.write();
            core.links = 0;
            core.size = 0;
            core.dtime = u32::try_from(wall_clock().secs).unwrap_or(u32::MAX).max(1);
            self.store_inode(handle, inode, &core)?;
            self.uncharge(handle, inode)?;
        }
        // Removed from the table before the number can be reused.
        inode.marks.set_dead();
        self.inodes.remove(ino);
        self.alloc.free_inode(self, handle, ino, inode.kind())
    }

    /// Whether `i_block` maps blocks (and is no device number or short link target).
    fn has_map(&self, core: &disk::Inode) -> bool {
        match core.kind() {
            Some(FileKind::Regular | FileKind::Directory) => !core.has(disk::inode::INLINE_DATA),
            Some(FileKind::Symlink) => {
                !core.is_fast_symlink(&self.geo) && !core.has(disk::inode::INLINE_DATA)
            }
            _ => false,
        }
    }
}
