//! Roll-forward into a volume that is written: what fsync wrote after the checkpoint becomes part of the next one.
//!
//! The nodes found are not used in place: their slots are copied to the volume's own nodes, the blocks they map become
//! valid, and names are created in their directories.
//!
//! **Rule.** Nothing is written before the checkpoint that ends recovery, and no block that recovery would need again
//! is overwritten before that checkpoint is durable. So after a crash in between, the next mount does the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::Buf;
use steadfs_vfs::{FileKind, FsError, InodeFlags, Result};

use super::{ChainNode, NodeLog};
use crate::dentry::{DentrySearch, FoundDentry, NewName};
use crate::disk::inode::Inline;
use crate::disk::node::{NodeKind, PER_NODE};
use crate::disk::xattr::NODE_XATTR_BYTES;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, LogType, Nid, Structure, node};
use crate::fs::F2fs;
use crate::inode::{Inode, Role};
use crate::node::SlotLookup;
use crate::quota::owners_of;
use crate::segment::Run;
use crate::space::Need;

/// Direct nodes freed in one step.
const DIRECT_NODES_PER_STEP: u32 = u32::MAX;

/// What recovery did, and the blocks that stay protected until it is durable.
#[derive(Default)]
pub struct Applied {
    /// Recovered inodes.
    pub files: u64,
    /// Recovered nodes.
    pub nodes: u64,
    /// Protected blocks that no file has.
    protected: Vec<BlockAddr>,
}

/// State of a recovery.
struct Apply<'f> {
    fs: &'f F2fs,
    /// Protected blocks, each with the inode and file block that has it.
    blocks: BTreeMap<BlockAddr, Option<(Nid, u64)>>,
    tag: IoTag,
}

impl F2fs {
    /// Recovers what fsync wrote after the checkpoint. The caller writes a checkpoint, then calls
    /// [`F2fs::finish_recovery`].
    ///
    /// # Errors
    /// Corruption, `NoSpace`, or a device error: the volume cannot be mounted for writing.
    pub(crate) fn recover(&self, tag: IoTag) -> Result<Applied> {
        assert!(
            self.recovery.is_running(),
            "roll-forward is part of recovery"
        );
        let log = self.read_log(tag)?;
        let mut apply = Apply {
            fs: self,
            blocks: BTreeMap::new(),
            tag,
        };
        let Some(last) = log.ends.values().max() else {
            return Ok(Applied::default());
        };
        for found in &log.chain[..=*last] {
            apply.protect(found.addr)?;
        }
        for found in log.wanted() {
            apply.protect_blocks_of(found)?;
        }
        self.segments().skip_protected()?;
        apply.make_inodes(&log)?;
        apply.end_compression(&log)?;
        let mut nodes = 0;
        for found in log.wanted() {
            apply.node(found)?;
            nodes += 1;
        }
        for (ino, addr) in log.names() {
            apply.name(ino, addr)?;
        }
        assert!(
            nodes >= log.ends.len() as u64,
            "each recovered inode has a node"
        );
        let free = |(addr, owner): (BlockAddr, Option<_>)| owner.is_none().then_some(addr);
        Ok(Applied {
            files: log.ends.len() as u64,
            nodes,
            protected: apply.blocks.into_iter().filter_map(free).collect(),
        })
    }

    /// The checkpoint that ends recovery is durable: releases the protected blocks.
    pub(crate) fn finish_recovery(&self, applied: Applied) {
        assert!(
            self.recovery.is_running() && !self.checkpoints.is_in_flight(),
            "recovery ends with a durable checkpoint"
        );
        for start in applied.protected {
            self.segments().release(Run { start, len: 1 });
        }
    }
}

impl Apply<'_> {
    /// Keeps a block from being overwritten.
    fn protect(&mut self, addr: BlockAddr) -> Result<()> {
        assert!(addr.is_block(), "only blocks are protected");
        if self.fs.segments().protect(addr)? {
            self.blocks.insert(addr, None);
        }
        Ok(())
    }

    fn read(&self, found: &ChainNode) -> Result<Buf> {
        let footer = &found.footer;
        self.fs
            .node_at(found.addr, footer.nid, footer.ino, self.tag)
    }

    /// Protects the blocks that a node maps.
    fn protect_blocks_of(&mut self, found: &ChainNode) -> Result<()> {
        let data = self.read(found)?;
        let layout = &self.fs.layout;
        let addrs: Vec<BlockAddr> = match found.footer.kind() {
            NodeKind::Inode => {
                let core = disk::Inode::parse(layout, found.footer.ino, &data)?;
                if core.inline.contains(Inline::DATA) || core.kind() != Some(FileKind::Regular) {
                    return Ok(());
                }
                let count = core.fanout(layout).inode as u16;
                (0..count)
                    .map(|slot| core.addr(layout, &data, slot))
                    .collect()
            }
            NodeKind::Direct => (0..PER_NODE as u16)
                .map(|slot| node::addr(&data, slot))
                .collect(),
            _ => return Ok(()),
        };
        for addr in addrs.into_iter().filter(|addr| addr.is_block()) {
            self.protect(addr)?;
        }
        Ok(())
    }

    /// Creates the inodes that the checkpoint does not have, because other nodes of them may be earlier in the chain.
    fn make_inodes(&self, log: &NodeLog) -> Result<()> {
        // A quota file that grows must not take the id of an inode that is still to be made.
        let mut lost = Vec::new();
        for ino in log.named.keys() {
            if !self.fs.is_in_checkpoint(*ino, self.tag)? {
                lost.push(*ino);
            }
        }
        self.fs.nat.keep(lost.into_iter());
        for (ino, n) in &log.named {
            if self.fs.is_in_checkpoint(*ino, self.tag)? {
                continue;
            }
            let node = &log.chain[*n];
            assert!(
                node.footer.ino == *ino && node.footer.dentry,
                "a dentry mark is in the inode's own node"
            );
            let data = self.read(node)?;
            let found = disk::Inode::parse(&self.fs.layout, *ino, &data)?;
            let core = disk::Inode {
                blocks: 1,
                xattr_nid: Nid(0),
                size: 0,
                ..found
            };
            let need = Need {
                blocks: 0,
                nodes: 1,
            };
            let owners = owners_of(&core);
            let _pins = self.fs.prepare_owners(owners, self.tag)?;
            self.fs.space.reserve(need, true)?;
            let change = self.fs.change()?;
            self.fs.touch_owners(&change, owners, self.tag)?;
            let entry = self.fs.nat.alloc_nid_at(&change, *ino, self.tag)?;
            let block = vec![0; BLOCK_SIZE];
            self.fs
                .insert_inode(&change, (*ino, entry), core, (0, Role::Plain), block)?;
        }
        Ok(())
    }

    /// Files that the checkpoint has as compressed, and the log as plain: nodes of a plain file map other numbers of blocks.
    /// As only an empty file can change, the blocks that it has in the checkpoint were freed since, and as an fsync of a
    /// compressed file is a checkpoint, all of its nodes in the log are from after the change.
    fn end_compression(&self, log: &NodeLog) -> Result<()> {
        let layout = &self.fs.layout;
        let inodes = log.wanted().filter(|n| n.footer.kind() == NodeKind::Inode);
        let last: BTreeMap<Nid, &ChainNode> = inodes.map(|n| (n.footer.ino, n)).collect();
        for (ino, node) in last {
            let data = self.read(node)?;
            let found = disk::Inode::parse(layout, ino, &data)?;
            let inode = self.fs.inode(ino, self.tag)?;
            let core = inode.core.read().clone();
            let ends = core.is_compressed(layout) && !found.is_compressed(layout);
            let plain = disk::Inode {
                flags: InodeFlags(core.flags.0 & !InodeFlags::COMPRESSED.0),
                ..core
            };
            if ends
                && found.kind() == Some(FileKind::Regular)
                && found.fanout(layout) == plain.fanout(layout)
            {
                self.empty(&inode)?;
                self.fields(&inode, &found, &data, false)?;
            }
        }
        Ok(())
    }

    /// Frees all blocks of a file.
    fn empty(&self, inode: &Inode) -> Result<()> {
        let change = self.fs.change()?;
        let mut core = inode.core.write();
        let limit = DIRECT_NODES_PER_STEP;
        self.fs
            .truncate_nodes(&change, inode, &mut core, 0, limit, self.tag)
            .map(drop)
    }

    /// Recovers a node.
    fn node(&mut self, found: &ChainNode) -> Result<()> {
        let data = self.read(found)?;
        let inode = self.fs.inode(found.footer.ino, self.tag)?;
        assert!(
            inode.nid() == found.footer.ino,
            "a node is recovered into its inode"
        );
        let offset = found.footer.offset;
        match found.footer.kind() {
            NodeKind::Inode => self.inode(&inode, &data),
            NodeKind::Xattr => self.attributes(&inode, &data),
            NodeKind::Direct => {
                let fanout = inode.core.read().fanout(&self.fs.layout);
                let first = fanout.first_block_below(offset);
                let slots = (0..fanout.direct as u16).map(|slot| node::addr(&data, slot));
                self.slots(&inode, first, slots.collect())
            }
            // Indirect nodes are created as they are needed.
            NodeKind::Indirect | NodeKind::DoubleIndirect => Ok(()),
        }
    }

    fn inode(&mut self, inode: &Inode, data: &Buf) -> Result<()> {
        let layout = &self.fs.layout;
        let found = disk::Inode::parse(layout, inode.nid(), data)?;
        let bad = |rule| {
            let error = DiskError::field(Structure::Inode, "i_inline", found.inline.0, rule);
            FsError::from(error.in_node(inode.nid()))
        };
        if found.kind() != Some(FileKind::Regular) || inode.kind() != FileKind::Regular {
            return Err(bad("recovered for an inode that is no regular file"));
        }
        if found.fanout(layout) != inode.core.read().fanout(layout) {
            return Err(bad("changes the layout of the block map"));
        }
        let inline = found.inline.contains(Inline::DATA);
        let was_inline = inode.has_inline_data();
        if inline && !was_inline {
            self.empty(inode)?;
        }
        self.fields(inode, &found, data, was_inline)?;
        if !inline {
            let count = found.fanout(layout).inode as u16;
            let slots = (0..count).map(|slot| found.addr(layout, data, slot));
            self.slots(inode, 0, slots.collect())?;
        }
        Ok(())
    }

    /// Recovers an inode's fields, its extended attributes, and its inline content.
    fn fields(
        &self,
        inode: &Inode,
        found: &disk::Inode,
        data: &Buf,
        was_inline: bool,
    ) -> Result<()> {
        assert!(
            found.kind() == Some(inode.kind()),
            "the caller has compared the types"
        );
        let layout = &self.fs.layout;
        let _pins = self.fs.prepare_owners(owners_of(found), self.tag)?;
        let change = self.fs.change()?;
        let mut core = inode.core.write();
        self.fs.mark_dirty(&change, inode, self.tag)?;
        *core = disk::Inode {
            blocks: core.blocks,
            xattr_nid: core.xattr_nid,
            ..found.clone()
        };
        core.extent.len = 0;
        self.fs.charge_owners(&change, inode, &core, self.tag);
        inode.set_size(core.size);
        let own = self.fs.inode_node(inode.nid(), self.tag)?;
        let mut bytes = self.fs.nodes.change(&change, &own)?;
        if found.inline.contains(Inline::DATA) {
            let area = found.inline_range(layout);
            bytes[area.clone()].copy_from_slice(&data[area]);
        } else if was_inline {
            bytes[found.inline_range(layout)].fill(0);
        }
        let area = found.xattr_range(layout);
        bytes[area.clone()].copy_from_slice(&data[area]);
        Ok(())
    }

    fn attributes(&self, inode: &Inode, data: &Buf) -> Result<()> {
        let (fs, tag) = (self.fs, self.tag);
        if inode.core.read().xattr_nid.some().is_none() {
            fs.space.reserve(
                Need {
                    blocks: 0,
                    nodes: 1,
                },
                true,
            )?;
            let change = fs.change()?;
            let mut core = inode.core.write();
            fs.make_xattr_node(&change, inode, &mut core, tag)?;
        }
        let change = fs.change()?;
        let core = inode.core.read();
        assert!(
            core.xattr_nid.some().is_some(),
            "the node for attributes was made"
        );
        if let Some(node) = fs.xattr_node(inode, &core, tag)? {
            fs.nodes.change(&change, &node)?[..NODE_XATTR_BYTES]
                .copy_from_slice(&data[..NODE_XATTR_BYTES]);
        }
        Ok(())
    }

    /// Sets the addresses of a file's blocks from `first` on to those in a recovered node.
    fn slots(&mut self, inode: &Inode, first: u64, found: Vec<BlockAddr>) -> Result<()> {
        assert!(
            found.len() <= PER_NODE as usize,
            "a node has this number of addresses"
        );
        for (block, addr) in (first..).zip(found) {
            let now = self.fs.slot(inode, block, self.tag)?;
            if now == addr {
                continue;
            }
            if addr == BlockAddr::COMPRESSED || now == BlockAddr::COMPRESSED {
                let rule = match addr {
                    BlockAddr::COMPRESSED => "a compressed cluster, which fsync does not write",
                    _ => "in place of a compressed cluster, which fsync does not write",
                };
                let error = DiskError::address(Structure::Node, addr, rule);
                return Err(error.in_node(inode.nid()).into());
            }
            self.slot(inode, block, now, addr)?;
        }
        Ok(())
    }

    fn slot(&mut self, inode: &Inode, block: u64, now: BlockAddr, addr: BlockAddr) -> Result<()> {
        let (fs, tag) = (self.fs, self.tag);
        assert!(now != addr, "an address that is there is not set again");
        let takes = now == BlockAddr::NULL;
        if takes {
            fs.space.reserve(
                Need {
                    blocks: 1,
                    nodes: 0,
                },
                true,
            )?;
            fs.reserve_nodes(inode, Some(block..block + 1), true, tag)?
                .keep();
        }
        let mut freed = false;
        if addr.is_block() {
            self.take_from_others(addr)?;
            // Another file had the block, in this chain or in the checkpoint. (The kernel's atomic writes keep their
            // blocks in an unlinked inode until the commit moves them to the file. If the checkpoint has them there,
            // that orphan has been freed by now.)
            freed = fs.segments().is_freed(addr);
        }
        let change = fs.change()?;
        let mut core = inode.core.write();
        let slot = fs.make_slot(&change, inode, &mut core, block, tag)?;
        if addr.is_block() {
            match freed {
                true => fs.segments().recover_freed_block(addr, slot.owner())?,
                false => fs
                    .segments()
                    .recover_block(addr, slot.owner(), LogType::WarmData)?,
            }
            self.blocks.insert(addr, Some((inode.nid(), block)));
        }
        fs.set_slot(&change, inode, &mut core, &slot, addr, tag)?;
        Ok(())
    }

    /// Removes an address from a file block, if the file block still has it.
    fn empty_slot(&self, inode: &Inode, block: u64, addr: BlockAddr) -> Result<()> {
        assert!(addr.is_block(), "only a block is taken from another file");
        let (fs, tag) = (self.fs, self.tag);
        let change = fs.change()?;
        let mut core = inode.core.write();
        let SlotLookup::Slot(slot) = fs.find_slot(inode, &core, block, tag)? else {
            return Ok(());
        };
        if fs.addr_in(&core, &slot)? == addr {
            fs.set_slot(&change, inode, &mut core, &slot, BlockAddr::NULL, tag)?;
        }
        Ok(())
    }

    /// The kernel may have written a block twice since the checkpoint, for two files: the later file keeps it.
    fn take_from_others(&mut self, addr: BlockAddr) -> Result<()> {
        let Some(Some((ino, block))) = self.blocks.get(&addr).copied() else {
            return Ok(());
        };
        let (fs, tag) = (self.fs, self.tag);
        let inode = fs.inode(ino, tag)?;
        self.empty_slot(&inode, block, addr)
    }

    /// Creates the name that a new inode was created with.
    fn name(&self, ino: Nid, addr: BlockAddr) -> Result<()> {
        let data = self.fs.node_at(addr, ino, ino, self.tag)?;
        let core = disk::Inode::parse(&self.fs.layout, ino, &data)?;
        let dir = self.fs.inode(core.parent, self.tag)?;
        let inode: Arc<Inode> = self.fs.inode(ino, self.tag)?;
        self.entry(&dir, (&core.name, core.name_hash), &inode)
    }

    /// Makes a stored name, with its hash in an encrypted, case-insensitive directory, refer to an inode.
    fn entry(&self, dir: &Inode, (name, hash): (&[u8], u32), inode: &Inode) -> Result<()> {
        if dir.kind() != FileKind::Directory || name.is_empty() {
            let rule = "not a directory in which a name can be created";
            let error = DiskError::field(Structure::Inode, "i_pino", dir.nid().0, rule);
            return Err(error.in_node(inode.nid()).into());
        }
        let (fs, tag) = (self.fs, self.tag);
        loop {
            match fs.search_stored(dir, (name, hash), tag)? {
                DentrySearch::Found(named) if named.ino == inode.nid() => return Ok(()),
                DentrySearch::Found(named) => {
                    let spelled = fs.is_spelled(dir, &named, name, tag)?;
                    self.replace(dir, (&named, spelled), inode)?;
                    if spelled {
                        return Ok(());
                    }
                }
                DentrySearch::InlineFull => fs.entries_to_blocks(dir, true, tag)?,
                DentrySearch::Free(room) => {
                    let mut reservation = fs.space.reservation(room.need, true)?;
                    let change = fs.change()?;
                    let mut core = dir.core.write();
                    let new = NewName {
                        ino: inode.nid(),
                        kind: inode.kind(),
                        name,
                    };
                    let place = (&room, &new);
                    return fs.insert_name(&change, dir, &mut core, &mut reservation, place, tag);
                }
            }
        }
    }

    /// The name referred to another inode, which loses it. An entry that is `spelled` as the name now refers to the new
    /// inode, another one is removed.
    fn replace(
        &self,
        dir: &Inode,
        (named, spelled): (&FoundDentry, bool),
        inode: &Inode,
    ) -> Result<()> {
        assert!(named.ino != inode.nid(), "the name refers to another inode");
        let (fs, tag) = (self.fs, self.tag);
        let other = fs.inode_of_entry(dir, named.ino, tag)?;
        let was_dir = other.kind() == FileKind::Directory;
        if was_dir && !fs.is_empty_dir(&other, tag)? {
            let rule = "not a name that can replace a directory with entries";
            let error = DiskError::field(Structure::Inode, "i_name", other.nid().0, rule);
            return Err(error.in_node(inode.nid()).into());
        }
        let left = {
            let change = fs.change()?;
            {
                let mut core = dir.core.write();
                let new = (inode.nid(), inode.kind());
                match spelled {
                    true => fs.retarget(&change, dir, &core, named, new, tag)?,
                    false => fs.remove_name(&change, dir, &mut core, named, tag)?,
                }
                if was_dir {
                    fs.mark_dirty(&change, dir, tag)?;
                    core.links = core.links.saturating_sub(1).max(2);
                }
            }
            let left = {
                let mut core = other.core.write();
                fs.mark_dirty(&change, &other, tag)?;
                core.links = if was_dir {
                    0
                } else {
                    core.links.saturating_sub(1)
                };
                core.links
            };
            if left == 0 {
                fs.orphans.add(&change, &other)?;
            }
            left
        };
        if left == 0 {
            fs.evict(&other, tag)?;
        }
        Ok(())
    }
}
