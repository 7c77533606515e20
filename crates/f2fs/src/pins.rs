//! Pins: nodes and directory blocks that are read before the first change of an operation.
//!
//! **Problem.** A read that fails in the middle of a change of names leaves two structures in memory that contradict
//! each other, and the volume must abort.
//!
//! **Rule.** An operation reads all nodes and directory blocks that it will need before it changes the first one, and
//! keeps them in memory with [`Pins`]. A failed read is then an ordinary error: nothing has changed. With them go the blocks
//! of quota files that have the entries of the inodes' owners.
//!
//! | operation | effect of a failed read |
//! |---|---|
//! | mknod, mkdir, symlink, tmpfile, link, unlink, rmdir, rename of every kind | nothing changes |
//! | attributes, flags, extended attributes, lists | nothing changes |
//! | write-back of delayed data | the blocks stay dirty, the next fsync tries again |
//! | truncate, punch, zero, allocate | what was done before the failed step stays, the rest is as it was |
//! | freeing an unlinked inode | it stays an orphan, for the next mount |
//! | a change of names that fails half-way nevertheless | the volume aborts, and both superblocks record it |

use std::sync::Arc;

use steadfs_base::{FileBlock, IoTag};
use steadfs_cache::MetaBuf;
use steadfs_vfs::Result;

use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::{Node, SlotLookup};
use crate::quota::{Dquot, QuotaHold};

/// Nodes and directory blocks that stay in memory while this exists.
#[derive(Default)]
#[must_use]
pub(crate) struct Pins {
    nodes: Vec<Arc<Node>>,
    blocks: Vec<Arc<MetaBuf>>,
    dquots: Vec<Arc<Dquot>>,
    held: QuotaHold,
}

impl Pins {
    /// Adds the pins of another.
    pub(crate) fn add(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.blocks.extend(other.blocks);
        self.dquots.extend(other.dquots);
        self.held.join(other.held);
    }

    /// Holds this as well: what the operation may use under limits of quota.
    pub(crate) fn hold(&mut self, held: QuotaHold) {
        self.held.join(held);
    }

    /// Adds an entry of a quota file.
    pub(crate) fn add_dquot(&mut self, dquot: Arc<Dquot>) {
        self.dquots.push(dquot);
    }
}

impl F2fs {
    /// Pins the nodes of these inodes, and what counts for their owners.
    pub(crate) fn pin_inodes(&self, inodes: &[&Inode], tag: IoTag) -> Result<Pins> {
        let mut pins = Pins::default();
        for inode in inodes {
            self.pin_inode(&mut pins, inode, tag)?;
            self.pin_charged(&mut pins, inode, tag)?;
        }
        Ok(pins)
    }

    /// Pins the node of an inode.
    pub(crate) fn pin_inode(&self, pins: &mut Pins, inode: &Inode, tag: IoTag) -> Result<()> {
        pins.nodes.push(self.inode_node(inode.nid(), tag)?);
        Ok(())
    }

    /// Pins a directory block and the nodes that map it, or would. `None`: the entries are inline.
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
        let visit = |node: &Arc<Node>| pins.nodes.push(Arc::clone(node));
        let SlotLookup::Slot(slot) = self.visit_path(dir, &core, block, tag, visit)? else {
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
