//! Nodes: looked up by id, verified when they are read.

use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::Buf;
use steadfs_cache::MetaBuf;
use steadfs_vfs::Result;

use crate::disk::node::Footer;
use crate::disk::{BLOCK_SIZE, BlockAddr, DiskError, NatEntry, Nid, Structure, inode};
use crate::fs::{F2fs, io_error};
use crate::segment::BlockKind;

pub mod cache;
pub mod chain;
pub mod content;
pub mod neighbours;
mod read_ahead;
mod tree;
mod truncate;
pub mod writes;

pub use cache::Node;
pub use tree::{Slot, SlotLookup};

impl F2fs {
    /// A directory block in the main area.
    pub(crate) fn main_block(&self, addr: BlockAddr, tag: IoTag) -> Result<Arc<MetaBuf>> {
        self.check_main(addr)?;
        let block = DevBlock(addr.0.into());
        if !self.meta.is_cached(block) {
            self.read_dir_blocks_beside(addr, tag);
        }
        self.meta.get(block, tag).map_err(io_error)
    }

    fn check_main(&self, addr: BlockAddr) -> Result<()> {
        if !self.layout.is_main(addr) {
            let rule = "outside the main area";
            return Err(DiskError::address(Structure::Node, addr, rule).into());
        }
        Ok(())
    }

    /// The node `nid` of inode `ino`; `None` if the NAT has no such node.
    pub(crate) fn node(&self, nid: Nid, ino: Nid, tag: IoTag) -> Result<Option<Arc<Node>>> {
        let load = || {
            if let Some(addr) = self.recovered().place(nid) {
                let version = 0;
                let entry = NatEntry { version, ino, addr };
                let data = self.node_at(addr, nid, ino, tag)?;
                return Ok(Some((data, entry)));
            }
            let entry = self.nat.entry(nid, tag)?;
            // A new node is in memory until it has an address.
            if !entry.is_used() || entry.addr == BlockAddr::NEW {
                return Ok(None);
            }
            entry.validate(&self.layout, nid)?;
            // A block in a data segment must not be used as a node, even if it looks like one: it would be freed as
            // one.
            if let Some(segments) = self.segments.get() {
                let owned = segments.check_owned(entry.addr, 1, BlockKind::Node);
                owned.map_err(|e| e.in_node(nid))?;
            }
            let data = self.node_at(entry.addr, nid, entry.ino, tag)?;
            Ok(Some((data, entry)))
        };
        let before = || self.read_nodes_beside(nid, tag);
        let found = self.nodes.get(nid, before, load)?;
        if let Some((node, read_ahead)) = &found {
            if *read_ahead {
                self.node_reads.record_use();
            }
            node.footer()?.check(nid, ino)?;
        }
        Ok(found.map(|(node, _)| node))
    }

    /// The node that another structure refers to.
    pub(crate) fn expect_node(
        &self,
        nid: Nid,
        ino: Nid,
        offset: u32,
        tag: IoTag,
    ) -> Result<Arc<Node>> {
        let missing = || {
            let rule = "referred to, but does not exist";
            DiskError::field(Structure::Node, "nid", nid.0, rule).in_node(ino)
        };
        let node = self.node(nid, ino, tag)?.ok_or_else(missing)?;
        let found = node.footer()?.offset;
        if found != offset {
            let rule = "not the offset at which the tree refers to it";
            let error = DiskError::field(Structure::Node, "node offset", found, rule);
            return Err(error.in_node(nid).into());
        }
        Ok(node)
    }

    /// Reads the node at this address and verifies that it is `nid` of `ino`.
    pub(crate) fn node_at(&self, addr: BlockAddr, nid: Nid, ino: Nid, tag: IoTag) -> Result<Buf> {
        self.check_main(addr)?;
        let at = u64::from(addr.0) * BLOCK_SIZE as u64;
        let data = self.queue.read(at, BLOCK_SIZE, tag).map_err(io_error)?;
        self.verify_node(addr, nid, ino, &data)?;
        Ok(data)
    }

    /// Verifies that a block is the node `nid` of `ino`.
    fn verify_node(&self, addr: BlockAddr, nid: Nid, ino: Nid, data: &[u8]) -> Result<()> {
        debug_assert!(data.len() == BLOCK_SIZE, "a node is a block");
        let footer = Footer::parse(data);
        footer.check(nid, ino).map_err(|e| e.in_block(addr))?;
        if footer.offset == 0 {
            inode::verify_checksum(&self.layout, data)
                .map_err(|e| e.in_node(nid).in_block(addr))?;
        }
        Ok(())
    }
}
