//! Reads nodes and directory blocks that stand beside one that is needed; `neighbours` decides when.

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::{Bio, Buf};

use super::neighbours::{BLOCKS, NeighbourReads};
use crate::disk::node::Footer;
use crate::disk::{BLOCK_SIZE, BlockAddr, Nid};
use crate::fs::F2fs;
use crate::segment::BlockKind;

impl F2fs {
    /// The blocks to be read for one of the main area that is not in memory, if more than that one: the first, and their
    /// number.
    fn neighbourhood(&self, reads: &NeighbourReads, addr: BlockAddr) -> Option<(BlockAddr, u32)> {
        let within = addr.0.checked_sub(self.layout.main_start)?;
        if !self.layout.is_main(addr) {
            return None;
        }
        let number = within / BLOCKS;
        let count = reads.ask(number);
        let first = BlockAddr(self.layout.main_start + number * BLOCKS);
        debug_assert!(
            count == 0 || self.layout.is_main(first.plus(count * BLOCKS - 1)),
            "read-ahead ends inside the main area"
        );
        (count > 0).then_some((first, count * BLOCKS))
    }

    /// Called before a node is read: reads those beside it in the log, too. Errors are not reported here: the read of
    /// a node meets them again.
    pub(super) fn read_nodes_beside(&self, nid: Nid, tag: IoTag) {
        if self.recovered().nodes() > 0 || !self.layout.is_nid(nid) {
            return;
        }
        let Ok(entry) = self.nat.entry(nid, tag) else {
            return;
        };
        self.node_reads.record_unused(self.nodes.take_unused());
        let Some((first, count)) = self.neighbourhood(&self.node_reads, entry.addr) else {
            return;
        };
        let commits = self.nat.commits();
        let mut bio = Bio::read(
            u64::from(first.0) * BLOCK_SIZE as u64,
            count as usize * BLOCK_SIZE,
        );
        bio.bufs = (0..count).map(|_| Buf::zeroed(BLOCK_SIZE)).collect();
        let Ok(bio) = self.queue.submit(bio, tag).into_bio() else {
            return;
        };
        for (n, data) in (0..).zip(bio.bufs) {
            self.keep_node(first.plus(n), data, commits);
        }
    }

    /// Keeps a block that was read ahead if it is a node that the NAT refers to. `commits`: the number of checkpoints
    /// when the read began.
    ///
    /// The block may be older than the node: nodes are written meanwhile. It is not if no checkpoint has ended since,
    /// and the node has not changed since the last one: the last checkpoint refers to the block, so it was not written
    /// again.
    fn keep_node(&self, addr: BlockAddr, data: Buf, commits: u64) {
        let footer = Footer::parse(&data);
        let nid = footer.nid;
        let Some(entry) = self.nat.unchanged_entry(nid) else {
            return;
        };
        if entry.addr != addr || footer.check(nid, entry.ino).is_err() {
            return;
        }
        let load = || {
            let is_current = self.nat.commits() == commits
                && self.nat.unchanged_entry(nid) == Some(entry)
                && entry.validate(&self.layout, nid).is_ok()
                && self
                    .segments
                    .get()
                    .is_none_or(|segments| segments.check_owned(addr, 1, BlockKind::Node).is_ok());
            let verified = is_current && self.verify_node(addr, nid, entry.ino, &data).is_ok();
            Ok(verified.then_some((data, entry)))
        };
        self.nodes.insert_read_ahead(nid, load);
    }

    /// Called before a directory block is read: reads the valid blocks beside it in the log, too.
    pub(super) fn read_dir_blocks_beside(&self, addr: BlockAddr, tag: IoTag) {
        let Some((first, count)) = self.neighbourhood(&self.dir_reads, addr) else {
            return;
        };
        let is_valid = |addr: &BlockAddr| {
            self.segments
                .get()
                .is_none_or(|segments| segments.is_valid(*addr))
        };
        let blocks: Vec<_> = (0..count)
            .map(|n| first.plus(n))
            .filter(is_valid)
            .map(|addr| DevBlock(addr.0.into()))
            .collect();
        self.meta.prefetch_blocks(&blocks, tag);
    }
}
