//! Orphans: inodes that the next mount must process after a crash, because they are unlinked but open, or are being
//! truncated in several transactions.
//!
//! They are recorded on disk in one of two forms: a list through the inodes' `i_dtime`, with its head in the
//! superblock; or, with the `orphan_file` feature, slots in the blocks of a file, which avoids changes of the
//! superblock and of adjacent list entries. Orphans that find no free slot are added to the list.

mod recovery;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Result;

use crate::disk::{ChecksumSeed, Ino, orphan_file};
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified;

/// Blocks that adding or removing an orphan changes at worst: superblock, the inode and its
/// neighbour in the list; or a block of the orphan file.
pub const CREDITS: u32 = 3;

/// The orphans of a volume.
pub struct Orphans {
    state: Mutex<OrphanState>,
    cleaning: AtomicBool,
    /// Orphans of the last mount are kept for e2fsck.
    kept: AtomicBool,
}

#[derive(Default)]
struct OrphanState {
    /// The list's head.
    head: Option<Ino>,
    places: BTreeMap<Ino, OrphanPlace>,
    /// The orphan file, if there is one.
    file: Option<OrphanFile>,
}

#[derive(Clone, Copy)]
enum OrphanPlace {
    /// In the list, between these.
    List {
        newer: Option<Ino>,
        older: Option<Ino>,
    },
    /// In the orphan file.
    Slot(Slot),
}

/// A slot of the orphan file.
#[derive(Clone, Copy)]
struct Slot {
    /// Index of the block in the file.
    block: usize,
    /// Index of the word in the block.
    slot: u32,
}

/// The orphan file's blocks and free slots.
struct OrphanFile {
    seed: ChecksumSeed,
    blocks: Vec<DevBlock>,
    /// Slots that were freed.
    free: Vec<Slot>,
    /// Slots from this one on have not been used since the mount.
    next: Slot,
    /// Part of it cannot be read: orphans in it can be removed, new ones are added to the list.
    closed: bool,
}

impl OrphanFile {
    fn block(&self, fs: &Ext4, n: usize) -> Result<Arc<MetaBuf>> {
        let at = self.blocks[n];
        let buf = fs.block(at, IoTag::default())?;
        buf.verify_once(verified::ORPHANS, |block| {
            orphan_file::verify(fs.geo(), self.seed, at, block)
        })?;
        Ok(buf)
    }

    /// A free slot, if there is one.
    fn take(&mut self, fs: &Ext4) -> Result<Option<Slot>> {
        if self.closed {
            return Ok(None);
        }
        if let Some(slot) = self.free.pop() {
            return Ok(Some(slot));
        }
        while self.next.block < self.blocks.len() {
            let slot = self.next;
            self.next = if slot.slot + 1 < orphan_file::slots_per_block(fs.geo()) {
                Slot {
                    slot: slot.slot + 1,
                    ..slot
                }
            } else {
                Slot {
                    block: slot.block + 1,
                    slot: 0,
                }
            };
            let buf = self.block(fs, slot.block)?;
            if orphan_file::slot(&buf.data(), slot.slot).is_none() {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Fills or frees a slot.
    fn set(&self, fs: &Ext4, handle: &mut Handle<'_>, at: Slot, ino: Option<Ino>) -> Result<()> {
        let buf = self.block(fs, at.block)?;
        let mut guard = handle.write(&buf)?;
        let bytes: &mut [u8] = &mut guard;
        orphan_file::set_slot(bytes, at.slot, ino);
        orphan_file::seal(fs.geo(), self.seed, buf.block(), bytes);
        Ok(())
    }
}

impl Orphans {
    /// None yet.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Orphan, OrphanState::default()),
            cleaning: AtomicBool::new(false),
            kept: AtomicBool::new(false),
        }
    }

    /// Whether no orphan of this mount is recorded.
    pub fn is_empty(&self) -> bool {
        self.state.lock().places.is_empty()
    }

    /// Whether no orphan of this or an earlier mount is recorded.
    pub fn none_on_record(&self) -> bool {
        self.is_empty() && !self.kept.load(Ordering::Acquire)
    }

    /// Whether the orphans of the last mount are being processed: their inodes are in use without links.
    pub fn cleaning(&self) -> bool {
        self.cleaning.load(Ordering::Acquire)
    }

    /// Pins the blocks that [`Orphans::add`] changes, except the inode's slot, which the caller pins.
    pub fn pin_to_add(&self, fs: &Ext4, pins: &mut Pins) -> Result<()> {
        let mut state = self.state.lock();
        if let Some(file) = &mut state.file
            && let Some(slot) = file.take(fs)?
        {
            // Another operation may take it first; the next free slot is usually in the same block.
            file.free.push(slot);
            pins.keep(file.block(fs, slot.block)?);
            return Ok(());
        }
        drop(state);
        pins.superblock(fs, IoTag::default())
    }

    /// Pins the blocks that [`Orphans::remove`] changes.
    pub fn pin_to_remove(&self, fs: &Ext4, pins: &mut Pins, ino: Ino) -> Result<()> {
        let state = self.state.lock();
        match state.places.get(&ino) {
            None => Ok(()),
            Some(OrphanPlace::Slot(slot)) => {
                let file = state.file.as_ref().expect("a slot is in the file");
                pins.keep(file.block(fs, slot.block)?);
                Ok(())
            }
            Some(&OrphanPlace::List { newer, .. }) => {
                drop(state);
                if let Some(newer) = newer {
                    pins.keep(fs.inode_slot(newer, IoTag::default())?.0);
                }
                pins.keep(fs.inode_slot(ino, IoTag::default())?.0);
                pins.superblock(fs, IoTag::default())
            }
        }
    }

    /// Records an inode as an orphan. [`CREDITS`]. Does nothing if it is one.
    pub fn add(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let ino = inode.ino();
        let mut state = self.state.lock();
        if state.places.contains_key(&ino) {
            return Ok(());
        }
        if let Some(file) = &mut state.file
            && let Some(slot) = file.take(fs)?
        {
            file.set(fs, handle, slot, Some(ino))?;
            inode.set_orphan(true);
            state.places.insert(ino, OrphanPlace::Slot(slot));
            return Ok(());
        }
        let mut pins = Pins::of_inodes(fs, &[ino], IoTag::default())?;
        pins.superblock(fs, IoTag::default())?;
        inode.set_orphan(true);
        let head = state.head;
        {
            let mut core = inode.core.write();
            core.dtime = head.map_or(0, |h| h.0);
            fs.store_inode(handle, inode, &core)?;
        }
        fs.update_super(handle, |sb| sb.set_last_orphan(Some(ino)))?;
        state.link(ino, None, head);
        state.head = Some(ino);
        Ok(())
    }

    /// Removes an inode from the record. [`CREDITS`]. Does nothing if it is not an orphan.
    pub fn remove(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        self.take_out(&mut self.state.lock(), fs, handle, inode)
    }

    /// Removes an inode that was recorded while it had a name, unless it has lost its last name since.
    pub fn remove_named(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let mut state = self.state.lock();
        // Removing the last name clears the link count before it looks at the record.
        if inode.core.read().links == 0 {
            return Ok(());
        }
        self.take_out(&mut state, fs, handle, inode)
    }

    fn take_out(
        &self,
        state: &mut OrphanState,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        let ino = inode.ino();
        let (newer, older) = match state.places.get(&ino) {
            None => return Ok(()),
            Some(&OrphanPlace::Slot(slot)) => {
                let file = state.file.as_mut().expect("a slot is in the file");
                file.set(fs, handle, slot, None)?;
                file.free.push(slot);
                state.places.remove(&ino);
                inode.set_orphan(false);
                return Ok(());
            }
            Some(&OrphanPlace::List { newer, older }) => (newer, older),
        };
        let both = [Some(ino), newer];
        let both: Vec<Ino> = both.into_iter().flatten().collect();
        let mut pins = Pins::of_inodes(fs, &both, IoTag::default())?;
        pins.superblock(fs, IoTag::default())?;
        state.places.remove(&ino);
        inode.set_orphan(false);
        state.relink(newer, older);
        match newer {
            None => {
                state.head = older;
                fs.update_super(handle, |sb| sb.set_last_orphan(older))?;
            }
            Some(newer) => {
                // Orphans stay in memory.
                let before = fs
                    .inodes
                    .get(newer)
                    .ok_or_else(|| Corruption::new("orphan is not in memory").in_inode(newer))?;
                let mut core = before.core.write();
                core.dtime = older.map_or(0, |o| o.0);
                fs.store_inode(handle, &before, &core)?;
            }
        }
        let mut core = inode.core.write();
        core.dtime = 0;
        fs.store_inode(handle, inode, &core)
    }

    /// All recorded orphans.
    fn all(&self) -> Vec<Ino> {
        self.state.lock().places.keys().copied().collect()
    }
}

impl Default for Orphans {
    fn default() -> Self {
        Self::new()
    }
}

impl OrphanState {
    /// Inserts an inode between two list entries.
    fn link(&mut self, ino: Ino, newer: Option<Ino>, older: Option<Ino>) {
        self.places.insert(ino, OrphanPlace::List { newer, older });
        if let Some(OrphanPlace::List { newer: n, .. }) =
            older.and_then(|o| self.places.get_mut(&o))
        {
            *n = Some(ino);
        }
    }

    /// Makes two list entries adjacent.
    fn relink(&mut self, newer: Option<Ino>, older: Option<Ino>) {
        if let Some(OrphanPlace::List { older: o, .. }) =
            newer.and_then(|n| self.places.get_mut(&n))
        {
            *o = older;
        }
        if let Some(OrphanPlace::List { newer: n, .. }) =
            older.and_then(|o| self.places.get_mut(&o))
        {
            *n = newer;
        }
    }
}

#[cfg(test)]
mod tests;
