//! The facts of a superblock that do not change during a mount: sizes, counts, features, and the places of each group's
//! metadata. Every other file of `disk/` computes with a [`Geometry`].

use std::ops::Range;

use steadfs_base::{BlockSize, DevBlock};
use steadfs_format_base::casefold::Encoding;

use super::copies::has_super;
use super::features::{Compat, Incompat, RoCompat};
use super::hash::{HashKind, HashParams};
use super::num::{idx, join32, low32};
use super::raw_superblock::{FLAG_UNSIGNED_HASH, RawSuperblock, SUPERBLOCK_OFFSET};
use super::{ChecksumSeed, DiskError, Features, GroupNo, Ino, Result, Structure};

/// Size of a group descriptor without `64bit`.
pub const MIN_DESC_SIZE: u16 = 32;
/// Size of the part of an inode that every volume has.
pub const GOOD_OLD_INODE_SIZE: u16 = 128;
/// First inode that is not reserved, in revision 0.
pub const GOOD_OLD_FIRST_INO: u32 = 11;

/// The validated, unchanging facts of a volume. Created by [`Superblock::parse`](super::Superblock::parse).
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Block size.
    pub block_size: BlockSize,
    /// Blocks of the volume, the unused ones before `first_data_block` included.
    pub blocks_count: u64,
    /// First block of group 0 (1 on volumes with 1 KiB blocks, 0 otherwise).
    pub first_data_block: DevBlock,
    /// Blocks in a group (the last may be shorter).
    pub blocks_per_group: u32,
    /// Base-2 logarithm of the blocks in a cluster: 0 without `bigalloc`.
    pub cluster_bits: u32,
    /// Clusters in a group: what a block bitmap has bits for.
    pub clusters_per_group: u32,
    /// Inodes of the volume: `inodes_per_group` times `group_count`.
    pub inodes_count: u32,
    /// Inodes in a group.
    pub inodes_per_group: u32,
    /// Groups.
    pub group_count: u32,
    /// Bytes of an inode on disk.
    pub inode_size: u16,
    /// Bytes of a group descriptor on disk.
    pub desc_size: u16,
    /// First inode that is not reserved.
    pub first_ino: Ino,
    /// Blocks reserved after each copy of the descriptor table, for growing it.
    pub reserved_gdt_blocks: u16,
    /// First descriptor block that is placed as `meta_bg` says.
    pub first_meta_bg: u32,
    /// Base-2 logarithm of the groups in a flex group; 0 without `flex_bg`.
    pub flex_bits: u8,
    /// Groups with superblock copies under `sparse_super2`.
    pub backup_groups: [u32; 2],
    /// Extra inode size that new inodes get (0 with 128-byte inodes).
    pub want_extra_isize: u16,
    /// Features at the time of parsing. `large_file`, `needs_recovery` and `orphan_present` may
    /// change later: the superblock has their current state.
    pub features: Features,
    /// Seed of all metadata checksums.
    pub seed: ChecksumSeed,
    /// Seed of the hashes of attribute values in inodes, on volumes without checksums, too.
    pub value_seed: u32,
    /// `s_uuid`.
    pub uuid: [u8; 16],
    /// How names of new indexed directories are hashed.
    pub hash: HashParams,
    /// Encoding of names in case-insensitive directories; `None` without the feature, or if it is unknown.
    pub encoding: Option<Encoding>,
}

/// The blocks at a group's start that hold copies of superblock and descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct GroupOverhead {
    /// 1 where the group starts with a superblock (for group 0 of 1 KiB volumes with clusters: 2,
    /// the boot block is not usable either).
    pub super_blocks: u32,
    /// Blocks of the descriptor table.
    pub desc_blocks: u32,
    /// Blocks reserved for its growth.
    pub reserved_blocks: u32,
}

impl GroupOverhead {
    /// All of them.
    pub const fn total(&self) -> u32 {
        self.super_blocks + self.desc_blocks + self.reserved_blocks
    }
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::Superblock, field, value, rule)
}

impl Geometry {
    /// Validates the fields that other code computes with.
    pub(super) fn of(raw: &RawSuperblock) -> Result<Self> {
        let features = raw.features();
        if raw.rev_level.get() > 1 {
            return Err(bad("s_rev_level", raw.rev_level.get(), "unknown"));
        }
        let block_size = block_size(raw)?;
        let clusters = Clusters::of(raw, features, block_size)?;
        let (inode_size, first_ino) = inode_facts(raw, block_size)?;
        let desc_size = desc_size(raw, features)?;
        let counts = Counts::of(raw, features, block_size, &clusters, inode_size)?;
        let reserved_gdt_blocks = raw.reserved_gdt_blocks.get();
        if usize::from(reserved_gdt_blocks) > block_size.bytes() / 4 {
            let rule = "more than a block of block numbers";
            return Err(bad("s_reserved_gdt_blocks", reserved_gdt_blocks, rule));
        }
        let geometry = Self {
            block_size,
            blocks_count: counts.blocks,
            first_data_block: counts.first_data_block,
            blocks_per_group: clusters.blocks_per_group,
            cluster_bits: clusters.bits,
            clusters_per_group: clusters.per_group,
            inodes_count: raw.inodes_count.get(),
            inodes_per_group: raw.inodes_per_group.get(),
            group_count: counts.groups,
            inode_size,
            desc_size,
            first_ino,
            reserved_gdt_blocks,
            first_meta_bg: raw.first_meta_bg.get(),
            flex_bits: flex_bits(raw, features),
            backup_groups: [raw.backup_bgs[0].get(), raw.backup_bgs[1].get()],
            want_extra_isize: want_extra_isize(raw, features, inode_size),
            features,
            seed: raw.seed(),
            value_seed: raw.stored_or_derived_seed(),
            uuid: raw.uuid,
            hash: hash_params(raw),
            encoding: raw.encoding(),
        };
        geometry.check_rest(raw)?;
        Ok(geometry)
    }

    fn check_rest(&self, raw: &RawSuperblock) -> Result<()> {
        if self.has_incompat(Incompat::META_BG) && self.first_meta_bg > self.desc_blocks() {
            let rule = "beyond the descriptor table";
            return Err(bad("s_first_meta_bg", self.first_meta_bg, rule));
        }
        if self.seed.enabled() && raw.checksum_type != 1 {
            return Err(bad("s_checksum_type", raw.checksum_type, "unknown"));
        }
        if self.first_ino.0 > self.inodes_count {
            return Err(bad(
                "s_first_ino",
                self.first_ino.0,
                "beyond the last inode",
            ));
        }
        let journal = raw.journal_inum.get();
        if self.features.compat.contains(Compat::HAS_JOURNAL) && journal > self.inodes_count {
            return Err(bad("s_journal_inum", journal, "beyond the last inode"));
        }
        let orphans = raw.orphan_file_inum.get();
        if self.features.compat.contains(Compat::ORPHAN_FILE)
            && (orphans == 0 || orphans > self.inodes_count)
        {
            return Err(bad("s_orphan_file_inum", orphans, "not an inode"));
        }
        Ok(())
    }

    /// The first number on which the places of groups and their metadata depend that differs from `other`'s. The number
    /// of groups does not matter for the groups that both have.
    pub fn places_differ(&self, other: &Self) -> Option<&'static str> {
        let differs = [
            (self.block_size != other.block_size, "block size"),
            (
                self.first_data_block != other.first_data_block,
                "first block",
            ),
            (
                self.blocks_per_group != other.blocks_per_group,
                "number of blocks in a group",
            ),
            (self.cluster_bits != other.cluster_bits, "cluster size"),
            (
                self.inodes_per_group != other.inodes_per_group,
                "number of inodes in a group",
            ),
            (self.inode_size != other.inode_size, "inode size"),
            (self.desc_size != other.desc_size, "descriptor size"),
        ];
        let found = differs.iter().find(|(differs, _)| *differs);
        found.map(|(_, what)| *what)
    }

    /// Whether the volume has this incompatible feature.
    pub const fn has_incompat(&self, bits: Incompat) -> bool {
        self.features.incompat.contains(bits)
    }

    /// Whether the volume has this read-only-compatible feature.
    pub const fn has_ro_compat(&self, bits: RoCompat) -> bool {
        self.features.ro_compat.contains(bits)
    }

    /// Whether block numbers and counts have their high halves.
    pub const fn has_64bit(&self) -> bool {
        self.has_incompat(Incompat::BIT64)
    }

    /// Whether group descriptors have checksums (of either kind), and with them the flags for uninitialised parts.
    pub const fn has_group_checksums(&self) -> bool {
        self.seed.enabled() || self.has_ro_compat(RoCompat::GDT_CSUM)
    }

    /// Whether all of `count` blocks from `start` can hold data or metadata of files: after the superblock and before
    /// the end.
    pub const fn is_data_range(&self, start: DevBlock, count: u64) -> bool {
        start.0 > self.first_data_block.0
            && start.0 < self.blocks_count
            && count <= self.blocks_count - start.0
    }

    /// Whether `ino` is one of the volume's inodes.
    pub const fn is_inode(&self, ino: Ino) -> bool {
        ino.0 != 0 && ino.0 <= self.inodes_count
    }

    /// Whether `ino` may have a name: the root or an unreserved inode.
    pub const fn is_nameable(&self, ino: Ino) -> bool {
        ino.0 <= self.inodes_count && (ino.0 >= self.first_ino.0 || ino.0 == Ino::ROOT.0)
    }

    /// The group that holds `block` and the block's number in it. The caller knows that the block is
    /// within the volume and not before `first_data_block`.
    pub fn group_of_block(&self, block: DevBlock) -> (GroupNo, u32) {
        debug_assert!(block >= self.first_data_block && block.0 < self.blocks_count);
        let relative = block.0 - self.first_data_block.0;
        let per_group = u64::from(self.blocks_per_group);
        (
            GroupNo(low32(relative / per_group)),
            low32(relative % per_group),
        )
    }

    /// The group that holds `ino` and the inode's index in it.
    pub const fn group_of_inode(&self, ino: Ino) -> (GroupNo, u32) {
        debug_assert!(ino.0 != 0 && ino.0 <= self.inodes_count);
        let index = ino.0 - 1;
        (
            GroupNo(index / self.inodes_per_group),
            index % self.inodes_per_group,
        )
    }

    /// The inode at `index` of `group`.
    pub const fn inode_at(&self, group: GroupNo, index: u32) -> Ino {
        debug_assert!(group.0 < self.group_count && index < self.inodes_per_group);
        Ino(group.0 * self.inodes_per_group + index + 1)
    }

    /// First block of `group`.
    pub fn first_block_of(&self, group: GroupNo) -> DevBlock {
        debug_assert!(group.0 < self.group_count);
        DevBlock(self.first_data_block.0 + u64::from(group.0) * u64::from(self.blocks_per_group))
    }

    /// Blocks in `group`: fewer only in the last.
    pub fn blocks_in(&self, group: GroupNo) -> u32 {
        let left = self.blocks_count - self.first_block_of(group).0;
        low32(left.min(self.blocks_per_group.into()))
    }

    /// All groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupNo> + use<> {
        (0..self.group_count).map(GroupNo)
    }

    /// Inodes in a block of an inode table.
    pub fn inodes_per_block(&self) -> u32 {
        low32(self.block_size.bytes_u64() / u64::from(self.inode_size))
    }

    /// Blocks of a group's inode table.
    pub fn itable_blocks(&self) -> u32 {
        self.inodes_per_group.div_ceil(self.inodes_per_block())
    }

    /// Bytes of a block bitmap that have meaning and are checksummed.
    pub fn block_bitmap_bytes(&self) -> usize {
        idx(self.clusters_per_group / 8)
    }

    /// Bytes of an inode bitmap that have meaning and are checksummed.
    pub fn inode_bitmap_bytes(&self) -> usize {
        idx(self.inodes_per_group / 8)
    }

    /// Block and byte offset of an inode's slot, given its group's inode table.
    pub fn inode_slot(&self, table: DevBlock, index: u32) -> (DevBlock, usize) {
        debug_assert!(index < self.inodes_per_group);
        let per_block = self.inodes_per_block();
        (
            table.plus((index / per_block).into()),
            idx(index % per_block) * usize::from(self.inode_size),
        )
    }

    /// Group descriptors in a block.
    pub fn descs_per_block(&self) -> u32 {
        low32(self.block_size.bytes_u64() / u64::from(self.desc_size))
    }

    /// Blocks of the descriptor table.
    pub fn desc_blocks(&self) -> u32 {
        self.group_count.div_ceil(self.descs_per_block())
    }

    /// Descriptor block and byte offset in it of a group's descriptor.
    pub fn desc_slot(&self, group: GroupNo) -> (u32, usize) {
        let per_block = self.descs_per_block();
        (
            group.0 / per_block,
            idx(group.0 % per_block) * usize::from(self.desc_size),
        )
    }

    /// The block that holds the main superblock, and the superblock's offset in it.
    pub fn superblock_place(&self) -> (DevBlock, usize) {
        (
            DevBlock(SUPERBLOCK_OFFSET >> self.block_size.bits()),
            self.block_size.offset_in_block(SUPERBLOCK_OFFSET),
        )
    }

    /// Where descriptor block `n` of the table in use is.
    pub fn desc_block_at(&self, n: u32) -> DevBlock {
        if !self.has_incompat(Incompat::META_BG) || n < self.first_meta_bg {
            return self.superblock_place().0.plus(u64::from(n) + 1);
        }
        let group = GroupNo(n.saturating_mul(self.descs_per_block()));
        let base = self.first_block_of(group).0;
        let mut skip = u64::from(self.has_super(group));
        if group.0 == 0 && self.superblock_place().0 > self.first_data_block {
            // 1 KiB blocks in clusters: the group starts with the boot block.
            skip += 1;
        }
        DevBlock(base + skip)
    }

    /// Number of adjacent descriptor blocks from block `n` of the table on.
    pub fn desc_blocks_together(&self, n: u32) -> u32 {
        let end = match self.has_incompat(Incompat::META_BG) {
            true => self.first_meta_bg,
            false => self.desc_blocks(),
        };
        end.saturating_sub(n).max(1)
    }

    /// Whether `group` starts with a superblock (the main one or a copy).
    pub const fn has_super(&self, group: GroupNo) -> bool {
        has_super(self.features, self.backup_groups, group)
    }

    /// The blocks at the start of `group` that hold superblock and descriptors.
    pub fn overhead(&self, group: GroupNo) -> GroupOverhead {
        let mut overhead = GroupOverhead {
            super_blocks: self.has_super(group).into(),
            ..GroupOverhead::default()
        };
        if group.0 == 0 && self.superblock_place().0 > self.first_data_block {
            overhead.super_blocks += 1;
        }
        if self.has_super(group) && !self.is_meta_bg(group) {
            overhead.reserved_blocks = self.reserved_gdt_blocks.into();
        }
        let descs = self.descs_in(group);
        overhead.desc_blocks = descs.end - descs.start;
        overhead
    }

    /// Whether the descriptors of `group` are placed as `meta_bg` says.
    fn is_meta_bg(&self, group: GroupNo) -> bool {
        let n = group.0 / self.descs_per_block();
        self.has_incompat(Incompat::META_BG) && n >= self.first_meta_bg
    }

    /// The blocks of the descriptor table that `group` starts with, after its superblock if it has one.
    pub fn descs_in(&self, group: GroupNo) -> Range<u32> {
        let per_block = self.descs_per_block();
        if self.is_meta_bg(group) {
            // A metagroup's one descriptor block has copies in its first, second and last group.
            let (n, within) = (group.0 / per_block, group.0 % per_block);
            let has_it = within == 0 || within == 1 || within == per_block - 1;
            return n..n + u32::from(has_it);
        }
        if !self.has_super(group) {
            return 0..0;
        }
        match self.has_incompat(Incompat::META_BG) {
            true => 0..self.first_meta_bg,
            false => 0..self.desc_blocks(),
        }
    }

    /// Largest size in bytes of a file mapped by extents or (`extents` false) by indirect blocks,
    /// the kernel's `s_maxbytes` and `s_bitmap_maxbytes`.
    pub fn max_file_size(&self, extents: bool) -> u64 {
        super::indirect::max_file_size(self, extents)
    }

    /// The blocks of the volume that groups cover.
    pub const fn block_range(&self) -> Range<u64> {
        self.first_data_block.0..self.blocks_count
    }
}

pub(super) fn block_size(raw: &RawSuperblock) -> Result<BlockSize> {
    let log = raw.log_block_size.get();
    (log <= 6)
        .then(|| BlockSize::new(1024 << log))
        .flatten()
        .ok_or_else(|| bad("s_log_block_size", log, "above 6 (64 KiB)"))
}

struct Clusters {
    bits: u32,
    per_group: u32,
    blocks_per_group: u32,
}

impl Clusters {
    fn of(raw: &RawSuperblock, features: Features, block_size: BlockSize) -> Result<Self> {
        let blocks_per_group = raw.blocks_per_group.get();
        let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let bits = if bigalloc {
            let log = raw.log_cluster_size.get();
            log.checked_sub(raw.log_block_size.get())
                .filter(|_| log <= 20)
                .ok_or_else(|| bad("s_log_cluster_size", log, "not a cluster size"))?
        } else {
            0
        };
        let per_group = if bigalloc {
            raw.clusters_per_group.get()
        } else {
            blocks_per_group
        };
        // A bitmap is one block; checksums and scans cover whole bytes.
        if per_group == 0 || !per_group.is_multiple_of(8) || idx(per_group) > block_size.bytes() * 8
        {
            let rule = "not a multiple of 8 that fits the bitmap";
            let field = if bigalloc {
                "s_clusters_per_group"
            } else {
                "s_blocks_per_group"
            };
            return Err(bad(field, per_group, rule));
        }
        if u64::from(per_group) << bits != u64::from(blocks_per_group) {
            let rule = "not clusters per group times cluster size";
            return Err(bad("s_blocks_per_group", blocks_per_group, rule));
        }
        Ok(Self {
            bits,
            per_group,
            blocks_per_group,
        })
    }
}

fn inode_facts(raw: &RawSuperblock, block_size: BlockSize) -> Result<(u16, Ino)> {
    if raw.rev_level.get() == 0 {
        return Ok((GOOD_OLD_INODE_SIZE, Ino(GOOD_OLD_FIRST_INO)));
    }
    let size = raw.inode_size.get();
    if !size.is_power_of_two()
        || size < GOOD_OLD_INODE_SIZE
        || usize::from(size) > block_size.bytes()
    {
        let rule = "not a power of two between 128 and the block size";
        return Err(bad("s_inode_size", size, rule));
    }
    let first = raw.first_ino.get();
    if first < GOOD_OLD_FIRST_INO {
        return Err(bad("s_first_ino", first, "below 11"));
    }
    Ok((size, Ino(first)))
}

fn desc_size(raw: &RawSuperblock, features: Features) -> Result<u16> {
    if !features.incompat.contains(Incompat::BIT64) {
        return Ok(MIN_DESC_SIZE);
    }
    let size = raw.desc_size.get();
    if !size.is_power_of_two() || !(64..=1024).contains(&size) {
        let rule = "not a power of two between 64 and 1024";
        return Err(bad("s_desc_size", size, rule));
    }
    Ok(size)
}

struct Counts {
    blocks: u64,
    first_data_block: DevBlock,
    groups: u32,
}

impl Counts {
    fn of(
        raw: &RawSuperblock,
        features: Features,
        block_size: BlockSize,
        clusters: &Clusters,
        inode_size: u16,
    ) -> Result<Self> {
        let high = if features.incompat.contains(Incompat::BIT64) {
            raw.blocks_count_hi.get()
        } else {
            0
        };
        let blocks = join32(high, raw.blocks_count_lo.get());
        let first = raw.first_data_block.get();
        let bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let expected = u32::from(block_size.bytes() == 1024 && !bigalloc);
        if first != expected {
            let rule = "not 1 with 1 KiB blocks and 0 otherwise";
            return Err(bad("s_first_data_block", first, rule));
        }
        // Extents and descriptors have block numbers of 48 bits.
        if blocks <= u64::from(first) + 1 || blocks > 1 << 48 {
            return Err(bad("s_blocks_count", blocks, "more than 48 bits"));
        }
        let groups = (blocks - u64::from(first)).div_ceil(clusters.blocks_per_group.into());
        let per_group = raw.inodes_per_group.get();
        let per_block = low32(block_size.bytes_u64() / u64::from(inode_size));
        if per_group < per_block
            || !per_group.is_multiple_of(8)
            || idx(per_group) > block_size.bytes() * 8
        {
            let rule = "not a multiple of 8 that fills a block and fits the bitmap";
            return Err(bad("s_inodes_per_group", per_group, rule));
        }
        let inodes = raw.inodes_count.get();
        if groups.checked_mul(per_group.into()) != Some(inodes.into()) {
            let rule = "not groups times inodes per group";
            return Err(bad("s_inodes_count", inodes, rule));
        }
        Ok(Self {
            blocks,
            first_data_block: DevBlock(first.into()),
            // Not more than there are inodes, which have 32 bits.
            groups: low32(groups),
        })
    }
}

fn flex_bits(raw: &RawSuperblock, features: Features) -> u8 {
    // The kernel takes 0 and values above 31 as "no flex groups".
    let bits = raw.log_groups_per_flex;
    if features.incompat.contains(Incompat::FLEX_BG) && bits < 32 {
        bits
    } else {
        0
    }
}

fn want_extra_isize(raw: &RawSuperblock, features: Features, inode_size: u16) -> u16 {
    const DEFAULT: u16 = 32;
    let room = inode_size - GOOD_OLD_INODE_SIZE;
    if room == 0 {
        return 0;
    }
    let wanted = if features.ro_compat.contains(RoCompat::EXTRA_ISIZE) {
        raw.want_extra_isize
            .get()
            .max(raw.min_extra_isize.get())
            .max(DEFAULT)
    } else {
        DEFAULT
    };
    if wanted > room || !wanted.is_multiple_of(4) {
        DEFAULT
    } else {
        wanted
    }
}

fn hash_params(raw: &RawSuperblock) -> HashParams {
    HashParams {
        kind: HashKind::from_disk(raw.def_hash_version).unwrap_or(HashKind::HalfMd4),
        unsigned: raw.flags.get() & FLAG_UNSIGNED_HASH != 0,
        seed: raw.hash_seed.map(|word| word.get()),
    }
}

#[cfg(test)]
mod tests;
