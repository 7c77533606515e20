//! Nodes in memory: found by id, verified once.

use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::Buf;
use steadfs_cache::MetaBuf;
use steadfs_vfs::Result;

use crate::disk::node::Footer;
use crate::disk::{BlockAddr, DiskError, Nid, Structure, inode};
use crate::fs::{F2fs, io_error};

/// [`MetaBuf::verify_once`]: the block is a node.
const VERIFIED_NODE: u8 = 1;

/// A node's block.
pub struct Node {
    /// Its content.
    pub data: Buf,
    /// Its footer.
    pub footer: Footer,
}

impl F2fs {
    /// A metadata block (node or directory data) of the main area.
    pub(crate) fn main_block(&self, addr: BlockAddr, tag: IoTag) -> Result<Arc<MetaBuf>> {
        if !self.layout.is_main(addr) {
            let rule = "outside the main area";
            return Err(DiskError::field(Structure::Node, "block address", addr.0, rule).into());
        }
        self.meta
            .get(DevBlock(addr.0.into()), tag)
            .map_err(io_error)
    }

    /// The node `nid` of inode `ino`, wherever the checkpoint or recovery has it; `None` when there is
    /// no such node.
    pub(crate) fn node(&self, nid: Nid, ino: Nid, tag: IoTag) -> Result<Option<Node>> {
        let entry = self.nat.entry(nid, tag)?;
        if !entry.is_used() {
            return Ok(None);
        }
        entry.validate(&self.layout, nid)?;
        let node = self.node_at(entry.addr, nid, ino, tag)?;
        Ok(Some(node))
    }

    /// The node of which a reference says that it exists.
    pub(crate) fn expect_node(&self, nid: Nid, ino: Nid, offset: u32, tag: IoTag) -> Result<Node> {
        let missing = || {
            let rule = "referred to, but does not exist";
            DiskError::field(Structure::Node, "nid", nid.0, rule).in_node(ino)
        };
        let node = self.node(nid, ino, tag)?.ok_or_else(missing)?;
        self.check_offset(&node, offset)?;
        Ok(node)
    }

    fn check_offset(&self, node: &Node, offset: u32) -> Result<()> {
        if node.footer.offset != offset {
            let (found, rule) = (node.footer.offset, "not where it was found in the tree");
            let error = DiskError::field(Structure::Node, "node offset", found, rule);
            return Err(error.in_node(node.footer.nid).into());
        }
        Ok(())
    }

    /// The node in this block, which must be `nid` of `ino`.
    pub(crate) fn node_at(&self, addr: BlockAddr, nid: Nid, ino: Nid, tag: IoTag) -> Result<Node> {
        let buf = self.main_block(addr, tag)?;
        buf.verify_once(VERIFIED_NODE, |block| {
            if Footer::parse(block).offset == 0 {
                inode::verify_checksum(&self.layout, block)?;
            }
            Ok(())
        })
        .map_err(|e: DiskError| e.in_node(nid).in_block(addr))?;
        let data = buf.data();
        let footer = Footer::parse(&data);
        footer.check(nid, ino).map_err(|e| e.in_block(addr))?;
        Ok(Node { data, footer })
    }
}
