//! The tree of nodes below an inode: finds the node that maps a file block, creates missing nodes, frees nodes.
//!
//! The caller holds the inode's `core`: shared for a walk, exclusively for a change. A node's lock is held only for one
//! access.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::Buf;
use steadfs_vfs::{FileKind, FsError, Result};

use super::Node;
use crate::cp_lock::Change;
use crate::disk::inode::Inline;
use crate::disk::node::{Footer, NodePath, PER_NODE, XATTR_OFFSET};
use crate::disk::{self, BLOCK_SIZE, BlockAddr, Layout, NatEntry, Nid, inode, node};
use crate::fs::F2fs;
use crate::inode::{Inode, Role};
use crate::segment::{BlockKind, Owner};

/// The slot of a node that maps a file block.
#[derive(Clone)]
pub struct Slot {
    /// The inode's own node or a direct node.
    pub node: Arc<Node>,
    pub slot: u16,
    /// Slots from this one to the end of the node.
    pub left: u16,
    /// Whether it is the inode's own node.
    pub in_inode: bool,
}

impl Slot {
    /// The summary entry of a block mapped here.
    pub fn owner(&self) -> Owner {
        Owner {
            nid: self.node.nid(),
            version: self.node.entry().version,
            slot: self.slot,
        }
    }

    /// The node's content. The node of a small file is mostly zeros and stays packed.
    ///
    /// # Errors
    /// As [`Node::data`].
    pub fn content(&self) -> Result<Buf> {
        match self.in_inode {
            true => self.node.block(),
            false => self.node.data(),
        }
    }

    /// The address `ahead` slots after this one, in the node's content.
    pub fn addr(&self, layout: &Layout, core: &disk::Inode, data: &Buf, ahead: u16) -> BlockAddr {
        debug_assert!(ahead < self.left, "a slot is within its node");
        let slot = self.slot + ahead;
        if self.in_inode {
            core.addr(layout, data, slot)
        } else {
            node::addr(data, slot)
        }
    }
}

/// Result of the search for the node that maps a block.
pub enum SlotLookup {
    Slot(Slot),
    /// The node does not exist: this number of blocks from the given one on is a hole.
    Missing(u64),
}

impl F2fs {
    /// The node of an inode itself.
    pub(crate) fn inode_node(&self, ino: Nid, tag: IoTag) -> Result<Arc<Node>> {
        self.expect_node(ino, ino, 0, tag)
    }

    /// Finds the slot that maps a file block.
    pub(crate) fn find_slot(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        block: u64,
        tag: IoTag,
    ) -> Result<SlotLookup> {
        self.visit_path(inode, core, block, tag, |_| {})
    }

    /// Adds to `nodes` those that map any block of a range, and those above them, until there are `most`: they stay in memory.
    pub(crate) fn hold_nodes(
        &self,
        inode: &Inode,
        blocks: Range<u64>,
        (nodes, most): (&mut BTreeMap<Nid, Arc<Node>>, usize),
        tag: IoTag,
    ) -> Result<()> {
        let core = inode.core.read();
        let mut at = blocks.start;
        while at < blocks.end && nodes.len() < most {
            let hold = |node: &Arc<Node>| {
                nodes.entry(node.nid()).or_insert_with(|| Arc::clone(node));
            };
            at += match self.visit_path(inode, &core, at, tag, hold)? {
                SlotLookup::Slot(slot) => slot.left.into(),
                SlotLookup::Missing(blocks) => blocks,
            };
        }
        Ok(())
    }

    /// [`F2fs::find_slot`], which passes each node below the inode's own to `visit`, from above.
    pub(crate) fn visit_path(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        block: u64,
        tag: IoTag,
        mut visit: impl FnMut(&Arc<Node>),
    ) -> Result<SlotLookup> {
        let fanout = core.fanout(&self.layout);
        let Some(path) = fanout.path(block) else {
            return Ok(SlotLookup::Missing(u64::MAX - block));
        };
        let slot = path.slots[path.depth];
        let left = |whole: u32| {
            debug_assert!(u32::from(slot) < whole, "a slot is within its node");
            low16(whole - u32::from(slot))
        };
        let ino = inode.nid();
        if path.depth == 0 && core.inline.contains(Inline::DATA) {
            // The bytes of the slots are inline content.
            return Ok(SlotLookup::Missing(left(fanout.inode).into()));
        }
        if path.depth == 0 {
            return Ok(SlotLookup::Slot(Slot {
                node: self.inode_node(ino, tag)?,
                slot,
                left: left(fanout.inode),
                in_inode: true,
            }));
        }
        let leaf = |node| Slot {
            node,
            slot,
            left: left(fanout.direct),
            in_inode: false,
        };
        if let Some(nid) = self.recovered().leaf(ino, path.offsets[path.depth]) {
            let node = self.expect_node(nid, ino, path.offsets[path.depth], tag)?;
            visit(&node);
            return Ok(SlotLookup::Slot(leaf(node)));
        }
        let mut at = self.inode_node(ino, tag)?;
        for level in 1..=path.depth {
            let nid = child(&at.data()?, level - 1, path.slots[level - 1]);
            // In a recovered file an id may refer to no node: the node below it was found by its offset instead.
            let missing = nid.some().is_none()
                || (self.recovered().has(ino) && !self.nat.entry(nid, tag)?.is_used());
            if missing {
                return Ok(SlotLookup::Missing(self.missing(
                    ino,
                    fanout.direct,
                    &path,
                    level,
                )));
            }
            at = self.expect_node(nid, ino, path.offsets[level], tag)?;
            visit(&at);
        }
        Ok(SlotLookup::Slot(leaf(at)))
    }

    /// Blocks from the path's block to the end of what the missing node at `level` would map.
    fn missing(&self, ino: Nid, direct: u32, path: &NodePath, level: usize) -> u64 {
        let direct = u64::from(direct);
        let (mut size, mut at) = (1, 0);
        if !self.recovered().has(ino) {
            for slot in &path.slots[level..path.depth] {
                size *= u64::from(PER_NODE);
                at = at * u64::from(PER_NODE) + u64::from(*slot);
            }
        }
        debug_assert!(at < size, "a block is below the nodes of its path");
        size * direct - at * direct - u64::from(path.slots[path.depth])
    }

    /// Offsets of the nodes that mapping `block` would have to create; none past the largest file.
    pub(crate) fn missing_nodes(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        block: u64,
        tag: IoTag,
    ) -> Result<Vec<u32>> {
        let Some(path) = core.fanout(&self.layout).path(block) else {
            return Ok(Vec::new());
        };
        let ino = inode.nid();
        let mut at = self.inode_node(ino, tag)?;
        for level in 1..=path.depth {
            let nid = child(&at.data()?, level - 1, path.slots[level - 1]);
            if nid.some().is_none() {
                return Ok(path.offsets[level..=path.depth].to_vec());
            }
            at = self.expect_node(nid, ino, path.offsets[level], tag)?;
        }
        Ok(Vec::new())
    }

    /// Finds the slot that maps a file block and creates missing nodes. Each must be reserved, for the inode
    /// ([`Inode::reserve_nodes`]) or by the caller.
    ///
    /// # Errors
    /// `FileTooBig` past the largest file; corruption; a device error. Nodes created before the failure stay.
    pub(crate) fn make_slot(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        block: u64,
        tag: IoTag,
    ) -> Result<Slot> {
        let fanout = core.fanout(&self.layout);
        let path = fanout.path(block).ok_or(FsError::FileTooBig)?;
        let ino = inode.nid();
        let mut at = self.inode_node(ino, tag)?;
        for level in 1..=path.depth {
            let slot = path.slots[level - 1];
            let nid = child(&at.data()?, level - 1, slot);
            at = if nid.some().is_some() {
                self.expect_node(nid, ino, path.offsets[level], tag)?
            } else {
                let made = self.make_node(change, inode, core, path.offsets[level], tag)?;
                let mut parent = self.nodes.change(change, &at)?;
                if level == 1 {
                    inode::set_nid_at(&mut parent, slot, made.nid());
                } else {
                    node::set_child(&mut parent, slot, made.nid());
                }
                made
            };
        }
        let whole = if path.depth == 0 {
            fanout.inode
        } else {
            fanout.direct
        };
        let slot = path.slots[path.depth];
        assert!(u32::from(slot) < whole, "a slot is within its node");
        Ok(Slot {
            node: at,
            slot,
            left: low16(whole - u32::from(slot)),
            in_inode: path.depth == 0,
        })
    }

    /// Creates a node that is not an inode and counts it in the inode; the caller sets the reference to it.
    fn make_node(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        offset: u32,
        tag: IoTag,
    ) -> Result<Arc<Node>> {
        assert!(offset > 0, "offset 0 is that of the inode itself");
        self.mark_dirty(change, inode, tag)?;
        let ino = inode.nid();
        let (nid, entry) = self.nat.alloc_nid(change, Some(ino), tag)?;
        assert!(entry.ino == ino, "a new node belongs to its inode");
        let footer = Footer {
            nid,
            ino,
            offset,
            cold: inode.kind() != FileKind::Directory,
            ..Footer::default()
        };
        inode.consume_node_reservation(offset);
        self.space.use_node(false);
        core.blocks += 1;
        let block = node::new_block(&footer);
        Ok(self.nodes.insert_new(change, nid, entry, &block))
    }

    /// The stored address in a slot, special values included.
    pub(crate) fn addr_in(&self, core: &disk::Inode, slot: &Slot) -> Result<BlockAddr> {
        Ok(slot.addr(&self.layout, core, &slot.content()?, 0))
    }

    /// Sets the address in a slot and returns the old one. The block counts of inode and volume follow: a block where
    /// there was none uses one reserved block; the old block becomes invalid.
    pub(crate) fn set_slot(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        slot: &Slot,
        addr: BlockAddr,
        tag: IoTag,
    ) -> Result<BlockAddr> {
        assert!(
            slot.in_inode == (slot.node.nid() == inode.nid()),
            "a slot is in the inode's own node or in another"
        );
        let old = self.addr_in(core, slot)?;
        if old == addr {
            return Ok(old);
        }
        self.mark_dirty(change, inode, tag)?;
        self.store_slot(change, core, slot, addr)?;
        let was_own = !old.is_block() || self.invalidate(change, old, BlockKind::Data);
        match (core.counts(old), core.counts(addr)) {
            (false, true) => {
                self.space.use_block();
                core.blocks += 1;
            }
            (true, false) => {
                self.space.free_blocks(was_own.into());
                core.blocks = core.blocks.saturating_sub(1).max(1);
            }
            _ => {}
        }
        Ok(old)
    }

    /// Stores an address in a slot. The caller has marked the inode dirty, and counts.
    pub(crate) fn store_slot(
        &self,
        change: &Change<'_>,
        core: &mut disk::Inode,
        slot: &Slot,
        addr: BlockAddr,
    ) -> Result<()> {
        let mut data = self.nodes.change(change, &slot.node)?;
        if slot.in_inode {
            core.set_addr(&self.layout, &mut data, slot.slot, addr);
        } else {
            node::set_addr(&mut data, slot.slot, addr);
        }
        // The kernel trusts the extent that is stored in the inode.
        core.extent.len = 0;
        Ok(())
    }

    /// The node of an inode's extended attributes, if it has one.
    pub(crate) fn xattr_node(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        tag: IoTag,
    ) -> Result<Option<Arc<Node>>> {
        let ino = inode.nid();
        let recovered = self.recovered().leaf(ino, XATTR_OFFSET);
        match recovered.or(core.xattr_nid.some()) {
            Some(nid) => self.expect_node(nid, ino, XATTR_OFFSET, tag).map(Some),
            None => Ok(None),
        }
    }

    /// Creates an empty node for an inode's extended attributes; the caller has reserved it.
    pub(crate) fn make_xattr_node(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        tag: IoTag,
    ) -> Result<Arc<Node>> {
        assert!(
            core.xattr_nid.some().is_none(),
            "an inode has at most one xattr node"
        );
        let node = self.make_node(change, inode, core, XATTR_OFFSET, tag)?;
        core.xattr_nid = node.nid();
        Ok(node)
    }

    /// Frees the node of an inode's extended attributes, if it has one.
    pub(crate) fn free_xattr_node(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        tag: IoTag,
    ) -> Result<()> {
        if let Some(node) = self.xattr_node(inode, core, tag)? {
            self.mark_dirty(change, inode, tag)?;
            core.xattr_nid = Nid(0);
            self.free_node(change, inode, core, &node);
        }
        Ok(())
    }

    /// Frees a node that is not an inode and to which nothing refers.
    pub(crate) fn free_node(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &mut disk::Inode,
        node: &Node,
    ) {
        assert!(
            node.nid() != inode.nid(),
            "an inode's own node is freed last"
        );
        let old = self.nat.remove(change, node.nid(), node.entry());
        self.nodes.forget(change, node);
        self.since_cp.free_nodes_of(inode.nid());
        core.blocks = core.blocks.saturating_sub(1).max(1);
        self.space.free_node(false);
        self.invalidate(change, old, BlockKind::Node);
    }

    /// Creates an inode with a reserved node, of the given number, which is free, or any. `make` receives the inode's number and the node's content, all zeros,
    /// writes inline content there, and returns the fields. The inode is dirty, without a name and without lookups.
    pub(crate) fn new_inode(
        &self,
        change: &Change<'_>,
        (given, rdev): (Option<Nid>, u32),
        make: impl FnOnce(Nid, &mut [u8]) -> disk::Inode,
        tag: IoTag,
    ) -> Result<Arc<Inode>> {
        let (nid, entry) = match given {
            Some(nid) => (nid, self.nat.alloc_nid_at(change, nid, tag)?),
            None => self.nat.alloc_nid(change, None, tag)?,
        };
        let mut block = vec![0; BLOCK_SIZE];
        let core = make(nid, &mut block);
        self.insert_inode(change, (nid, entry), core, (rdev, Role::Plain), block)
    }

    /// Inserts a new inode with this id, whose owners have entries in quota files. `block` is its node's content without
    /// fields and footer; `rdev` the number of a device node.
    pub(crate) fn insert_inode(
        &self,
        change: &Change<'_>,
        (nid, entry): (Nid, NatEntry),
        core: disk::Inode,
        (rdev, role): (u32, Role),
        mut block: Vec<u8>,
    ) -> Result<Arc<Inode>> {
        assert!(entry.ino == nid, "an inode's own node belongs to it");
        let footer = Footer {
            nid,
            ino: nid,
            cold: core.kind() != Some(FileKind::Directory),
            ..Footer::default()
        };
        footer.encode_into(&mut block);
        core.encode_into(&self.layout, &mut block)?;
        let inode = Inode::new(&self.writeback, nid, core, rdev, role)?;
        self.space.use_node(true);
        self.inodes.announce(nid);
        let node = self.nodes.insert_new(change, nid, entry, &block);
        let inode = self.inodes.insert_new(self.with_nothing_charged(inode));
        self.inodes.mark_dirty(&inode, node);
        self.recount(&inode);
        Ok(inode)
    }

    /// Frees an inode's own node, after everything else of it was freed.
    pub(crate) fn free_inode(&self, change: &Change<'_>, inode: &Inode, tag: IoTag) -> Result<()> {
        assert!(!inode.marks.is_dead(), "an inode is freed once");
        let nid = inode.nid();
        let node = self.inode_node(nid, tag)?;
        self.uncharge(change, inode, tag)?;
        let old = self.nat.remove(change, nid, node.entry());
        inode.marks.set_dead();
        self.inodes.remove(nid);
        self.nodes.forget(change, &node);
        self.space.free_node(true);
        self.invalidate(change, old, BlockKind::Node);
        Ok(())
    }
}

/// The id in a slot of the node at this level of a path.
fn child(data: &[u8], level: usize, slot: u16) -> Nid {
    if level == 0 {
        inode::nid_at(data, slot)
    } else {
        node::child(data, slot)
    }
}

fn low16(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}
