//! Making volumes (mkfs).
//!
//! **Rule.** The result equals the volume that mke2fs of e2fsprogs 1.47 makes with the same options: the same numbers
//! and the same places, byte for byte except for the count of kilobytes written. So the defaults are those that users
//! of e2fsprogs know, and every size that mke2fs supports works.
//!
//! Steps: options and size give a [`Plan`](plan::Plan) (features, numbers, superblock); the plan becomes a volume in
//! memory ([`Build`](build::Build)), which holds non-empty blocks only; that is written, the superblock last, so that
//! an interrupted format leaves no volume.

use std::sync::Arc;

use steadfs_block::{MemDevice, Queue, QueueOptions};
use steadfs_format_base::format::check_device;

use crate::disk::features::{Compat, Incompat, RoCompat};

mod build;
mod external;
mod features;
mod files;
mod mapping;
mod numbers;
mod options;
mod plan;
mod quota;
mod space;
mod tables;
mod write;

#[cfg(test)]
mod tests;

pub use crate::disk::superblock::OnError;
pub use external::{
    JournalReport, NamedJournal, format_journal, makes_journal, take_journal, unused_journal,
};
pub use options::{BlocksOrBytes, FormatOptions, Kind, Usage};

use build::Build;
use plan::Plan;
use write::Writer;

/// Bytes wiped at the volume's end, where software RAID has its superblock.
const WIPE_END_BYTES: u64 = 64 << 10;

/// Why a volume cannot be made.
pub type FormatError = steadfs_format_base::format::FormatError<crate::disk::Structure>;

/// Facts of the volume that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatReport {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks that only root may use.
    pub reserved_blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u32,
    /// Groups.
    pub groups: u32,
    /// Blocks of the journal, if there is one.
    pub journal_blocks: Option<u32>,
    /// UUID.
    pub uuid: [u8; 16],
    /// Label.
    pub label: String,
    /// Names of the features.
    pub features: Vec<String>,
    /// Blocks that hold copies of the superblock.
    pub superblock_copies: Vec<u64>,
    /// Bytes written to the device, zeroing not counted.
    pub written: u64,
    /// Notes for the user where the result differs from the usual, in sentences.
    pub notes: Vec<String>,
}

/// Makes a volume of `size` bytes (rounded down to whole blocks) at the start of the device. The content of the device
/// is lost. When this returns without an error the volume is durable.
///
/// For a whole device of `n` bytes mke2fs takes `n & !4095`.
pub fn format(queue: &Queue, size: u64, opts: &FormatOptions) -> Result<FormatReport, FormatError> {
    check_device(queue, size)?;
    let device = queue.geometry();
    let sector = opts.sector_size.unwrap_or(device.logical_block);
    let plan = Plan::new(size, sector, opts)?;
    // All errors of the options are found before the first write.
    let mut build = lay_out(&plan, opts)?;
    let geo = build.geo.clone();
    let bytes = geo.blocks_count << geo.block_size.bits();
    let mut writer = Writer::new(queue, geo.block_size);
    let zeroed = (opts.discard && writer.discard(bytes)?) || opts.prezeroed;
    writer.wipe_superblock()?;
    build.zero_itables(zeroed, opts.lazy_itable_init);
    if !zeroed {
        let unit = WIPE_END_BYTES >> geo.block_size.bits();
        let whole = geo.blocks_count & !(unit - 1);
        let start = if whole > unit { whole - unit } else { whole };
        if start > 0 {
            build.zeros.push(start..geo.blocks_count);
        }
        writer.zero(&build.zeros)?;
    }
    let later = Incompat::FLEX_BG.0 & geo.features.incompat.0 != 0
        || geo.features.ro_compat.0
            & (RoCompat::HUGE_FILE.0
                | RoCompat::GDT_CSUM.0
                | RoCompat::DIR_NLINK.0
                | RoCompat::METADATA_CSUM.0
                | RoCompat::EXTRA_ISIZE.0)
            != 0;
    let written = writer.write(&mut build, later)?;
    Ok(report(&plan, &build, written))
}

/// Reports what [`format()`] would make, without a device.
pub fn dry_run(size: u64, sector: u32, opts: &FormatOptions) -> Result<FormatReport, FormatError> {
    let plan = Plan::new(size, opts.sector_size.unwrap_or(sector), opts)?;
    let build = lay_out(&plan, opts)?;
    Ok(report(&plan, &build, 0))
}

/// A new device in memory with a volume that fills it, for tests.
pub fn image(size: u64, opts: &FormatOptions) -> Result<Arc<MemDevice>, FormatError> {
    let device = Arc::new(MemDevice::new(size));
    let queue = Queue::new(device.clone(), QueueOptions::default());
    format(&queue, size, opts)?;
    Ok(device)
}

/// The whole volume in memory.
fn lay_out(plan: &Plan, opts: &FormatOptions) -> Result<Build, FormatError> {
    let mut build = Build::new(plan, opts)?;
    let bits = build.geo.cluster_bits;
    let mut overhead = build.space.count_used(build.geo.block_range()) >> bits;
    build.make_root(opts.root_owner.unwrap_or_default(), opts.root_perms)?;
    build.make_lost_found()?;
    build.make_reserved();
    if build.geo.features.compat.contains(Compat::RESIZE_INODE) {
        build.make_resize_inode()?;
    }
    if let Some(journal) = plan.journal {
        let asked = opts.journal_location;
        let asked = asked.map(|place| place.whole_blocks(1 << build.geo.block_size.bits()));
        let location = match opts.packed_meta_blocks {
            true => Some(asked.unwrap_or(0)),
            false => asked,
        };
        build.make_journal(journal, location, !opts.lazy_journal_init)?;
        overhead += u64::from(build.geo.clusters_for(journal.blocks));
    }
    if build.geo.features.incompat.contains(Incompat::MMP) {
        build.make_mount_protection(opts)?;
    }
    build.make_quota_files(quota::kinds(opts, build.geo.features))?;
    if let Some(blocks) = plan.orphan_blocks {
        build
            .make_orphan_file(blocks)
            .map_err(|error| match error {
                FormatError::TooSmall(_) => {
                    FormatError::TooSmall(format!("no room for an orphan file of {blocks} blocks"))
                }
                error => error,
            })?;
    }
    overhead += build.geo.first_data_block.0;
    build.superblock.set_overhead(overhead);
    build.count();
    Ok(build)
}

fn report(plan: &Plan, build: &Build, written: u64) -> FormatReport {
    let geo = &build.geo;
    let superblock = &build.superblock;
    let features = superblock.features().names();
    FormatReport {
        block_size: 1 << geo.block_size.bits(),
        blocks: geo.blocks_count,
        reserved_blocks: superblock.reserved_blocks(),
        free_blocks: superblock.free_blocks(),
        inodes: geo.inodes_count,
        groups: geo.group_count,
        journal_blocks: plan.journal.map(|journal| journal.blocks),
        uuid: geo.uuid,
        label: superblock.volume_name().into_owned(),
        features: features.into_iter().map(|name| name.into_owned()).collect(),
        superblock_copies: geo
            .groups()
            .skip(1)
            .filter(|&group| geo.has_super(group))
            .map(|group| geo.first_block_of(group).0)
            .collect(),
        written,
        notes: plan.notes.clone(),
    }
}
