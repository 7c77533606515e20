//! Writing the node address table: into the checkpoint's journal where few entries changed, else whole
//! blocks into the other copy.
//!
//! Entries of the last journal override their blocks, so they are written again each time, until they
//! move to a block. Blocks with the fewest changes go into the journal first.

use std::collections::BTreeMap;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::Buf;
use steadfs_vfs::Result;

use super::{Nat, NatState};
use crate::disk::bits::{self, Order};
use crate::disk::{BlockAddr, Layout, NatEntry, Nid, journal, nat};
use crate::fs::io_error;

/// Changes of one block of the table.
struct BlockChange {
    /// Where the current copy lies, and the one to be written.
    from: BlockAddr,
    to: BlockAddr,
    entries: Vec<(usize, NatEntry)>,
}

/// What a checkpoint says of nodes.
pub struct NatPlan {
    /// For each block which copy counts.
    pub bitmap: Vec<u8>,
    journal: BTreeMap<Nid, NatEntry>,
    blocks: Vec<BlockChange>,
}

/// Blocks of the table to be written, by place.
pub type NatWrites = Vec<(BlockAddr, Buf)>;

impl Nat {
    /// Takes what changed since the last snapshot; nothing may change meanwhile. Pure computing.
    pub fn snapshot(&self) -> NatPlan {
        let mut state = self.state.lock();
        let state = &mut *state;
        assert!(state.committing.is_empty(), "one checkpoint at a time");
        state.committing = std::mem::take(&mut state.dirty);
        plan(&self.layout, state)
    }

    /// Reads the blocks that change and makes their new content.
    ///
    /// # Errors
    /// The device fails.
    pub fn complete(&self, plan: &NatPlan, tag: IoTag) -> Result<NatWrites> {
        self.read_ahead(plan, tag);
        let change = |change: &BlockChange| {
            let at = DevBlock(change.from.0.into());
            let mut data = self.meta.get(at, tag).map_err(io_error)?.data();
            let bytes = data.make_mut();
            for (slot, entry) in &change.entries {
                nat::put(bytes, *slot, *entry);
            }
            Ok((change.to, data))
        };
        let mut writes: NatWrites = plan.blocks.iter().map(change).collect::<Result<_>>()?;
        writes.sort_unstable_by_key(|(at, _)| *at);
        Ok(writes)
    }

    /// Reads what changes in runs: one by one it would take as many waits.
    fn read_ahead(&self, plan: &NatPlan, tag: IoTag) {
        let mut places: Vec<u32> = plan.blocks.iter().map(|change| change.from.0).collect();
        places.sort_unstable();
        for run in places.chunk_by(|a, b| a + 1 == *b) {
            let first = DevBlock(run[0].into());
            self.meta.prefetch(first, run.len() as u64, tag);
        }
    }

    /// The checkpoint is durable. Returns how many ids of freed nodes can be used again.
    pub fn committed(&self, plan: NatPlan, writes: NatWrites) -> u64 {
        for (at, data) in writes {
            self.meta.set_content(DevBlock(at.0.into()), data);
        }
        let mut state = self.state.lock();
        let committing = std::mem::take(&mut state.committing);
        state.second = plan.bitmap;
        state.journal = plan.journal;
        state.commits += 1;
        let gone =
            |(nid, entry): (&Nid, &NatEntry)| (!entry.is_used()).then_some((*nid, entry.version));
        let count = committing.iter().filter_map(gone).count() as u64;
        state.add_free_nids(committing.iter().filter_map(gone));
        drop(state);
        for change in plan.blocks {
            self.meta.forget(DevBlock(change.from.0.into()));
        }
        count
    }
}

impl NatPlan {
    /// The journal for the pack.
    pub fn journal(&self) -> [u8; journal::SIZE] {
        let list: Vec<_> = self
            .journal
            .iter()
            .map(|(nid, entry)| (*nid, *entry))
            .collect();
        journal::encode_nat(&list)
    }
}

/// Which entries go into the journal, and which blocks are written.
fn plan(layout: &Layout, state: &NatState) -> NatPlan {
    let mut all = state.journal.clone();
    let stored = |(nid, entry): (&Nid, &NatEntry)| {
        // Each node that was made has its place by now; an id whose node was not made after all has none.
        let addr = match entry.addr {
            BlockAddr::NEW => BlockAddr::NULL,
            addr => addr,
        };
        (*nid, NatEntry { addr, ..*entry })
    };
    all.extend(state.committing.iter().map(stored));
    let mut by_block: BTreeMap<u32, Vec<(Nid, NatEntry)>> = BTreeMap::new();
    for (nid, entry) in all {
        let (block, _) = layout.nat_slot(nid);
        by_block.entry(block).or_default().push((nid, entry));
    }
    let mut order: Vec<_> = by_block.into_iter().collect();
    order.sort_by_key(|(_, entries)| entries.len());
    let mut plan = NatPlan {
        bitmap: state.second.clone(),
        journal: BTreeMap::new(),
        blocks: Vec::new(),
    };
    for (block, entries) in order {
        if plan.journal.len() + entries.len() <= journal::NAT_ENTRIES {
            plan.journal.extend(entries);
            continue;
        }
        let second = bits::get(Order::HighFirst, &plan.bitmap, block as usize);
        bits::put(Order::HighFirst, &mut plan.bitmap, block as usize, !second);
        let slots = entries
            .into_iter()
            .map(|(nid, entry)| (layout.nat_slot(nid).1, entry));
        plan.blocks.push(BlockChange {
            from: layout.nat_block(block, second),
            to: layout.nat_block(block, !second),
            entries: slots.collect(),
        });
    }
    plan
}
