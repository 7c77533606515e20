//! Finding nodes: the node address table with what overrides it.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag};
use steadfs_cache::MetaCache;
use steadfs_vfs::Result;

use crate::disk::{Checkpoint, DiskError, Layout, NatEntry, Nid, Structure, nat};
use crate::fs::io_error;

/// Blocks of the table read at once: nodes made together have neighbouring ids.
const WINDOW: u64 = 16;

/// The node address table as the checkpoint has it.
pub struct Nat {
    layout: Layout,
    meta: Arc<MetaCache>,
    /// For each block whether the second copy is current.
    second: Vec<bool>,
    /// The checkpoint's journal.
    journal: BTreeMap<Nid, NatEntry>,
}

impl Nat {
    pub fn new(
        layout: &Layout,
        meta: &Arc<MetaCache>,
        checkpoint: &Checkpoint,
        journal: BTreeMap<Nid, NatEntry>,
    ) -> Self {
        let second = (0..layout.nat_blocks)
            .map(|block| checkpoint.nat_second(block))
            .collect();
        Self {
            layout: layout.clone(),
            meta: Arc::clone(meta),
            second,
            journal,
        }
    }

    /// The entry of a node, whether it is in use or not.
    ///
    /// # Errors
    /// The id is not a possible one, or the device fails.
    pub fn entry(&self, nid: Nid, tag: IoTag) -> Result<NatEntry> {
        if !self.layout.is_nid(nid) {
            let rule = "not a possible node";
            return Err(DiskError::field(Structure::Nat, "nid", nid.0, rule).into());
        }
        if let Some(entry) = self.journal.get(&nid) {
            return Ok(*entry);
        }
        let (block, slot) = self.layout.nat_slot(nid);
        let at = self.block_at(block);
        if self.meta.peek(at).is_none() {
            // Copies alternate by segment: a window never leaves the run of blocks that lie together.
            let same = |n: &u32| self.block_at(*n).0 == at.0 + u64::from(n - block);
            let end = block
                .saturating_add(WINDOW as u32)
                .min(self.layout.nat_blocks);
            let count = (block..end).take_while(same).count() as u64;
            self.meta.prefetch(at, count, tag);
        }
        let buf = self.meta.get(at, tag).map_err(io_error)?;
        Ok(nat::get(&buf.data(), slot))
    }

    fn block_at(&self, block: u32) -> DevBlock {
        let second = self.second[block as usize];
        DevBlock(self.layout.nat_block(block, second).0.into())
    }
}
