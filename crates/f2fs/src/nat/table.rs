//! The table in memory: entries changed since the last checkpoint over those on the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag};
use steadfs_cache::MetaCache;
use steadfs_f2fs_format::io_error;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Result;

use crate::cp_lock::Change;
use crate::disk::bits::{self, Order};
use crate::disk::{BlockAddr, Checkpoint, DiskError, Layout, NatEntry, Nid, Structure, nat};

/// NAT blocks read at once: nodes created together have neighbouring ids.
const READAHEAD_BLOCKS: u64 = 16;

pub struct Nat {
    pub(super) layout: Layout,
    pub(super) meta: Arc<MetaCache>,
    pub(super) state: Mutex<NatState>,
}

/// [Super]
pub(super) struct NatState {
    /// One bit for each NAT block: whether the second copy is current.
    pub(super) second: Vec<u8>,
    /// Journal of the last durable checkpoint.
    pub(super) journal: BTreeMap<Nid, NatEntry>,
    /// Entries in the snapshot of the checkpoint in flight.
    pub(super) committing: BTreeMap<Nid, NatEntry>,
    /// Entries changed since the last snapshot.
    pub(super) dirty: BTreeMap<Nid, NatEntry>,
    pub(super) free: FreeNids,
    /// Checkpoints since the mount: each changes the NAT.
    pub(super) commits: u64,
}

/// Known free ids.
pub struct FreeNids {
    /// The ids, with the version for their next node.
    pub(super) found: BTreeMap<Nid, u8>,
    /// The NAT block at which the next search begins.
    pub(super) next: u32,
    /// Free ids that are kept for inodes of these numbers.
    pub(super) kept: BTreeSet<Nid>,
}

impl FreeNids {
    fn new(layout: &Layout, next: Nid) -> Self {
        let next = if layout.is_nid(next) { next } else { Nid::ROOT };
        Self {
            found: BTreeMap::new(),
            kept: BTreeSet::new(),
            next: layout.nat_slot(next).0,
        }
    }
}

impl Nat {
    pub fn new(
        layout: &Layout,
        meta: &Arc<MetaCache>,
        checkpoint: &Checkpoint,
        journal: BTreeMap<Nid, NatEntry>,
    ) -> Self {
        let state = NatState::of(layout, checkpoint, journal);
        Self {
            layout: layout.clone(),
            meta: Arc::clone(meta),
            state: Mutex::new(Rank::Super, state),
        }
    }

    /// Replaces the state by that of another checkpoint; nothing is dirty in memory.
    pub fn reload(&self, checkpoint: &Checkpoint, journal: BTreeMap<Nid, NatEntry>) {
        *self.state.lock() = NatState::of(&self.layout, checkpoint, journal);
    }

    /// The entry of a node, in use or not.
    ///
    /// # Errors
    /// An impossible id, or a device error.
    pub fn entry(&self, nid: Nid, tag: IoTag) -> Result<NatEntry> {
        self.check_nid(nid)?;
        self.look_up(nid, |state| state.overriding(nid), tag)
    }

    /// The entry in the last checkpoint, or in the one in flight.
    ///
    /// # Errors
    /// As [`Nat::entry`].
    pub fn in_checkpoint(&self, nid: Nid, tag: IoTag) -> Result<NatEntry> {
        self.check_nid(nid)?;
        self.look_up(nid, |state| state.in_checkpoint(nid), tag)
    }

    /// The entry of a node that has not changed since the last checkpoint, if that needs no read.
    pub fn unchanged_entry(&self, nid: Nid) -> Option<NatEntry> {
        if !self.layout.is_nid(nid) {
            return None;
        }
        let (block, slot) = self.layout.nat_slot(nid);
        let at = {
            let state = self.state.lock();
            if state.dirty.contains_key(&nid) || state.committing.contains_key(&nid) {
                return None;
            }
            if let Some(entry) = state.journal.get(&nid) {
                return Some(*entry);
            }
            state.block_at(&self.layout, block)
        };
        Some(nat::get(&self.meta.peek(at)?.data(), slot))
    }

    /// Checkpoints since the mount.
    pub fn commits(&self) -> u64 {
        self.state.lock().commits
    }

    fn check_nid(&self, nid: Nid) -> Result<()> {
        if !self.layout.is_nid(nid) {
            let rule = "not a possible node";
            return Err(DiskError::field(Structure::Nat, "nid", nid.0, rule).into());
        }
        Ok(())
    }

    fn look_up(
        &self,
        nid: Nid,
        overriding: impl FnOnce(&NatState) -> Option<NatEntry>,
        tag: IoTag,
    ) -> Result<NatEntry> {
        let (block, slot) = self.layout.nat_slot(nid);
        let at = {
            let state = self.state.lock();
            if let Some(entry) = overriding(&state) {
                return Ok(entry);
            }
            state.block_at(&self.layout, block)
        };
        // A checkpoint may replace the copy meanwhile, but not this entry: the caller holds the node's lock or a
        // `Change`, and an entry changes only under both.
        let buf = self.read_block(block, at, tag)?;
        Ok(nat::get(&buf.data(), slot))
    }

    /// Reads a NAT block, and ahead those that will probably be needed.
    pub(super) fn read_block(
        &self,
        block: u32,
        at: DevBlock,
        tag: IoTag,
    ) -> Result<Arc<steadfs_cache::MetaBuf>> {
        if self.meta.peek(at).is_none() {
            let end = block
                .saturating_add(READAHEAD_BLOCKS as u32)
                .min(self.layout.nat_blocks);
            let count = {
                let state = self.state.lock();
                // The copies alternate by segment: the window stays within consecutive blocks.
                let same =
                    |n: &u32| state.block_at(&self.layout, *n).0 == at.0 + u64::from(n - block);
                (block..end).take_while(same).count() as u64
            };
            self.meta.prefetch(at, count, tag);
        }
        self.meta.get(at, tag).map_err(io_error)
    }

    /// Whether the checkpoint in flight has a new address for this node.
    pub fn is_committing(&self, nid: Nid) -> bool {
        self.state.lock().committing.contains_key(&nid)
    }

    /// Sets the address and inode of a node.
    pub fn set(&self, _: &Change<'_>, nid: Nid, entry: NatEntry) {
        debug_assert!(self.layout.is_nid(nid));
        self.state.lock().dirty.insert(nid, entry);
    }

    /// Removes a node with entry `old`; returns its address. The id is available after the next checkpoint, with a new
    /// version.
    pub fn remove(&self, change: &Change<'_>, nid: Nid, old: NatEntry) -> BlockAddr {
        let version = match old.addr {
            BlockAddr::NEW => old.version,
            _ => old.version.wrapping_add(1),
        };
        let gone = NatEntry {
            version,
            ino: Nid(0),
            addr: BlockAddr::NULL,
        };
        self.set(change, nid, gone);
        old.addr
    }

    /// Number of entries changed since the last snapshot.
    pub fn dirty_count(&self) -> usize {
        self.state.lock().dirty.len()
    }
}

impl NatState {
    /// As a checkpoint has it.
    fn of(layout: &Layout, checkpoint: &Checkpoint, journal: BTreeMap<Nid, NatEntry>) -> Self {
        Self {
            second: checkpoint.nat_bitmap.clone(),
            journal,
            committing: BTreeMap::new(),
            dirty: BTreeMap::new(),
            free: FreeNids::new(layout, checkpoint.next_free_nid),
            commits: 0,
        }
    }

    /// The entry that overrides the one in the NAT block, if there is one.
    fn overriding(&self, nid: Nid) -> Option<NatEntry> {
        let changed = self.dirty.get(&nid).copied();
        changed.or_else(|| self.in_checkpoint(nid))
    }

    /// The same without changes since the last snapshot.
    fn in_checkpoint(&self, nid: Nid) -> Option<NatEntry> {
        let committing = self.committing.get(&nid);
        committing.or_else(|| self.journal.get(&nid)).copied()
    }

    pub(super) fn block_at(&self, layout: &Layout, block: u32) -> DevBlock {
        let second = bits::get(Order::HighFirst, &self.second, block as usize);
        DevBlock(layout.nat_block(block, second).0.into())
    }
}
