//! Group descriptors: where a group's bitmaps and inode table are, and its counts.
//!
//! Three generations: no checksum (ext2/3), CRC-16 (`uninit_bg`), CRC-32C of which 16 bits are kept
//! (`metadata_csum`). 32 bytes, or 64 and more with `64bit`, where counts and block numbers have
//! high halves.

use steadfs_base::DevBlock;
use steadfs_base::checksum::crc16;
use steadfs_base::endian::{Le16, Le32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::features::Incompat;
use super::num::{high16, high32, idx, join16, join32, low16, low32};
use super::{CorruptKind, DiskError, Geometry, GroupNo, Result, Structure, bitmap};

/// `bg_flags`: the inode bitmap was never written; all inodes are free, the table has no meaning.
pub const INODE_UNINIT: u16 = 1;
/// `bg_flags`: the block bitmap was never written; only the group's own metadata is in use.
pub const BLOCK_UNINIT: u16 = 2;
/// `bg_flags`: the inode table was zeroed.
pub const INODE_ZEROED: u16 = 4;

const CHECKSUM_AT: usize = 0x1E;

/// The first 64 bytes of a descriptor; the second half exists only with `64bit`. Fields as in
/// "Block Group Descriptors" of the kernel's documentation, without their `bg_`.
#[derive(Clone, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[expect(missing_docs, reason = "the names are the documentation's")]
pub struct RawGroupDesc {
    pub block_bitmap_lo: Le32,
    pub inode_bitmap_lo: Le32,
    pub inode_table_lo: Le32,
    pub free_blocks_count_lo: Le16,
    pub free_inodes_count_lo: Le16,
    pub used_dirs_count_lo: Le16,
    pub flags: Le16,
    pub exclude_bitmap_lo: Le32,
    pub block_bitmap_csum_lo: Le16,
    pub inode_bitmap_csum_lo: Le16,
    pub itable_unused_lo: Le16,
    pub checksum: Le16,
    pub block_bitmap_hi: Le32,
    pub inode_bitmap_hi: Le32,
    pub inode_table_hi: Le32,
    pub free_blocks_count_hi: Le16,
    pub free_inodes_count_hi: Le16,
    pub used_dirs_count_hi: Le16,
    pub itable_unused_hi: Le16,
    pub exclude_bitmap_hi: Le32,
    pub block_bitmap_csum_hi: Le16,
    pub inode_bitmap_csum_hi: Le16,
    pub reserved: Le32,
}

const FULL: usize = size_of::<RawGroupDesc>();

/// A group descriptor as plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupDesc {
    /// Block of the block bitmap.
    pub block_bitmap: DevBlock,
    /// Block of the inode bitmap.
    pub inode_bitmap: DevBlock,
    /// First block of the inode table.
    pub inode_table: DevBlock,
    /// Free blocks (clusters with `bigalloc`).
    pub free_clusters: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories.
    pub used_dirs: u32,
    /// Flags as stored ([`INODE_UNINIT`], …), valid only on volumes whose descriptors have checksums: use
    /// [`GroupDesc::block_uninit`] and [`GroupDesc::inode_uninit`].
    pub flags: u16,
    /// Inodes at the table's end that were never used.
    pub itable_unused: u32,
    /// Checksum of the block bitmap (low 16 bits only with 32-byte descriptors).
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap (low 16 bits only with 32-byte descriptors).
    pub inode_bitmap_csum: u32,
}

impl GroupDesc {
    /// Decodes, verifies and validates the descriptor of `group`.
    pub fn parse(geo: &Geometry, group: GroupNo, slot: &[u8]) -> Result<Self> {
        Self::verify_checksum(geo, group, slot)?;
        let desc = Self::decode(geo, slot);
        desc.validate(geo, group)?;
        Ok(desc)
    }

    /// Decodes without validation. `slot` has `desc_size` bytes.
    pub fn decode(geo: &Geometry, slot: &[u8]) -> Self {
        assert_eq!(slot.len(), usize::from(geo.desc_size));
        let raw = widen(slot);
        Self {
            block_bitmap: DevBlock(join32(raw.block_bitmap_hi.get(), raw.block_bitmap_lo.get())),
            inode_bitmap: DevBlock(join32(raw.inode_bitmap_hi.get(), raw.inode_bitmap_lo.get())),
            inode_table: DevBlock(join32(raw.inode_table_hi.get(), raw.inode_table_lo.get())),
            free_clusters: join16(
                raw.free_blocks_count_hi.get(),
                raw.free_blocks_count_lo.get(),
            ),
            free_inodes: join16(
                raw.free_inodes_count_hi.get(),
                raw.free_inodes_count_lo.get(),
            ),
            used_dirs: join16(raw.used_dirs_count_hi.get(), raw.used_dirs_count_lo.get()),
            flags: raw.flags.get(),
            itable_unused: join16(raw.itable_unused_hi.get(), raw.itable_unused_lo.get()),
            block_bitmap_csum: join16(
                raw.block_bitmap_csum_hi.get(),
                raw.block_bitmap_csum_lo.get(),
            ),
            inode_bitmap_csum: join16(
                raw.inode_bitmap_csum_hi.get(),
                raw.inode_bitmap_csum_lo.get(),
            ),
        }
    }

    /// Validates that places are within the volume (within the group without `flex_bg`) and that counts do not exceed
    /// the group.
    pub fn validate(&self, geo: &Geometry, group: GroupNo) -> Result<()> {
        let itable_blocks = u64::from(geo.itable_blocks());
        for (field, block, count) in [
            ("bg_block_bitmap", self.block_bitmap, 1),
            ("bg_inode_bitmap", self.inode_bitmap, 1),
            ("bg_inode_table", self.inode_table, itable_blocks),
        ] {
            if !geo.is_data_range(block, count) {
                return Err(bad(group, field, block.0, "outside the volume"));
            }
            if !geo.has_incompat(Incompat::FLEX_BG) {
                let first = geo.first_block_of(group).0;
                let end = first + u64::from(geo.blocks_in(group));
                if block.0 < first || block.0 + count > end {
                    return Err(bad(group, field, block.0, "outside its group"));
                }
            }
        }
        for (field, count, limit) in [
            (
                "bg_free_blocks_count",
                self.free_clusters,
                geo.clusters_in(group),
            ),
            (
                "bg_free_inodes_count",
                self.free_inodes,
                geo.inodes_per_group,
            ),
            ("bg_used_dirs_count", self.used_dirs, geo.inodes_per_group),
        ] {
            if count > limit {
                return Err(bad(group, field, count, "more than the group has"));
            }
        }
        if geo.has_group_checksums() && self.itable_unused > geo.inodes_per_group {
            let rule = "more than the group has";
            return Err(bad(group, "bg_itable_unused", self.itable_unused, rule));
        }
        Ok(())
    }

    /// The group's own blocks, as first block and number: bitmaps, inode table, and its copies of
    /// superblock and descriptors.
    pub fn own_blocks(&self, geo: &Geometry, group: GroupNo) -> [(DevBlock, u64); 4] {
        let copies = geo.overhead(group).total();
        [
            (self.block_bitmap, 1),
            (self.inode_bitmap, 1),
            (self.inode_table, geo.itable_blocks().into()),
            (geo.first_block_of(group), copies.into()),
        ]
    }

    /// Compares a stored descriptor's checksum with its content, where the volume has them.
    pub fn verify_checksum(geo: &Geometry, group: GroupNo, slot: &[u8]) -> Result<()> {
        assert_eq!(slot.len(), usize::from(geo.desc_size));
        let Some(computed) = compute(geo, group, slot) else {
            return Ok(());
        };
        let stored = super::num::get16(slot, CHECKSUM_AT);
        if stored == computed {
            return Ok(());
        }
        Err(DiskError::from(CorruptKind::Checksum {
            what: Structure::GroupDesc,
            stored: stored.into(),
            computed: computed.into(),
        })
        .in_group(group))
    }

    /// Writes the descriptor into its slot and seals it. Bytes of the slot that have no field here
    /// (snapshot fields, anything beyond 64 bytes) stay.
    pub fn encode_into(&self, geo: &Geometry, group: GroupNo, slot: &mut [u8]) {
        assert_eq!(slot.len(), usize::from(geo.desc_size));
        let mut raw = widen(slot);
        raw.block_bitmap_lo.set(low32(self.block_bitmap.0));
        raw.block_bitmap_hi.set(high32(self.block_bitmap.0));
        raw.inode_bitmap_lo.set(low32(self.inode_bitmap.0));
        raw.inode_bitmap_hi.set(high32(self.inode_bitmap.0));
        raw.inode_table_lo.set(low32(self.inode_table.0));
        raw.inode_table_hi.set(high32(self.inode_table.0));
        raw.free_blocks_count_lo.set(low16(self.free_clusters));
        raw.free_blocks_count_hi.set(high16(self.free_clusters));
        raw.free_inodes_count_lo.set(low16(self.free_inodes));
        raw.free_inodes_count_hi.set(high16(self.free_inodes));
        raw.used_dirs_count_lo.set(low16(self.used_dirs));
        raw.used_dirs_count_hi.set(high16(self.used_dirs));
        raw.flags.set(self.flags);
        raw.itable_unused_lo.set(low16(self.itable_unused));
        raw.itable_unused_hi.set(high16(self.itable_unused));
        raw.block_bitmap_csum_lo.set(low16(self.block_bitmap_csum));
        raw.block_bitmap_csum_hi.set(high16(self.block_bitmap_csum));
        raw.inode_bitmap_csum_lo.set(low16(self.inode_bitmap_csum));
        raw.inode_bitmap_csum_hi.set(high16(self.inode_bitmap_csum));
        let len = slot.len().min(FULL);
        slot[..len].copy_from_slice(&raw.as_bytes()[..len]);
        if let Some(checksum) = compute(geo, group, slot) {
            super::num::put16(slot, CHECKSUM_AT, checksum);
        }
    }

    /// Whether the block bitmap was never written: [`init_block_bitmap`] makes it.
    pub fn block_uninit(&self, geo: &Geometry) -> bool {
        geo.has_group_checksums() && self.flags & BLOCK_UNINIT != 0
    }

    /// Whether the inode bitmap was never written: [`init_inode_bitmap`] makes it.
    pub fn inode_uninit(&self, geo: &Geometry) -> bool {
        geo.has_group_checksums() && self.flags & INODE_UNINIT != 0
    }

    /// Inodes at the table's start that may have been used; the others must not be read.
    pub fn inodes_in_use_limit(&self, geo: &Geometry) -> u32 {
        if !geo.has_group_checksums() {
            geo.inodes_per_group
        } else if self.flags & INODE_UNINIT != 0 {
            0
        } else {
            geo.inodes_per_group.saturating_sub(self.itable_unused)
        }
    }

    /// Verifies a block bitmap read from disk against this descriptor.
    pub fn verify_block_bitmap(&self, geo: &Geometry, bitmap: &[u8]) -> Result<()> {
        geo.seed.over(&bitmap[..geo.block_bitmap_bytes()]).compare(
            Structure::BlockBitmap,
            self.block_bitmap_csum,
            bitmap_mask(geo),
        )
    }

    /// Verifies an inode bitmap read from disk against this descriptor.
    pub fn verify_inode_bitmap(&self, geo: &Geometry, bitmap: &[u8]) -> Result<()> {
        geo.seed.over(&bitmap[..geo.inode_bitmap_bytes()]).compare(
            Structure::InodeBitmap,
            self.inode_bitmap_csum,
            bitmap_mask(geo),
        )
    }

    /// Stores the checksum of a changed block bitmap; write the descriptor afterwards.
    pub fn seal_block_bitmap(&mut self, geo: &Geometry, bitmap: &[u8]) {
        if let Some(sum) = geo.seed.over(&bitmap[..geo.block_bitmap_bytes()]).value() {
            self.block_bitmap_csum = sum & bitmap_mask(geo);
        }
    }

    /// Stores the checksum of a changed inode bitmap; write the descriptor afterwards.
    pub fn seal_inode_bitmap(&mut self, geo: &Geometry, bitmap: &[u8]) {
        if let Some(sum) = geo.seed.over(&bitmap[..geo.inode_bitmap_bytes()]).value() {
            self.inode_bitmap_csum = sum & bitmap_mask(geo);
        }
    }
}

fn bad(
    group: GroupNo,
    field: &'static str,
    value: impl Into<u64>,
    rule: &'static str,
) -> DiskError {
    DiskError::field(Structure::GroupDesc, field, value, rule).in_group(group)
}

/// The first 64 bytes of the slot, high halves zero where it has none.
fn widen(slot: &[u8]) -> RawGroupDesc {
    let mut raw = RawGroupDesc::new_zeroed();
    let len = slot.len().min(FULL);
    raw.as_mut_bytes()[..len].copy_from_slice(&slot[..len]);
    raw
}

fn bitmap_mask(geo: &Geometry) -> u32 {
    if usize::from(geo.desc_size) >= FULL {
        u32::MAX
    } else {
        0xFFFF
    }
}

fn compute(geo: &Geometry, group: GroupNo, slot: &[u8]) -> Option<u16> {
    let number = group.0.to_le_bytes();
    let (head, tail) = (&slot[..CHECKSUM_AT], &slot[CHECKSUM_AT + 2..]);
    if geo.seed.enabled() {
        let seed = geo.seed.over(&number).over(head).over(&[0, 0]).over(tail);
        return seed.value().map(low16);
    }
    if geo.has_group_checksums() {
        let crc = crc16(crc16(crc16(!0, &geo.uuid), &number), head);
        return Some(crc16(crc, tail));
    }
    None
}

/// Makes the block bitmap of a group that was never written: its superblock and descriptor copies,
/// and whichever of its own bitmaps and inode table are in it, are in use, as are the bits beyond
/// the group's end; everything else is free. `bitmap` is one block.
pub fn init_block_bitmap(geo: &Geometry, group: GroupNo, desc: &GroupDesc, bitmap: &mut [u8]) {
    assert_eq!(bitmap.len(), geo.block_size.bytes());
    bitmap.fill(0);
    let first = geo.first_block_of(group).0;
    let blocks = geo.blocks_in(group);
    let mut mark = |start: u32, count: u32| {
        if count > 0 {
            let last = (start + count - 1) >> geo.cluster_bits;
            bitmap::set_range(bitmap, start >> geo.cluster_bits..last + 1);
        }
    };
    mark(0, geo.overhead(group).total().min(blocks));
    for (start, count) in [
        (desc.block_bitmap.0, 1),
        (desc.inode_bitmap.0, 1),
        (desc.inode_table.0, u64::from(geo.itable_blocks())),
    ] {
        // The part of [start, start + count) that is in this group.
        let low = start.max(first);
        let high = start.saturating_add(count).min(first + u64::from(blocks));
        if low < high {
            mark(low32(low - first), low32(high - low));
        }
    }
    let bits = low32(geo.block_size.bytes_u64() * 8);
    bitmap::set_range(bitmap, geo.clusters_in(group)..bits);
}

/// Makes the inode bitmap of a group that was never written: every inode free, the bits beyond the
/// last inode in use. `bitmap` is one block. (Group 0's reserved inodes are always written.)
pub fn init_inode_bitmap(geo: &Geometry, bitmap: &mut [u8]) {
    assert_eq!(bitmap.len(), geo.block_size.bytes());
    let used = geo.inode_bitmap_bytes();
    bitmap[..used].fill(0);
    bitmap[used..].fill(0xFF);
    debug_assert!(idx(geo.inodes_per_group) == used * 8);
}

#[cfg(test)]
mod tests;
