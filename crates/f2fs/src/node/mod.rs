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
mod tree;
mod truncate;
pub mod writes;

pub use cache::Node;
pub use tree::{Slot, SlotLookup};

impl F2fs {
    /// A directory block in the main area.
    pub(crate) fn main_block(&self, addr: BlockAddr, tag: IoTag) -> Result<Arc<MetaBuf>> {
        self.check_main(addr)?;
        self.meta
            .get(DevBlock(addr.0.into()), tag)
            .map_err(io_error)
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
        let found = self.nodes.get(nid, || {
            if let Some(addr) = self.recovered().place(nid) {
                let version = 0;
                let entry = NatEntry { version, ino, addr };
                let data = self.node_at(addr, nid, ino, tag)?;
                return Ok(Some((data, entry)));
            }
            let entry = self.nat.entry(nid, tag)?;
            if !entry.is_used() {
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
        })?;
        if let Some(node) = &found {
            node.footer()?.check(nid, ino)?;
        }
        Ok(found)
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
        let footer = Footer::parse(&data);
        footer.check(nid, ino).map_err(|e| e.in_block(addr))?;
        if footer.offset == 0 {
            inode::verify_checksum(&self.layout, &data)
                .map_err(|e| e.in_node(nid).in_block(addr))?;
        }
        Ok(data)
    }
}
