//! Numbers of groups, inodes and reserved blocks. The arithmetic is that of mke2fs: any difference here would change
//! every number that depends on it.

use super::{FormatError, FormatOptions, features};
use crate::disk::features::{Compat, Incompat, RoCompat};
use crate::disk::num::low32;
use crate::disk::{Features, GroupNo, has_super};

/// First inode that is not reserved.
pub(super) const FIRST_INO: u32 = 11;
/// Most blocks (clusters) in a group: a 32-byte descriptor counts free ones with 16 bits.
const MAX_PER_GROUP: u32 = (1 << 16) - 8;
/// Default number of blocks in a cluster.
const CLUSTER_BLOCKS: u32 = 16;
/// Clusters of this many bytes and more have one byte of their bitmap less.
const HUGE_CLUSTER: u64 = 128 << 20;
/// A last group with fewer blocks than this besides its metadata is dropped.
const MIN_LAST_GROUP_DATA: u64 = 50;

/// Base-2 logarithm of the blocks in a cluster; `None` without bigalloc.
pub(super) fn cluster_bits(
    block_size: u32,
    features: Features,
    opts: &FormatOptions,
) -> Result<Option<u32>, FormatError> {
    let fail = |why: String| Err(FormatError::option("cluster size", why));
    match (
        features.ro_compat.contains(RoCompat::BIGALLOC),
        opts.cluster_size,
    ) {
        (false, None) => Ok(None),
        (false, Some(_)) => fail("needs the feature bigalloc (-O bigalloc)".to_owned()),
        (true, None) => Ok(Some(CLUSTER_BLOCKS.trailing_zeros())),
        (true, Some(size)) if size < block_size => {
            fail(format!("{size} is less than the block size, {block_size}"))
        }
        (true, Some(size)) => Ok(Some(size.trailing_zeros() - block_size.trailing_zeros())),
    }
}

impl FormatOptions {
    /// Bytes that are allocated together on a volume with such blocks: a block, or a cluster.
    pub fn allocation_unit(&self, block_size: u32) -> u64 {
        let features = features::choose(self).ok();
        let bits = features.and_then(|found| cluster_bits(block_size, found, self).ok());
        u64::from(block_size) << bits.flatten().unwrap_or(0)
    }
}

/// The requested numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub blocks: u64,
    pub reserved: u64,
    pub block_size: u32,
    /// Base-2 logarithm of the blocks in a cluster, with bigalloc.
    pub cluster_bits: Option<u32>,
    pub blocks_per_group: Option<u32>,
    pub inodes: u32,
    pub inode_size: u32,
    pub desc_size: u32,
    pub features: Features,
    /// How many copies `sparse_super2` makes, 0 to 2.
    pub backups: u8,
    /// Blocks to reserve for the descriptor table, where the user gave a size to grow to.
    pub reserved_gdt: Option<u32>,
}

/// The numbers of a possible volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub blocks: u64,
    pub reserved: u64,
    pub first_data_block: u32,
    pub blocks_per_group: u32,
    pub groups: u32,
    pub inodes_per_group: u32,
    pub itable_blocks: u32,
    pub desc_blocks: u32,
    pub reserved_gdt: u32,
    /// Groups with copies under `sparse_super2`.
    pub backup_groups: [u32; 2],
}

/// Result of one attempt.
enum Attempt {
    Fits(Numbers),
    /// The inodes do not fit the bitmaps of these groups: try smaller groups, which are more.
    SmallerGroups,
    /// The last group cannot hold its own metadata: drop it.
    WithoutLastGroup,
    /// The table of descriptors takes too much of each group that has it: spread it over the groups.
    Spread,
}

impl Request {
    /// Finds the numbers, and the features with them: many groups can need `meta_bg`.
    pub(super) fn fit(mut self) -> Result<(Numbers, Features), FormatError> {
        let mut per_group = self.largest_group()?;
        let whole = self.blocks >> self.cluster_bits() << self.cluster_bits();
        let (mut blocks, mut reserved) = (whole, self.reserved);
        loop {
            match self.attempt(blocks, reserved, per_group)? {
                Attempt::Fits(numbers) => return Ok((numbers, self.features)),
                Attempt::Spread => {
                    let features = &mut self.features;
                    features.incompat = features.incompat.union(Incompat::META_BG);
                    features.compat = features.compat.without(Compat::RESIZE_INODE);
                }
                Attempt::SmallerGroups if per_group >= 256 && self.cluster_bits.is_none() => {
                    per_group -= 8;
                    blocks = self.blocks;
                }
                Attempt::SmallerGroups => return Err(self.too_many_inodes()),
                Attempt::WithoutLastGroup => {
                    blocks -= (blocks - self.first_data_block()) % u64::from(per_group);
                    // The share of reserved blocks stays, rounded as by mke2fs.
                    let percent = 100.0 * self.reserved as f64 / self.blocks as f64;
                    reserved = (percent * blocks as f64 / 100.0) as u64;
                }
            }
        }
    }

    fn cluster_bits(&self) -> u32 {
        self.cluster_bits.unwrap_or(0)
    }

    /// The number of blocks that groups have, unless the inodes need smaller ones.
    fn largest_group(&self) -> Result<u32, FormatError> {
        let Some(bits) = self.cluster_bits else {
            let largest = MAX_PER_GROUP.min(self.block_size * 8);
            return Ok(self.blocks_per_group.unwrap_or(largest).min(largest));
        };
        let clusters = match self.blocks_per_group {
            // As in mke2fs, -g counts clusters.
            Some(clusters) => clusters,
            // A group of more clusters would have too many blocks.
            None if u64::from(self.block_size) << bits >= HUGE_CLUSTER => (self.block_size - 1) * 8,
            None => self.block_size * 8,
        };
        let clusters = clusters.min(MAX_PER_GROUP);
        let blocks = u64::from(clusters) << bits;
        match u32::try_from(blocks) {
            Ok(blocks) if clusters > 0 && clusters.is_multiple_of(8) => Ok(blocks),
            _ => {
                let why = format!("makes groups of {clusters} clusters, {blocks} blocks");
                Err(FormatError::option("cluster size", why))
            }
        }
    }

    fn too_many_inodes(&self) -> FormatError {
        let why = format!("{} are too many for this volume", self.inodes);
        FormatError::option("number of inodes", why)
    }

    fn first_data_block(&self) -> u64 {
        u64::from(self.block_size == 1024 && self.cluster_bits() == 0)
    }

    fn attempt(&self, blocks: u64, reserved: u64, per_group: u32) -> Result<Attempt, FormatError> {
        let covered = blocks.saturating_sub(self.first_data_block());
        let groups = covered.div_ceil(per_group.into());
        if groups == 0 {
            return Err(FormatError::TooSmall(format!("{} blocks", self.blocks)));
        }
        // Inodes have 32 bits and a group has at least eight.
        let groups = u32::try_from(groups)
            .ok()
            .filter(|groups| groups.checked_mul(8).is_some())
            .ok_or_else(|| {
                FormatError::option("block size", format!("makes too many groups, {groups}"))
            })?;
        let Some(inodes_per_group) = self.inodes_per_group(groups)? else {
            return Ok(Attempt::SmallerGroups);
        };
        let inodes = u64::from(inodes_per_group) * u64::from(groups);
        if inodes < u64::from(FIRST_INO) {
            let why = format!("{inodes} are too few: the volume itself needs {FIRST_INO} (-N 16?)");
            return Err(FormatError::option("number of inodes", why));
        }
        let itable_blocks = low32(
            (u64::from(inodes_per_group) * u64::from(self.inode_size))
                .div_ceil(self.block_size.into()),
        );
        let desc_blocks = groups.div_ceil(self.block_size / self.desc_size);
        let reserved_gdt = self.reserved_gdt(blocks, per_group, desc_blocks)?;
        let mut table = reserved_gdt + desc_blocks;
        if self.features.incompat.contains(Incompat::META_BG) {
            table = 1;
        } else if u64::from(table) > u64::from(per_group) * 3 / 4 {
            return Ok(Attempt::Spread);
        }
        // Superblock, bitmaps, inode table, descriptors.
        if 3 + itable_blocks + table > per_group {
            return Err(self.too_many_inodes());
        }
        let mut own = 2 + itable_blocks;
        if self.last_group_has_super(groups) {
            own += 1 + desc_blocks + reserved_gdt;
        }
        let rest = covered % u64::from(per_group);
        if rest != 0 {
            let least = u64::from(own) + MIN_LAST_GROUP_DATA;
            if rest < least {
                if groups == 1 {
                    let least = least + self.first_data_block();
                    return Err(FormatError::TooSmall(format!(
                        "{blocks} blocks of {} bytes; with this number of inodes it needs {least}",
                        self.block_size
                    )));
                }
                return Ok(Attempt::WithoutLastGroup);
            }
        }
        Ok(Attempt::Fits(Numbers {
            blocks,
            reserved,
            first_data_block: low32(self.first_data_block()),
            blocks_per_group: per_group,
            groups,
            inodes_per_group,
            itable_blocks,
            desc_blocks,
            reserved_gdt,
            backup_groups: self.backup_groups(groups),
        }))
    }

    /// Inodes in each of `groups` groups, or `None` if the bitmap is too small for them. They fill
    /// the table's blocks and the bitmap's bytes.
    fn inodes_per_group(&self, groups: u32) -> Result<Option<u32>, FormatError> {
        let bits = self.block_size * 8;
        let inodes = self.inodes.max(FIRST_INO + 1);
        let mut wanted = inodes.div_ceil(groups);
        if wanted > bits {
            return Ok(None);
        }
        wanted = wanted.min((1 << 16) - self.block_size / self.inode_size);
        loop {
            let bytes = u64::from(wanted) * u64::from(self.inode_size);
            let filled =
                bytes.next_multiple_of(self.block_size.into()) / u64::from(self.inode_size);
            let rounded = low32(filled).max(8) & !7;
            if groups.checked_mul(rounded).is_some() {
                return Ok(Some(rounded));
            }
            wanted = wanted
                .checked_sub(1)
                .ok_or_else(|| self.too_many_inodes())?;
        }
    }

    /// Blocks to reserve after the descriptor table: enough for growth by a factor of 1024, limited by 32-bit block
    /// numbers and by one block of block numbers.
    fn reserved_gdt(&self, blocks: u64, per_group: u32, desc: u32) -> Result<u32, FormatError> {
        if !self.features.compat.contains(Compat::RESIZE_INODE) {
            return Ok(0);
        }
        let per_block = self.block_size / 4;
        if let Some(asked) = self.reserved_gdt.filter(|&blocks| blocks > 0) {
            return Ok(asked.min(per_block));
        }
        let limit = u64::from(u32::MAX);
        let reach = if blocks < limit / 1024 {
            blocks * 1024
        } else {
            limit
        };
        let groups = (reach - self.first_data_block()).div_ceil(per_group.into());
        let descs = groups.div_ceil(u64::from(self.block_size / self.desc_size));
        Ok(low32(
            descs.saturating_sub(desc.into()).min(per_block.into()),
        ))
    }

    fn last_group_has_super(&self, groups: u32) -> bool {
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            // Before the copies have their groups: one is for the second group, one for the last.
            return self.backups >= if groups == 2 { 1 } else { 2 };
        }
        has_super(self.features, [0; 2], GroupNo(groups - 1))
    }

    fn backup_groups(&self, groups: u32) -> [u32; 2] {
        if !self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return [0; 2];
        }
        let last = groups - 1;
        let first = if self.backups >= 1 { last.min(1) } else { 0 };
        let second = if self.backups >= 2 { last } else { 0 };
        let second = if second == first { 0 } else { second };
        [first.min(second), first.max(second)]
    }

    /// Descriptor blocks to reserve for a volume that can grow to `blocks`.
    pub(super) fn gdt_for_growth(&self, blocks: u64) -> u32 {
        let per_group = self.blocks_per_group.unwrap_or(self.block_size * 8);
        let per_block = u64::from(self.block_size / self.desc_size);
        let descs = |blocks: u64| blocks.div_ceil(per_group.into()).div_ceil(per_block);
        let more = descs(blocks).saturating_sub(descs(self.blocks));
        low32(more.min(u64::from(self.block_size / 4)))
    }
}
