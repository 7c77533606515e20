//! Writes the node address table (NAT): few changed entries go to the journal in the pack, the others to whole blocks,
//! each to the copy that is not current.
//!
//! Entries of the last journal override their blocks, so they are written again with each checkpoint until they move to
//! a block. Blocks with the fewest changes go to the journal first.

use std::collections::BTreeMap;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::Buf;
use steadfs_f2fs_format::io_error;
use steadfs_vfs::Result;

use super::table::{Nat, NatState};
use crate::disk::bits::{self, Order};
use crate::disk::{BlockAddr, Layout, NatEntry, Nid, journal, nat};

/// Changes of one NAT block.
struct BlockChange {
    /// Addresses of the current copy and of the other one, which is written.
    from: BlockAddr,
    to: BlockAddr,
    entries: Vec<(usize, NatEntry)>,
}

/// What a checkpoint stores about nodes.
pub struct NatPlan {
    /// One bit for each NAT block: which copy is current.
    pub bitmap: Vec<u8>,
    journal: BTreeMap<Nid, NatEntry>,
    blocks: Vec<BlockChange>,
}

/// NAT blocks to write, by address.
pub type NatWrites = Vec<(BlockAddr, Buf)>;

impl Nat {
    /// Takes the changes since the last snapshot. The caller holds `cp_lock` exclusively. No I/O.
    pub fn snapshot(&self) -> NatPlan {
        let mut state = self.state.lock();
        let state = &mut *state;
        assert!(state.committing.is_empty(), "one checkpoint at a time");
        state.committing = std::mem::take(&mut state.dirty);
        plan(&self.layout, state)
    }

    /// Reads the blocks that change and applies the changes to copies.
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

    /// Reads all blocks that change at once: one by one each would be waited for.
    fn read_ahead(&self, plan: &NatPlan, tag: IoTag) {
        let from = |change: &BlockChange| DevBlock(change.from.0.into());
        let mut blocks: Vec<DevBlock> = plan.blocks.iter().map(from).collect();
        blocks.sort_unstable();
        self.meta.prefetch_blocks(&blocks, tag);
    }

    /// The checkpoint is durable. Returns the number of ids of freed nodes that are available now.
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
    /// The NAT journal for the pack.
    pub fn journal(&self) -> [u8; journal::SIZE] {
        let list: Vec<_> = self
            .journal
            .iter()
            .map(|(nid, entry)| (*nid, *entry))
            .collect();
        journal::encode_nat(&list)
    }
}

/// Divides the changed entries between the journal and NAT blocks.
fn plan(layout: &Layout, state: &NatState) -> NatPlan {
    let mut all = state.journal.clone();
    let stored = |(nid, entry): (&Nid, &NatEntry)| {
        // Each new node has an address by now; an id that was allocated without a node has none.
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
        assert!(
            plan.journal.len() <= journal::NAT_ENTRIES,
            "the journal has space for its entries"
        );
        plan.blocks.push(BlockChange {
            from: layout.nat_block(block, second),
            to: layout.nat_block(block, !second),
            entries: slots.collect(),
        });
    }
    plan
}
