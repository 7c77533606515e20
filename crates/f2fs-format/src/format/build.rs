//! A new volume in memory: only the blocks that are not empty.

use std::collections::BTreeMap;

use steadfs_base::Timestamp;

use super::plan::{Plan, first_block};
use super::{FormatError, FormatOptions};
use crate::disk::bits::{self, Order};
use crate::disk::checkpoint::{ALLOC_LFS, BITMAPS_AT, CpFlags, CursegState, LAST_CHECKSUM_AT};
use crate::disk::summary::{CompactSummaries, Summary, SummaryBlock, SummaryKind};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, Layout, LogType, NatEntry, Nid, SitEntry, journal, nat,
};

/// The address in the NAT entries of the two internal inodes that are never on disk.
const NO_ADDRESS: BlockAddr = BlockAddr(1);

pub(super) struct Build {
    pub plan: Plan,
    /// Blocks by address, without the superblocks.
    pub blocks: BTreeMap<u32, Vec<u8>>,
    /// Summaries of the used blocks of each log, by [`LogType`].
    summaries: [Vec<Summary>; 6],
    nodes: Vec<(Nid, NatEntry)>,
}

impl Build {
    /// Builds everything but the checkpoints, which record whether the device was discarded.
    pub(super) fn new(
        plan: Plan,
        opts: &FormatOptions,
        now: Timestamp,
    ) -> Result<Self, FormatError> {
        let mut build = Self {
            plan,
            blocks: BTreeMap::new(),
            summaries: Default::default(),
            nodes: Vec::new(),
        };
        build.make_files(opts, now)?;
        build.make_nat();
        Ok(build)
    }

    pub(super) fn layout(&self) -> &Layout {
        self.plan.superblock.layout()
    }

    /// The address of the next block of a log.
    pub(super) fn next_address(&self, log: LogType) -> BlockAddr {
        first_block(&self.plan, log).plus(self.used(log))
    }

    fn used(&self, log: LogType) -> u32 {
        self.summaries[log.index()].len() as u32
    }

    /// Appends a block to a log; `nid` and `slot` are its owner.
    pub(super) fn append(
        &mut self,
        log: LogType,
        nid: Nid,
        slot: u16,
        block: Vec<u8>,
    ) -> BlockAddr {
        let at = self.next_address(log);
        let version = 0;
        self.summaries[log.index()].push(Summary { nid, version, slot });
        self.blocks.insert(at.0, block);
        at
    }

    /// Sets the address of an inode.
    pub(super) fn set_nat(&mut self, ino: Nid, addr: BlockAddr) {
        let version = 0;
        self.nodes.push((ino, NatEntry { version, ino, addr }));
    }

    /// The first NAT block: the internal inodes, the root directory and the quota files. The other entries are in
    /// the journal, together with these.
    fn make_nat(&mut self) {
        let mut block = vec![0; BLOCK_SIZE];
        let mut put = |ino: Nid, addr| {
            let version = 0;
            nat::put(&mut block, ino.0 as usize, NatEntry { version, ino, addr });
        };
        put(Nid::NODE, NO_ADDRESS);
        put(Nid::META, NO_ADDRESS);
        let quota = self.plan.superblock.quota_inodes();
        for (ino, entry) in &self.nodes {
            if *ino == Nid::ROOT || quota.contains(&Some(*ino)) {
                put(*ino, entry.addr);
            }
        }
        let at = self.layout().nat_block(0, false);
        self.blocks.insert(at.0, block);
    }

    /// Both checkpoint packs: the first is current, the second is older.
    pub(super) fn make_checkpoints(
        &mut self,
        version: u32,
        trimmed: bool,
    ) -> Result<(), FormatError> {
        let layout = self.layout().clone();
        let mut checkpoint = self.checkpoint(&layout, version, trimmed);
        let first = layout.pack_start(0);
        self.write_pack_heads(&layout, first, &mut checkpoint)?;
        self.write_summaries(first, checkpoint.start_sum);
        self.write_nat_bits(&layout, first, checkpoint.version_with_checksum());
        checkpoint.version = 0;
        self.write_pack_heads(&layout, layout.pack_start(1), &mut checkpoint)
    }

    fn checkpoint(&self, layout: &Layout, version: u32, trimmed: bool) -> Checkpoint {
        let mut flags = CpFlags::UNMOUNT
            .union(CpFlags::COMPACT_SUMMARIES)
            .union(CpFlags::NAT_BITS);
        if trimmed {
            flags = flags.union(CpFlags::TRIMMED);
        }
        let mut checksum_at = LAST_CHECKSUM_AT;
        if self.plan.large_nat_bitmap {
            flags = flags.union(CpFlags::LARGE_NAT_BITMAP);
            checksum_at = BITMAPS_AT;
        }
        let kept = self.plan.overprovision_segments;
        let blocks_of =
            |segments: u32| u64::from(segments) * u64::from(crate::disk::SEGMENT_BLOCKS);
        let nodes = self.nodes.len() as u32;
        let last = self.nodes.iter().map(|(nid, _)| nid.0).max().unwrap_or(0);
        Checkpoint {
            version: version.into(),
            user_blocks: blocks_of(layout.main_segments - kept),
            valid_blocks: self.summaries.iter().map(|log| log.len() as u64).sum(),
            reserved_segments: self.plan.reserved_segments,
            overprovision_segments: kept,
            free_segments: layout.main_segments - LogType::ALL.len() as u32,
            logs: LogType::ALL.map(|log| CursegState {
                segment: self.plan.logs[log.index()],
                offset: self.summaries[log.index()].len() as u16,
                alloc: ALLOC_LFS,
            }),
            flags,
            pack_blocks: layout.cp_payload + 6,
            start_sum: layout.cp_payload + 1,
            valid_nodes: nodes,
            valid_inodes: nodes,
            next_free_nid: Nid(last + 1),
            checksum_at: checksum_at as u32,
            checksum: 0,
            elapsed: 0,
            sit_bitmap: vec![0; (layout.sit_blocks / 8) as usize],
            nat_bitmap: vec![0; (layout.nat_blocks / 8) as usize],
        }
    }

    /// First and last block of a pack, and the payload.
    fn write_pack_heads(
        &mut self,
        layout: &Layout,
        at: BlockAddr,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), FormatError> {
        let bytes = checkpoint.encode(layout)?;
        let last = at.plus(checkpoint.pack_blocks - 1);
        self.blocks.insert(last.0, bytes[..BLOCK_SIZE].to_vec());
        for (block, n) in bytes.chunks(BLOCK_SIZE).zip(0..) {
            self.blocks.insert(at.plus(n).0, block.to_vec());
        }
        Ok(())
    }

    /// The summaries of the cursegs with both journals.
    fn write_summaries(&mut self, pack: BlockAddr, start: u32) {
        use LogType::{ColdData, ColdNode, HotData, HotNode, WarmData, WarmNode};
        let segments = [HotNode, WarmNode, ColdNode, HotData, WarmData, ColdData].map(|log| {
            let mut entry = SitEntry::empty(log);
            for offset in 0..self.used(log) {
                entry.set_valid(offset, true);
            }
            (self.plan.logs[log.index()], entry)
        });
        let data = CompactSummaries {
            nat_journal: journal::encode_nat(&self.nodes),
            sit_journal: journal::encode_sit(&segments),
            logs: [HotData, WarmData, ColdData].map(|log| self.summaries[log.index()].clone()),
        };
        let at = pack.plus(start);
        self.blocks.insert(at.0, data.encode());
        for (log, n) in [HotNode, WarmNode, ColdNode].into_iter().zip(1..) {
            let mut block = SummaryBlock::empty(SummaryKind::Nodes);
            let used = &self.summaries[log.index()];
            block.entries[..used.len()].copy_from_slice(used);
            self.blocks.insert(at.plus(n).0, block.encode());
        }
    }

    /// `nat_bits` at the end of the pack's segment: no NAT block is full, all but the first are empty.
    fn write_nat_bits(&mut self, layout: &Layout, pack: BlockAddr, version: u64) {
        let count = layout.nat_bits_blocks();
        let map = (layout.nat_blocks / 8) as usize;
        let mut bytes = vec![0; count as usize * BLOCK_SIZE];
        bytes[..8].copy_from_slice(&version.to_le_bytes());
        let empty = &mut bytes[8 + map..8 + 2 * map];
        empty.fill(0xFF);
        bits::put(Order::LowFirst, empty, 0, false);
        let at = pack.plus(crate::disk::SEGMENT_BLOCKS - count);
        for (block, n) in bytes.chunks(BLOCK_SIZE).zip(0..) {
            self.blocks.insert(at.plus(n).0, block.to_vec());
        }
    }
}
