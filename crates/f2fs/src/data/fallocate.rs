//! fallocate(2): allocating, punching and zeroing ranges of a file.

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

/// Slots changed per hold of `cp_lock`.
const SLOTS_PER_CHANGE: u64 = 4096;

impl F2fs {
    pub(crate) fn fallocate_file(
        &self,
        cx: &Cx,
        inode: &Inode,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.check_writable()?;
        self.check_readable(inode, cx.tag)?;
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
        let _exclusive = inode.lock.write();
        self.check_may_change(inode)?;
        Self::check_not_released(inode)?;
        if self.atomic_writes.of(inode).is_some() {
            return Err(FsError::NotSupported("fallocate during an atomic write"));
        }
        {
            let core = inode.core.read();
            let allocates = matches!(mode, FallocMode::Allocate { .. });
            if core.flags.contains(InodeFlags::APPEND) && !allocates {
                return Err(FsError::NotPermitted);
            }
            if core.inline.contains(Inline::PINNED) && !allocates {
                return Err(FsError::NotSupported("punching or zeroing a pinned file"));
            }
            if core.is_compressed(&self.layout) && !allocates {
                return Err(FsError::NotSupported(
                    "punching or zeroing a compressed file",
                ));
            }
        }
        // Also for holes: Linux has one limit for all modes.
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

    /// Sets the times, and the size if it grows.
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

    /// Reserves space for every hole of a byte range. What was reserved before an error stays.
    fn allocate(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        // Write-back allocates delayed blocks first: they would be reserved twice otherwise.
        self.write_out_locked(inode, cx.tag)?;
        let mut at = range.start / BLOCK;
        let end = range.end.div_ceil(BLOCK);
        while at < end {
            cx.check_killed()?;
            let mapped = self.map(inode, at, (end - at).min(SLOTS_PER_CHANGE), cx.tag)?;
            let run = at..at + mapped.len;
            if mapped.target == MapTarget::Hole {
                let privileged = self.may_use_reserved(cx);
                let _held = self.hold_data(cx, inode, std::slice::from_ref(&run))?;
                let nodes = self.reserve_nodes(inode, Some(run.clone()), privileged, cx.tag)?;
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
                nodes.keep();
            }
            at = run.end;
        }
        Ok(())
    }

    /// Stores a special address in every slot of a run. Missing nodes are created unless `addr` is a hole. Returns
    /// the number of changed slots, and the error that ended it.
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
                // Recovery and fsck.f2fs would otherwise derive the file's end from its last block.
                core.advise = core.advise.union(Advise::KEEP_SIZE);
            }
            self.charge(inode, &core);
            Ok(())
        };
        let result = attempt();
        (at - run.start, result)
    }

    /// Stores `addr` in the slots of a range that are not holes.
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

    /// Raises the stored size to the size in memory before blocks leave the cache: write-back, which raises it
    /// otherwise, will not see them any more.
    fn store_size(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if inode.core.read().size < inode.size() {
            self.write_out_locked(inode, cx.tag)?;
        }
        Ok(())
    }

    /// Zeroes the bytes of a range in partly covered blocks, up to the file's end. Returns the fully covered
    /// blocks.
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

    /// Makes a hole. Blocks beyond the end of the file in the range are freed, too.
    fn punch(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        let most = inode.core.read().fanout(&self.layout).max_blocks() * BLOCK;
        let range = range.start..range.end.min(most);
        // Before the edges are zeroed: after a crash that comes before the hole is durable, this write-back may
        // have stored the last content of a block that is freed below.
        self.store_size(cx, inode)?;
        let mut whole = self.zero_edges(cx, inode, &range)?;
        if range.end >= inode.size() {
            // The block that holds the end of the file can be freed whole.
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

    /// Makes a range read as zeros, with its space reserved.
    fn zero(&self, cx: &Cx, inode: &Inode, range: Range<u64>) -> Result<()> {
        // Reserve first: on ENOSPC the file stays unchanged.
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
