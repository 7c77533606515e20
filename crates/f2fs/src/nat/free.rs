//! Ids for new nodes: found by looking through the table, block by block, from where the last search
//! ended. An id is free when no node of the last checkpoint has it and none has had it since.

use std::collections::BTreeMap;

use steadfs_base::IoTag;
use steadfs_vfs::{FsError, Result};

use super::{Nat, NatState};
use crate::cp_lock::Change;
use crate::disk::{BlockAddr, Layout, NatEntry, Nid, nat};

/// With fewer ids than this the table is looked through before an operation begins.
const FREE_NIDS_LOW: usize = 128;

/// With more ids than this none are noted that a search finds too.
const FREE_NIDS_MAX: usize = 4096;

/// Ids found free.
pub struct FreeNids {
    /// With the version that a node will have.
    found: BTreeMap<Nid, u8>,
    /// The block of the table to look at next.
    next: u32,
}

impl FreeNids {
    pub fn new(layout: &Layout, next: Nid) -> Self {
        let next = if layout.is_nid(next) { next } else { Nid::ROOT };
        Self {
            found: BTreeMap::new(),
            next: layout.nat_slot(next).0,
        }
    }
}

impl NatState {
    /// The id of a free node, now that of a node of `ino` (of itself where there is none).
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

    /// Ids whose nodes the checkpoint that is durable now does not have any more.
    pub(super) fn add_free_nids(&mut self, gone: impl Iterator<Item = (Nid, u8)>) {
        for (nid, version) in gone.take(FREE_NIDS_MAX.saturating_sub(self.free.found.len())) {
            self.free.found.insert(nid, version);
        }
    }
}

impl Nat {
    /// Looks for ids before they are needed: no operation then reads the table while it holds the gate.
    ///
    /// # Errors
    /// The device fails.
    pub fn build_free_nids(&self, tag: IoTag) -> Result<()> {
        self.search(FREE_NIDS_LOW, tag)
    }

    /// Where the next checkpoint says that free ids are found.
    pub fn next_free(&self) -> Nid {
        let free = &self.state.lock().free;
        let first = Nid(free.next.saturating_mul(nat::PER_BLOCK as u32));
        free.found.keys().next().copied().unwrap_or(first)
    }

    /// An id for a new node, and its entry, of inode `ino` (`None`: of the inode that the node is).
    ///
    /// # Errors
    /// `NoSpace`: all are in use, which the counts of a volume in order keep from happening; the device
    /// fails.
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

    /// Takes this id, which is free, for an inode that recovery found.
    ///
    /// # Errors
    /// The device fails.
    pub fn alloc_nid_at(&self, _: &Change<'_>, ino: Nid, tag: IoTag) -> Result<NatEntry> {
        let version = self.entry(ino, tag)?.version;
        let addr = BlockAddr::NEW;
        let entry = NatEntry { version, ino, addr };
        let mut state = self.state.lock();
        state.free.found.remove(&ino);
        state.dirty.insert(ino, entry);
        Ok(entry)
    }

    /// Looks through blocks of the table until `wanted` ids are known or each block was looked at.
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
            // Another task looked at it, or a checkpoint changed the table: what was read may be old.
            if state.free.next == block && state.commits == commits {
                state.take_block(&self.layout, block, &data);
            }
        }
        Ok(())
    }
}

impl NatState {
    /// Notes the free ids of a block of the table.
    fn take_block(&mut self, layout: &Layout, block: u32, data: &[u8]) {
        self.free.next = (block + 1) % layout.nat_blocks;
        let first = block * nat::PER_BLOCK as u32;
        for slot in 0..nat::PER_BLOCK {
            let nid = Nid(first.saturating_add(slot as u32));
            // What was freed since the last durable checkpoint waits for the next.
            let changed = self.dirty.contains_key(&nid) || self.committing.contains_key(&nid);
            if !layout.is_nid(nid) || changed {
                continue;
            }
            let journaled = self.journal.get(&nid).copied();
            let entry = journaled.unwrap_or_else(|| nat::get(data, slot));
            if !entry.is_used() {
                self.free.found.insert(nid, entry.version);
            }
        }
    }
}
