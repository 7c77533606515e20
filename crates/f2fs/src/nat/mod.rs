//! Finding nodes: the node address table, what overrides it, and what has changed in memory.
//!
//! An entry is looked for in what changed since the last checkpoint's snapshot, in the snapshot while a
//! checkpoint writes it, in the last durable checkpoint's journal, in the table's current copy.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag};
use steadfs_cache::MetaCache;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Result;

use crate::cp_lock::Change;
use crate::disk::bits::{self, Order};
use crate::disk::{BlockAddr, Checkpoint, DiskError, Layout, NatEntry, Nid, Structure, nat};
use crate::fs::io_error;

mod flush;
mod free;

use free::FreeNids;

/// Blocks of the table read at once: nodes made together have neighbouring ids.
const READAHEAD_BLOCKS: u64 = 16;

pub use flush::{NatPlan, NatWrites};

/// The node address table.
pub struct Nat {
    layout: Layout,
    meta: Arc<MetaCache>,
    state: Mutex<NatState>,
}

struct NatState {
    /// For each block whether the second copy is current, as a checkpoint has it.
    second: Vec<u8>,
    /// The last durable checkpoint's journal.
    journal: BTreeMap<Nid, NatEntry>,
    /// In the snapshot of the checkpoint under way.
    committing: BTreeMap<Nid, NatEntry>,
    /// Changed since the last checkpoint's snapshot.
    dirty: BTreeMap<Nid, NatEntry>,
    /// Ids for new nodes.
    free: FreeNids,
    /// Checkpoints since the mount: each changes the table.
    commits: u64,
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

    /// Another checkpoint is the volume's state; nothing has changed in memory.
    pub fn reload(&self, checkpoint: &Checkpoint, journal: BTreeMap<Nid, NatEntry>) {
        *self.state.lock() = NatState::of(&self.layout, checkpoint, journal);
    }

    /// The entry of a node, whether it is in use or not.
    ///
    /// # Errors
    /// The id is not a possible one, or the device fails.
    pub fn entry(&self, nid: Nid, tag: IoTag) -> Result<NatEntry> {
        self.check_nid(nid)?;
        self.look_up(nid, |state| state.overriding(nid), tag)
    }

    /// The entry as the last checkpoint has it, or the one under way.
    ///
    /// # Errors
    /// As [`Nat::entry`].
    pub fn in_checkpoint(&self, nid: Nid, tag: IoTag) -> Result<NatEntry> {
        self.check_nid(nid)?;
        self.look_up(nid, |state| state.in_checkpoint(nid), tag)
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
        // The copy may be replaced by a checkpoint meanwhile, but not this entry: whoever asks holds
        // the node's lock or the gate, and nothing about the node changes without both.
        let buf = self.read_block(block, at, tag)?;
        Ok(nat::get(&buf.data(), slot))
    }

    /// A block of the table, with those behind it that are likely to be wanted.
    fn read_block(
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
                // Copies alternate by segment: a window never leaves the run of blocks that lie together.
                let same =
                    |n: &u32| state.block_at(&self.layout, *n).0 == at.0 + u64::from(n - block);
                (block..end).take_while(same).count() as u64
            };
            self.meta.prefetch(at, count, tag);
        }
        self.meta.get(at, tag).map_err(io_error)
    }

    /// Whether a checkpoint is being written that gave this node its place.
    pub fn is_committing(&self, nid: Nid) -> bool {
        self.state.lock().committing.contains_key(&nid)
    }

    /// Says where a node lies now, and whose it is.
    pub fn set(&self, _: &Change<'_>, nid: Nid, entry: NatEntry) {
        debug_assert!(self.layout.is_nid(nid));
        self.state.lock().dirty.insert(nid, entry);
    }

    /// Says that there is no such node any more, of which `old` is the entry; where it lay. Its id can be
    /// used again after the next checkpoint, with another version.
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

    /// How many entries have changed since the last checkpoint's snapshot.
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

    /// The entry where something overrides the table's block.
    fn overriding(&self, nid: Nid) -> Option<NatEntry> {
        let changed = self.dirty.get(&nid).copied();
        changed.or_else(|| self.in_checkpoint(nid))
    }

    /// The same without what changed since the last snapshot.
    fn in_checkpoint(&self, nid: Nid) -> Option<NatEntry> {
        let committing = self.committing.get(&nid);
        committing.or_else(|| self.journal.get(&nid)).copied()
    }

    fn block_at(&self, layout: &Layout, block: u32) -> DevBlock {
        let second = bits::get(Order::HighFirst, &self.second, block as usize);
        DevBlock(layout.nat_block(block, second).0.into())
    }
}
