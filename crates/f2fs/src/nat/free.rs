//! Free node ids: found by reading the NAT block by block, from where the last search ended. An id is free if no node
//! of the last checkpoint has it and none has had it since.

use steadfs_base::IoTag;
use steadfs_vfs::{FsError, Result};

use super::table::{FreeNids, Nat, NatState};
use crate::cp_lock::Change;
use crate::disk::{BlockAddr, Layout, NatEntry, Nid, nat};

/// With fewer known free ids the NAT is searched before an operation begins.
const FREE_NIDS_LOW: usize = 128;

/// Free ids kept when nodes are freed; further ones are found by a search.
const FREE_NIDS_MAX: usize = 4096;

impl FreeNids {
    fn add(&mut self, nid: Nid, version: u8) {
        if !self.kept.contains(&nid) {
            self.found.insert(nid, version);
        }
    }
}

impl NatState {
    /// Allocates a free id for a node of inode `ino`; `None`: for an inode of its own.
    fn take_free_nid(&mut self, ino: Option<Nid>) -> Option<(Nid, NatEntry)> {
        let (nid, version) = self.free.found.pop_first()?;
        let entry = NatEntry {
            version,
            ino: ino.unwrap_or(nid),
            addr: BlockAddr::NEW,
        };
        self.dirty.insert(nid, entry);
        Some((nid, entry))
    }

    /// Adds ids of freed nodes that the durable checkpoint no longer has.
    pub(super) fn add_free_nids(&mut self, gone: impl Iterator<Item = (Nid, u8)>) {
        for (nid, version) in gone.take(FREE_NIDS_MAX.saturating_sub(self.free.found.len())) {
            self.free.add(nid, version);
        }
    }
}

impl Nat {
    /// Searches for ids before they are needed, so that no operation reads the NAT inside a `Change`.
    ///
    /// # Errors
    /// The device fails.
    pub fn build_free_nids(&self, tag: IoTag) -> Result<()> {
        self.search(FREE_NIDS_LOW, tag)
    }

    /// Where the next mount begins its search (`next_free_nid`).
    pub fn next_free(&self) -> Nid {
        let free = &self.state.lock().free;
        let first = Nid(free.next.saturating_mul(nat::PER_BLOCK as u32));
        free.found.keys().next().copied().unwrap_or(first)
    }

    /// Allocates an id for a new node of inode `ino` (`None`: for the inode itself); returns its entry, too.
    ///
    /// # Errors
    /// `NoSpace`: all ids are in use, which reservations prevent on a consistent volume. A device error.
    pub fn alloc_nid(
        &self,
        _: &Change<'_>,
        ino: Option<Nid>,
        tag: IoTag,
    ) -> Result<(Nid, NatEntry)> {
        if let Some(nid) = self.state.lock().take_free_nid(ino) {
            return Ok(nid);
        }
        self.search(1, tag)?;
        let found = self.state.lock().take_free_nid(ino);
        found.ok_or(FsError::NoSpace)
    }

    /// Keeps these ids, once they are free, for [`Nat::alloc_nid_at`].
    pub fn keep(&self, nids: impl Iterator<Item = Nid>) {
        let free = &mut self.state.lock().free;
        free.kept.extend(nids);
        let FreeNids { found, kept, .. } = free;
        found.retain(|nid, _| !kept.contains(nid));
    }

    /// Ends what [`Nat::keep`] has begun; later searches find the ids.
    pub fn release_kept(&self) {
        self.state.lock().free.kept.clear();
    }

    /// Allocates this free id for an inode that roll-forward or a record of changes has.
    ///
    /// # Errors
    /// The device fails.
    pub fn alloc_nid_at(&self, _: &Change<'_>, ino: Nid, tag: IoTag) -> Result<NatEntry> {
        let version = self.entry(ino, tag)?.version;
        let addr = BlockAddr::NEW;
        let entry = NatEntry { version, ino, addr };
        let mut state = self.state.lock();
        state.free.found.remove(&ino);
        state.free.kept.remove(&ino);
        state.dirty.insert(ino, entry);
        Ok(entry)
    }

    /// Reads NAT blocks until `wanted` ids are known or each block has been read.
    fn search(&self, wanted: usize, tag: IoTag) -> Result<()> {
        for _ in 0..self.layout.nat_blocks {
            let (block, at, commits) = {
                let state = self.state.lock();
                if state.free.found.len() >= wanted {
                    return Ok(());
                }
                let block = state.free.next;
                (block, state.block_at(&self.layout, block), state.commits)
            };
            let data = self.read_block(block, at, tag)?.data();
            let mut state = self.state.lock();
            // Another task read it, or a checkpoint changed the NAT: this content may be old.
            if state.free.next == block && state.commits == commits {
                state.take_block(&self.layout, block, &data);
            }
        }
        Ok(())
    }
}

impl NatState {
    /// Adds the free ids of a NAT block.
    fn take_block(&mut self, layout: &Layout, block: u32, data: &[u8]) {
        self.free.next = (block + 1) % layout.nat_blocks;
        let first = block * nat::PER_BLOCK as u32;
        for slot in 0..nat::PER_BLOCK {
            let nid = Nid(first.saturating_add(slot as u32));
            // An id freed since the last durable checkpoint is available after the next.
            let changed = self.dirty.contains_key(&nid) || self.committing.contains_key(&nid);
            if !layout.is_nid(nid) || changed {
                continue;
            }
            let journaled = self.journal.get(&nid).copied();
            let entry = journaled.unwrap_or_else(|| nat::get(data, slot));
            if !entry.is_used() {
                self.free.add(nid, entry.version);
            }
        }
    }
}
