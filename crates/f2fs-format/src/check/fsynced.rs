//! Nodes that fsync wrote after the checkpoint: the chain after the position of the warm node log, which the next
//! mount recovers (roll-forward). They are counted, and must not use blocks of other owners in the checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use super::tables::Blocks;
use super::{Checker, Issue};
use crate::disk::checkpoint::CpFlags;
use crate::disk::inode::Inline;
use crate::disk::node::{self, Footer, NodeKind, PER_NODE};
use crate::disk::{BlockAddr, DiskError, Inode, LogType, Nid, Structure};

struct Found {
    addr: BlockAddr,
    footer: Footer,
}

impl Checker<'_> {
    /// Follows the chain and checks what roll-forward would recover.
    pub(super) fn check_fsynced(&mut self) {
        let chain = self.follow_chain();
        let ends = self.recovered(&chain);
        self.report.stats.fsynced_files = ends.len() as u64;
        let mut over = BTreeSet::new();
        let mut block = Vec::new();
        for (n, found) in chain.iter().enumerate() {
            let recovered_here = ends.get(&found.footer.ino).is_some_and(|&end| n <= end);
            if recovered_here && self.read_block(found.addr, &mut block) {
                self.report.stats.fsynced_nodes += 1;
                self.check_fsynced_node(found, &block, &mut over);
            }
        }
    }

    /// The nodes of the chain in order. Each occurs once, and memory is limited.
    fn follow_chain(&mut self) -> Vec<Found> {
        let mut chain = Vec::new();
        if !self.has_log(LogType::WarmNode) {
            return chain;
        }
        let log = self.checkpoint.log(LogType::WarmNode);
        let mut addr = self.layout.block_in(log.segment, log.offset.into());
        let mut seen: Option<Blocks> = None;
        let limit = self.options.memory_limit / 2 / size_of::<Found>() as u64;
        let mut block = Vec::new();
        while let Some((segment, offset)) = self.layout.segment_of(addr) {
            if (chain.len() as u64) >= limit || !self.read_block(addr, &mut block) {
                break;
            }
            let footer = Footer::parse(&block);
            if !self.follows_checkpoint(&footer) {
                break;
            }
            let layout = &self.layout;
            let seen = seen.get_or_insert_with(|| Blocks::new(layout));
            if seen.set(segment, offset) {
                break;
            }
            if self.valid.get(segment, offset) {
                let (ino, block) = (footer.ino, addr);
                self.issue(Issue::FsyncedOver { ino, block });
                break;
            }
            chain.push(Found { addr, footer });
            addr = footer.next;
        }
        chain
    }

    fn follows_checkpoint(&self, footer: &Footer) -> bool {
        let wanted = self.checkpoint.node_version();
        if self.checkpoint.flags.contains(CpFlags::NOCRC_RECOVERY) {
            return footer.cp_version as u32 == wanted as u32;
        }
        footer.cp_version == wanted
    }

    /// The last node with an fsync mark of each inode that roll-forward recovers: inodes in the checkpoint, and
    /// those with a dentry mark.
    fn recovered(&self, chain: &[Found]) -> BTreeMap<Nid, usize> {
        let mut ends = BTreeMap::new();
        let mut named = BTreeSet::new();
        for (n, found) in chain.iter().enumerate().filter(|(_, f)| f.footer.fsync) {
            ends.insert(found.footer.ino, n);
            if found.footer.kind() == NodeKind::Inode && found.footer.dentry {
                named.insert(found.footer.ino);
            }
        }
        ends.retain(|ino, _| {
            let slot = self.nat.get(&self.layout, *ino);
            named.contains(ino) || slot.is_some_and(|slot| slot.ino == *ino)
        });
        ends
    }

    fn check_fsynced_node(&mut self, found: &Found, block: &[u8], over: &mut BTreeSet<u32>) {
        let (nid, ino) = (found.footer.nid, found.footer.ino);
        let kind = found.footer.kind();
        let owner = self.nat.get(&self.layout, nid).map(|slot| slot.ino);
        let known = self.layout.is_nid(nid) && self.layout.is_nid(ino);
        let result = if !known || owner.is_some_and(|owner| owner != ino) {
            let rule = "a node of another inode";
            Err(DiskError::field(Structure::Node, "footer nid", nid.0, rule))
        } else {
            found.footer.check(nid, ino)
        };
        if let Err(error) = result {
            return self.issue(Issue::Fsynced(error.in_block(found.addr)));
        }
        let mut addrs = Vec::new();
        match kind {
            NodeKind::Inode => match Inode::parse(&self.layout, nid, block) {
                Ok(inode) => self.inode_addrs(&inode, block, &mut addrs),
                Err(error) => return self.issue(Issue::Fsynced(error.in_block(found.addr))),
            },
            NodeKind::Direct => {
                addrs.extend((0..PER_NODE).map(|slot| node::addr(block, slot as u16)));
            }
            NodeKind::Indirect | NodeKind::DoubleIndirect | NodeKind::Xattr => {}
        }
        for addr in addrs.into_iter().filter(|addr| addr.is_block()) {
            self.check_fsynced_addr(ino, nid, addr, over);
        }
    }

    fn inode_addrs(&self, inode: &Inode, block: &[u8], addrs: &mut Vec<BlockAddr>) {
        use steadfs_vfs::FileKind::{Directory, Regular, Symlink};
        let inline = inode.inline.contains(Inline::DATA) || inode.inline.contains(Inline::DENTRIES);
        if inline || !matches!(inode.kind(), Some(Regular | Directory | Symlink)) {
            return;
        }
        let slots = 0..inode.fanout(&self.layout).inode as u16;
        addrs.extend(slots.map(|slot| inode.addr(&self.layout, block, slot)));
    }

    /// Checks that a block that is valid in the checkpoint belongs to the same file there.
    fn check_fsynced_addr(
        &mut self,
        ino: Nid,
        nid: Nid,
        addr: BlockAddr,
        over: &mut BTreeSet<u32>,
    ) {
        let Some((segment, offset)) = self.layout.segment_of(addr) else {
            let rule = "outside the main area";
            let error = DiskError::address(Structure::Node, addr, rule);
            return self.issue(Issue::Fsynced(error.in_node(nid)));
        };
        if !self.valid.get(segment, offset) {
            return;
        }
        let owner = self.owner_of(segment, offset);
        if owner.is_some_and(|owner| owner != ino) && over.insert(addr.0) {
            let block = addr;
            self.issue(Issue::FsyncedOver { ino, block });
        }
    }
}
