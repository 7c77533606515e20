//! Read first, then change.
//!
//! **Problem.** A read that fails in the middle of a change of names leaves two things in memory that contradict each
//! other, and the volume must stop.
//! **Rule.** A call reads the nodes and the blocks of directories that it will need before it changes the first one, and
//! keeps them in memory with [`Pins`]. A failed read is then an ordinary error: nothing has changed.
//!
//! | operation | a failed read |
//! |---|---|
//! | mknod, mkdir, symlink, tmpfile, link, unlink, rmdir, rename of every kind | nothing changes |
//! | attributes, flags, extended attributes, lists | nothing changes |
//! | write-back of delayed data | the blocks stay dirty, the next fsync tries again |
//! | truncate, punch, zero, allocate | what was done before the failed step stays, the rest is as it was |
//! | freeing an inode without names | it stays among the orphans, for the next mount |
//! | a change of names that fails half-way all the same | the volume stops, and both superblocks note it |

use std::sync::Arc;

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::Result;

use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::{Node, SlotLookup};

/// Nodes and blocks of directories that stay in memory while this lives.
#[derive(Default)]
pub(crate) struct Pins {
    nodes: Vec<Arc<Node>>,
    blocks: Vec<Arc<MetaBuf>>,
}

impl Pins {
    /// Keeps what others keep.
    pub(crate) fn add(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.blocks.extend(other.blocks);
    }
}

impl F2fs {
    /// Keeps the nodes of these inodes in memory.
    pub(crate) fn pin_inodes(&self, inodes: &[&Inode], tag: IoTag) -> Result<Pins> {
        let mut pins = Pins::default();
        for inode in inodes {
            pins.nodes.push(self.inode_node(inode.nid(), tag)?);
        }
        Ok(pins)
    }

    /// Keeps a block of a directory in memory, and the node that names it. `None`: the entries lie in the inode.
    pub(crate) fn pin_dir_block(
        &self,
        pins: &mut Pins,
        dir: &Inode,
        block: Option<u64>,
        tag: IoTag,
    ) -> Result<()> {
        let Some(block) = block else {
            return Ok(());
        };
        let core = dir.core.read();
        let SlotLookup::Slot(slot) = self.find_slot(dir, &core, block, tag)? else {
            return Ok(());
        };
        let addr = self.addr_in(&core, &slot)?;
        if addr.block().is_some() && dir.pages.get(FileBlock(block)).is_none() {
            pins.blocks.push(self.main_block(addr, tag)?);
        }
        pins.nodes.push(slot.node);
        Ok(())
    }
}
