//! Block maps: from file blocks to device blocks, by extents or by indirect blocks.

use std::ops::Range;
use std::sync::Arc;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::{FsError, InodeFlags, Result};

use crate::clusters::{HoleRequest, not_by_extents};
use crate::disk::{self, Extent, Ino};
use crate::extent::{self, Tree};
use crate::fs::Ext4;
use crate::indirect;
use crate::inode::Inode;
use crate::mballoc::{Goal, Run};
use crate::place::{BlockPlace, FreeStep, Mapped, Unmapped};
use crate::txn::Handle;

/// Tree depth that credits are computed for: four levels hold more extents than a file has blocks.
const TREE_DEPTH_MAX: u16 = 4;

/// Credits of the largest step of [`Ext4::unmap`], in trees as deep as they may be on disk.
pub(crate) const UNMAP_CREDITS: u32 =
    extent::remove_credits(disk::extent::MAX_DEPTH) + FreeStep::METADATA.credits;

/// Whether the inode is mapped by extents.
pub fn has_extents(core: &disk::Inode) -> bool {
    core.flags.contains(InodeFlags::EXTENTS)
}

impl Ext4 {
    /// The mapping at `block`, checked against the volume's own metadata.
    pub fn map(
        &self,
        ino: Ino,
        core: &disk::Inode,
        block: FileBlock,
        tag: IoTag,
    ) -> Result<Mapped> {
        let mapped = if has_extents(core) {
            extent::lookup(self, ino, core, block, tag)?
        } else {
            indirect::lookup(self, ino, core, block, tag)?
        };
        if let BlockPlace::Written(start) | BlockPlace::Unwritten(start) = mapped.place
            && !self.alloc.may_own(&self.geo, start, mapped.len)
            && ino != Ino::RESIZE
        {
            return Err(
                Corruption::new("is mapped, but belongs to the volume's own metadata")
                    .in_inode(ino)
                    .at_file_block(block)
                    .in_block(start)
                    .into(),
            );
        }
        Ok(mapped)
    }

    /// The number of holes among `blocks`, which are sorted. Each leaf of the map is looked up once.
    pub(crate) fn holes(
        &self,
        ino: Ino,
        core: &disk::Inode,
        mut blocks: &[FileBlock],
        tag: IoTag,
    ) -> Result<u64> {
        let mut holes = 0;
        while !blocks.is_empty() {
            let counted = if has_extents(core) {
                extent::holes(self, ino, core, blocks, tag)?
            } else {
                indirect::holes(self, ino, core, blocks, tag)?
            };
            holes += counted.holes;
            // A block beyond the reach of the map is not counted.
            blocks = &blocks[counted.of.max(1)..];
        }
        Ok(holes)
    }

    /// The device block of one file block; `None` for a hole or an unwritten block.
    pub fn map_block(
        &self,
        core: &disk::Inode,
        ino: Ino,
        block: FileBlock,
        tag: IoTag,
    ) -> Result<Option<DevBlock>> {
        Ok(match self.map(ino, core, block, tag)?.place {
            BlockPlace::Written(at) => Some(at),
            BlockPlace::Hole | BlockPlace::Unwritten(_) => None,
        })
    }

    /// Credits for mapping one more run of `len` blocks of a file, bitmap and descriptor included.
    pub fn map_credits(&self, core: &disk::Inode, len: u32) -> u32 {
        if has_extents(core) {
            2 + extent::insert_credits(TREE_DEPTH_MAX) * (1 + len / disk::extent::MAX_UNWRITTEN_LEN)
        } else {
            2 + indirect::insert_credits(disk::indirect::per_block(&self.geo), len)
        }
    }

    /// Maps allocated blocks in a hole of the file, and marks them used, in one handle. On error none of them is
    /// mapped, although the nodes of the tree may have changed; the caller frees the allocation.
    pub fn map_allocation(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        at: FileBlock,
        run: Run,
        unwritten: bool,
    ) -> Result<()> {
        if self.geo.cluster_bits > 0 && !has_extents(core) {
            return Err(not_by_extents(ino));
        }
        let before = handle.savepoint();
        let clusters = self.alloc.mark_used(self, handle, run)?;
        let units = u64::from(clusters) * self.geo.cluster_units();
        core.blocks += units;
        let mut named = 0;
        while named < run.len {
            let from = at.plus(named.into());
            match self.map_some(handle, ino, core, from, run.after(named), unwritten) {
                Ok(more) => named += more,
                Err(error) => {
                    // No block for the map of the rest was free, or it could not be read.
                    self.unmap_part(handle, ino, core, (at, run), named)
                        .map_err(|left| half_done(handle, ino, &left))?;
                    handle.consistent_since(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Undoes [`Ext4::map_allocation`] in the same handle: the run is allocated in memory only, as before.
    ///
    /// # Errors
    /// It cannot be undone: the handle must not be committed.
    pub fn unmap_allocation(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        at: FileBlock,
        run: Run,
    ) -> Result<()> {
        self.unmap_part(handle, ino, core, (at, run), run.len)
    }

    /// Undoes the mapping of a run of which the first `named` blocks are mapped.
    fn unmap_part(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        (at, run): (FileBlock, Run),
        named: u32,
    ) -> Result<()> {
        let all = at..at.plus(run.len.into());
        let (start, len) = self.own_clusters(ino, core, &all, run.start)?;
        self.unmap_run(handle, ino, core, at..at.plus(named.into()))?;
        let unused = (len > 0).then_some(Run {
            start,
            len: len as u32,
        });
        let file = Some((ino, at));
        let clusters = self.alloc.unmark_used(self, handle, run, file, unused)?;
        let units = u64::from(clusters) * self.geo.cluster_units();
        core.blocks = core.blocks.saturating_sub(units);
        Ok(())
    }

    /// Credits that undoing a mapping needs beside those that it had: hardly any is used.
    pub fn undo_map_credits(&self, core: &disk::Inode) -> u32 {
        match has_extents(core) {
            true => extent::remove_credits(TREE_DEPTH_MAX),
            false => indirect::REMOVE_CREDITS,
        }
    }

    /// Maps the first blocks of a run, at least one; returns their number. On error none is mapped.
    fn map_some(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        at: FileBlock,
        run: Run,
        unwritten: bool,
    ) -> Result<u32> {
        if !has_extents(core) {
            return indirect::insert_some(self, handle, ino, core, at, run);
        }
        let extent = Extent {
            block: at,
            len: run.len.min(Extent::max_len(unwritten)),
            start: run.start,
            unwritten,
        };
        Tree::new(self, ino, core).insert(handle, &extent)?;
        Ok(extent.len)
    }

    /// Unmaps a range that this handle has mapped, without freeing its blocks.
    fn unmap_run(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        range: Range<FileBlock>,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let start = range.start;
        let mut keep = |_: &Ext4, _: &mut Handle<'_>, _: Unmapped| Ok(());
        // The blocks to change belong to the transaction already, so hardly any of these credits are used.
        let left = match handle.extend_while_locked(self.undo_map_credits(core)) {
            false => range.end,
            true if has_extents(core) => {
                Tree::new(self, ino, core).remove(handle, range, FreeStep::DATA, &mut keep)?
            }
            true => indirect::remove(self, handle, ino, core, range, FreeStep::DATA, &mut keep)?,
        };
        match left == start {
            true => Ok(()),
            false => Err(FsError::Stopped("the transaction is full".to_owned())),
        }
    }

    /// Frees mapped blocks of a range from its end on until the transaction is full; returns the end
    /// of what is left (`range.start`: done).
    pub fn unmap(
        &self,
        handle: &mut Handle<'_>,
        ino: Ino,
        core: &mut disk::Inode,
        range: Range<FileBlock>,
        metadata: bool,
    ) -> Result<FileBlock> {
        if self.geo.cluster_bits > 0 && !has_extents(core) {
            return Err(not_by_extents(ino));
        }
        let units = self.geo.block_size.bytes_u64() / 512;
        let mut freed = 0;
        let mut free = |fs: &Ext4, handle: &mut Handle<'_>, unmapped: Unmapped| {
            let (start, len) = unmapped.blocks;
            if metadata {
                for n in 0..len {
                    handle.forget(start.plus(n))?;
                }
            }
            let whole = fs.geo.whole_clusters(start, len);
            if unmapped.clusters != whole && handle.is_journaled() {
                fs.alloc.note_unmapped(handle.tid(), start, len);
            }
            let (start, len) = unmapped.clusters;
            if len == 0 {
                return Ok(());
            }
            freed += len;
            fs.alloc.free_blocks(fs, handle, start, len)
        };
        let step = match metadata {
            true => FreeStep::METADATA,
            false => FreeStep::DATA,
        };
        let left = if has_extents(core) {
            Tree::new(self, ino, core).remove(handle, range, step, &mut free)
        } else {
            indirect::remove(self, handle, ino, core, range, step, &mut free)
        };
        core.blocks = core.blocks.saturating_sub(freed * units);
        left
    }

    /// [`Ext4::append_block`] for a directory, which does not grow once it has the size of the option `max_dir_size_kb`, as
    /// in Linux: the last block may exceed that.
    pub fn append_dir_block(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<(FileBlock, Arc<MetaBuf>)> {
        let limit = self.options.read().max_dir_kib;
        if limit.is_some_and(|kib| core.size >> 10 >= kib) {
            return Err(FsError::NoRoom(
                "more names in the directory (max_dir_size_kb)",
            ));
        }
        self.append_block(handle, inode, core)
    }

    /// Adds a zeroed block at the end of an inode whose content is metadata. The caller holds `core` for writing, writes
    /// the content only, and stores the inode.
    pub(crate) fn append_block(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
    ) -> Result<(FileBlock, Arc<MetaBuf>)> {
        let at = FileBlock(self.geo.block_size.blocks_for(core.size));
        let size = (at.0 + 1) << self.geo.block_size.bits();
        if size > self.geo.max_file_size(has_extents(core)) {
            return Err(FsError::NoRoom("more blocks in the inode"));
        }
        let goal = self.goal_after(inode.ino(), core, at);
        let hole = HoleRequest {
            ino: inode.ino(),
            at,
            len: 1,
            goal,
        };
        let plan = self.plan_hole(core, hole)?;
        let run = self.fill_hole(plan, |_, goal, _| {
            self.alloc.allocate_meta(self, handle, goal)
        })?;
        let before = handle.savepoint();
        if let Err(error) = self.map_allocation(handle, inode.ino(), core, at, run, false) {
            // The upper nodes of the tree may have changed.
            self.store_inode(handle, inode, core)?;
            handle.consistent_since(before);
            self.release_unmapped(run, &error);
            return Err(error);
        }
        core.size = size;
        inode.record_tid(handle, true);
        Ok((at, self.meta.get_new(run.start)))
    }

    /// Allocation goal for the block `at` of a file: after the block before it, else the inode's group.
    pub(crate) fn goal_after(&self, ino: Ino, core: &disk::Inode, at: FileBlock) -> Goal {
        if let Some(before) = at.0.checked_sub(1)
            && let Ok(mapped) = self.map(ino, core, FileBlock(before), IoTag::default())
            && let BlockPlace::Written(block) | BlockPlace::Unwritten(block) = mapped.place
        {
            return self.goal_near(core, block.plus(1));
        }
        self.goal_near(core, self.alloc.goal_for(&self.geo, ino))
    }

    /// Allocation goal near a block, for a block of a file or of its map.
    pub(crate) fn goal_near(&self, core: &disk::Inode, near: DevBlock) -> Goal {
        match has_extents(core) {
            true => near.into(),
            false => Goal::for_tables(&self.geo, near),
        }
    }
}

/// A change that can be neither finished nor undone must not be committed.
fn half_done(handle: &mut Handle<'_>, ino: Ino, why: &FsError) -> FsError {
    let cause = format!("inode {ino}: a change of its map cannot be undone: {why}");
    handle.must_not_commit(&cause);
    FsError::Stopped(cause)
}
