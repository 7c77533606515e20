//! The block count of a file (`st_blocks`): blocks that its nodes map, and those that delayed data will need.

use std::collections::BTreeSet;

use steadfs_base::IoTag;
use steadfs_vfs::{FileKind, Result};

use super::Inode;
use crate::disk::{self, BLOCK_SIZE};
use crate::fs::F2fs;
use crate::node::SlotLookup;

/// Bytes per unit of `st_blocks`.
const SECTOR: u64 = 512;

impl Inode {
    /// The file's blocks in units of 512 bytes, as the kernel counts them: including nodes other than the inode.
    /// Delayed data counts as if it were mapped, with the nodes that it needs: archivers detect holes by this
    /// number, and it is the same before and after an fsync. Inline content counts in sectors.
    pub(super) fn sectors(&self, fs: &F2fs, core: &disk::Inode, tag: IoTag) -> u64 {
        let delayed = match self.kind {
            // Blocks whose mapping cannot be read are not counted; write-back reports the error.
            FileKind::Regular => fs.delayed_blocks(self, core, tag).unwrap_or(0),
            // Blocks of directories and links are mapped when they are made.
            _ => 0,
        };
        let blocks = core.blocks.saturating_sub(1).saturating_add(delayed);
        let within = match self.kind {
            FileKind::Regular
                if core.inline.contains(disk::inode::Inline::DATA) && !self.leaves_inline() =>
            {
                self.size()
            }
            FileKind::Directory if core.inline.contains(disk::inode::Inline::DENTRIES) => core.size,
            _ => 0,
        };
        blocks
            .saturating_mul(BLOCK_SIZE as u64 / SECTOR)
            .saturating_add(within.div_ceil(SECTOR))
    }
}

impl F2fs {
    /// Blocks of delayed data that are reserved and not mapped, and the nodes that mapping them will create. The
    /// caller holds `core`: meanwhile no block is mapped, and no unmapped block leaves memory.
    fn delayed_blocks(&self, inode: &Inode, core: &disk::Inode, tag: IoTag) -> Result<u64> {
        let fanout = core.fanout(&self.layout);
        let mut blocks = inode.pages.reserved_blocks().into_iter().peekable();
        let (mut count, mut nodes) = (0, BTreeSet::new());
        while let Some(&first) = blocks.peek() {
            let end = first.0 + fanout.left_in_node(first.0);
            let leaf = match self.find_slot(inode, core, first.0, tag)? {
                SlotLookup::Slot(slot) => {
                    let data = slot.content()?;
                    Some((slot, data))
                }
                SlotLookup::Missing(_) => {
                    nodes.extend(self.missing_nodes(inode, core, first.0, tag)?);
                    None
                }
            };
            while let Some(block) = blocks.next_if(|block| block.0 < end) {
                let named = leaf.as_ref().is_some_and(|(slot, data)| {
                    // A node has fewer slots than this.
                    let ahead = u16::try_from(block.0 - first.0).unwrap_or(u16::MAX);
                    core.counts(slot.addr(&self.layout, core, data, ahead))
                });
                count += u64::from(!named);
            }
        }
        Ok(count + nodes.len() as u64)
    }
}
