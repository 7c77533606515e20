//! The areas of a volume, and the positions of node ids, segments and blocks in them.

use steadfs_format_base::casefold::Encoding;

use super::num::{idx, low32, wide};
use super::superblock::RawSuperblock;
use super::{
    BlockAddr, DiskError, Features, Nid, Result, SEGMENT_BLOCKS, SegNo, Structure, checksum,
};
use super::{nat, sit, superblock};

/// The six logs, by number (`CURSEG_HOT_DATA` to `CURSEG_COLD_NODE`). A SIT entry has the log's number as the type
/// of the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogType {
    /// Directory blocks.
    HotData,
    /// Data of files.
    WarmData,
    /// Data that changes rarely, or was moved by GC.
    ColdData,
    /// Inodes and direct nodes of directories.
    HotNode,
    /// Inodes and direct nodes of files.
    WarmNode,
    /// Indirect nodes.
    ColdNode,
}

impl LogType {
    /// All six, by number.
    pub const ALL: [Self; 6] = [
        Self::HotData,
        Self::WarmData,
        Self::ColdData,
        Self::HotNode,
        Self::WarmNode,
        Self::ColdNode,
    ];

    /// The number.
    pub const fn number(self) -> u8 {
        match self {
            Self::HotData => 0,
            Self::WarmData => 1,
            Self::ColdData => 2,
            Self::HotNode => 3,
            Self::WarmNode => 4,
            Self::ColdNode => 5,
        }
    }

    /// The number as an array index.
    pub fn index(self) -> usize {
        self.number().into()
    }

    /// The log with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The content of the log in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HotData => "hot data",
            Self::WarmData => "warm data",
            Self::ColdData => "cold data",
            Self::HotNode => "hot node",
            Self::WarmNode => "warm node",
            Self::ColdNode => "cold node",
        }
    }

    /// Whether it holds nodes.
    pub const fn is_node(self) -> bool {
        self.number() >= Self::HotNode.number()
    }
}

/// Everything that does not change while a volume is mounted. The areas are in disk order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Feature bits.
    pub features: Features,
    /// Blocks of the volume.
    pub block_count: u64,
    /// First block of the first checkpoint pack; each pack has one segment.
    pub cp_start: u32,
    /// Blocks after the first one of a pack that continue its bitmaps (`cp_payload`).
    pub cp_payload: u32,
    /// First block of the segment information table.
    pub sit_start: u32,
    /// Blocks of one copy of the SIT.
    pub sit_blocks: u32,
    /// First block of the node address table.
    pub nat_start: u32,
    /// Blocks of one copy of the NAT.
    pub nat_blocks: u32,
    /// First block of the segment summaries.
    pub ssa_start: u32,
    /// First block of the main area.
    pub main_start: u32,
    /// Segments of the main area.
    pub main_segments: u32,
    /// Segments per section, the unit of GC.
    pub segments_per_section: u32,
    /// Sections in a zone.
    pub sections_per_zone: u32,
    /// The upper bound of node ids, exclusive.
    pub max_nid: u32,
    /// The seed of inode checksums.
    pub checksum_seed: u32,
    /// Encoding of names in case-insensitive directories; `None` without the feature, or if it is unknown.
    pub encoding: Option<Encoding>,
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Superblock, field, value, rule)
}

impl Layout {
    /// Validates the superblock fields that other code computes with.
    pub(super) fn of(raw: &RawSuperblock) -> Result<Self> {
        check_units(raw)?;
        check_areas(raw)?;
        let copy_blocks = |segments: u32| (segments / 2) * SEGMENT_BLOCKS;
        let sit_blocks = copy_blocks(raw.segment_count_sit.get());
        let nat_blocks = copy_blocks(raw.segment_count_nat.get());
        let main_segments = raw.segment_count_main.get();
        if u64::from(sit_blocks) * wide(sit::PER_BLOCK) < main_segments.into() {
            return Err(bad(
                "segment_count_sit",
                raw.segment_count_sit.get(),
                "too few",
            ));
        }
        // Volumes with the feature `ro` are never garbage collected and need no summaries.
        let summaries = u64::from(raw.segment_count_ssa.get()) * u64::from(SEGMENT_BLOCKS);
        let read_only = Features(raw.feature.get()).contains(Features::READ_ONLY);
        if summaries < main_segments.into() && !read_only {
            return Err(bad(
                "segment_count_ssa",
                raw.segment_count_ssa.get(),
                "too few",
            ));
        }
        let max_nid = u64::from(nat_blocks) * wide(nat::PER_BLOCK);
        Ok(Self {
            features: Features(raw.feature.get()),
            block_count: raw.block_count.get(),
            cp_start: raw.cp_blkaddr.get(),
            cp_payload: raw.cp_payload.get(),
            sit_start: raw.sit_blkaddr.get(),
            sit_blocks,
            nat_start: raw.nat_blkaddr.get(),
            nat_blocks,
            ssa_start: raw.ssa_blkaddr.get(),
            main_start: raw.main_blkaddr.get(),
            main_segments,
            segments_per_section: raw.segs_per_sec.get(),
            sections_per_zone: raw.secs_per_zone.get(),
            max_nid: low32(max_nid.min(u32::MAX.into())),
            checksum_seed: checksum::seed_of_volume(&raw.uuid),
            encoding: Encoding::from_disk(raw.encoding.get(), raw.encoding_flags.get())
                .filter(|_| Features(raw.feature.get()).contains(Features::CASEFOLD)),
        })
    }

    /// Whether the volume has a feature.
    pub const fn has(&self, feature: Features) -> bool {
        self.features.contains(feature)
    }

    /// First block of a checkpoint pack, 0 or 1.
    pub const fn pack_start(&self, pack: u32) -> BlockAddr {
        debug_assert!(pack < 2);
        BlockAddr(self.cp_start + pack * SEGMENT_BLOCKS)
    }

    /// Whether this is a valid node id.
    pub const fn is_nid(&self, nid: Nid) -> bool {
        nid.0 > Nid::META.0 && nid.0 < self.max_nid
    }

    /// The NAT block (within one copy) and the slot of a node's entry.
    pub fn nat_slot(&self, nid: Nid) -> (u32, usize) {
        let per = low32(wide(nat::PER_BLOCK));
        (nid.0 / per, idx(nid.0 % per))
    }

    /// The address of a NAT block; the two copies alternate by segment.
    pub const fn nat_block(&self, block: u32, second: bool) -> BlockAddr {
        debug_assert!(block < self.nat_blocks);
        let within = block % SEGMENT_BLOCKS;
        let first = self.nat_start + (block - within) * 2 + within;
        BlockAddr(first + if second { SEGMENT_BLOCKS } else { 0 })
    }

    /// The SIT block (within one copy) and the slot of a segment's entry.
    pub fn sit_slot(&self, segment: SegNo) -> (u32, usize) {
        let per = low32(wide(sit::PER_BLOCK));
        (segment.0 / per, idx(segment.0 % per))
    }

    /// The address of a SIT block; the second copy follows the first.
    pub const fn sit_block(&self, block: u32, second: bool) -> BlockAddr {
        debug_assert!(block < self.sit_blocks);
        BlockAddr(self.sit_start + block + if second { self.sit_blocks } else { 0 })
    }

    /// Blocks of one copy of the SIT that have entries.
    pub fn sit_used_blocks(&self) -> u32 {
        self.main_segments.div_ceil(low32(wide(sit::PER_BLOCK)))
    }

    /// The summary block of a segment.
    pub const fn summary_block(&self, segment: SegNo) -> BlockAddr {
        BlockAddr(self.ssa_start + segment.0)
    }

    /// Blocks of the main area.
    pub const fn main_blocks(&self) -> u32 {
        self.main_segments * SEGMENT_BLOCKS
    }

    /// The segment of a block in the main area, and the offset in it; `None` outside the main area.
    pub fn segment_of(&self, addr: BlockAddr) -> Option<(SegNo, u32)> {
        let within = addr.0.checked_sub(self.main_start)?;
        (within < self.main_blocks())
            .then_some((SegNo(within / SEGMENT_BLOCKS), within % SEGMENT_BLOCKS))
    }

    /// Whether a block is in the main area.
    pub fn is_main(&self, addr: BlockAddr) -> bool {
        self.segment_of(addr).is_some()
    }

    /// The block at `offset` of a segment.
    pub const fn block_in(&self, segment: SegNo, offset: u32) -> BlockAddr {
        debug_assert!(segment.0 < self.main_segments && offset < SEGMENT_BLOCKS);
        BlockAddr(self.main_start + segment.0 * SEGMENT_BLOCKS + offset)
    }

    /// Blocks of `nat_bits` at the end of a pack's segment.
    pub fn nat_bits_blocks(&self) -> u32 {
        low32((u64::from(self.nat_blocks / 8) * 2 + 8).div_ceil(wide(super::BLOCK_SIZE)))
    }
}

fn check_units(raw: &RawSuperblock) -> Result<()> {
    let sector = raw.log_sectorsize.get();
    if raw.log_blocksize.get() != 12 {
        let value = raw.log_blocksize.get();
        return Err(bad(
            "log_blocksize",
            value,
            "only 4 KiB blocks are supported",
        ));
    }
    if raw.log_blocks_per_seg.get() != 9 {
        return Err(bad(
            "log_blocks_per_seg",
            raw.log_blocks_per_seg.get(),
            "not 9",
        ));
    }
    if !(9..=12).contains(&sector) {
        return Err(bad("log_sectorsize", sector, "not 9 to 12"));
    }
    if raw.log_sectors_per_block.get() != 12 - sector {
        let value = raw.log_sectors_per_block.get();
        return Err(bad(
            "log_sectors_per_block",
            value,
            "not the sectors of a 4 KiB block",
        ));
    }
    for (field, value, expected) in [
        ("root_ino", raw.root_ino.get(), Nid::ROOT),
        ("node_ino", raw.node_ino.get(), Nid::NODE),
        ("meta_ino", raw.meta_ino.get(), Nid::META),
    ] {
        if value != expected.0 {
            return Err(bad(field, value, "not the reserved inode number"));
        }
    }
    let extensions = raw.extension_count.get();
    let hot = u32::from(raw.hot_ext_count);
    if extensions.saturating_add(hot) > superblock::MAX_EXTENSIONS {
        return Err(bad(
            "extension_count",
            extensions,
            "more extensions than the list can hold",
        ));
    }
    // A pack also has its first and last block and six summaries.
    if raw.cp_payload.get() >= SEGMENT_BLOCKS - 2 - 6 {
        return Err(bad(
            "cp_payload",
            raw.cp_payload.get(),
            "more than a pack can hold",
        ));
    }
    Ok(())
}

fn check_areas(raw: &RawSuperblock) -> Result<()> {
    check_counts(raw)?;
    check_order(raw)?;
    check_devices(raw)
}

/// Validates the numbers of segments, sections and zones.
fn check_counts(raw: &RawSuperblock) -> Result<()> {
    let segments = raw.segment_count.get();
    if !(superblock::MIN_SEGMENTS..=superblock::MAX_SEGMENTS).contains(&segments) {
        return Err(bad("segment_count", segments, "not in the valid range"));
    }
    if u64::from(segments) > raw.block_count.get() / u64::from(SEGMENT_BLOCKS) {
        return Err(bad("segment_count", segments, "beyond block_count"));
    }
    let sections = raw.section_count.get();
    let per_section = raw.segs_per_sec.get();
    if per_section == 0 || per_section > segments {
        return Err(bad("segs_per_sec", per_section, "not in the valid range"));
    }
    let per_zone = raw.secs_per_zone.get();
    if per_zone == 0 || per_zone > sections {
        return Err(bad("secs_per_zone", per_zone, "not in the valid range"));
    }
    let main = raw.segment_count_main.get();
    if sections == 0 || u64::from(sections) * u64::from(per_section) > main.into() {
        return Err(bad(
            "section_count",
            sections,
            "not the sections of the main area",
        ));
    }
    for (field, count) in [
        ("segment_count_sit", raw.segment_count_sit.get()),
        ("segment_count_nat", raw.segment_count_nat.get()),
    ] {
        if count < 2 || count % 2 != 0 {
            return Err(bad(field, count, "not two equal copies"));
        }
    }
    let packs = raw.segment_count_ckpt.get();
    if packs < 2 {
        return Err(bad("segment_count_ckpt", packs, "not two packs"));
    }
    Ok(())
}

/// Validates that the devices of a volume on several have all of its segments.
fn check_devices(raw: &RawSuperblock) -> Result<()> {
    let named = raw.devs.iter().take_while(|dev| dev.path[0] != 0);
    let (mut count, mut segments) = (0_u32, 0_u64);
    for device in named {
        count += 1;
        segments += u64::from(device.total_segments.get());
    }
    if count > 0 && segments < u64::from(raw.segment_count.get()) {
        return Err(bad("devs", segments, "fewer segments than the volume"));
    }
    Ok(())
}

/// Validates that the areas follow each other, between the superblocks and the end of the volume.
fn check_order(raw: &RawSuperblock) -> Result<()> {
    let first = raw.segment0_blkaddr.get();
    let main = raw.segment_count_main.get();
    let mut at = u64::from(first);
    for (field, start, segments) in [
        ("cp_blkaddr", raw.cp_blkaddr, raw.segment_count_ckpt),
        ("sit_blkaddr", raw.sit_blkaddr, raw.segment_count_sit),
        ("nat_blkaddr", raw.nat_blkaddr, raw.segment_count_nat),
        ("ssa_blkaddr", raw.ssa_blkaddr, raw.segment_count_ssa),
        ("main_blkaddr", raw.main_blkaddr, raw.segment_count_main),
    ] {
        if u64::from(start.get()) != at {
            return Err(bad(field, start.get(), "not the end of the area before it"));
        }
        at += u64::from(segments.get()) * u64::from(SEGMENT_BLOCKS);
    }
    let segments = u64::from(raw.segment_count.get());
    let end = u64::from(first) + segments * u64::from(SEGMENT_BLOCKS);
    if at > end || at > raw.block_count.get() || at > BlockAddr::COMPRESSED.0.into() {
        return Err(bad("segment_count_main", main, "beyond the volume"));
    }
    if first < 2 {
        return Err(bad("segment0_blkaddr", first, "overlaps the superblocks"));
    }
    Ok(())
}
