//! The snapshot: the content of the next checkpoint, copied while nothing changes. No I/O.

use std::sync::Arc;

use steadfs_base::{Corruption, FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_cache::{CollectedBlock, WriteError};
use steadfs_vfs::{FsError, Result};

use super::Reason;
use crate::cp_lock::Change;
use crate::disk::checkpoint::CpFlags;
use crate::disk::node::{Footer, NodeKind};
use crate::disk::summary::CompactSummaries;
use crate::disk::{
    BlockAddr, Checkpoint, DiskError, LogType, SEGMENT_BLOCKS, Structure, inode, orphan,
};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::nat::NatPlan;
use crate::node::content::NodeContent;
use crate::node::{Node, SlotLookup};
use crate::segment::{BlockKind, SegmentSnapshot};

/// Flags that are set or cleared anew by each checkpoint.
const PER_CHECKPOINT_FLAGS: CpFlags = CpFlags::UNMOUNT
    .union(CpFlags::ORPHANS)
    .union(CpFlags::COMPACT_SUMMARIES)
    .union(CpFlags::FASTBOOT)
    .union(CpFlags::NAT_BITS)
    .union(CpFlags::TRIMMED)
    .union(CpFlags::NOCRC_RECOVERY)
    .union(CpFlags::DISABLED)
    .union(CpFlags::DISABLED_QUICK);

/// A directory block with its new address.
pub struct DirBlock {
    pub inode: Arc<Inode>,
    pub block: u64,
    pub addr: BlockAddr,
    pub data: Buf,
}

/// Nodes with their new addresses.
pub type PlacedNodes = Vec<(BlockAddr, NodeContent)>;

/// Dirty blocks for which a block was allocated.
pub struct PlacedBlocks {
    pub nodes: PlacedNodes,
    /// The same nodes in memory, so that a node being written is not evicted and read again.
    pub in_flight_nodes: Vec<Arc<Node>>,
    pub dirs: Vec<DirBlock>,
    /// Whether these are all dirty blocks. The others stay dirty.
    pub allocated: Result<()>,
}

/// Everything that a checkpoint will write.
pub struct Snapshot {
    pub checkpoint: Checkpoint,
    /// The pack's first block and payload.
    pub head: Vec<u8>,
    pub orphans: Vec<Vec<u8>>,
    pub nat: NatPlan,
    pub segments: SegmentSnapshot,
    pub nodes: PlacedNodes,
    /// The same nodes in memory, so that a node being written is not evicted and read again.
    pub in_flight_nodes: Vec<Arc<Node>>,
    pub dirs: Vec<DirBlock>,
    /// The pack contains the summaries of the node logs.
    pub node_summaries: bool,
    /// It is the last one before checkpoints are disabled.
    pub disables_cp: bool,
    /// Node writes of fsyncs started before the snapshot: the checkpoint refers to these nodes.
    pub writes_before: u64,
}

/// The log for a node with this footer, with `active_logs=` logs in use.
pub fn log_of(footer: &Footer, active_logs: u8) -> LogType {
    debug_assert!(
        matches!(active_logs, 2 | 4 | 6),
        "the option has one of three values"
    );
    match footer.kind() {
        _ if active_logs == 2 => LogType::HotNode,
        NodeKind::Indirect | NodeKind::DoubleIndirect => LogType::ColdNode,
        // As in the kernel, nodes of files are marked cold and go to the warm log.
        _ if footer.cold => LogType::WarmNode,
        _ if active_logs == 4 => LogType::ColdNode,
        _ => LogType::HotNode,
    }
}

impl F2fs {
    pub(super) fn take_snapshot(
        &self,
        _: &Change<'_>,
        placed: PlacedBlocks,
        reason: Reason,
    ) -> Result<Snapshot> {
        assert!(
            placed.allocated.is_ok(),
            "a checkpoint has all dirty blocks"
        );
        let PlacedBlocks {
            nodes,
            in_flight_nodes,
            dirs,
            ..
        } = placed;
        assert!(
            self.nodes.dirty_count() == 0,
            "a block was allocated for each dirty node"
        );
        assert!(
            nodes.len() == in_flight_nodes.len(),
            "each node in flight stays in memory"
        );
        let writes_before = self.node_writes.started();
        let nat = self.nat.snapshot();
        let segments = self.segments().snapshot();
        let orphans = orphan::encode(&self.orphans.snapshot());
        // With `fastboot` each checkpoint has the node summaries, so that the next mount is fast.
        let fastboot_summaries = reason == Reason::Sync && self.options.read().fastboot;
        let node_summaries = fastboot_summaries || reason == Reason::Unmount;
        let mut checkpoint = self.compose(&nat, &segments, orphans.len(), reason, node_summaries);
        let head = checkpoint.encode(&self.layout)?;
        self.since_cp.clear();
        assert!(
            self.nat.dirty_count() == 0 && !self.orphans.has_changed(),
            "the snapshot has every change of tables"
        );
        self.checkpoints.begin(&checkpoint);
        Ok(Snapshot {
            checkpoint,
            head,
            orphans,
            nat,
            segments,
            nodes,
            in_flight_nodes,
            dirs,
            node_summaries,
            disables_cp: reason == Reason::Disable,
            writes_before,
        })
    }

    /// Allocates a block for each dirty directory block, inode and node; inodes are first stored in their nodes.
    pub(super) fn place_dirty(&self, change: &Change<'_>) -> PlacedBlocks {
        let mut placed = PlacedBlocks {
            nodes: Vec::new(),
            in_flight_nodes: Vec::new(),
            dirs: Vec::new(),
            allocated: Ok(()),
        };
        placed.allocated = self.place_into(change, &mut placed);
        if let Err(error) = &placed.allocated {
            let (dirs, rest) = std::mem::take(&mut placed.dirs)
                .into_iter()
                .partition(|dir| dir.addr != BlockAddr::NULL);
            placed.dirs = dirs;
            assert!(
                placed.nodes.len() == placed.in_flight_nodes.len(),
                "each node in flight stays in memory"
            );
            self.redirty_dirs(&rest, error);
        }
        placed
    }

    fn place_into(&self, change: &Change<'_>, placed: &mut PlacedBlocks) -> Result<()> {
        self.flush_quota(change)?;
        // Directories, long symbolic links and quota files.
        for inode in self.inodes.dirty_others() {
            self.place_directory(change, &inode, &mut placed.dirs)?;
        }
        let (node_version, _) = self.checkpoints.node_version();
        let mut place = |node: Arc<Node>| {
            let found = self.place_node(change, &node, node_version, Marks::default())?;
            if let Some(found) = found {
                placed.nodes.push(found);
                placed.in_flight_nodes.push(node);
            }
            Ok::<_, FsError>(())
        };
        // Each inode is stored and its node placed before the next one is stored: few nodes are whole at a time.
        let mut nodes = self.nodes.dirty().into_iter().peekable();
        for inode in self.inodes.dirty() {
            let own = (inode.nid(), 0);
            while let Some((_, node)) = nodes.next_if(|(position, _)| *position < own) {
                place(node)?;
            }
            let core = inode.core.read();
            if let Some(node) = self.store_inode(change, &inode, &core)? {
                place(node)?;
            }
        }
        nodes.try_for_each(|(_, node)| place(node))
    }

    fn place_directory(
        &self,
        change: &Change<'_>,
        inode: &Arc<Inode>,
        dirs: &mut Vec<DirBlock>,
    ) -> Result<()> {
        // The change that made the block dirty made its slot and marked the slot's node dirty: nothing is read here.
        let tag = IoTag::default();
        let taken = inode.pages.collect(0..u64::MAX, usize::MAX);
        let mut core = inode.core.write();
        let first = dirs.len();
        dirs.extend(
            taken
                .into_iter()
                .map(|CollectedBlock { block, data, .. }| DirBlock {
                    inode: Arc::clone(inode),
                    block: block.0,
                    addr: BlockAddr::NULL,
                    data,
                }),
        );
        for dir in &mut dirs[first..] {
            let SlotLookup::Slot(slot) = self.find_slot(inode, &core, dir.block, tag)? else {
                return Err(Corruption::new("has no slot in its node")
                    .in_inode(inode.nid())
                    .at_file_block(FileBlock(dir.block))
                    .into());
            };
            let placed = self.segments().place(LogType::HotData, slot.owner())?;
            dir.addr = placed.addr;
            self.set_slot(change, inode, &mut core, &slot, placed.addr, tag)?;
        }
        assert!(
            dirs[first..].iter().all(|dir| dir.addr.is_block()),
            "each block of the directory has an address"
        );
        Ok(())
    }

    /// Makes directory blocks dirty again after the checkpoint failed.
    pub(super) fn redirty_dirs(&self, dirs: &[DirBlock], error: &FsError) {
        let error = WriteError::from(error.clone());
        for dir in dirs {
            let run = dir.block..dir.block + 1;
            dir.inode.pages.complete(run, Err(&error), false);
        }
    }

    /// Allocates a block for a node if it is dirty. Returns its address and its content with a new footer.
    pub(crate) fn place_node(
        &self,
        change: &Change<'_>,
        node: &Node,
        node_version: u64,
        marks: Marks,
    ) -> Result<Option<(BlockAddr, NodeContent)>> {
        let active_logs = self.options.read().active_logs;
        let placed = self.nodes.place(change, node, |block| {
            let footer = Footer::parse(block);
            let log = log_of(&footer, active_logs);
            let at = self.segments().place_node(log, footer.nid)?;
            let footer = Footer {
                cp_version: node_version,
                next: at.next,
                fsync: marks.fsync,
                dentry: marks.dentry,
                ..footer
            };
            footer.encode_into(block);
            if footer.offset == 0 {
                inode::seal(&self.layout, block);
            }
            Ok(at.addr)
        })?;
        Ok(placed.map(|placed| {
            assert!(
                placed.entry.addr != placed.old,
                "a node is never overwritten in place"
            );
            self.nat.set(change, node.nid(), placed.entry);
            self.invalidate(change, placed.old, BlockKind::Node);
            (placed.entry.addr, placed.data)
        }))
    }

    /// The flags of the next checkpoint that do not depend on what it stores.
    fn next_flags(&self, last: CpFlags, reason: Reason) -> CpFlags {
        let mut flags = last
            .without(PER_CHECKPOINT_FLAGS)
            .union(CpFlags::CRC_RECOVERY);
        for (on, flag) in [
            (reason == Reason::Unmount, CpFlags::UNMOUNT),
            (self.is_corrupt(), CpFlags::FSCK),
            (reason == Reason::Disable, CpFlags::DISABLED),
            (self.quota.is_wrong(), CpFlags::QUOTA_FSCK),
        ] {
            flags = if on { flags.union(flag) } else { flags };
        }
        assert!(
            !flags.contains(CpFlags::UNMOUNT) || !flags.contains(CpFlags::DISABLED),
            "a checkpoint has one reason"
        );
        flags
    }

    /// The fields of the next checkpoint.
    fn compose(
        &self,
        nat: &NatPlan,
        segments: &SegmentSnapshot,
        orphan_blocks: usize,
        reason: Reason,
        node_summaries: bool,
    ) -> Checkpoint {
        let last = self.checkpoints.last();
        let (counts, wrong) = self.space.snapshot(segments.valid);
        if wrong {
            let rule = "less than the number of valid blocks in the segment table, or the number of nodes differs";
            let found = counts.valid_blocks;
            let what = Structure::Checkpoint;
            self.record_corruption(
                &DiskError::field(what, "valid_block_count", found, rule).into(),
            );
        }
        let data = [LogType::HotData, LogType::WarmData, LogType::ColdData];
        let entries: u32 = data
            .map(|log| segments.logs[log.index()].summaries())
            .iter()
            .sum();
        assert!(
            entries <= 3 * SEGMENT_BLOCKS,
            "a log has a summary entry for each block of its segment"
        );
        let packed = CompactSummaries::blocks_for(entries as usize) as u32;
        let mut flags = self.next_flags(last.flags, reason);
        let fastboot_summaries = node_summaries && reason != Reason::Unmount;
        for (on, flag) in [
            (orphan_blocks > 0, CpFlags::ORPHANS),
            (packed < 3, CpFlags::COMPACT_SUMMARIES),
            (fastboot_summaries, CpFlags::FASTBOOT),
        ] {
            flags = if on { flags.union(flag) } else { flags };
        }
        let start_sum = 1 + self.layout.cp_payload + orphan_blocks as u32;
        let data_blocks = packed.min(3);
        let node_blocks = if node_summaries { 3 } else { 0 };
        let pack_blocks = start_sum + data_blocks + node_blocks + 1;
        assert!(
            pack_blocks <= SEGMENT_BLOCKS,
            "a pack does not overlap the other one"
        );
        Checkpoint {
            version: last.version + 1,
            user_blocks: counts.user_blocks,
            valid_blocks: counts.valid_blocks,
            free_segments: segments.free_segments,
            logs: segments.logs,
            flags,
            pack_blocks,
            start_sum,
            valid_nodes: counts.valid_nodes as u32,
            valid_inodes: counts.valid_inodes as u32,
            next_free_nid: self.nat.next_free(),
            elapsed: segments.elapsed,
            sit_bitmap: segments.sit_bitmap.clone(),
            nat_bitmap: nat.bitmap.clone(),
            ..last
        }
    }
}

/// Marks in the footer of a node that fsync writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marks {
    /// The last node of an fsync.
    pub fsync: bool,
    /// Roll-forward has to create the inode's name.
    pub dentry: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_share_logs_with_fewer_active_logs() {
        let node = |offset, cold| Footer {
            offset,
            cold,
            ..Footer::default()
        };
        let (file, dir, indirect) = (node(0, true), node(1, false), node(3, true));
        let logs = |active| [&file, &dir, &indirect].map(|footer| log_of(footer, active));
        use LogType::{ColdNode, HotNode, WarmNode};
        assert_eq!(logs(6), [WarmNode, HotNode, ColdNode]);
        assert_eq!(logs(4), [WarmNode, ColdNode, ColdNode]);
        assert_eq!(logs(2), [HotNode; 3]);
    }
}
