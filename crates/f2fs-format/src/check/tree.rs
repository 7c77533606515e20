//! An inode's tree: its nodes, each in its place and in no other, and what they map.

use steadfs_vfs::FileKind;

use super::tables::{DirBlock, Slot};
use super::{Checker, Issue};
use crate::disk::inode::{Extent, Inline, nid_at};
use crate::disk::node::{
    self, DOUBLE_INDIRECT, FIRST_INDIRECT, Fanout, Footer, PER_NODE, SECOND_INDIRECT,
};
use crate::disk::summary::Summary;
use crate::disk::{BlockAddr, DiskError, Inode, Nid, Structure};

/// The walk over one inode's blocks.
pub(super) struct Walk {
    pub(super) ino: Nid,
    pub(super) fanout: Fanout,
    is_dir: bool,
    /// Blocks counted, those of nodes included.
    pub(super) blocks: u64,
    /// Blocks in a cluster of a compressed file.
    cluster: Option<u64>,
    /// Saved blocks were given back: marks of compressed clusters take no block.
    released: bool,
    /// Blocks that compression saves.
    pub(super) saved: u64,
    /// The compressed cluster that the walk is in: its first block.
    inside: Option<u64>,
    /// In it a slot without a block was seen.
    ended: bool,
    /// The cached extent, and how many of its blocks lie as it says.
    extent: Extent,
    matched: u64,
}

impl Walk {
    pub(super) fn new(
        ino: Nid,
        kind: FileKind,
        inode: &Inode,
        fanout: Fanout,
        cluster: bool,
    ) -> Self {
        let log = inode.compression.map_or(0, |how| how.log_cluster.min(31));
        Self {
            ino,
            fanout,
            is_dir: kind == FileKind::Directory,
            blocks: 1,
            cluster: cluster.then_some(1 << log),
            released: inode.inline.contains(Inline::COMPRESS_RELEASED),
            saved: 0,
            inside: None,
            ended: false,
            extent: inode.extent,
            matched: 0,
        }
    }

    /// Whether the cached extent, if there is one, is how its blocks lie.
    pub(super) fn extent_holds(&self) -> bool {
        self.extent.len == 0 || self.matched == u64::from(self.extent.len)
    }

    fn note_extent(&mut self, block: u64, addr: BlockAddr) {
        let extent = self.extent;
        let Some(within) = block.checked_sub(extent.file_block.into()) else {
            return;
        };
        if within < extent.len.into() && u64::from(extent.addr.0) + within == addr.0.into() {
            self.matched += 1;
        }
    }
}

impl Checker<'_> {
    /// Walks an inode's addresses and the nodes below it.
    pub(super) fn walk_tree(&mut self, walk: &mut Walk, inode: &Inode, block: &[u8], version: u8) {
        let nid = walk.ino;
        for slot in 0..walk.fanout.inode as u16 {
            let addr = inode.addr(&self.layout, block, slot);
            let owner = Summary { nid, version, slot };
            self.address(walk, slot.into(), addr, owner);
        }
        let children = [
            (1, 1),
            (2, 1),
            (FIRST_INDIRECT, 2),
            (SECOND_INDIRECT, 2),
            (DOUBLE_INDIRECT, 3),
        ];
        for (slot, (offset, level)) in (0..).zip(children) {
            self.walk_node(walk, nid_at(block, slot), offset, level);
        }
    }

    /// Walks the node at a place of the tree: level 1 maps data, higher ones have nodes below them.
    fn walk_node(&mut self, walk: &mut Walk, nid: Nid, offset: u32, level: usize) {
        if nid.some().is_none() {
            return;
        }
        let mut block = std::mem::take(&mut self.buffers[level]);
        if let Some(version) = self.read_node(walk.ino, nid, offset, &mut block) {
            walk.blocks += 1;
            if level == 1 {
                self.walk_direct(walk, &block, nid, offset, version);
            } else {
                // Each child of the double indirect node has its own children behind it.
                let step = if level == 3 { PER_NODE + 1 } else { 1 };
                for slot in 0..PER_NODE {
                    let child = node::child(&block, slot as u16);
                    self.walk_node(walk, child, offset + 1 + slot * step, level - 1);
                }
            }
        }
        self.buffers[level] = block;
    }

    fn walk_direct(&mut self, walk: &mut Walk, block: &[u8], nid: Nid, offset: u32, version: u8) {
        let Some(first) = walk.fanout.first_block(offset) else {
            return;
        };
        for slot in 0..walk.fanout.direct as u16 {
            let addr = node::addr(block, slot);
            let owner = Summary { nid, version, slot };
            self.address(walk, first + u64::from(slot), addr, owner);
        }
    }

    /// Takes what a slot says of a block of the file.
    fn address(&mut self, walk: &mut Walk, block: u64, addr: BlockAddr, owner: Summary) {
        if let Some(size) = walk.cluster
            && block.is_multiple_of(size)
        {
            (walk.inside, walk.ended) = (None, false);
        }
        match addr {
            BlockAddr::NULL => walk.ended = true,
            BlockAddr::COMPRESSED => self.cluster_mark(walk, block),
            BlockAddr::NEW => {
                walk.ended = true;
                self.reservation(walk, block);
            }
            addr => {
                if walk.inside.is_some() && walk.ended {
                    let why = "has a block behind its end";
                    self.cluster_issue(walk, block, why);
                }
                self.data(walk, block, addr, owner);
            }
        }
    }

    fn cluster_issue(&mut self, walk: &Walk, block: u64, why: &'static str) {
        let ino = walk.ino;
        self.issue(Issue::Cluster { ino, block, why });
    }

    /// The mark of a compressed cluster, in the place of its first block.
    fn cluster_mark(&mut self, walk: &mut Walk, block: u64) {
        match walk.cluster {
            None => self.cluster_issue(walk, block, "is marked compressed in a file that is not"),
            Some(size) if !block.is_multiple_of(size) => {
                self.cluster_issue(walk, block, "has its mark not at its start");
            }
            Some(_) => {
                walk.inside = Some(block);
                walk.ended = false;
                if !walk.released {
                    walk.blocks += 1;
                    walk.saved += 1;
                    self.report.stats.blocks_used += 1;
                }
            }
        }
    }

    /// A block that is promised and not written.
    fn reservation(&mut self, walk: &mut Walk, block: u64) {
        walk.blocks += 1;
        self.report.stats.blocks_used += 1;
        if walk.inside.is_some() {
            if walk.released {
                self.cluster_issue(walk, block, "keeps a block that was given back");
            } else {
                walk.saved += 1;
            }
        }
    }

    fn data(&mut self, walk: &mut Walk, block: u64, addr: BlockAddr, owner: Summary) {
        let ino = walk.ino;
        if !self.layout.is_main(addr) {
            let (nid, slot) = (owner.nid, owner.slot);
            return self.issue(Issue::BadAddress {
                ino,
                nid,
                slot,
                addr,
            });
        }
        walk.blocks += 1;
        walk.note_extent(block, addr);
        self.claim_data(ino, addr, owner);
        if walk.is_dir {
            // The largest file has fewer than 2^32 blocks.
            let file_block = block as u32;
            self.dir_blocks.push(DirBlock { file_block, addr });
        }
    }

    /// Reads the node that an inode's tree names, if it is there, is this inode's and in its place, and in
    /// no other; its version.
    pub(super) fn read_node(
        &mut self,
        ino: Nid,
        nid: Nid,
        offset: u32,
        block: &mut Vec<u8>,
    ) -> Option<u8> {
        let Some(slot) = self.nat.get_mut(&self.layout, nid) else {
            self.issue(Issue::NodeMissing { ino, nid, offset });
            return None;
        };
        let (stored, addr, version) = (slot.ino, slot.addr, slot.version);
        if stored != ino {
            self.issue(Issue::NodeOwner { ino, nid, stored });
            return None;
        }
        if slot.set(Slot::REACHED) {
            self.issue(Issue::NodeTwice { ino, nid });
            return None;
        }
        self.claim_node(ino, nid, addr);
        self.read_footer(ino, nid, addr, offset, block)?;
        Some(version)
    }

    /// Reads a node's block, if its footer is right.
    pub(super) fn read_footer(
        &mut self,
        ino: Nid,
        nid: Nid,
        addr: BlockAddr,
        offset: u32,
        block: &mut Vec<u8>,
    ) -> Option<Footer> {
        if !self.read_block(addr, block) {
            return None;
        }
        let footer = Footer::parse(block);
        let place = || {
            if footer.offset == offset {
                return Ok(());
            }
            let (field, rule) = ("node offset", "not its place in the tree");
            let error = DiskError::field(Structure::Node, field, footer.offset, rule);
            Err(error.in_node(nid))
        };
        if let Err(error) = footer.check(nid, ino).and_then(|()| place()) {
            self.issue(Issue::Node(error.in_block(addr)));
            return None;
        }
        let (version, checkpoint) = (footer.cp_version as u32, self.checkpoint.version as u32);
        if version > checkpoint {
            self.issue(Issue::NodeVersion {
                nid,
                version,
                checkpoint,
            });
        }
        Some(footer)
    }
}
