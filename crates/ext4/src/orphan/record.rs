//! The record of orphans on disk: slots of the orphan file, and the list through the inodes.

use std::sync::Arc;

use steadfs_base::{Corruption, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::Result;

use super::{OrphanFile, OrphanPlace, OrphanState, Orphans, Slot};
use crate::disk::{Ino, orphan_file};
use crate::fast_commit::refusal;
use crate::fs::Ext4;
use crate::inode::Inode;
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified;

impl OrphanFile {
    pub(super) fn block(&self, fs: &Ext4, n: usize) -> Result<Arc<MetaBuf>> {
        let at = self.blocks[n];
        let buf = fs.block(at, IoTag::default())?;
        buf.verify_once(verified::ORPHANS, |block| {
            orphan_file::verify(fs.geo(), self.seed, at, block)
        })?;
        Ok(buf)
    }

    /// A free slot, if there is one.
    pub(super) fn take(&mut self, fs: &Ext4) -> Result<Option<Slot>> {
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
    pub(super) fn set(
        &self,
        fs: &Ext4,
        handle: &mut Handle<'_>,
        at: Slot,
        ino: Option<Ino>,
    ) -> Result<()> {
        let buf = self.block(fs, at.block)?;
        let mut guard = handle.write(&buf)?;
        let bytes: &mut [u8] = &mut guard;
        orphan_file::set_slot(bytes, at.slot, ino);
        orphan_file::seal(fs.geo(), self.seed, buf.block(), bytes);
        Ok(())
    }
}

impl Orphans {
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
        fs.pin_superblock(pins, IoTag::default())
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
                fs.pin_superblock(pins, IoTag::default())
            }
        }
    }

    /// Records an inode as an orphan. [`CREDITS`]. Does nothing if it is one.
    pub fn add(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        handle.refuse_fast_commits(refusal::LAST_NAME);
        let ino = inode.ino();
        let mut state = self.state.lock();
        if state.places.contains_key(&ino) {
            return Ok(());
        }
        if let Some(file) = &mut state.file
            && let Some(slot) = file.take(fs)?
        {
            file.set(fs, handle, slot, Some(ino))?;
            inode.marks.set_orphan(true);
            state.places.insert(ino, OrphanPlace::Slot(slot));
            return Ok(());
        }
        let mut pins = fs.pin_inodes(&[ino], IoTag::default())?;
        fs.pin_superblock(&mut pins, IoTag::default())?;
        inode.marks.set_orphan(true);
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
        handle.refuse_fast_commits(refusal::LAST_NAME);
        self.take_out(&mut self.state.lock(), fs, handle, inode)
    }

    /// Removes an inode that was recorded while it had a name, unless it has lost its last name since.
    pub fn remove_named(&self, fs: &Ext4, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        handle.refuse_fast_commits(refusal::LAST_NAME);
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
                inode.marks.set_orphan(false);
                return Ok(());
            }
            Some(&OrphanPlace::List { newer, older }) => (newer, older),
        };
        let both = [Some(ino), newer];
        let both: Vec<Ino> = both.into_iter().flatten().collect();
        let mut pins = fs.pin_inodes(&both, IoTag::default())?;
        fs.pin_superblock(&mut pins, IoTag::default())?;
        state.places.remove(&ino);
        inode.marks.set_orphan(false);
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
}
