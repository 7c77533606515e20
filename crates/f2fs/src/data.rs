//! File content: the block map, reads, writes and write-back.
//!
//! A write is copied into the cache and acknowledged ([`write`]). Its space is reserved at once; blocks are
//! allocated by write-back ([`writeout`], delayed allocation). Data is on the device before a node maps its blocks,
//! so a checkpoint never waits for data.

mod cluster;
pub(crate) mod cp_reason;
mod fallocate;
mod pinned;
pub(crate) mod placement;
mod read;
mod relocate;
mod seek;
mod sync;
pub(crate) mod sync_stats;
mod truncate;
mod write;
mod writeout;

use std::sync::Arc;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_vfs::{FileKind, FsError, Result};

use crate::disk::inode::Inline;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, Structure};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::{Node, Slot, SlotLookup};

pub(crate) const BLOCK: u64 = BLOCK_SIZE as u64;

/// What a file block is mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapTarget {
    /// No address: reads as zeros.
    Hole,
    /// `NEW_ADDR`: space is reserved (fallocate) but no block is allocated; reads as zeros.
    Reserved,
    /// Consecutive device blocks from this one on.
    Block(BlockAddr),
    /// Part of a compressed cluster.
    Compressed,
}

/// A run of file blocks with the same kind of mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedRun {
    pub target: MapTarget,
    /// Number of blocks, at least 1.
    pub len: u64,
}

/// The node of an inode, looked up once for the addresses of many blocks.
pub(crate) struct OwnSlots {
    node: Arc<Node>,
    data: Buf,
}

impl F2fs {
    /// The mapping of a file block, and of up to `limit` blocks from there.
    pub(crate) fn map(
        &self,
        inode: &Inode,
        block: u64,
        limit: u64,
        tag: IoTag,
    ) -> Result<MappedRun> {
        let core = inode.core.read();
        self.map_in(inode, &core, block, limit, tag)
    }

    /// [`F2fs::map`] of a single block, one of many: the inode's own node is looked up at the first call only. The
    /// caller knows that since then no address of the file has changed that it asks for.
    pub(crate) fn map_one(
        &self,
        inode: &Inode,
        block: u64,
        own: &mut Option<OwnSlots>,
        tag: IoTag,
    ) -> Result<MapTarget> {
        let core = inode.core.read();
        let path = core.fanout(&self.layout).path(block);
        let Some(path) = path.filter(|path| path.depth == 0 && !core.inline.contains(Inline::DATA))
        else {
            return Ok(self.map_in(inode, &core, block, 1, tag)?.target);
        };
        if own.is_none() {
            let node = self.inode_node(inode.nid(), tag)?;
            let data = node.block()?;
            *own = Some(OwnSlots { node, data });
        }
        let own = own.as_ref().expect("looked up above");
        let slot = Slot {
            node: Arc::clone(&own.node),
            slot: path.slots[0],
            left: 1,
            in_inode: true,
        };
        let run = self.run(&core, block, &slot, &own.data);
        Ok(run.map_err(|e| e.in_node(inode.nid()))?.target)
    }

    fn map_in(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        block: u64,
        limit: u64,
        tag: IoTag,
    ) -> Result<MappedRun> {
        let slot = match self.find_slot(inode, core, block, tag)? {
            SlotLookup::Slot(slot) => slot,
            SlotLookup::Missing(len) => {
                return Ok(MappedRun {
                    target: MapTarget::Hole,
                    len: len.min(limit).max(1),
                });
            }
        };
        let data = slot.content()?;
        let left = u64::from(slot.left).min(limit.max(1)) as u16;
        self.run(core, block, &Slot { left, ..slot }, &data)
            .map_err(|e| e.in_node(inode.nid()).into())
    }

    /// The address stored in a file's slot, special values included.
    pub(crate) fn slot(&self, inode: &Inode, block: u64, tag: IoTag) -> Result<BlockAddr> {
        let core = inode.core.read();
        match self.find_slot(inode, &core, block, tag)? {
            SlotLookup::Slot(slot) => self.addr_in(&core, &slot),
            SlotLookup::Missing(_) => Ok(BlockAddr::NULL),
        }
    }

    /// The run of blocks that begins in this slot.
    fn run(
        &self,
        core: &disk::Inode,
        block: u64,
        slot: &Slot,
        data: &Buf,
    ) -> Result<MappedRun, DiskError> {
        let left = slot.left;
        if let Some(size) = self.cluster_blocks(core) {
            // A cluster never spans two nodes, so its first slot is in this one.
            let within = (block % size) as u16;
            let cluster = Slot {
                slot: slot.slot - within,
                ..slot.clone()
            };
            if cluster.addr(&self.layout, core, data, 0) == BlockAddr::COMPRESSED {
                return Ok(MappedRun {
                    target: MapTarget::Compressed,
                    len: left.min(size as u16 - within).into(),
                });
            }
            // A run ends before a compressed cluster: the cluster's first slot holds no block address.
        }
        let addr = |n: u16| slot.addr(&self.layout, core, data, n);
        let first = addr(0);
        if first == BlockAddr::NULL || first == BlockAddr::NEW {
            let same = |n: &u16| addr(*n) == first;
            return Ok(MappedRun {
                target: if first == BlockAddr::NULL {
                    MapTarget::Hole
                } else {
                    MapTarget::Reserved
                },
                len: (1..left).take_while(same).count() as u64 + 1,
            });
        }
        let continues = |n: &u16| Some(addr(*n).0) == first.0.checked_add((*n).into());
        let len = (1..left).take_while(continues).count() as u64 + 1;
        let last = BlockAddr(first.0.saturating_add(len as u32 - 1));
        if !self.layout.is_main(first) || !self.layout.is_main(last) {
            let rule = "outside the main area";
            let what = Structure::Inode;
            return Err(DiskError::address(what, first, rule));
        }
        Ok(MappedRun {
            target: MapTarget::Block(first),
            len,
        })
    }

    /// The target of a symbolic link.
    pub(crate) fn link_target(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        if inode.kind() != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let bad = |rule: &'static str| -> FsError {
            let error = DiskError::field(Structure::Inode, "i_size", inode.size(), rule);
            error.in_node(inode.nid()).into()
        };
        let size = inode.size();
        if size == 0 || size > BLOCK {
            return Err(bad("not a valid length of a symbolic link"));
        }
        let content = if inode.has_inline_data() {
            self.inline_content(inode, 0..size, tag)?.to_vec()
        } else if let Some(block) = inode.pages.get(FileBlock(0)) {
            // Not written yet: the next checkpoint writes it.
            let len = usize::try_from(size).unwrap_or(usize::MAX).min(block.len());
            block[..len].to_vec()
        } else {
            self.read_blocks(inode, 0..size, None, tag)?.to_vec()
        };
        if inode.is_encrypted() {
            return match self.file_key(inode, tag)? {
                Some(key) => key.decrypt_target(&content),
                None => steadfs_vfs::nokey::symlink_target(&content),
            };
        }
        if content.contains(&0) {
            return Err(bad("a symbolic link's target contains a zero byte"));
        }
        Ok(content)
    }
}

#[cfg(test)]
mod tests;
