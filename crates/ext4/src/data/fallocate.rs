//! Allocating, punching and zeroing ranges of a file.

use std::ops::Range;

use steadfs_base::{DevBlock, FileBlock, IoTag};
use steadfs_block::{Bio, Buf};
use steadfs_cache::{WritebackFs, WritebackReason};
use steadfs_vfs::{Cx, FallocMode, FsError, InodeFlags, Result};

use crate::clusters::HoleRequest;
use crate::disk::extent::MAX_UNWRITTEN_LEN;
use crate::extent::Tree;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::io_error;
use crate::map::has_extents;
use crate::mballoc::Goal;
use crate::place::BlockPlace;

impl Ext4 {
    /// fallocate(2).
    pub fn fallocate_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.check_writable()?;
        self.check_content(inode, cx.tag)?;
        self.hold_key(inode, cx.tag)?;
        if len == 0 {
            return Err(FsError::Invalid("length is zero"));
        }
        let _alone = inode.lock.write();
        Self::check_unsealed(inode)?;
        {
            let flags = inode.core.read().flags;
            let append_only = flags.contains(InodeFlags::APPEND);
            let allocates = matches!(mode, FallocMode::Allocate { .. });
            if flags.contains(InodeFlags::IMMUTABLE) || (append_only && !allocates) {
                return Err(FsError::NotPermitted);
            }
        }
        self.move_content_out(cx, inode)?;
        let end = {
            let core = inode.core.read();
            // Holes are limited, too, and for both kinds of map: Linux has one limit for the whole volume.
            let most = self.geo.max_file_size(true);
            let end = offset.checked_add(len).filter(|end| *end <= most);
            let end = end.ok_or(FsError::FileTooBig)?;
            if !has_extents(&core) && mode != FallocMode::PunchHole {
                return Err(FsError::NotSupported(
                    "fallocate of a file mapped by indirect blocks",
                ));
            }
            end
        };
        if !cx.fsetid {
            self.kill_priv(cx, inode)?;
        }
        match mode {
            FallocMode::Allocate { keep_size } => {
                self.allocate(cx, inode, offset..end)?;
                self.finish(cx, inode, if keep_size { 0 } else { end })
            }
            FallocMode::PunchHole => {
                let end = end.min(inode.size());
                if offset < end {
                    self.punch(cx, inode, offset..end)?;
                }
                self.finish(cx, inode, 0)
            }
            FallocMode::ZeroRange { keep_size } => {
                self.zero(cx, inode, offset..end)?;
                self.finish(cx, inode, if keep_size { 0 } else { end })
            }
            FallocMode::CollapseRange => Err(FsError::NotSupported("FALLOC_FL_COLLAPSE_RANGE")),
            FallocMode::InsertRange => Err(FsError::NotSupported("FALLOC_FL_INSERT_RANGE")),
        }
    }

    /// Sets the times, and a larger size if there is one.
    fn finish(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        if size > inode.size() {
            return self.truncate(cx, inode, size);
        }
        let _pins = self.pin_inodes(&[inode.ino()], cx.tag)?;
        self.txns.run(1, cx.tag, |handle| {
            handle.track();
            let mut core = inode.core.write();
            let now = self.now(&core);
            core.mtime = now;
            core.ctime = now;
            self.store_inode(handle, inode, &core)?;
            inode.record_tid(handle, true);
            Ok(())
        })
    }

    /// Maps every hole of a byte range to unwritten blocks. What was allocated before an error stays.
    fn allocate(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let bs = self.geo.block_size;
        let mut at = bs.file_block(range.start);
        let end = FileBlock(bs.blocks_for(range.end));
        self.with_space(cx, || {
            let _one = inode.lock_flush();
            while at < end {
                cx.check_killed()?;
                let (mapped, goal) = {
                    let core = inode.core.read();
                    let mapped = self.map(inode.ino(), &core, at, cx.tag)?;
                    (mapped, self.goal_after(inode.ino(), &core, at))
                };
                let n = mapped.len.min(end.0 - at.0);
                if mapped.place != BlockPlace::Hole {
                    at = at.plus(n);
                    continue;
                }
                let n = n.min(MAX_UNWRITTEN_LEN.into());
                at = at.plus(self.preallocate_run(cx, inode, at, goal, n as u32)?);
            }
            Ok(())
        })
    }

    fn preallocate_run(
        &self,
        cx: &Cx,
        inode: &Inode,
        at: FileBlock,
        goal: Goal,
        want: u32,
    ) -> Result<u64> {
        let keep = self.root_reserved_clusters(cx);
        let _pins = self.pin_inodes(&[inode.ino()], cx.tag)?;
        let (len, _held) = self.hold_blocks(cx, inode, at, want.into())?;
        let hole = HoleRequest {
            ino: inode.ino(),
            at,
            len,
            goal,
        };
        let run = self.allocate_hole(inode, hole, cx.tag, |_, goal, want| {
            self.alloc.allocate_spare(self, goal, want, keep)
        })?;
        let credits = self.map_credits(&inode.core.read(), run.len) + 1;
        let result = self.run_for(cx, credits, |handle| {
            handle.track();
            if handle.is_tracked() {
                let blocks = at.0..at.0 + u64::from(run.len);
                self.fast_commits.mapped(handle, inode.ino(), blocks);
            }
            let mut core = inode.core.write();
            let named = self.map_allocation(handle, inode.ino(), &mut core, at, run, true);
            // In any case, as the upper nodes of the tree may have changed.
            self.store_inode(handle, inode, &core)?;
            inode.record_tid(handle, true);
            handle.consistent();
            named
        });
        if let Err(error) = &result {
            self.release_unmapped(run, error);
        }
        result.map(|()| run.len.into())
    }

    /// Writes the file's size to disk before blocks leave the cache, as write-back, which would do so, will not see
    /// them.
    fn store_size(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if inode.core.read().size < inode.size() {
            self.write_out(inode, WritebackReason::Sync, cx.tag)?;
        }
        Ok(())
    }

    /// Zeroes the bytes of a range that do not fill whole blocks; returns the whole blocks between. The
    /// block that holds the end of the file is whole if all of it that is in the file is in the range.
    fn zero_edges(&self, cx: &Cx, inode: &Inode, range: &Range<u64>) -> Result<Range<u64>> {
        let bs = self.geo.block_size;
        let first = bs.blocks_for(range.start);
        let last = match range.end >= inode.size() {
            true => bs.blocks_for(range.end),
            false => range.end >> bs.bits(),
        };
        if first > last {
            self.zero_bytes(cx, inode, range.clone())?;
            return Ok(0..0);
        }
        self.zero_bytes(cx, inode, range.start..range.end.min(first << bs.bits()))?;
        self.zero_bytes(cx, inode, last << bs.bits()..range.end)?;
        Ok(first..last)
    }

    /// Zeroes bytes within one block through the cache, up to the file's end, unless it is a hole.
    fn zero_bytes(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let range = range.start..range.end.min(inode.size());
        if range.is_empty() {
            return Ok(());
        }
        let block = self.geo.block_size.file_block(range.start);
        if inode.pages.get(block).is_none() {
            let mapped = self.map(inode.ino(), &inode.core.read(), block, cx.tag)?;
            if !matches!(mapped.place, BlockPlace::Written(_)) {
                return Ok(());
            }
        }
        let zeros = vec![0; (range.end - range.start) as usize];
        self.write_pages(cx, inode, range.start, &zeros, inode.size())
            .1
    }

    /// Makes a hole.
    fn punch(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        // Before the edges are zeroed: after a crash before the commit the blocks to be freed are still mapped, with
        // the content that this writes.
        self.store_size(cx, inode)?;
        let whole = self.zero_edges(cx, inode, &range)?;
        if whole.is_empty() {
            return Ok(());
        }
        let _one = inode.lock_flush();
        let dropped = inode.pages.discard(whole.clone());
        self.release_delayed(inode, dropped);
        let (mut start, mut end) = (FileBlock(whole.start), FileBlock(whole.end));
        match self.free_range(inode, start, &mut end) {
            // The map needs a block, and none is free: the rest is made to read as zeros.
            Err(FsError::NoSpace) => {
                while start < end {
                    start = self.write_zeros(cx, inode, start..end)?;
                }
                Ok(())
            }
            freed => freed,
        }
    }

    /// Frees the blocks of a range from its end on; `end` is the end of the part that is left.
    fn free_range(&self, inode: &Inode, start: FileBlock, end: &mut FileBlock) -> Result<()> {
        let credits = super::truncate::FIRST_CREDITS;
        let _pins = self.pin_inodes(&[inode.ino()], IoTag::default())?;
        self.txns.run(credits, IoTag::default(), |handle| {
            loop {
                let mut core = inode.core.write();
                let left = self.unmap(handle, inode.ino(), &mut core, start..*end, false);
                // In any case, as the upper nodes of the tree may have changed.
                self.store_inode(handle, inode, &core)?;
                inode.record_tid(handle, true);
                handle.consistent();
                *end = left?;
                if *end <= start {
                    return Ok(());
                }
                drop(core);
                handle.restart(credits)?;
            }
        })
    }

    /// Makes a range read as zeros and be allocated. Allocates first, as nothing after that can fail for lack of space.
    fn zero(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        self.allocate(cx, inode, range.clone())?;
        self.store_size(cx, inode)?;
        let whole = self.zero_edges(cx, inode, &range)?;
        if whole.is_empty() {
            return Ok(());
        }
        let _one = inode.lock_flush();
        let dropped = inode.pages.discard(whole.clone());
        self.release_delayed(inode, dropped);
        self.forget_content(cx, inode, FileBlock(whole.start)..FileBlock(whole.end))
    }

    /// Makes mapped blocks read as zeros, none of which is in the cache. The caller holds
    /// `inode.flush`.
    fn forget_content(&self, cx: &Cx, inode: &Inode, blocks: Range<FileBlock>) -> Result<()> {
        let Range { start: mut at, end } = blocks;
        while at < end {
            match self.mark_unwritten(inode, at..end) {
                // The map needs a block, and none is free: writing zeros needs none.
                Err(FsError::NoSpace) => at = self.write_zeros(cx, inode, at..end)?,
                marked => return marked,
            }
        }
        Ok(())
    }

    fn mark_unwritten(&self, inode: &Inode, blocks: Range<FileBlock>) -> Result<()> {
        let Range { start: mut at, end } = blocks;
        let credits = 3 * self.map_credits(&inode.core.read(), 1) + 1;
        let _pins = self.pin_inodes(&[inode.ino()], IoTag::default())?;
        self.txns.run(credits, IoTag::default(), |handle| {
            loop {
                let mut core = inode.core.write();
                let converted =
                    Tree::new(self, inode.ino(), &mut core).convert(handle, at..end, true);
                // In any case, as the upper nodes of the tree may have changed.
                self.store_inode(handle, inode, &core)?;
                inode.record_tid(handle, true);
                handle.consistent();
                at = converted?;
                drop(core);
                if at >= end {
                    return Ok(());
                }
                handle.restart(credits)?;
            }
        })
    }

    /// Writes zeros over the first run of written blocks, or skips a run of others; returns its end.
    fn write_zeros(&self, cx: &Cx, inode: &Inode, blocks: Range<FileBlock>) -> Result<FileBlock> {
        let at = blocks.start;
        let mapped = self.map(inode.ino(), &inode.core.read(), at, cx.tag)?;
        let n = mapped.len.min(blocks.end.0 - at.0);
        if let BlockPlace::Written(start) = mapped.place {
            self.zero_on_device(cx, inode, (at, start), n)?;
        }
        Ok(at.plus(n))
    }

    /// Writes zeros to a file's blocks, from `first` on, which are those from `start` on of the device, and waits.
    pub(super) fn zero_on_device(
        &self,
        cx: &Cx,
        inode: &Inode,
        (first, start): (FileBlock, DevBlock),
        count: u64,
    ) -> Result<()> {
        let bs = self.geo.block_size;
        let zeros = Buf::zeroed(bs.bytes());
        let per_bio = u64::from(self.queue.geometry().max_transfer >> bs.bits()).max(1);
        let (mut at, end) = (start, start.plus(count));
        while at < end {
            let n = per_bio.min(end.0 - at.0);
            let block = |i| self.stored_form(inode, first.plus(at.0 - start.0 + i), &zeros);
            let bufs = (0..n).map(block).collect();
            let io = self
                .queue
                .submit(Bio::write(bs.offset_of(at), bufs), cx.tag);
            io.wait().map_err(|error| {
                self.record_data_error(&error);
                io_error(error)
            })?;
            at = at.plus(n);
        }
        inode.mark_unflushed(self.queue.next_flush());
        Ok(())
    }
}
