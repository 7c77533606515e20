//! The node tree of an inode: each node at its node offset and in one tree only, and the blocks they map.

use steadfs_vfs::FileKind;

use super::tables::{DirBlock, Slot};
use super::{Checker, Issue};
use crate::disk::inode::{Extent, Inline, nid_at};
use crate::disk::node::{
    self, DOUBLE_INDIRECT, FIRST_INDIRECT, Fanout, Footer, PER_NODE, SECOND_INDIRECT,
};
use crate::disk::summary::Summary;
use crate::disk::{BlockAddr, DiskError, Inode, Nid, Structure};

/// The state of walking one inode's tree.
pub(super) struct Walk {
    pub(super) ino: Nid,
    pub(super) fanout: Fanout,
    is_dir: bool,
    /// Blocks counted, including nodes.
    pub(super) blocks: u64,
    /// Blocks per cluster of a compressed file.
    cluster: Option<u64>,
    /// Saved blocks were released: the marks of compressed clusters do not count as blocks.
    released: bool,
    /// Blocks that compression saves.
    pub(super) saved: u64,
    /// First block of the compressed cluster that the walk is in.
    inside: Option<u64>,
    /// A slot without a block was seen in this cluster.
    ended: bool,
    /// The cached extent, and the number of blocks that match it.
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

    /// Whether the cached extent matches the block map; true if there is none.
    pub(super) fn extent_holds(&self) -> bool {
        self.extent.len == 0 || self.matched == u64::from(self.extent.len)
    }

    fn compare_extent(&mut self, block: u64, addr: BlockAddr) {
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

    /// Walks a node: level 1 maps data, higher levels have child nodes.
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
                // Each child of the double indirect node is followed by its own children.
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

    /// Checks the address of a file block.
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
                    let why = "has a block after its end";
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

    /// Checks the mark of a compressed cluster, which takes the slot of its first block.
    fn cluster_mark(&mut self, walk: &mut Walk, block: u64) {
        match walk.cluster {
            None => self.cluster_issue(
                walk,
                block,
                "is marked as compressed in a file that is not compressed",
            ),
            Some(size) if !block.is_multiple_of(size) => {
                self.cluster_issue(walk, block, "has its mark not in its first slot");
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

    /// Checks a reserved block (`NEW_ADDR`).
    fn reservation(&mut self, walk: &mut Walk, block: u64) {
        walk.blocks += 1;
        self.report.stats.blocks_used += 1;
        if walk.inside.is_some() {
            if walk.released {
                self.cluster_issue(
                    walk,
                    block,
                    "has a reserved block although its blocks were released",
                );
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
        walk.compare_extent(block, addr);
        self.record_data_block(ino, addr, owner);
        if walk.is_dir {
            // The largest file has fewer than 2^32 blocks.
            let file_block = block as u32;
            self.dir_blocks.push(DirBlock { file_block, addr });
        }
    }

    /// Reads a node of an inode's tree if it exists, belongs to this inode, has the right node offset and is in no
    /// other tree. Returns its NAT version.
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
        self.record_node_block(ino, nid, addr);
        self.read_footer(ino, nid, addr, offset, block)?;
        Some(version)
    }

    /// Reads a node block and verifies its footer.
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
        let check_offset = || {
            if footer.offset == offset {
                return Ok(());
            }
            let (field, rule) = ("node offset", "not its position in the tree");
            let error = DiskError::field(Structure::Node, field, footer.offset, rule);
            Err(error.in_node(nid))
        };
        if let Err(error) = footer.check(nid, ino).and_then(|()| check_offset()) {
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
