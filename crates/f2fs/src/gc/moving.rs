//! Moves the valid blocks of a section.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{FileBlock, IoTag};
use steadfs_rt::sleep;
use steadfs_vfs::{FsError, Result};

use super::stats::Outcome;
use crate::disk::inode::Inline;
use crate::disk::node::{self, PER_NODE};
use crate::disk::{BlockAddr, NatEntry, Nid, SegNo};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::SlotLookup;
use crate::segment::{Owner, Victim};

/// Attempts to lock a file that is in use, 1 ms apart.
const FILE_RETRIES: u32 = 20;

/// How the blocks of a section are moved.
#[derive(Clone, Copy, Debug)]
pub(super) struct MoveMode {
    /// Data goes to the ATGC log.
    pub by_age: bool,
    /// At most `migration_granularity` segments are emptied.
    pub background: bool,
}

/// A file block and its address.
type BlockAt = (u64, BlockAddr);

/// Blocks of one file to move.
struct FileBlocks {
    inode: Arc<Inode>,
    blocks: Vec<BlockAt>,
}

impl F2fs {
    /// Moves the valid data of a section, and marks its nodes and directory blocks dirty so that the next checkpoint
    /// moves them.
    pub(super) fn empty_section(
        &self,
        victim: Victim,
        mode: MoveMode,
        tag: IoTag,
    ) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let section = victim.section;
        let most = match mode.background {
            true => self.migration_granularity(),
            false => u32::MAX,
        };
        for (segment, kind) in self.segments().segments_of(section) {
            let is_done = victim.resumed.is_some_and(|first| segment < first);
            if is_done || self.segments().valid_in_segment(segment) == 0 {
                continue;
            }
            if outcome.data_segments + outcome.node_segments >= most.into() {
                self.segments().resume_at(section, segment);
                break;
            }
            let owners = self.segments().owners(segment, &self.queue, tag);
            let Some(owners) = self.unless_left(owners, section, &mut outcome)? else {
                if outcome.failed {
                    break;
                }
                continue;
            };
            if owners.is_empty() {
                continue;
            }
            let at = (section, segment);
            if kind.is_node() {
                outcome.node_segments += 1;
                self.mark_nodes(at, &owners, tag, &mut outcome)?;
            } else {
                outcome.data_segments += 1;
                self.move_data(at, &owners, mode, tag, &mut outcome)?;
            }
            if outcome.failed {
                break;
            }
        }
        Ok(outcome)
    }

    /// The result for one segment, node or file. One that contradicts itself stays where it is (`None`). So does one that
    /// cannot be read, and cleaning of the section ends: it cannot become free, and the next block may be as slow to fail. The
    /// section is not chosen again soon. Either is no error of the caller, for whom other sections are cleaned.
    ///
    /// # Errors
    /// `NoSpace`: nothing else can be moved either. The volume has stopped.
    fn unless_left<T>(
        &self,
        result: Result<T>,
        section: u32,
        outcome: &mut Outcome,
    ) -> Result<Option<T>> {
        let error = match result {
            Ok(done) => return Ok(Some(done)),
            Err(error) => error,
        };
        if error == FsError::NoSpace || self.check_writable().is_err() {
            return Err(error);
        }
        outcome.left += 1;
        if error.is_corruption() {
            self.segments().pin(section);
            self.record_corruption(&error);
            return Ok(None);
        }
        outcome.failed = true;
        if self.segments().leave_unreadable(section) {
            tracing::warn!(section, %error, "GC cannot move what is in a section");
        }
        Ok(None)
    }

    /// Marks the nodes of a segment dirty.
    fn mark_nodes(
        &self,
        (section, segment): (u32, SegNo),
        owners: &[(u32, Owner)],
        tag: IoTag,
        outcome: &mut Outcome,
    ) -> Result<()> {
        for &(offset, owner) in owners {
            let addr = self.layout.block_in(segment, offset);
            let marked = self.mark_node(owner.nid, addr, tag);
            match self.unless_left(marked, section, outcome)? {
                Some(true) => outcome.marked_nodes += 1,
                Some(false) if self.segments().is_valid(addr) => outcome.left += 1,
                None if outcome.failed => break,
                Some(false) | None => {}
            }
        }
        Ok(())
    }

    /// Marks a node dirty; `false` if it is not at this address.
    fn mark_node(&self, nid: Nid, addr: BlockAddr, tag: IoTag) -> Result<bool> {
        if !self.layout.is_nid(nid) {
            return Ok(false);
        }
        let entry = self.nat.entry(nid, tag)?;
        if entry.addr != addr {
            return Ok(false);
        }
        let found = self.node(nid, entry.ino, tag);
        let Some(node) = self.unless_freed(found, (nid, entry), tag)? else {
            return Ok(false);
        };
        let change = self.change()?;
        if node.entry().addr != addr {
            return Ok(false);
        }
        match self.nodes.change(&change, &node) {
            Ok(_marked) => Ok(true),
            // Freed since.
            Err(_) => Ok(false),
        }
    }

    /// Moves the data of a segment, file by file.
    fn move_data(
        &self,
        (section, segment): (u32, SegNo),
        owners: &[(u32, Owner)],
        mode: MoveMode,
        tag: IoTag,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let mut files: BTreeMap<Nid, FileBlocks> = BTreeMap::new();
        for &(offset, owner) in owners {
            let addr = self.layout.block_in(segment, offset);
            let found = self.find_owner(owner, addr, tag);
            let found = self.unless_left(found, section, outcome)?.flatten();
            if outcome.failed {
                break;
            }
            if let Some((inode, block)) = found {
                let work = files.entry(inode.nid()).or_insert_with(|| FileBlocks {
                    inode,
                    blocks: Vec::new(),
                });
                work.blocks.push((block, addr));
            }
        }
        for mut work in files.into_values() {
            if outcome.failed {
                break;
            }
            work.blocks.sort_unstable();
            let inode = &work.inode;
            if inode.core.read().inline.contains(Inline::PINNED) {
                self.segments().pin(section);
                if !mode.background {
                    self.unless_left(self.count_pin(inode), section, outcome)?;
                }
            } else if !inode.is_written_by_cp() {
                let moved = self.move_file(inode, &work.blocks, mode.by_age, tag);
                outcome.data_blocks += self.unless_left(moved, section, outcome)?.unwrap_or(0);
            } else {
                let marked = self.mark_directory(inode, &work.blocks, tag);
                outcome.marked_data += self.unless_left(marked, section, outcome)?.unwrap_or(0);
            }
        }
        // Marked blocks are valid until the checkpoint, as are those whose owner was not found.
        let left = self.segments().valid_in_segment(segment);
        outcome.left += u64::from(left).saturating_sub(outcome.marked_data);
        Ok(())
    }

    /// The file and file block of an address; `None` if nothing refers to it any more.
    fn find_owner(
        &self,
        owner: Owner,
        addr: BlockAddr,
        tag: IoTag,
    ) -> Result<Option<(Arc<Inode>, u64)>> {
        if !self.layout.is_nid(owner.nid) || u32::from(owner.slot) >= PER_NODE {
            return Ok(None);
        }
        let entry = self.nat.entry(owner.nid, tag)?;
        if !entry.is_used() {
            return Ok(None);
        }
        let found = self.find_named(owner, (entry.ino, addr), tag);
        self.unless_freed(found, (owner.nid, entry), tag)
    }

    /// The result of a search by a node with this entry. The node may be freed meanwhile and its id reused, because no
    /// lock prevents it: a contradiction is then no corruption, and nothing was found.
    fn unless_freed<T>(
        &self,
        found: Result<Option<T>>,
        (nid, entry): (Nid, NatEntry),
        tag: IoTag,
    ) -> Result<Option<T>> {
        match found {
            Err(error) if error.is_corruption() && self.nat.entry(nid, tag)? != entry => Ok(None),
            found => found,
        }
    }

    /// The file and file block that a node of inode `ino` maps to `addr`.
    fn find_named(
        &self,
        owner: Owner,
        (ino, addr): (Nid, BlockAddr),
        tag: IoTag,
    ) -> Result<Option<(Arc<Inode>, u64)>> {
        let Some(node) = self.node(owner.nid, ino, tag)? else {
            return Ok(None);
        };
        let data = match node.data() {
            Ok(data) => data,
            Err(_) => return Ok(None),
        };
        let footer = crate::disk::node::Footer::parse(&data);
        let inode = match self.inode(footer.ino, tag) {
            Ok(inode) => inode,
            Err(FsError::Stale) => return Ok(None),
            Err(error) => return Err(error),
        };
        let core = inode.core.read();
        let fanout = core.fanout(&self.layout);
        let (named, first) = if footer.offset == 0 {
            if u32::from(owner.slot) >= fanout.inode {
                return Ok(None);
            }
            (core.addr(&self.layout, &data, owner.slot), Some(0))
        } else {
            if u32::from(owner.slot) >= fanout.direct {
                return Ok(None);
            }
            let first = fanout.first_block(footer.offset);
            (node::addr(&data, owner.slot), first)
        };
        drop(core);
        let block = first.map(|first| first + u64::from(owner.slot));
        Ok(match block {
            Some(block) if named == addr => Some((inode, block)),
            _ => None,
        })
    }

    /// Moves blocks of a file; returns their number.
    fn move_file(
        &self,
        inode: &Inode,
        blocks: &[BlockAt],
        by_age: bool,
        tag: IoTag,
    ) -> Result<u64> {
        for attempt in 0..=FILE_RETRIES {
            let moved = self.relocate_blocks(inode, blocks, by_age, tag)?;
            if moved > 0 || inode.marks.is_dead() || attempt == FILE_RETRIES {
                return Ok(moved);
            }
            sleep(Duration::from_millis(1));
        }
        Ok(0)
    }

    /// Marks blocks of a directory, a long symbolic link or a quota file dirty; returns their number.
    fn mark_directory(&self, inode: &Inode, blocks: &[BlockAt], tag: IoTag) -> Result<u64> {
        let mut tries = 0;
        let alone = loop {
            match inode.lock.try_write() {
                Some(alone) => break alone,
                None if tries == FILE_RETRIES => return Ok(0),
                None => sleep(Duration::from_millis(1)),
            }
            tries += 1;
        };
        if inode.marks.is_dead() {
            return Ok(0);
        }
        let mut marked = 0;
        for &(block, addr) in blocks {
            // Read before the change; what is read within it may be newer.
            self.main_block(addr, tag)?;
            let change = self.change()?;
            let core = inode.core.write();
            let SlotLookup::Slot(slot) = self.find_slot(inode, &core, block, tag)? else {
                continue;
            };
            if self.addr_in(&core, &slot)? != addr {
                continue;
            }
            self.mark_dirty(&change, inode, tag)?;
            // The checkpoint then finds slot and node without reading them.
            drop(self.nodes.change(&change, &slot.node)?);
            // The address may be that of a checkpoint that has just been written, the content read above what was there before.
            let fill = || Ok::<_, FsError>(self.main_block(addr, tag)?.data());
            inode.pages.edit(FileBlock(block), tag, fill, |_| ())?;
            drop(core);
            marked += 1;
        }
        drop(alone);
        Ok(marked)
    }
}

#[cfg(test)]
mod tests;
