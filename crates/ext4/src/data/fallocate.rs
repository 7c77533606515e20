//! Allocating, punching and zeroing ranges of a file.

use std::ops::Range;

use steadfs_base::FileBlock;
use steadfs_cache::Why;
use steadfs_vfs::{Cx, FallocMode, FsError, InodeFlags, Result};

use crate::disk::extent::MAX_UNWRITTEN_LEN;
use crate::extent::Tree;
use crate::freeing::Shortage;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::map::{Place, has_extents};

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
        Self::regular(inode)?;
        let end = offset.checked_add(len).ok_or(FsError::FileTooBig)?;
        if len == 0 {
            return Err(FsError::Invalid("length is zero"));
        }
        let _alone = inode.lock.write();
        {
            let core = inode.core.read();
            let append_only = core.flags.contains(InodeFlags::APPEND);
            let allocates = matches!(mode, FallocMode::Allocate { .. });
            if core.flags.contains(InodeFlags::IMMUTABLE) || (append_only && !allocates) {
                return Err(FsError::NotPermitted);
            }
            if !has_extents(&core) && mode != FallocMode::PunchHole {
                return Err(FsError::NotSupported(
                    "fallocate of a file mapped by indirect blocks",
                ));
            }
            if mode != FallocMode::PunchHole && end > self.geo.max_file_size(has_extents(&core)) {
                return Err(FsError::FileTooBig);
            }
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

    /// Times, and a larger size if there is one.
    fn finish(&self, cx: &Cx, inode: &Inode, size: u64) -> Result<()> {
        if size > inode.size() {
            return self.truncate(cx, inode, size);
        }
        let mut handle = self.txns.begin(1)?;
        let mut core = inode.core.write();
        let now = self.now(&core);
        core.mtime = now;
        core.ctime = now;
        self.store_inode(&mut handle, inode, &core)?;
        inode.note_tid(&handle, true);
        Ok(())
    }

    /// Maps every hole of a byte range to unwritten blocks. What was allocated before an error stays.
    fn allocate(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let bs = self.geo.block_size;
        let mut at = bs.file_block(range.start);
        let end = FileBlock(bs.blocks_for(range.end));
        let _one = inode.flush.lock();
        while at < end {
            let (mapped, goal) = {
                let core = inode.core.read();
                let mapped = self.map(inode.ino(), &core, at, cx.tag)?;
                (mapped, self.goal_after(inode.ino(), &core, at))
            };
            let n = mapped.len.min(end.0 - at.0).min(MAX_UNWRITTEN_LEN.into());
            if mapped.place != Place::Hole {
                at = at.plus(mapped.len.min(end.0 - at.0));
                continue;
            }
            let n = self.allocate_run(cx, inode, at, goal, n as u32)?;
            at = at.plus(n);
        }
        Ok(())
    }

    fn allocate_run(
        &self,
        cx: &Cx,
        inode: &Inode,
        at: FileBlock,
        goal: steadfs_base::DevBlock,
        want: u32,
    ) -> Result<u64> {
        let totals = self.alloc.totals();
        let kept = self.kept_for_root(cx) + totals.promised;
        if totals.free < kept + u64::from(want) {
            self.wait_for_room(cx, want)?;
        }
        let run = self.claim_for_data(goal, want, cx.tag)?;
        let credits = self.map_credits(&inode.core.read(), run.len) + 1;
        let result = self.txns.begin(credits).and_then(|mut handle| {
            let mut core = inode.core.write();
            let named = self.map_claim(&mut handle, inode.ino(), &mut core, at, run, true);
            // In any case: the tree above may have another shape.
            self.store_inode(&mut handle, inode, &core)?;
            inode.note_tid(&handle, true);
            named
        });
        if let Err(error) = &result {
            self.release_unnamed(run, error);
        }
        result.map(|()| run.len.into())
    }

    /// Lets freed blocks become free: a commit, without writing other files' data back (this file's
    /// write-back is locked by the caller).
    fn wait_for_room(&self, cx: &Cx, want: u32) -> Result<()> {
        let shortage = Shortage::new();
        loop {
            let more = shortage.look_again(self, cx.tag)?;
            let totals = self.alloc.totals();
            if totals.free >= self.kept_for_root(cx) + totals.promised + u64::from(want) {
                return Ok(());
            }
            if !more {
                return Err(FsError::NoSpace);
            }
        }
    }

    /// Brings the size on disk up to the file's before blocks leave the cache: write-back, which would
    /// raise it, will not see them any more.
    fn settle_size(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if inode.core.read().size < inode.size() {
            self.write_out(inode, Why::Sync, cx.tag)?;
        }
        Ok(())
    }

    /// Zeroes the bytes of a range that do not fill whole blocks; returns the whole blocks between.
    fn zero_edges(&self, cx: &Cx, inode: &Inode, range: &Range<u64>) -> Result<Range<u64>> {
        let bs = self.geo.block_size;
        let first = bs.blocks_for(range.start);
        let last = range.end >> bs.bits();
        if first > last {
            self.zero_bytes(cx, inode, range.clone())?;
            return Ok(0..0);
        }
        self.zero_bytes(cx, inode, range.start..first << bs.bits())?;
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
            if !matches!(mapped.place, Place::Written(_)) {
                return Ok(());
            }
        }
        let zeros = vec![0; (range.end - range.start) as usize];
        self.write_pages(cx, inode, range.start, &zeros, inode.size())
            .1
    }

    /// Makes a hole.
    fn punch(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let bs = self.geo.block_size;
        let to_end = range.end == inode.size();
        // Before the edges are zeroed: what it writes may still be the last word on a block that is
        // about to go, if a crash comes before that is committed.
        self.settle_size(cx, inode)?;
        let mut whole = self.zero_edges(cx, inode, &range)?;
        if to_end {
            // The block that holds the end of the file can go whole.
            whole.end = whole.end.max(bs.blocks_for(range.end));
            whole.start = bs.blocks_for(range.start);
        }
        if whole.is_empty() {
            return Ok(());
        }
        let _one = inode.flush.lock();
        let released = inode.pages.discard(whole.clone()) * self.weight(inode);
        self.alloc.with_totals(|t| t.settle(released));
        let (start, mut end) = (FileBlock(whole.start), FileBlock(whole.end));
        let credits = 40;
        let mut handle = self.txns.begin(credits)?;
        loop {
            let mut core = inode.core.write();
            end = self.unmap(&mut handle, inode.ino(), &mut core, start..end, false)?;
            self.store_inode(&mut handle, inode, &core)?;
            inode.note_tid(&handle, true);
            if end <= start {
                return Ok(());
            }
            drop(core);
            handle.restart(credits)?;
        }
    }

    /// Makes a range read as zeros, allocated.
    fn zero(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let bs = self.geo.block_size;
        let mut whole = self.zero_edges(cx, inode, &range)?;
        if range.end >= inode.size() && range.start < range.end {
            whole.start = bs.blocks_for(range.start);
            whole.end = whole.end.max(bs.blocks_for(range.end));
        }
        if !whole.is_empty() {
            self.settle_size(cx, inode)?;
            let _one = inode.flush.lock();
            let released = inode.pages.discard(whole.clone()) * self.weight(inode);
            self.alloc.with_totals(|t| t.settle(released));
            let (mut at, end) = (FileBlock(whole.start), FileBlock(whole.end));
            let credits = 3 * self.map_credits(&inode.core.read(), 1) + 1;
            let mut handle = self.txns.begin(credits)?;
            while at < end {
                let mut core = inode.core.write();
                at = Tree::new(self, inode.ino(), &mut core).convert(&mut handle, at..end, true)?;
                self.store_inode(&mut handle, inode, &core)?;
                inode.note_tid(&handle, true);
                drop(core);
                if at < end {
                    handle.restart(credits)?;
                }
            }
        }
        self.allocate(cx, inode, range)
    }
}
