//! Frees blocks of a file from a given one on: data, and the nodes that map nothing else.

use steadfs_base::IoTag;
use steadfs_vfs::Result;

use crate::compress::write::saved_in;
use crate::cp_lock::Change;
use crate::disk::node::PER_NODE;
use crate::disk::{self, BlockAddr, Nid, inode, node};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::segment::BlockKind;

/// What truncation did with a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Truncated {
    /// It maps blocks that stay, or was not reached.
    Stays,
    Freed,
}

/// State of one call.
struct Truncation<'c> {
    fs: &'c F2fs,
    change: &'c Change<'c>,
    inode: &'c Inode,
    core: &'c mut disk::Inode,
    /// File blocks that a node of each kind maps: direct, indirect, double indirect.
    sizes: [u64; 3],
    /// The first file block to be freed.
    from: u64,
    /// Direct nodes that this call may still process.
    left: u32,
    /// Everything from this file block on has been freed.
    freed_from: u64,
    tag: IoTag,
}

/// The five node ids in an inode, last first: slot, offset in the tree, and kind as an index into `sizes`.
const TOP_NODES: [(u16, u32, usize); 5] = [
    (4, 2 * PER_NODE + 5, 2),
    (3, PER_NODE + 4, 1),
    (2, 3, 1),
    (1, 2, 0),
    (0, 1, 0),
];

impl F2fs {
    /// Frees the blocks of a file from `from` on, the last first, and the nodes that map no others; at most `limit`
    /// direct nodes in one call. Returns the block from which on everything is freed: while that is not `from`, the
    /// caller calls again, inside this change or another.
    ///
    /// # Errors
    /// Corruption or a device error; what was freed before it is counted.
    pub(crate) fn truncate_nodes(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        from: u64,
        limit: u32,
        tag: IoTag,
    ) -> Result<u64> {
        assert!(limit > 0, "each call frees something");
        self.mark_dirty(change, inode, tag)?;
        let fanout = core.fanout(&self.layout);
        let (direct, per) = (u64::from(fanout.direct), u64::from(PER_NODE));
        let mut truncation = Truncation {
            fs: self,
            change,
            inode,
            core,
            sizes: [direct, direct * per, direct * per * per],
            from,
            left: limit,
            freed_from: u64::MAX,
            tag,
        };
        for (slot, offset, kind) in TOP_NODES {
            let base = fanout.first_block_below(offset);
            if base + truncation.sizes[kind] <= from {
                break;
            }
            let own = self.inode_node(inode.nid(), tag)?;
            let nid = inode::nid_at(&own.data()?, slot);
            if nid.some().is_none() {
                continue;
            }
            let Some(truncated) = truncation.node(nid, offset, kind, base)? else {
                assert!(
                    truncation.freed_from > from,
                    "a call that ends at its limit leaves blocks to the next"
                );
                return Ok(truncation.freed_from);
            };
            if truncated == Truncated::Freed {
                let mut data = self.nodes.change(change, &own)?;
                inode::set_nid_at(&mut data, slot, Nid(0));
            }
        }
        truncation.own_slots(fanout.inode)?;
        Ok(from)
    }
}

impl Truncation<'_> {
    /// Truncates below a node; `None` when the limit is reached.
    fn node(&mut self, nid: Nid, offset: u32, kind: usize, base: u64) -> Result<Option<Truncated>> {
        debug_assert!(
            base + self.sizes[kind] > self.from,
            "a node is visited only if blocks below it are freed"
        );
        let Some(below) = kind.checked_sub(1) else {
            return self.direct(nid, offset, base);
        };
        let ino = self.inode.nid();
        let node = self.fs.expect_node(nid, ino, offset, self.tag)?;
        let size = self.sizes[below];
        // Children follow their parent in the tree; those of a double indirect node have children of their own.
        let step = if below == 0 { 1 } else { PER_NODE + 1 };
        let ids = node.data()?;
        for slot in (0..PER_NODE as u16).rev() {
            let child_base = base + u64::from(slot) * size;
            if child_base + size <= self.from {
                break;
            }
            let child = node::child(&ids, slot);
            if child.some().is_none() {
                continue;
            }
            let place = offset + 1 + u32::from(slot) * step;
            match self.node(child, place, below, child_base)? {
                None => return Ok(None),
                Some(Truncated::Stays) => {}
                Some(Truncated::Freed) => {
                    let mut data = self.fs.nodes.change(self.change, &node)?;
                    node::set_child(&mut data, slot, Nid(0));
                }
            }
        }
        if base < self.from {
            return Ok(Some(Truncated::Stays));
        }
        self.fs.free_node(self.change, self.inode, self.core, &node);
        Ok(Some(Truncated::Freed))
    }

    fn direct(&mut self, nid: Nid, offset: u32, base: u64) -> Result<Option<Truncated>> {
        let Some(left) = self.left.checked_sub(1) else {
            self.freed_from = base + self.sizes[0];
            return Ok(None);
        };
        self.left = left;
        let node = self
            .fs
            .expect_node(nid, self.inode.nid(), offset, self.tag)?;
        let first = self.from.saturating_sub(base);
        assert!(
            first < self.sizes[0],
            "a node is visited only if blocks of it are freed"
        );
        let first = first as u16;
        if first == 0 {
            let data = node.data()?;
            let old = (0..self.sizes[0] as u16).map(|slot| (slot, node::addr(&data, slot)));
            let old = old.collect();
            self.fs.free_node(self.change, self.inode, self.core, &node);
            self.free_data(old);
            return Ok(Some(Truncated::Freed));
        }
        let mut old = Vec::new();
        let mut data = self.fs.nodes.change(self.change, &node)?;
        // Once: each dereference checks whether the block is shared.
        let block: &mut [u8] = &mut data;
        for slot in first..self.sizes[0] as u16 {
            old.push((slot, node::addr(block, slot)));
            node::set_addr(block, slot, BlockAddr::NULL);
        }
        drop(data);
        self.free_data(old);
        Ok(Some(Truncated::Stays))
    }

    /// Frees the blocks that the inode itself maps.
    fn own_slots(&mut self, count: u32) -> Result<()> {
        if self.from >= count.into() {
            return Ok(());
        }
        let layout = &self.fs.layout;
        let own = self.fs.inode_node(self.inode.nid(), self.tag)?;
        let data = own.data()?;
        let block: &[u8] = &data;
        let mapped = |slot: &u16| self.core.addr(layout, block, *slot) != BlockAddr::NULL;
        let mapped: Vec<u16> = (self.from as u16..count as u16).filter(mapped).collect();
        drop(data);
        if mapped.is_empty() {
            return Ok(());
        }
        let mut data = self.fs.nodes.change(self.change, &own)?;
        // Once: each dereference checks whether the block is shared.
        let block: &mut [u8] = &mut data;
        let mut old = Vec::new();
        for slot in mapped {
            old.push((slot, self.core.addr(layout, block, slot)));
            self.core.set_addr(layout, block, slot, BlockAddr::NULL);
        }
        drop(data);
        self.free_data(old);
        Ok(())
    }

    /// These slots of a node no longer map their addresses.
    fn free_data(&mut self, old: Vec<(u16, BlockAddr)>) {
        if let (Some(per), Some(how)) = (
            self.fs.cluster_blocks(self.core),
            &mut self.core.compression,
        ) {
            let clusters = old.chunk_by(|a, b| u64::from(a.0) / per == u64::from(b.0) / per);
            for cluster in clusters {
                let slots: Vec<_> = cluster.iter().map(|(_, addr)| *addr).collect();
                how.saved_blocks = how.saved_blocks.saturating_sub(saved_in(&slots));
            }
        }
        let old = old.into_iter().map(|(_, addr)| addr);
        let counted = |addr: &BlockAddr| self.core.counts(*addr);
        let counted: Vec<BlockAddr> = old.filter(counted).collect();
        if counted.is_empty() {
            return;
        }
        self.core.extent.len = 0;
        self.core.blocks = self.core.blocks.saturating_sub(counted.len() as u64).max(1);
        // A block that another file has, or that the same file maps twice, does not become free.
        let free = |addr: &BlockAddr| {
            !addr.is_block() || self.fs.invalidate(self.change, *addr, BlockKind::Data)
        };
        let freed = counted.iter().filter(|addr| free(addr)).count() as u64;
        self.fs.space.free_blocks(freed);
    }
}
