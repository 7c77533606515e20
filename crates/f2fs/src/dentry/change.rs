//! Changing the names of a directory.
//!
//! The caller holds the directory's lock for writing from the search to the change, so that positions stay valid.
//! Space is reserved between the two.

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_vfs::{FileKind, FsError, Result};

use super::buckets::Buckets;
use super::slots::{AbsentName, FreeDentry};
use super::{FoundDentry, LookupName};
use crate::cp_lock::Change;
use crate::data::BLOCK;
use crate::disk::dentry::{self, DentryLayout, Entry};
use crate::disk::inode::Inline;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, Nid, Structure, hash};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::SlotLookup;
use crate::space::{Need, Reservation};

/// The result of a search for a name that is to be added.
pub(crate) enum DentrySearch {
    /// The name exists.
    Found(FoundDentry),
    /// The name does not exist; these slots are free for it.
    Free(FreeDentry),
    /// The name does not exist, and the inode has no free slots: [`F2fs::entries_to_blocks`] converts the
    /// directory.
    InlineFull,
}

#[derive(Clone, Copy)]
pub(crate) struct NewName<'a> {
    pub(crate) ino: Nid,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
}

impl F2fs {
    /// Looks up a name, and the first free slots for it in lookup order.
    ///
    /// The kernel looks a name up before it creates it, so the last name that was not found is kept with its slots
    /// until a name of the directory changes.
    pub(crate) fn search(&self, dir: &Inode, name: &[u8], tag: IoTag) -> Result<DentrySearch> {
        if let Some(absent) = &*dir.absent.lock()
            && *absent.name == *name
        {
            return Ok(DentrySearch::Free(absent.free));
        }
        let found = self.search_all(dir, name, tag)?;
        // With another key an encrypted name is another one.
        if let DentrySearch::Free(free) = found
            && !dir.is_encrypted()
        {
            let name = name.into();
            *dir.absent.lock() = Some(AbsentName { name, free });
        }
        Ok(found)
    }

    fn search_all(&self, dir: &Inode, name: &[u8], tag: IoTag) -> Result<DentrySearch> {
        let wanted = LookupName::new_name(self, dir, name, tag)?;
        let slots = dentry::slots_for(wanted.stored_len());
        let found = self.search_wanted(dir, &wanted, slots, tag)?;
        if matches!(found, DentrySearch::Found(_)) {
            return Ok(found);
        }
        if let Some(entry) = self.find_misplaced(dir, &wanted, tag)? {
            return Ok(DentrySearch::Found(entry));
        }
        wanted.check_encoded()?;
        Ok(found)
    }

    /// [`F2fs::search`] of a name as it is stored; `hash`: that of an encrypted name in a case-insensitive directory.
    pub(crate) fn search_stored(
        &self,
        dir: &Inode,
        (name, hash): (&[u8], u32),
        tag: IoTag,
    ) -> Result<DentrySearch> {
        if !dir.is_encrypted() {
            return self.search(dir, name, tag);
        }
        let wanted = LookupName::encrypted(dir, name, hash);
        self.search_wanted(dir, &wanted, dentry::slots_for(name.len()), tag)
    }

    fn search_wanted(
        &self,
        dir: &Inode,
        wanted: &LookupName<'_>,
        slots: usize,
        tag: IoTag,
    ) -> Result<DentrySearch> {
        if !dir.has_inline_dentries() {
            return self.search_levels(dir, wanted, slots, tag);
        }
        let block = self.inode_block(dir, tag)?;
        let (range, layout) = self.inline_area(dir);
        let bytes = &block[range];
        if let Some(entry) = wanted.find(&layout, bytes) {
            return Ok(DentrySearch::Found(FoundDentry::new(None, &entry)));
        }
        Ok(match dentry::find_free_slots(&layout, bytes, slots) {
            None => DentrySearch::InlineFull,
            Some(slot) => DentrySearch::Free(FreeDentry {
                hash: wanted.hash,
                block: None,
                slot,
                is_hole: false,
                depth: 1,
                need: Need::default(),
            }),
        })
    }

    fn search_levels(
        &self,
        dir: &Inode,
        wanted: &LookupName<'_>,
        slots: usize,
        tag: IoTag,
    ) -> Result<DentrySearch> {
        let (depth, dir_level) = {
            let core = dir.core.read();
            (core.depth, core.dir_level)
        };
        let layout = &DentryLayout::BLOCK;
        let mut free = None;
        let mut buckets = Buckets::new(self, dir, wanted.hash, tag);
        for level in 0..hash::MAX_DEPTH {
            if level >= depth && free.is_some() {
                break;
            }
            for block in hash::bucket(level, dir_level, wanted.hash) {
                let bytes = match buckets.next_block()? {
                    Some((at, bytes)) => {
                        debug_assert!(at == block, "buckets come level by level");
                        bytes
                    }
                    // Levels beyond the directory's depth.
                    None => self.dir_block(dir, block, tag)?,
                };
                if let Some(bytes) = &bytes
                    && let Some(entry) = wanted.find(layout, bytes)
                {
                    return Ok(DentrySearch::Found(FoundDentry::new(Some(block), &entry)));
                }
                let slot = match &bytes {
                    _ if free.is_some() => None,
                    Some(bytes) => dentry::find_free_slots(layout, bytes, slots),
                    None => Some(0),
                };
                if let Some(slot) = slot {
                    let is_hole = bytes.is_none();
                    free = Some((block, slot, is_hole, depth.max(level + 1)));
                }
            }
        }
        // The buckets of all levels are full of names with this hash.
        let (block, slot, is_hole, depth) = free.ok_or_else(|| {
            let what = format!(
                "directory {}: no free slots for another name with the same hash",
                dir.nid()
            );
            if self.errors.record_full_directory(&what) {
                tracing::warn!("{what}");
            }
            FsError::NoSpace
        })?;
        let need = if is_hole {
            self.need_for_block(dir, block, tag)?
        } else {
            Need::default()
        };
        Ok(DentrySearch::Free(FreeDentry {
            hash: wanted.hash,
            block: Some(block),
            slot,
            is_hole,
            depth,
            need,
        }))
    }

    /// Space for a new block of a directory or symbolic link: the block and the nodes on its path.
    fn need_for_block(&self, inode: &Inode, block: u64, tag: IoTag) -> Result<Need> {
        let core = inode.core.read();
        if block >= core.fanout(&self.layout).max_blocks() {
            return Err(FsError::FileTooBig);
        }
        Ok(Need {
            blocks: 1,
            nodes: self.missing_nodes(inode, &core, block, tag)?.len() as u64,
        })
    }

    /// Creates a block of a directory, symbolic link or quota file: zeros, changed by `work`, kept in memory until the next
    /// checkpoint writes it. The caller has marked the inode dirty.
    pub(crate) fn make_block(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        reservation: &mut Reservation<'_>,
        (block, tag): (u64, IoTag),
        work: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let before = core.blocks;
        let slot = self.make_slot(change, inode, core, block, tag);
        let nodes = core.blocks - before;
        reservation.used(Need { blocks: 0, nodes });
        let slot = slot?;
        let before = core.blocks;
        self.set_slot(change, inode, core, &slot, BlockAddr::NEW, tag)?;
        let blocks = core.blocks - before;
        reservation.used(Need { blocks, nodes: 0 });
        self.charge(inode, core);
        let zeros = || Ok::<_, FsError>(Buf::zeroed(BLOCK_SIZE));
        inode.pages.edit(FileBlock(block), tag, zeros, work)?;
        let end = (block + 1) * BLOCK;
        if inode.kind() == FileKind::Directory && core.size < end {
            core.size = end;
            inode.set_size(end);
        }
        Ok(())
    }

    /// Changes an existing block of a directory or quota file. The node that maps it becomes dirty, too: the checkpoint that
    /// allocates a new address for the block finds the node in memory.
    pub(crate) fn edit_block(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        core: &disk::Inode,
        block: u64,
        tag: IoTag,
        work: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let lost = || {
            let rule = "has no block where an entry was found";
            FsError::from(DiskError::entry(Structure::Dentries, 0, rule).in_node(dir.nid()))
        };
        let SlotLookup::Slot(slot) = self.find_slot(dir, core, block, tag)? else {
            return Err(lost());
        };
        let fill = || {
            let addr = self.addr_in(core, &slot)?;
            addr.block().ok_or_else(lost)?;
            Ok(self.main_block(addr, tag)?.data())
        };
        drop(self.nodes.change(change, &slot.node)?);
        dir.pages.edit(FileBlock(block), tag, fill, work)
    }

    /// Changes the directory entries stored in the inode.
    fn edit_inline(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        core: &disk::Inode,
        tag: IoTag,
        work: impl FnOnce(&DentryLayout, &mut [u8]),
    ) -> Result<()> {
        let node = self.inode_node(dir.nid(), tag)?;
        let mut data = self.nodes.change(change, &node)?;
        let layout = core.inline_dentries(&self.layout);
        work(&layout, &mut data[core.inline_range(&self.layout)]);
        Ok(())
    }

    /// Inserts a name at the free slots found by [`F2fs::search`] and marks the directory dirty. Updating times and
    /// link count is up to the caller.
    pub(crate) fn insert_name(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        core: &mut disk::Inode,
        reservation: &mut Reservation<'_>,
        (free, new): (&FreeDentry, &NewName<'_>),
        tag: IoTag,
    ) -> Result<()> {
        *dir.absent.lock() = None;
        self.mark_dirty(change, dir, tag)?;
        let entry = Entry {
            slot: free.slot,
            hash: free.hash,
            ino: new.ino,
            file_type: new.kind.entry_type(),
            name: new.name,
        };
        let put = |bytes: &mut [u8]| dentry::insert(&DentryLayout::BLOCK, bytes, &entry);
        match free.block {
            None => self.edit_inline(change, dir, core, tag, |layout, bytes| {
                dentry::insert(layout, bytes, &entry);
            })?,
            Some(block) if free.is_hole => {
                self.make_block(change, dir, core, reservation, (block, tag), put)?;
            }
            Some(block) => self.edit_block(change, dir, core, block, tag, put)?,
        }
        core.depth = core.depth.max(free.depth);
        Ok(())
    }

    /// Removes a name; a block without other names becomes a hole. The directory is marked dirty. Updating times
    /// and link count is up to the caller.
    pub(crate) fn remove_name(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        core: &mut disk::Inode,
        named: &FoundDentry,
        tag: IoTag,
    ) -> Result<()> {
        *dir.absent.lock() = None;
        self.mark_dirty(change, dir, tag)?;
        let Some(block) = named.block else {
            return self.edit_inline(change, dir, core, tag, |layout, bytes| {
                dentry::remove(layout, bytes, named.slot, named.len);
            });
        };
        let layout = &DentryLayout::BLOCK;
        let mut vacant = false;
        self.edit_block(change, dir, core, block, tag, |bytes| {
            dentry::remove(layout, bytes, named.slot, named.len);
            vacant = dentry::is_vacant(layout, bytes);
        })?;
        // A block that a checkpoint is writing stays, although empty.
        if vacant
            && let SlotLookup::Slot(slot) = self.find_slot(dir, core, block, tag)?
            && dir.pages.try_discard(block..block + 1).is_some()
        {
            self.set_slot(change, dir, core, &slot, BlockAddr::NULL, tag)?;
            self.charge(dir, core);
        }
        Ok(())
    }

    /// Changes the inode that a name refers to, and marks the directory dirty. Updating times and link count is up
    /// to the caller.
    pub(crate) fn retarget(
        &self,
        change: &Change<'_>,
        dir: &Inode,
        core: &disk::Inode,
        named: &FoundDentry,
        (ino, kind): (Nid, FileKind),
        tag: IoTag,
    ) -> Result<()> {
        self.mark_dirty(change, dir, tag)?;
        let kind = kind.entry_type();
        match named.block {
            None => self.edit_inline(change, dir, core, tag, |layout, bytes| {
                dentry::set_target(layout, bytes, named.slot, ino, kind);
            }),
            Some(block) => self.edit_block(change, dir, core, block, tag, |bytes| {
                dentry::set_target(&DentryLayout::BLOCK, bytes, named.slot, ino, kind);
            }),
        }
    }

    /// Converts an inline directory: moves its entries to blocks.
    ///
    /// # Errors
    /// `NoSpace`; nothing is changed then.
    pub(crate) fn entries_to_blocks(
        &self,
        dir: &Inode,
        privileged: bool,
        tag: IoTag,
    ) -> Result<()> {
        let (blocks, depth, fanout) = {
            let data = self.inode_block(dir, tag)?;
            let core = dir.core.read();
            let layout = core.inline_dentries(&self.layout);
            let bytes = &data[core.inline_range(&self.layout)];
            let (blocks, depth) = if hash::buckets(0, core.dir_level) == 1 {
                let block = dentry::as_block(&layout, bytes);
                ([(0, block)].into(), 1)
            } else {
                dentry::as_table(&layout, bytes, core.dir_level)
                    .map_err(|e| e.in_node(dir.nid()))?
            };
            (blocks, depth, core.fanout(&self.layout))
        };
        let end = blocks.last_key_value().map_or(0, |(block, _)| block + 1);
        if end > fanout.max_blocks() {
            return Err(FsError::FileTooBig);
        }
        let count = blocks.len() as u64;
        // A large `i_dir_level` leads beyond the blocks that the inode maps: in the worst case three nodes per block.
        let need = Need {
            blocks: count,
            nodes: if end <= fanout.inode.into() {
                0
            } else {
                3 * count
            },
        };
        let mut reservation = self.space.reservation(need, privileged)?;
        self.nat.build_free_nids(tag)?;
        let change = self.change()?;
        let mut core = dir.core.write();
        *dir.absent.lock() = None;
        self.mark_dirty(&change, dir, tag)?;
        self.edit_inline(&change, dir, &core, tag, |_, bytes| bytes.fill(0))?;
        core.inline = core.inline.without(Inline::DENTRIES);
        core.depth = depth;
        for (block, bytes) in blocks {
            let put = |to: &mut [u8]| to.copy_from_slice(&bytes);
            let made =
                self.make_block(&change, dir, &mut core, &mut reservation, (block, tag), put);
            self.abort_on_error(made)?;
        }
        Ok(())
    }

    /// Whether a directory has no name but `.` and `..`.
    pub(crate) fn is_empty_dir(&self, dir: &Inode, tag: IoTag) -> Result<bool> {
        if dir.has_inline_dentries() {
            let block = self.inode_block(dir, tag)?;
            let (range, layout) = self.inline_area(dir);
            return Ok(!dentry::has_names(&layout, &block[range]));
        }
        let mut empty = true;
        self.each_block(dir, 0, tag, &mut |_, bytes| {
            empty = !dentry::has_names(&DentryLayout::BLOCK, bytes);
            Ok(empty)
        })?;
        Ok(empty)
    }
}
