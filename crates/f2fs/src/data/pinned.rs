//! Pinned files (`F2FS_IOC_SET_PIN_FILE`): their blocks lie in whole sections that nobody else has, stay where they
//! are, and are written in place. So whoever knows where they lie can do without the file system.
//!
//! The rules are Linux 6.18's. A file is pinned while it has no blocks; fallocate gives it sections (zeroed first:
//! the kernel leaves in them what was there); only what has a block is written; nothing is taken out but whole
//! sections at the end.

use std::collections::BTreeSet;
use std::ops::Range;

use steadfs_base::IoTag;
use steadfs_block::Buf;
use steadfs_vfs::{Cx, FsError, Result};

use super::{BLOCK, Place};
use crate::checkpoint::{Reason, Writes};
use crate::disk::SEGMENT_BLOCKS;
use crate::disk::inode::{Advise, Inline};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::segment::Run;
use crate::space::Need;

/// Sections cleaned in vain before a section is given up for a pinned file.
const TRIES: u32 = 16;
/// A section on its way to a file.
struct Given {
    section: Run,
    /// The file's block that its first one becomes.
    first: u64,
    /// Addresses that have an owner.
    named: BTreeSet<u32>,
    /// Holes that are none any more: each has taken its promise.
    filled: u64,
}

/// Blocks named while the gate is held once.
const STEP: u64 = 512;

impl Inode {
    /// Whether its blocks stay where they are.
    pub(crate) fn is_pinned(&self) -> bool {
        self.core.read().inline.contains(Inline::PINNED)
    }
}

impl F2fs {
    fn section_blocks(&self) -> u64 {
        u64::from(self.layout.segments_per_section * SEGMENT_BLOCKS)
    }

    /// Refuses a size that would take a part of a section from a pinned file.
    pub(crate) fn check_pinned_size(&self, inode: &Inode, size: u64) -> Result<()> {
        let whole = size.is_multiple_of(self.section_blocks() * BLOCK);
        match inode.is_pinned() && size <= inode.size() && !whole {
            true => Err(FsError::Invalid("a pinned file is cut at sections only")),
            false => Ok(()),
        }
    }

    /// Refuses writing where a pinned file has no blocks: they would lie anywhere.
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
            if !matches!(mapped.place, Place::At(_)) {
                let what = "a pinned file is only written where fallocate gave it blocks";
                return Err(FsError::Io(what.to_owned()));
            }
            at += mapped.len;
        }
        Ok(())
    }

    /// Makes sections free for a pinned file's next `bytes`, as far as that is possible. With no lock held.
    pub(super) fn provide_sections(&self, bytes: &Range<u64>, tag: IoTag) -> Result<()> {
        let size = self.section_blocks() * BLOCK;
        let wanted = bytes.end.div_ceil(size) - bytes.start / size;
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let lacks = || self.segments().sections_for_users() < wanted;
        if !lacks() || self.is_cp_disabled() {
            return Ok(());
        }
        self.checkpoint(Reason::Sync, tag)?;
        let mut skip = BTreeSet::new();
        let mut in_vain = 0;
        while in_vain < TRIES && lacks() {
            match self.clean_one(&mut skip, tag)? {
                None => break,
                Some(true) => self.checkpoint(Reason::Sync, tag)?,
                Some(false) => in_vain += 1,
            }
        }
        Ok(())
    }

    /// Gives a pinned file blocks for every hole of the sections that a byte range touches. What was given before
    /// an error stays. The caller holds `inode.lock` for writing.
    pub(super) fn allocate_pinned(&self, cx: &Cx, inode: &Inode, bytes: Range<u64>) -> Result<()> {
        let size = self.section_blocks();
        let most = inode.core.read().fanout(&self.layout).max_blocks();
        let mut at = bytes.start / BLOCK / size * size;
        while at < bytes.end.div_ceil(BLOCK) {
            cx.check_killed()?;
            let section = at..(at + size).min(most);
            let wanted = self.without_place(inode, section.clone(), cx.tag)?;
            if !wanted.is_empty() {
                self.give_section(cx, inode, at, &wanted)?;
            }
            at += size;
        }
        Ok(())
    }

    /// The runs of a range that have no blocks, and whether fallocate took space for them before.
    fn without_place(
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
            match mapped.place {
                Place::Hole => runs.push((run, false)),
                Place::Promised => runs.push((run, true)),
                Place::At(_) | Place::Compressed => {}
            }
        }
        Ok(runs)
    }

    /// Gives one section to a file: its block `first` and those behind it, as far as they are wanted.
    fn give_section(
        &self,
        cx: &Cx,
        inode: &Inode,
        first: u64,
        wanted: &[(Range<u64>, bool)],
    ) -> Result<()> {
        let privileged = self.may_use_reserved(cx);
        let holes = || wanted.iter().filter(|(_, reserved)| !reserved);
        for (run, _) in holes() {
            self.reserve_nodes(inode, run.clone(), privileged, cx.tag)?;
        }
        let blocks: u64 = holes().map(|(run, _)| run.end - run.start).sum();
        let need = |blocks| Need { blocks, nodes: 0 };
        self.space.reserve(need(blocks), privileged)?;
        let mut filled = 0;
        let result = self.segments().allocate_section().and_then(|section| {
            let mut given = Given {
                section,
                first,
                named: BTreeSet::new(),
                filled: 0,
            };
            let zeroed = self.zero_section(section, cx.tag);
            let result = zeroed.and_then(|()| self.name_section(inode, &mut given, wanted, cx.tag));
            inode.note_written(true, self.queue.next_flush());
            for start in section.blocks().filter(|at| !given.named.contains(&at.0)) {
                self.segments().release(Run { start, len: 1 });
            }
            filled = given.filled;
            result
        });
        self.space.release(need(blocks - filled));
        result
    }

    /// Nobody reads what others left in a section.
    fn zero_section(&self, section: Run, tag: IoTag) -> Result<()> {
        let zeros = Buf::zeroed(BLOCK as usize);
        let blocks: Vec<_> = section.blocks().map(|at| (at, zeros.clone())).collect();
        let mut writes = Writes::default();
        self.submit_blocks(&blocks, tag, &mut writes);
        writes.wait().map_err(io_error)
    }

    /// Names the blocks of a section in the slots where they are wanted.
    fn name_section(
        &self,
        inode: &Inode,
        given: &mut Given,
        wanted: &[(Range<u64>, bool)],
        tag: IoTag,
    ) -> Result<()> {
        self.nat.build_free_nids(tag)?;
        for (run, reserved) in wanted {
            let mut at = run.start;
            while at < run.end {
                let end = run.end.min(at + STEP);
                self.name_blocks(inode, given, (at..end, *reserved), tag)?;
                at = end;
            }
        }
        Ok(())
    }

    fn name_blocks(
        &self,
        inode: &Inode,
        given: &mut Given,
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
                let addr = given.section.start.plus((at - given.first) as u32);
                self.set_slot(&change, inode, &mut core, &slot, addr, tag)?;
                given.filled += u64::from(!reserved);
                given.named.insert(addr.0);
                self.segments().set_valid_pinned(addr, slot.owner())?;
                slot.slot += 1;
                at += 1;
            }
        }
        if at * BLOCK > core.size.next_multiple_of(BLOCK) {
            // As in `change_slots`: what lies behind the end is meant.
            core.advise = core.advise.union(Advise::KEEP_SIZE);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
