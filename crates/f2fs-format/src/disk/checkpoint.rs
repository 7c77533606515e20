//! Checkpoints: the state of the volume at one point in time. Each of the two packs is in a segment of its own:
//!
//! ```text
//! first block │ payload │ orphans │ data summaries │ node summaries │ first block again … nat_bits
//! ```
//!
//! A pack is valid if its first and its last block verify and have the same version. The valid pack with the higher
//! version is the state of the volume (the first one if they are equal, as after sload.f2fs). Node summaries are
//! present only after an unmount or with `fastboot`; `nat_bits`, a hint, is at the end of the segment.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use super::raw::RawCheckpoint;

use super::bits::{self, Order};
use super::num::{get32, idx, join32, put32};
use super::{
    BLOCK_SIZE, BlockAddr, DiskError, Features, Layout, LogType, Nid, Result, SEGMENT_BLOCKS,
    SegNo, Structure, checksum,
};

/// Start of the bitmaps in the first block, and the lowest offset of the checksum.
pub const BITMAPS_AT: usize = size_of::<RawCheckpoint>();
/// The highest offset of the checksum (`CP_CHKSUM_OFFSET`).
pub const LAST_CHECKSUM_AT: usize = BLOCK_SIZE - 4;
/// Allocation in a curseg: the next block (LFS).
pub const ALLOC_LFS: u8 = 0;
/// Allocation in a curseg: invalid blocks of the segment (SSR).
pub const ALLOC_SSR: u8 = 1;

/// Flags of a checkpoint (`ckpt_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpFlags(pub u32);

impl CpFlags {
    /// Written by unmount: node summaries are in the pack (`CP_UMOUNT_FLAG`).
    pub const UNMOUNT: Self = Self(0x1);
    /// The pack has orphans (`CP_ORPHAN_PRESENT_FLAG`).
    pub const ORPHANS: Self = Self(0x2);
    /// Data summaries are compacted (`CP_COMPACT_SUM_FLAG`).
    pub const COMPACT_SUMMARIES: Self = Self(0x4);
    /// A write failed (`CP_ERROR_FLAG`).
    pub const ERROR: Self = Self(0x8);
    /// fsck should be run (`CP_FSCK_FLAG`).
    pub const FSCK: Self = Self(0x10);
    /// Node summaries are in the pack although it was not written by unmount (`CP_FASTBOOT_FLAG`).
    pub const FASTBOOT: Self = Self(0x20);
    /// `cp_ver` of nodes has the checkpoint's checksum in its high half (`CP_CRC_RECOVERY_FLAG`).
    pub const CRC_RECOVERY: Self = Self(0x40);
    /// The end of the segment has `nat_bits` (`CP_NAT_BITS_FLAG`).
    pub const NAT_BITS: Self = Self(0x80);
    /// Free space has been discarded (`CP_TRIMMED_FLAG`).
    pub const TRIMMED: Self = Self(0x100);
    /// Nodes written since may lack the checksum in `cp_ver` (`CP_NOCRC_RECOVERY_FLAG`).
    pub const NOCRC_RECOVERY: Self = Self(0x200);
    /// Bitmaps follow the checksum (`CP_LARGE_NAT_BITMAP_FLAG`).
    pub const LARGE_NAT_BITMAP: Self = Self(0x400);
    /// Quota files need a check (`CP_QUOTA_NEED_FSCK_FLAG`).
    pub const QUOTA_FSCK: Self = Self(0x800);
    /// Written with checkpoint=disable (`CP_DISABLED_FLAG`).
    pub const DISABLED: Self = Self(0x1000);
    /// Written with checkpoint=disable, and blocks without an owner may be left (`CP_DISABLED_QUICK_FLAG`).
    pub const DISABLED_QUICK: Self = Self(0x2000);
    /// An online resize was interrupted (`CP_RESIZEFS_FLAG`).
    pub const RESIZE: Self = Self(0x4000);

    /// Whether every flag of `other` is set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flags of either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The position of a curseg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CursegState {
    /// Its segment.
    pub segment: SegNo,
    /// The next block to write: 0 to 511; 512 only in memory, when the segment is full.
    pub offset: u16,
    /// [`ALLOC_LFS`] or [`ALLOC_SSR`].
    pub alloc: u8,
}

impl CursegState {
    /// Summaries of the curseg in the compact form: those before its position, or all 512 for SSR.
    pub fn summaries(&self) -> u32 {
        match self.alloc {
            ALLOC_SSR => SEGMENT_BLOCKS,
            _ => self.offset.into(),
        }
    }
}

/// The decoded fields of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// `checkpoint_ver`.
    pub version: u64,
    /// Blocks available to users.
    pub user_blocks: u64,
    /// Valid blocks of the main area.
    pub valid_blocks: u64,
    /// Segments reserved for GC.
    pub reserved_segments: u32,
    /// Segments not available to users, including the reserved ones.
    pub overprovision_segments: u32,
    /// Free segments.
    pub free_segments: u32,
    /// The cursegs of the six logs, by [`LogType`].
    pub logs: [CursegState; 6],
    /// `ckpt_flags`.
    pub flags: CpFlags,
    /// Blocks of the pack without `nat_bits`.
    pub pack_blocks: u32,
    /// First block of the data summaries, relative to the start of the pack.
    pub start_sum: u32,
    /// Valid nodes.
    pub valid_nodes: u32,
    /// Valid inodes.
    pub valid_inodes: u32,
    /// Where the search for a free node id starts.
    pub next_free_nid: Nid,
    /// Offset of the checksum in the first block.
    pub checksum_at: u32,
    /// The checksum; [`Checkpoint::encode`] sets it.
    pub checksum: u32,
    /// Seconds for which the volume has been mounted so far.
    pub elapsed: u64,
    /// One bit per SIT block: the second copy is current.
    pub sit_bitmap: Vec<u8>,
    /// One bit per NAT block: the second copy is current.
    pub nat_bitmap: Vec<u8>,
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Checkpoint, field, value, rule)
}

/// The checksum, stored at `at`, of a pack's first or last block; it covers the bytes after it, too.
fn compute(block: &[u8], at: usize) -> u32 {
    let sum = checksum::of(&block[..at]);
    if at < LAST_CHECKSUM_AT {
        checksum::over(sum, &block[at + 4..])
    } else {
        sum
    }
}

/// Fields of the first or last block of a pack whose checksum was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackHead {
    /// The checkpoint's version.
    pub version: u64,
    /// Blocks of the pack.
    pub pack_blocks: u32,
}

/// Verifies the first or the last block of a pack.
pub fn verify_block(block: &[u8]) -> Result<PackHead> {
    assert_eq!(block.len(), BLOCK_SIZE);
    let (raw, _) = RawCheckpoint::ref_from_prefix(block).expect("a block holds a checkpoint");
    let at = raw.checksum_offset.get();
    if idx(at) < BITMAPS_AT || idx(at) > LAST_CHECKSUM_AT {
        return Err(bad("checksum_offset", at, "outside the block"));
    }
    let large = CpFlags(raw.ckpt_flags.get()).contains(CpFlags::LARGE_NAT_BITMAP);
    if large && idx(at) != BITMAPS_AT {
        return Err(bad("checksum_offset", at, "not before the bitmaps"));
    }
    let stored = get32(block, idx(at));
    let computed = compute(block, idx(at));
    if stored != computed {
        return Err(DiskError::checksum(Structure::Checkpoint, stored, computed));
    }
    let pack_blocks = raw.cp_pack_total_block_count.get();
    if pack_blocks <= 2 || pack_blocks > SEGMENT_BLOCKS {
        return Err(bad(
            "cp_pack_total_block_count",
            pack_blocks,
            "not the size of a pack",
        ));
    }
    Ok(PackHead {
        version: raw.checkpoint_ver.get(),
        pack_blocks,
    })
}

/// Whether a checkpoint is newer than another one; versions may wrap around.
pub fn is_after(version: u64, other: u64) -> bool {
    super::num::as_signed64(version.wrapping_sub(other)) > 0
}

/// Versions from here on are not written. mkfs.f2fs begins with a random number of 31 bits, so no checkpoint that a
/// program wrote has such a version; writers count on the next version being the larger number.
const VERSION_LIMIT: u64 = 1 << 63;

impl Checkpoint {
    /// Decodes and validates a checkpoint from a pack's first block and payload, `1 + cp_payload` blocks. The
    /// caller compares the versions of first and last block ([`verify_block`]).
    pub fn parse(layout: &Layout, blocks: &[u8]) -> Result<Self> {
        let checkpoint = Self::parse_lenient(layout, blocks)?;
        checkpoint.validate(layout)?;
        Ok(checkpoint)
    }

    /// As [`Checkpoint::parse`], but validates only what finding nodes depends on: the positions of bitmaps and
    /// summaries. [`Checkpoint::validate`] checks the rest.
    pub fn parse_lenient(layout: &Layout, blocks: &[u8]) -> Result<Self> {
        assert_eq!(blocks.len(), (1 + idx(layout.cp_payload)) * BLOCK_SIZE);
        verify_block(&blocks[..BLOCK_SIZE])?;
        let (raw, _) = RawCheckpoint::ref_from_prefix(blocks).expect("a block holds a checkpoint");
        let flags = CpFlags(raw.ckpt_flags.get());
        let sizes = (
            raw.sit_ver_bitmap_bytesize.get(),
            raw.nat_ver_bitmap_bytesize.get(),
        );
        let (sit, nat) = bitmap_ranges(layout, flags, sizes)?;
        let checksum_at = raw.checksum_offset.get();
        let checkpoint = Self {
            version: raw.checkpoint_ver.get(),
            user_blocks: raw.user_block_count.get(),
            valid_blocks: raw.valid_block_count.get(),
            reserved_segments: raw.rsvd_segment_count.get(),
            overprovision_segments: raw.overprov_segment_count.get(),
            free_segments: raw.free_segment_count.get(),
            logs: LogType::ALL.map(|log| read_log(raw, log)),
            flags,
            pack_blocks: raw.cp_pack_total_block_count.get(),
            start_sum: raw.cp_pack_start_sum.get(),
            valid_nodes: raw.valid_node_count.get(),
            valid_inodes: raw.valid_inode_count.get(),
            next_free_nid: Nid(raw.next_free_nid.get()),
            checksum_at,
            checksum: get32(blocks, idx(checksum_at)),
            elapsed: raw.elapsed_time.get(),
            sit_bitmap: blocks[sit].to_vec(),
            nat_bitmap: blocks[nat].to_vec(),
        };
        let first = layout.cp_payload + 1;
        if checkpoint.start_sum < first || checkpoint.start_sum >= checkpoint.pack_blocks {
            let start = checkpoint.start_sum;
            return Err(bad("cp_pack_start_sum", start, "outside the pack"));
        }
        Ok(checkpoint)
    }

    /// Validates the counts and cursegs against each other and against the volume.
    pub fn validate(&self, layout: &Layout) -> Result<()> {
        let limit = u64::from(layout.main_blocks());
        if self.user_blocks == 0 || self.user_blocks > limit {
            return Err(bad(
                "user_block_count",
                self.user_blocks,
                "not possible with this main area",
            ));
        }
        if self.valid_blocks > self.user_blocks {
            return Err(bad(
                "valid_block_count",
                self.valid_blocks,
                "more than there are",
            ));
        }
        if u64::from(self.valid_nodes) > self.valid_blocks {
            return Err(bad(
                "valid_node_count",
                self.valid_nodes,
                "more than valid blocks",
            ));
        }
        if self.valid_inodes > self.valid_nodes {
            return Err(bad(
                "valid_inode_count",
                self.valid_inodes,
                "more than valid nodes",
            ));
        }
        let segments = layout.main_segments;
        for (field, value) in [
            ("free_segment_count", self.free_segments),
            ("overprov_segment_count", self.overprovision_segments),
            ("rsvd_segment_count", self.reserved_segments),
        ] {
            if value > segments {
                return Err(bad(field, value, "more than there are"));
            }
        }
        self.validate_logs(layout)
    }

    /// # Errors
    /// No checkpoint can follow this one.
    pub fn validate_version(&self) -> Result<()> {
        if self.version >= VERSION_LIMIT {
            return Err(bad(
                "checkpoint_ver",
                self.version,
                "too large to be followed",
            ));
        }
        Ok(())
    }

    fn validate_logs(&self, layout: &Layout) -> Result<()> {
        // Volumes with the feature `ro` have only one log for data and one for nodes.
        let one = layout.has(Features::READ_ONLY);
        let used = |log: LogType| !one || matches!(log, LogType::HotData | LogType::HotNode);
        for log in LogType::ALL.into_iter().filter(|log| used(*log)) {
            let open = self.log(log);
            if open.segment.0 >= layout.main_segments {
                return Err(bad("cur_segno", open.segment.0, "not a segment"));
            }
            if u32::from(open.offset) >= SEGMENT_BLOCKS {
                return Err(bad("cur_blkoff", open.offset, "outside the segment"));
            }
            let twice = LogType::ALL
                .into_iter()
                .any(|other| other > log && used(other) && self.log(other).segment == open.segment);
            if twice {
                return Err(bad("cur_segno", open.segment.0, "the segment of two logs"));
            }
        }
        Ok(())
    }

    /// The curseg of a log.
    pub fn log(&self, log: LogType) -> CursegState {
        self.logs[log.index()]
    }

    /// [`CursegState::summaries`] of the hot, warm and cold data log.
    pub fn compacted_counts(&self) -> [u32; 3] {
        [LogType::HotData, LogType::WarmData, LogType::ColdData]
            .map(|log| self.log(log).summaries())
    }

    /// Whether the pack has node summaries.
    pub const fn has_node_summaries(&self) -> bool {
        self.flags.contains(CpFlags::UNMOUNT) || self.flags.contains(CpFlags::FASTBOOT)
    }

    /// Orphan blocks of the pack, between payload and summaries.
    pub fn orphan_blocks(&self, layout: &Layout) -> std::ops::Range<u32> {
        let first = 1 + layout.cp_payload;
        if self.flags.contains(CpFlags::ORPHANS) {
            first..self.start_sum
        } else {
            first..first
        }
    }

    /// Position in the pack of a log's summary block in the normal form. `None` for nodes without node summaries
    /// (the SSA has it then), and if the pack is too short.
    pub fn summary_in_pack(&self, log: LogType) -> Option<u32> {
        let from_end = match (log.is_node(), self.has_node_summaries()) {
            (false, true) => 7,
            (false, false) => 4,
            (true, true) => 7,
            (true, false) => return None,
        };
        (self.pack_blocks + u32::from(log.number())).checked_sub(from_end)
    }

    /// Whether the second copy of this NAT block is current.
    pub fn nat_second(&self, block: u32) -> bool {
        bits::get(Order::HighFirst, &self.nat_bitmap, idx(block))
    }

    /// Whether the second copy of this SIT block is current.
    pub fn sit_second(&self, block: u32) -> bool {
        bits::get(Order::HighFirst, &self.sit_bitmap, idx(block))
    }

    /// The version with the checksum in its high half, used by `nat_bits` and, with `CRC_RECOVERY`, by nodes
    /// written after this checkpoint.
    pub const fn version_with_checksum(&self) -> u64 {
        self.version | join32(self.checksum, 0)
    }

    /// `cp_ver` of nodes written after this checkpoint.
    pub const fn node_version(&self) -> u64 {
        if self.flags.contains(CpFlags::CRC_RECOVERY) {
            self.version_with_checksum()
        } else {
            self.version
        }
    }

    /// Encodes the pack's first block and payload and sets `checksum`. The last block of the pack is a copy of the
    /// first.
    ///
    /// # Errors
    /// The bitmaps do not fit.
    pub fn encode(&mut self, layout: &Layout) -> Result<Vec<u8>> {
        let sizes = (
            super::num::short(self.sit_bitmap.len()),
            super::num::short(self.nat_bitmap.len()),
        );
        let (sit, nat) = bitmap_ranges(layout, self.flags, sizes)?;
        let mut raw = RawCheckpoint::new_zeroed();
        raw.checkpoint_ver.set(self.version);
        raw.user_block_count.set(self.user_blocks);
        raw.valid_block_count.set(self.valid_blocks);
        raw.rsvd_segment_count.set(self.reserved_segments);
        raw.overprov_segment_count.set(self.overprovision_segments);
        raw.free_segment_count.set(self.free_segments);
        for i in 0..8 {
            raw.cur_node_segno[i].set(u32::MAX);
            raw.cur_data_segno[i].set(u32::MAX);
        }
        for log in LogType::ALL {
            write_log(&mut raw, log, self.log(log));
        }
        raw.ckpt_flags.set(self.flags.0);
        raw.cp_pack_total_block_count.set(self.pack_blocks);
        raw.cp_pack_start_sum.set(self.start_sum);
        raw.valid_node_count.set(self.valid_nodes);
        raw.valid_inode_count.set(self.valid_inodes);
        raw.next_free_nid.set(self.next_free_nid.0);
        raw.sit_ver_bitmap_bytesize.set(sizes.0);
        raw.nat_ver_bitmap_bytesize.set(sizes.1);
        raw.checksum_offset.set(self.checksum_at);
        raw.elapsed_time.set(self.elapsed);
        let mut blocks = vec![0; (1 + idx(layout.cp_payload)) * BLOCK_SIZE];
        blocks[..BITMAPS_AT].copy_from_slice(raw.as_bytes());
        blocks[sit].copy_from_slice(&self.sit_bitmap);
        blocks[nat].copy_from_slice(&self.nat_bitmap);
        let at = idx(self.checksum_at);
        assert!((BITMAPS_AT..=LAST_CHECKSUM_AT).contains(&at));
        self.checksum = compute(&blocks[..BLOCK_SIZE], at);
        put32(&mut blocks, at, self.checksum);
        Ok(blocks)
    }
}

type ByteRange = std::ops::Range<usize>;

/// Byte ranges of the SIT and NAT bitmaps in first block and payload.
fn bitmap_ranges(
    layout: &Layout,
    flags: CpFlags,
    (sit, nat): (u32, u32),
) -> Result<(ByteRange, ByteRange)> {
    if sit != layout.sit_blocks / 8 {
        return Err(bad(
            "sit_ver_bitmap_bytesize",
            sit,
            "not the size of the SIT bitmap",
        ));
    }
    if nat != layout.nat_blocks / 8 {
        return Err(bad(
            "nat_ver_bitmap_bytesize",
            nat,
            "not the size of the NAT bitmap",
        ));
    }
    let (sit, nat) = (idx(sit), idx(nat));
    let whole = (1 + idx(layout.cp_payload)) * BLOCK_SIZE;
    let (sit_at, nat_at, ends) = if flags.contains(CpFlags::LARGE_NAT_BITMAP) {
        let at = BITMAPS_AT + 4;
        (at + nat, at, [whole, whole])
    } else if layout.cp_payload > 0 {
        (BLOCK_SIZE, BITMAPS_AT, [whole, LAST_CHECKSUM_AT])
    } else {
        let end = LAST_CHECKSUM_AT;
        (BITMAPS_AT, BITMAPS_AT + sit, [end, end])
    };
    if sit_at + sit > ends[0] || nat_at + nat > ends[1] {
        return Err(bad(
            "cp_payload",
            layout.cp_payload,
            "too small for the bitmaps",
        ));
    }
    Ok((sit_at..sit_at + sit, nat_at..nat_at + nat))
}

fn read_log(raw: &RawCheckpoint, log: LogType) -> CursegState {
    let alloc = raw.alloc_type[log.index()];
    let (segments, offsets, i) = if log.is_node() {
        (&raw.cur_node_segno, &raw.cur_node_blkoff, log.index() - 3)
    } else {
        (&raw.cur_data_segno, &raw.cur_data_blkoff, log.index())
    };
    CursegState {
        segment: SegNo(segments[i].get()),
        offset: offsets[i].get(),
        alloc,
    }
}

fn write_log(raw: &mut RawCheckpoint, log: LogType, open: CursegState) {
    raw.alloc_type[log.index()] = open.alloc;
    if log.is_node() {
        raw.cur_node_segno[log.index() - 3].set(open.segment.0);
        raw.cur_node_blkoff[log.index() - 3].set(open.offset);
    } else {
        raw.cur_data_segno[log.index()].set(open.segment.0);
        raw.cur_data_blkoff[log.index()].set(open.offset);
    }
}

/// A hint at the end of a pack's segment: which NAT blocks have all entries in use, and which have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatBits {
    /// One bit per NAT block: all entries are in use.
    pub full: Vec<u8>,
    /// One bit per NAT block: no entry is in use.
    pub empty: Vec<u8>,
}

impl NatBits {
    /// Decodes the hint; `None` if it belongs to another checkpoint.
    pub fn parse(layout: &Layout, checkpoint: &Checkpoint, blocks: &[u8]) -> Option<Self> {
        let bytes = idx(layout.nat_blocks / 8);
        assert!(
            blocks.len() >= 8 + 2 * bytes,
            "as many blocks as nat_bits_blocks"
        );
        if join32(get32(blocks, 4), get32(blocks, 0)) != checkpoint.version_with_checksum() {
            return None;
        }
        Some(Self {
            full: blocks[8..8 + bytes].to_vec(),
            empty: blocks[8 + bytes..8 + 2 * bytes].to_vec(),
        })
    }

    /// Encodes the hint for an encoded checkpoint.
    pub fn encode(&self, layout: &Layout, checkpoint: &Checkpoint) -> Vec<u8> {
        let bytes = idx(layout.nat_blocks / 8);
        assert!(self.full.len() == bytes && self.empty.len() == bytes);
        let mut out = vec![0; idx(layout.nat_bits_blocks()) * BLOCK_SIZE];
        out[..8].copy_from_slice(&checkpoint.version_with_checksum().to_le_bytes());
        out[8..8 + bytes].copy_from_slice(&self.full);
        out[8 + bytes..8 + 2 * bytes].copy_from_slice(&self.empty);
        out
    }

    /// Address of the hint in the segment of a pack; `None` if the pack leaves no space.
    pub fn address(layout: &Layout, pack: u32, pack_blocks: u32) -> Option<BlockAddr> {
        let blocks = layout.nat_bits_blocks();
        let at = SEGMENT_BLOCKS.checked_sub(blocks)?;
        (pack_blocks <= at).then(|| layout.pack_start(pack).plus(at))
    }

    /// Whether a NAT block has no entry in use.
    pub fn is_empty(&self, block: u32) -> bool {
        bits::get(Order::LowFirst, &self.empty, idx(block))
    }

    /// Whether a NAT block has all entries in use.
    pub fn is_full(&self, block: u32) -> bool {
        bits::get(Order::LowFirst, &self.full, idx(block))
    }
}

#[cfg(test)]
mod tests;
