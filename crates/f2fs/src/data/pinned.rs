//! Pinned files (`F2FS_IOC_SET_PIN_FILE`): their blocks fill whole sections that no other file uses, never move,
//! and are overwritten in place (IPU). A program that knows the addresses can bypass the file system.
//!
//! The rules are those of Linux 6.18. A file can be pinned while it has no blocks. fallocate allocates sections to
//! it, zeroed first (the kernel leaves the old content in them). Only allocated blocks can be written, and only
//! whole sections at the end can be truncated.

use std::collections::BTreeSet;
use std::ops::Range;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_cache::WritebackFs;
use steadfs_vfs::{Cx, FsError, Result};

use super::{BLOCK, MapTarget};
use crate::checkpoint::{Reason, Writes};
use crate::disk::SEGMENT_BLOCKS;
use crate::disk::inode::{Advise, Inline};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::segment::Run;
use crate::space::Need;

/// Sections that GC failed to free before an allocation for a pinned file gives up.
const FAILED_GC_MAX: u32 = 16;
/// A section that is being allocated to a file.
struct PinnedSection {
    section: Run,
    /// The file block that the section's first block is mapped to.
    first: u64,
    /// Addresses that the file maps.
    mapped_addrs: BTreeSet<u32>,
    /// Holes of the file that are mapped now; each has used its reservation.
    holes_filled: u64,
}

/// Blocks mapped per hold of `cp_lock`.
const BLOCKS_PER_CHANGE: u64 = 512;

impl Inode {
    pub(crate) fn is_pinned(&self) -> bool {
        self.core.read().inline.contains(Inline::PINNED)
    }
}

impl F2fs {
    fn section_blocks(&self) -> u64 {
        u64::from(self.layout.segments_per_section * SEGMENT_BLOCKS)
    }

    /// Fails if a new size would free a part of a pinned file's section.
    pub(crate) fn check_pinned_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let whole = size.is_multiple_of(self.section_blocks() * BLOCK);
        match inode.is_pinned() && size <= inode.size() && !whole {
            true => Err(FsError::Invalid(
                "a pinned file can only be truncated at a multiple of the section size",
            )),
            false => Ok(()),
        }
    }

    /// Fails for a write where a pinned file has no blocks: they could not be allocated in a section of its own.
    pub(super) fn check_pinned_write(
        &self,
        inode: &Inode,
        bytes: Range<u64>,
        tag: IoTag,
    ) -> Result<()> {
        if !inode.is_pinned() {
            return Ok(());
        }
        let (mut at, end) = (bytes.start / BLOCK, bytes.end.div_ceil(BLOCK));
        while at < end {
            let mapped = self.map(inode, at, end - at, tag)?;
            if !matches!(mapped.target, MapTarget::Block(_)) {
                let what = "a pinned file can only be written where fallocate has allocated blocks";
                return Err(FsError::Io(what.to_owned()));
            }
            at += mapped.len;
        }
        Ok(())
    }

    /// Frees sections for the next `bytes` of a pinned file, as far as GC can. The caller holds no lock.
    pub(super) fn free_sections_for(&self, bytes: &Range<u64>, tag: IoTag) -> Result<()> {
        let size = self.section_blocks() * BLOCK;
        let sections = bytes.end.div_ceil(size) - bytes.start / size;
        let sections = u32::try_from(sections).unwrap_or(u32::MAX);
        let lacks = || self.segments().sections_for_users() < sections;
        if !lacks() || self.is_cp_disabled() {
            return Ok(());
        }
        self.checkpoint(Reason::Sync, tag)?;
        let mut skip = BTreeSet::new();
        let mut failed = 0;
        while failed < FAILED_GC_MAX && lacks() {
            match self.clean_one(&mut skip, tag)? {
                None => break,
                Some(done) if done.is_emptied() => self.checkpoint(Reason::Sync, tag)?,
                Some(_) => failed += 1,
            }
        }
        Ok(())
    }

    /// Allocates blocks for every hole of the sections that a byte range touches. What was allocated before an
    /// error stays. The caller holds `inode.lock` for writing.
    pub(super) fn allocate_pinned(&self, cx: &Cx, inode: &Inode, bytes: Range<u64>) -> Result<()> {
        let size = self.section_blocks();
        let most = inode.core.read().fanout(&self.layout).max_blocks();
        let mut at = bytes.start / BLOCK / size * size;
        while at < bytes.end.div_ceil(BLOCK) {
            cx.check_killed()?;
            let section = at..(at + size).min(most);
            let runs = self.unmapped_runs(inode, section.clone(), cx.tag)?;
            if !runs.is_empty() {
                self.allocate_pinned_section(cx, inode, at, &runs)?;
            }
            at += size;
        }
        Ok(())
    }

    /// The runs of a range without blocks, and whether fallocate has reserved space for each.
    fn unmapped_runs(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        tag: IoTag,
    ) -> Result<Vec<(Range<u64>, bool)>> {
        let mut runs = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let mapped = self.map(inode, at, blocks.end - at, tag)?;
            let run = at..at + mapped.len;
            at = run.end;
            match mapped.target {
                MapTarget::Hole => runs.push((run, false)),
                MapTarget::Reserved => runs.push((run, true)),
                MapTarget::Block(_) | MapTarget::Compressed => {}
            }
        }
        Ok(runs)
    }

    /// Allocates one section to a file and maps its blocks in `runs`; `first` is the file block of its first block.
    fn allocate_pinned_section(
        &self,
        cx: &Cx,
        inode: &Inode,
        first: u64,
        runs: &[(Range<u64>, bool)],
    ) -> Result<()> {
        self.hold_key(inode, cx.tag)?;
        let privileged = self.may_use_reserved(cx);
        let holes = || runs.iter().filter(|(_, reserved)| !reserved);
        let new: Vec<_> = holes().map(|(run, _)| run.clone()).collect();
        let _held = self.hold_data(cx, inode, &new)?;
        let nodes = self.reserve_nodes(inode, new, privileged, cx.tag)?;
        let blocks: u64 = holes().map(|(run, _)| run.end - run.start).sum();
        let need = |blocks| Need { blocks, nodes: 0 };
        self.space.reserve(need(blocks), privileged)?;
        let mut holes_filled = 0;
        let result = self.segments().allocate_section().and_then(|section| {
            let mut target = PinnedSection {
                section,
                first,
                mapped_addrs: BTreeSet::new(),
                holes_filled: 0,
            };
            let zeroed = self.zero_section(inode, (section, first), cx.tag);
            // An fsync that writes the new addresses knows by then which FLUSH the zeros need.
            let _flush = inode.lock_flush();
            inode.record_written(true, self.queue.next_flush());
            let result = zeroed.and_then(|()| self.map_section(inode, &mut target, runs, cx.tag));
            for start in section
                .blocks()
                .filter(|at| !target.mapped_addrs.contains(&at.0))
            {
                self.segments().release(Run { start, len: 1 });
            }
            holes_filled = target.holes_filled;
            result
        });
        self.space.release(need(blocks - holes_filled));
        self.recount(inode);
        result.map(|()| nodes.keep())
    }

    /// Overwrites what deleted files left in a section with a file's zeros; its first block is mapped to file block `first`.
    fn zero_section(&self, inode: &Inode, (section, first): (Run, u64), tag: IoTag) -> Result<()> {
        let zeros = Buf::zeroed(BLOCK as usize);
        let stored = |(n, at)| (at, self.stored_form(inode, FileBlock(n), &zeros));
        let blocks: Vec<_> = (first..).zip(section.blocks()).map(stored).collect();
        let mut writes = Writes::default();
        self.submit_blocks(&blocks, tag, &mut writes);
        writes.wait().map_err(io_error)
    }

    /// Maps the blocks of a section to the file blocks in `runs`.
    fn map_section(
        &self,
        inode: &Inode,
        target: &mut PinnedSection,
        runs: &[(Range<u64>, bool)],
        tag: IoTag,
    ) -> Result<()> {
        self.nat.build_free_nids(tag)?;
        for (run, reserved) in runs {
            let mut at = run.start;
            while at < run.end {
                let end = run.end.min(at + BLOCKS_PER_CHANGE);
                self.map_section_blocks(inode, target, (at..end, *reserved), tag)?;
                at = end;
            }
        }
        Ok(())
    }

    fn map_section_blocks(
        &self,
        inode: &Inode,
        target: &mut PinnedSection,
        (run, reserved): (Range<u64>, bool),
        tag: IoTag,
    ) -> Result<()> {
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, tag)?;
        let mut at = run.start;
        while at < run.end {
            let mut slot = self.make_slot(&change, inode, &mut core, at, tag)?;
            for _ in 0..u64::from(slot.left).min(run.end - at) {
                let addr = target.section.start.plus((at - target.first) as u32);
                self.set_slot(&change, inode, &mut core, &slot, addr, tag)?;
                target.holes_filled += u64::from(!reserved);
                target.mapped_addrs.insert(addr.0);
                self.segments().set_valid_pinned(addr, slot.owner())?;
                slot.slot += 1;
                at += 1;
            }
        }
        if at * BLOCK > core.size.next_multiple_of(BLOCK) {
            // As in `change_slots`: blocks beyond the end are intended.
            core.advise = core.advise.union(Advise::KEEP_SIZE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
