//! mkfs: making volumes.
//!
//! **Rule.** A volume made here is byte for byte the one that mkfs.f2fs of f2fs-tools 1.15 makes with the same
//! options, except for the name of the program. One bug is not repeated: if the device does not end with a whole
//! zone, mkfs.f2fs counts the segments after the last zone as free and available to users (which fsck.f2fs
//! reports); here they are not counted.
//!
//! Options and size determine a [`Plan`](plan::Plan) (areas, superblock, overprovision). From the plan a volume is
//! built in memory ([`Build`](build::Build)), with only the blocks that are not empty. Then it is written, the
//! superblocks last, so that an interrupted format leaves no volume.

use std::sync::Arc;

use steadfs_base::{Timestamp, uuid_seed};
use steadfs_block::{MemDevice, Queue, QueueOptions};
use steadfs_format_base::format::check_device;
use steadfs_rt::{Random, random_u64, wall_clock};

mod build;
mod files;
mod options;
pub(crate) mod plan;
pub(crate) mod write;

#[cfg(test)]
mod tests;

pub use options::{DevicePart, FormatOptions};

use crate::disk::BLOCK_SIZE;
use build::Build;
use plan::Plan;
use write::Writer;

/// Why a volume cannot be made.
pub type FormatError = steadfs_format_base::format::FormatError<crate::disk::Structure>;

/// The properties of the new volume.
#[derive(Clone, Debug, PartialEq)]
pub struct FormatReport {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// Segments of the main area, 2 MiB each.
    pub main_segments: u32,
    /// Sections of the main area.
    pub sections: u32,
    /// Blocks available to users.
    pub user_blocks: u64,
    /// Overprovision: percent of the main area not available to users.
    pub overprovision: f64,
    /// Segments not available to users, including the reserved ones.
    pub overprovision_segments: u32,
    /// Segments reserved for GC.
    pub reserved_segments: u32,
    /// UUID.
    pub uuid: [u8; 16],
    /// Label.
    pub label: String,
    /// Names of the features.
    pub features: Vec<String>,
    /// Bytes written to the device, without zeroing.
    pub written: u64,
    /// Sentences about unexpected properties of the result.
    pub notes: Vec<String>,
}

/// Makes a volume of `size` bytes (rounded down to whole sectors) at the start of the device. The old content of
/// the device is lost. On success the volume is durable.
///
/// # Errors
/// Invalid options or sizes, found before anything is written; a device failure.
pub fn format(queue: &Queue, size: u64, opts: &FormatOptions) -> Result<FormatReport, FormatError> {
    let device = queue.geometry();
    let size = size - size % u64::from(device.logical_block);
    check_device(queue, size)?;
    let sector = opts.sector_size.unwrap_or(device.logical_block);
    let plan = Plan::new(size, sector, opts.uuid.unwrap_or_else(random_uuid), opts)?;
    let now = opts.time.unwrap_or_else(|| wall_clock().secs);
    let mut build = Build::new(
        plan,
        opts,
        Timestamp {
            secs: now,
            nanos: 0,
        },
    )?;
    let version = opts
        .checkpoint_version
        .unwrap_or_else(|| first_version(opts));
    // Invalid options are found before anything is overwritten.
    build.make_checkpoints(version, false)?;
    let mut writer = Writer::new(queue);
    let mut notes = Vec::new();
    let mut zeroed = false;
    if opts.discard {
        let whole = size / BLOCK_SIZE as u64 * BLOCK_SIZE as u64;
        let (trimmed, zeroes) = writer.discard(whole)?;
        zeroed = zeroes;
        if trimmed {
            build.make_checkpoints(version, true)?;
        } else {
            notes.push("the device cannot discard its old content".to_owned());
        }
    }
    writer.wipe_superblocks(zeroed)?;
    if !zeroed {
        writer.zero_tables(&build)?;
    }
    let written = writer.write(&mut build)?;
    Ok(report(&build.plan, written, notes))
}

/// Reports what [`format()`] would make, without a device; the UUID is none.
///
/// # Errors
/// Invalid options or sizes.
pub fn dry_run(size: u64, sector: u32, opts: &FormatOptions) -> Result<FormatReport, FormatError> {
    let sector = opts.sector_size.unwrap_or(sector);
    let plan = Plan::new(size, sector, opts.uuid.unwrap_or_default(), opts)?;
    Ok(report(&plan, 0, Vec::new()))
}

/// A device in memory with a volume that fills it, for tests.
///
/// # Errors
/// As [`format()`].
pub fn image(size: u64, opts: &FormatOptions) -> Result<Arc<MemDevice>, FormatError> {
    let device = Arc::new(MemDevice::new(size));
    let queue = Queue::new(device.clone(), QueueOptions::default());
    format(&queue, size, opts)?;
    Ok(device)
}

/// The version of the first checkpoint, an odd number. It is random, unless UUID and time are given: then it is
/// derived from the UUID, so that all bytes are reproducible.
fn first_version(opts: &FormatOptions) -> u32 {
    let number = match (opts.uuid, opts.time) {
        (Some(uuid), Some(_)) => Random::new(uuid_seed(uuid)).next_u64(),
        _ => random_u64(),
    };
    (number >> 33) as u32 | 1
}

/// A random UUID (RFC 9562, version 4).
fn random_uuid() -> [u8; 16] {
    let words = u128::from(random_u64()) << 64 | u128::from(random_u64());
    let mut uuid = words.to_be_bytes();
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn report(plan: &Plan, written: u64, notes: Vec<String>) -> FormatReport {
    let layout = plan.superblock.layout();
    let users = layout.main_segments - plan.overprovision_segments;
    let features = plan.superblock.features().names();
    FormatReport {
        blocks: layout.block_count,
        main_segments: layout.main_segments,
        sections: layout.main_segments / layout.segments_per_section,
        user_blocks: u64::from(users) * u64::from(crate::disk::SEGMENT_BLOCKS),
        overprovision: plan.overprovision,
        overprovision_segments: plan.overprovision_segments,
        reserved_segments: plan.reserved_segments,
        uuid: plan.superblock.uuid(),
        label: plan.superblock.label(),
        features: features.into_iter().map(|name| name.into_owned()).collect(),
        written,
        notes,
    }
}
