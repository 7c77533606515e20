//! Allocating, punching and zeroing ranges of a file.

use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_vfs::{Cx, FallocMode, FsError, InodeFlags, Result};

use super::write::LARGEST_SIZE;
use super::{BLOCK, MapTarget};
use crate::disk::BlockAddr;
use crate::disk::inode::{Advise, Inline};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::space::Need;

/// Slots changed while the gate is held once.
const SLOTS_PER_CHANGE: u64 = 4096;

impl F2fs {
    /// fallocate(2).
    pub(crate) fn fallocate_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.check_writable()?;
        Self::check_readable(inode)?;
        if len == 0 {
            return Err(FsError::Invalid("length is zero"));
        }
        let end = offset.saturating_add(len);
        let allocates = matches!(mode, FallocMode::Allocate { .. });
        if inode.is_pinned() && allocates && end <= LARGEST_SIZE {
            self.free_sections_for(&(offset..end), cx.tag)?;
        }
        self.with_space(cx, || self.fallocate_locked(cx, inode, mode, offset..end))
    }

    fn fallocate_locked(
        &self,
        cx: &Cx,
        inode: &Inode,
        mode: FallocMode,
        range: Range<u64>,
    ) -> Result<()> {
        let Range { start: offset, end } = range;
        let _alone = inode.lock.write();
        self.check_may_change(inode)?;
        {
            let core = inode.core.read();
            let allocates = matches!(mode, FallocMode::Allocate { .. });
            if core.flags.contains(InodeFlags::APPEND) && !allocates {
                return Err(FsError::NotPermitted);
            }
            if core.inline.contains(Inline::PINNED) && !allocates {
                return Err(FsError::NotSupported("taking blocks from a pinned file"));
            }
        }
        // Holes, too: Linux has one limit for all modes.
        if end > LARGEST_SIZE {
            return Err(FsError::FileTooBig);
        }
        if !cx.fsetid {
            self.kill_priv(cx, inode)?;
        }
        let grown = |keep_size: bool| if keep_size { inode.size() } else { end };
        match mode {
            FallocMode::Allocate { keep_size } => {
                self.leave_inline(cx, inode)?;
                match inode.is_pinned() {
                    true => self.allocate_pinned(cx, inode, offset..end)?,
                    false => self.allocate(cx, inode, offset..end)?,
                }
                self.finish(cx, inode, grown(keep_size))
            }
            FallocMode::PunchHole => {
                if offset < inode.size() {
                    self.leave_inline(cx, inode)?;
                    self.punch(cx, inode, offset..end)?;
                }
                self.finish(cx, inode, inode.size())
            }
            FallocMode::ZeroRange { keep_size } => {
                self.leave_inline(cx, inode)?;
                self.zero(cx, inode, offset..end)?;
                self.finish(cx, inode, grown(keep_size))
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
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, cx.tag)?;
        let now = self.now();
        (core.mtime, core.ctime) = (now, now);
        Ok(())
    }

    /// Takes space for every hole of a byte range. What was taken before an error stays.
    fn allocate(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        // Delayed blocks get their places: otherwise each would be promised twice.
        self.write_out_locked(inode, cx.tag)?;
        let mut at = range.start / BLOCK;
        let end = range.end.div_ceil(BLOCK);
        while at < end {
            cx.check_killed()?;
            let mapped = self.map(inode, at, (end - at).min(SLOTS_PER_CHANGE), cx.tag)?;
            let run = at..at + mapped.len;
            if mapped.target == MapTarget::Hole {
                let privileged = self.may_use_reserved(cx);
                self.reserve_nodes(inode, run.clone(), privileged, cx.tag)?;
                let need = Need {
                    blocks: mapped.len,
                    nodes: 0,
                };
                self.space.reserve(need, privileged)?;
                self.nat.build_free_nids(cx.tag)?;
                let (changed, result) =
                    self.change_slots(inode, run.clone(), BlockAddr::NEW, cx.tag);
                self.space.release(Need {
                    blocks: mapped.len - changed,
                    nodes: 0,
                });
                result?;
            }
            at = run.end;
        }
        Ok(())
    }

    /// Puts `addr`, which is no block's, into every slot of a run; nodes that are missing are made
    /// unless it is a hole. How many slots were changed, and why not all.
    fn change_slots(
        &self,
        inode: &Inode,
        run: Range<u64>,
        addr: BlockAddr,
        tag: IoTag,
    ) -> (u64, Result<()>) {
        let mut at = run.start;
        let mut attempt = || -> Result<()> {
            let change = self.change()?;
            let mut core = inode.core.write();
            self.mark_dirty(&change, inode, tag)?;
            while at < run.end {
                let mut slot = self.make_slot(&change, inode, &mut core, at, tag)?;
                for _ in 0..u64::from(slot.left).min(run.end - at) {
                    self.set_slot(&change, inode, &mut core, &slot, addr, tag)?;
                    slot.slot += 1;
                    at += 1;
                }
            }
            let beyond_end = at * BLOCK > core.size.next_multiple_of(BLOCK);
            if addr == BlockAddr::NEW && beyond_end {
                // Recovery and fsck would take the last block for the file's end.
                core.advise = core.advise.union(Advise::KEEP_SIZE);
            }
            Ok(())
        };
        let result = attempt();
        (at - run.start, result)
    }

    /// Changes the slots of a range that name something into `addr`.
    fn replace_slots(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        addr: BlockAddr,
        tag: IoTag,
    ) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let mapped = self.map(inode, at, blocks.end - at, tag)?;
            if mapped.target == MapTarget::Hole {
                at += mapped.len;
                continue;
            }
            let run = at..at + mapped.len;
            self.change_slots(inode, run.clone(), addr, tag).1?;
            at = run.end;
        }
        Ok(())
    }

    /// Brings the stored size up to the file's before blocks leave the cache: write-back, which would
    /// raise it, will not see them any more.
    fn store_size(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if inode.core.read().size < inode.size() {
            self.write_out_locked(inode, cx.tag)?;
        }
        Ok(())
    }

    /// Zeroes the bytes of a range that do not fill whole blocks, up to the file's end; returns the
    /// whole blocks between.
    fn zero_edges(&self, cx: &Cx, inode: &Inode, range: &Range<u64>) -> Result<Range<u64>> {
        let inside = |part: Range<u64>| part.start..part.end.min(inode.size());
        let first = range.start.div_ceil(BLOCK);
        let last = range.end / BLOCK;
        if first > last {
            self.zero_bytes(cx, inode, inside(range.clone()))?;
            return Ok(0..0);
        }
        self.zero_bytes(cx, inode, inside(range.start..first * BLOCK))?;
        self.zero_bytes(cx, inode, inside(last * BLOCK..range.end))?;
        Ok(first..last)
    }

    /// Makes a hole; what was taken behind the file's end goes, too.
    fn punch(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let most = inode.core.read().fanout(&self.layout).max_blocks() * BLOCK;
        let range = range.start..range.end.min(most);
        // Before the edges are zeroed: what it writes may still be the last word on a block that is
        // about to go, if a crash comes before that is durable.
        self.store_size(cx, inode)?;
        let mut whole = self.zero_edges(cx, inode, &range)?;
        if range.end >= inode.size() {
            // The block that holds the end of the file can go whole.
            whole = range.start.div_ceil(BLOCK)..whole.end.max(inode.size().div_ceil(BLOCK));
        }
        if whole.is_empty() {
            return Ok(());
        }
        self.drop_pages(inode, whole.clone());
        if inode.pages.is_empty() {
            self.release_nodes(inode, 0);
        }
        self.replace_slots(inode, whole, BlockAddr::NULL, cx.tag)
    }

    /// Makes a range read as zeros, with its space taken.
    fn zero(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        // Space first: where there is none the file stays as it was.
        self.allocate(cx, inode, range.clone())?;
        let mut whole = self.zero_edges(cx, inode, &range)?;
        if range.end >= inode.size() {
            whole = range.start.div_ceil(BLOCK)..whole.end.max(range.end.div_ceil(BLOCK));
        }
        if !whole.is_empty() {
            self.store_size(cx, inode)?;
            self.drop_pages(inode, whole.clone());
            self.replace_slots(inode, whole, BlockAddr::NEW, cx.tag)?;
        }
        Ok(())
    }
}
