//! The geometry and superblock of a new volume, as mkfs.f2fs computes them.
//!
//! The areas follow each other in whole segments: checkpoint packs, SIT, NAT, SSA, main area. The areas before the
//! main area together fill whole zones, and so does the used part of the device.

use zerocopy::FromZeros;

use super::{DevicePart, FormatError, FormatOptions};
use crate::disk::casefold::Encoding;
use crate::disk::checkpoint::{BITMAPS_AT, LAST_CHECKSUM_AT};
use crate::disk::superblock::{self, RawSuperblock, fill_text, put_label};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Features, LogType, Nid, SEGMENT_BLOCKS, SegNo, Superblock, checksum,
    nat, sit,
};

pub(crate) const SEGMENT_BYTES: u64 = SEGMENT_BLOCKS as u64 * BLOCK_SIZE as u64;
/// Bytes of both version bitmaps in a checkpoint's first block.
const VERSION_BITMAP_BYTES: u64 = (LAST_CHECKSUM_AT - BITMAPS_AT) as u64;
/// Bytes in a version bitmap per segment of a table.
const BITMAP_BYTES_PER_SEGMENT: u64 = SEGMENT_BLOCKS as u64 / 8;
/// Segments of the checkpoint packs, one each.
const PACK_SEGMENTS: u64 = 2;
/// The fewest zones: one per log, and one more.
const ZONES_MIN: u64 = 7;
/// In smaller main areas the overprovision is searched in coarse steps.
const COARSE_STEP_SEGMENTS_MAX: u64 = 256;
/// Version of the format (`major_ver`, `minor_ver`).
const VERSION: (u16, u16) = (1, 15);
/// The inode of the first quota file, where there is one.
const FIRST_QUOTA_FILE: Nid = Nid(4);

/// All properties of a volume that are fixed before it is built.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub superblock: Superblock,
    /// Overprovision: percent of the main area not available to users.
    pub overprovision: f64,
    /// Segments reserved for GC.
    pub reserved_segments: u32,
    /// Segments not available to users, including the reserved ones.
    pub overprovision_segments: u32,
    /// The first segment of each log, by [`LogType`].
    pub logs: [SegNo; 6],
    /// The version bitmaps follow the checkpoint's checksum.
    pub large_nat_bitmap: bool,
}

/// Sizes of the areas in segments.
#[derive(Clone, Copy, Debug)]
struct Areas {
    first: u64,
    all: u64,
    sit: u64,
    nat: u64,
    ssa: u64,
    payload: u64,
    main_first: u64,
    zones: u64,
    zone: u64,
}

fn too_small(what: impl Into<String>) -> FormatError {
    FormatError::TooSmall(what.into())
}

impl Plan {
    pub(super) fn new(
        size: u64,
        sector: u32,
        uuid: [u8; 16],
        opts: &FormatOptions,
    ) -> Result<Self, FormatError> {
        opts.check_features()?;
        if !(sector.is_power_of_two() && (512..=4096).contains(&sector)) {
            let why = format!("{sector} is not 512, 1024, 2048 or 4096");
            return Err(FormatError::option("sector size", why));
        }
        let size = size / u64::from(sector) * u64::from(sector);
        let areas = Areas::of(size, opts)?;
        let main = areas.zones * areas.zone;
        let section = u64::from(opts.segments_per_section);
        let (overprovision, reserved, kept) =
            plan_overprovision(main, section, opts.overprovision)?;
        let superblock = Superblock::from_raw(fill(&areas, size, sector, uuid, opts)?)?;
        Ok(Self {
            superblock,
            overprovision,
            reserved_segments: small(reserved)?,
            overprovision_segments: small(kept)?,
            logs: first_segments(areas.zones, areas.zone)?,
            large_nat_bitmap: opts.large_nat_bitmap,
        })
    }
}

/// A number of segments or blocks as the 32-bit field that stores it.
fn small(n: u64) -> Result<u32, FormatError> {
    u32::try_from(n).map_err(|_| FormatError::Device("the device is too large for f2fs".to_owned()))
}

impl Areas {
    fn of(size: u64, opts: &FormatOptions) -> Result<Self, FormatError> {
        let zone = u64::from(opts.segments_per_section)
            .checked_mul(opts.sections_per_zone.into())
            .filter(|&n| n > 0 && n <= superblock::MAX_SEGMENTS.into())
            .ok_or_else(|| {
                let why = "segments per section and sections per zone are numbers from 1 on, \
                           together not more than a volume has";
                FormatError::option("sections", why)
            })?;
        // The superblocks take the first zone.
        let all = (size / SEGMENT_BYTES).saturating_sub(zone) / zone * zone;
        if all > superblock::MAX_SEGMENTS.into() {
            let what = "f2fs volumes have at most 16 TiB".to_owned();
            return Err(FormatError::Device(what));
        }
        if all < superblock::MIN_SEGMENTS.into() {
            return Err(too_small(format!("{all} segments of 2 MiB can be used")));
        }
        let per_segment = u64::from(SEGMENT_BLOCKS);
        let segments_for = |blocks: u64| blocks.div_ceil(per_segment);
        let sit = segments_for(all.div_ceil(sit::PER_BLOCK as u64));
        let rest = |used: u64| {
            all.checked_sub(used)
                .ok_or_else(|| too_small("its tables fill it"))
        };
        let nodes = rest(PACK_SEGMENTS + 2 * sit)? * per_segment;
        let wanted = segments_for(nodes.div_ceil(nat::PER_BLOCK as u64));
        let (nat, payload) = bitmaps(sit, wanted, opts.large_nat_bitmap);
        let summaries = rest(PACK_SEGMENTS + 2 * sit + 2 * nat)? + 1;
        let tables = PACK_SEGMENTS + 2 * sit + 2 * nat;
        let before_main = (tables + segments_for(summaries)).next_multiple_of(zone);
        let zones = rest(before_main)? / zone;
        if zones < ZONES_MIN {
            let what = format!("{zones} zones are left for data, {ZONES_MIN} are needed");
            return Err(too_small(what));
        }
        Ok(Self {
            first: zone,
            all,
            sit,
            nat,
            ssa: before_main - tables,
            payload,
            main_first: zone + before_main,
            zones,
            zone,
        })
    }
}

/// Segments of one copy of the NAT, and payload blocks that checkpoints need for the bitmaps of both tables.
pub(crate) fn bitmaps(sit: u64, wanted: u64, large: bool) -> (u64, u64) {
    let block = BLOCK_SIZE as u64;
    let sit_bytes = sit * BITMAP_BYTES_PER_SEGMENT;
    if large {
        // One node per five blocks.
        let nat = (wanted / 5).max(1);
        let beyond =
            (sit_bytes + nat * BITMAP_BYTES_PER_SEGMENT).saturating_sub(VERSION_BITMAP_BYTES);
        return (nat, beyond.div_ceil(block));
    }
    let (room, payload) = if sit_bytes > VERSION_BITMAP_BYTES - BITMAP_BYTES_PER_SEGMENT {
        (VERSION_BITMAP_BYTES, sit_bytes.div_ceil(block))
    } else {
        (VERSION_BITMAP_BYTES - sit_bytes, 0)
    };
    (wanted.min(room / BITMAP_BYTES_PER_SEGMENT), payload)
}

/// Segments to reserve for GC with this overprovision: twice what freeing one section takes, and one section per
/// log.
fn reserved(percent: f64, section: u64) -> f64 {
    (2.0 * (100.0 / percent + 1.0) + 6.0) * section as f64
}

/// The overprovision in percent, the reserved segments, and the sum of both in segments.
pub(crate) fn plan_overprovision(
    main: u64,
    section: u64,
    percent: Option<f64>,
) -> Result<(f64, u64, u64), FormatError> {
    let percent = match percent {
        Some(percent) if percent > 0.0 && percent <= 100.0 => percent,
        Some(percent) => {
            let why = format!("{percent} is not a percentage above 0");
            return Err(FormatError::option("overprovision", why));
        }
        None => best_overprovision(main, section).ok_or_else(|| {
            too_small(format!(
                "garbage collection needs more than {main} segments"
            ))
        })?,
    };
    let reserved = reserved(percent, section) as u64;
    let open = LogType::ALL.len() as u64;
    if main < reserved + open {
        let what =
            format!("of {main} segments, garbage collection needs {reserved} and the logs {open}");
        return Err(too_small(what));
    }
    let kept = ((main - reserved) as f64 * percent / 100.0) as u64 + reserved;
    if kept >= main {
        let why = format!("{percent} percent leave nothing to users");
        return Err(FormatError::option("overprovision", why));
    }
    Ok((percent, reserved, kept))
}

/// The overprovision that leaves the most space to users.
fn best_overprovision(main: u64, section: u64) -> Option<f64> {
    let (first, last, step) = if main < COARSE_STEP_SEGMENTS_MAX {
        (10.0, 95.0, 5.0)
    } else {
        (0.01, 10.0, 0.01)
    };
    let mut best = None;
    let mut most = 0.0;
    let mut candidate: f64 = first;
    // Repeated addition, with its rounding, tries the same numbers as mkfs.f2fs.
    while candidate <= last {
        let reserved = reserved(candidate, section);
        let rest = main as f64 - reserved;
        let left = rest - rest * candidate / 100.0;
        if left > most {
            most = left;
            best = Some(candidate);
        }
        candidate += step;
    }
    best
}

/// The start of the logs: nodes and directories at the front, cold data at a quarter of the main area and warm data
/// at half of it, each in a zone of its own.
fn first_segments(zones: u64, zone: u64) -> Result<[SegNo; 6], FormatError> {
    let last_of = |zones: u64| zones.saturating_sub(1) * zone;
    let hot_data = 3 * zone;
    let cold_data = last_of(zones / 4).max(hot_data + zone);
    let warm_data = last_of(zones / 2).max(cold_data + zone);
    let mut logs = [SegNo(0); 6];
    for (log, segment) in [
        (LogType::HotNode, 0),
        (LogType::WarmNode, zone),
        (LogType::ColdNode, 2 * zone),
        (LogType::HotData, hot_data),
        (LogType::WarmData, warm_data),
        (LogType::ColdData, cold_data),
    ] {
        logs[log.index()] = SegNo(small(segment)?);
    }
    Ok(logs)
}

fn fill(
    areas: &Areas,
    size: u64,
    sector: u32,
    uuid: [u8; 16],
    opts: &FormatOptions,
) -> Result<RawSuperblock, FormatError> {
    let mut raw = RawSuperblock::new_zeroed();
    raw.magic.set(checksum::MAGIC);
    raw.major_ver.set(VERSION.0);
    raw.minor_ver.set(VERSION.1);
    raw.log_sectorsize.set(sector.ilog2());
    raw.log_sectors_per_block.set(12 - sector.ilog2());
    raw.log_blocksize.set(12);
    raw.log_blocks_per_seg.set(9);
    raw.segs_per_sec.set(opts.segments_per_section);
    raw.secs_per_zone.set(opts.sections_per_zone);
    raw.block_count.set(size / BLOCK_SIZE as u64);
    let main = areas.zones * areas.zone;
    let sections = main / u64::from(opts.segments_per_section);
    let mut at = areas.first;
    let mut area = |segments: u64| -> Result<u32, FormatError> {
        let start = at * u64::from(SEGMENT_BLOCKS);
        at += segments;
        small(start)
    };
    raw.segment0_blkaddr.set(area(0)?);
    raw.cp_blkaddr.set(area(PACK_SEGMENTS)?);
    raw.sit_blkaddr.set(area(2 * areas.sit)?);
    raw.nat_blkaddr.set(area(2 * areas.nat)?);
    raw.ssa_blkaddr.set(area(areas.ssa)?);
    raw.main_blkaddr.set(area(main)?);
    debug_assert_eq!(areas.main_first + main, at);
    for (field, count) in [
        (&mut raw.section_count, sections),
        (&mut raw.segment_count, areas.all),
        (&mut raw.segment_count_ckpt, PACK_SEGMENTS),
        (&mut raw.segment_count_sit, 2 * areas.sit),
        (&mut raw.segment_count_nat, 2 * areas.nat),
        (&mut raw.segment_count_ssa, areas.ssa),
        (&mut raw.segment_count_main, main),
        (&mut raw.cp_payload, areas.payload),
    ] {
        field.set(small(count)?);
    }
    raw.root_ino.set(Nid::ROOT.0);
    raw.node_ino.set(Nid::NODE.0);
    raw.meta_ino.set(Nid::META.0);
    raw.uuid = uuid;
    if !put_label(&mut raw, &opts.label) {
        let why = "longer than 511 UTF-16 units";
        return Err(FormatError::option("label", why));
    }
    let [cold, hot] = opts.extensions()?;
    raw.extension_count.set(small(cold.len() as u64)?);
    raw.hot_ext_count = u8::try_from(hot.len()).unwrap_or(u8::MAX);
    for (slot, extension) in raw.extension_list.iter_mut().zip(cold.iter().chain(&hot)) {
        fill_text(slot, extension);
    }
    fill_text(&mut raw.version, &opts.program);
    fill_text(&mut raw.init_version, &opts.program);
    set_features(&mut raw, opts);
    set_devices(&mut raw, areas, sector, &opts.devices)?;
    Ok(raw)
}

/// The devices of a volume on several. The first one's segments begin behind the superblocks.
fn set_devices(
    raw: &mut RawSuperblock,
    areas: &Areas,
    sector: u32,
    devices: &[DevicePart],
) -> Result<(), FormatError> {
    if devices.is_empty() {
        return Ok(());
    }
    if devices.len() > DevicePart::MAX {
        let why = format!("a volume has at most {} devices", DevicePart::MAX);
        return Err(FormatError::option("-c", why));
    }
    let (mut sectors, mut left) = (0, areas.all);
    let before = [areas.first].into_iter().chain(std::iter::repeat(0));
    for ((slot, device), before) in raw.devs.iter_mut().zip(devices).zip(before) {
        device.check()?;
        sectors += device.bytes / u64::from(sector);
        fill_text(&mut slot.path, &device.path);
        // Together they have the segments of the volume, which are whole zones; Linux compares.
        let segments = (device.used() / SEGMENT_BYTES)
            .saturating_sub(before)
            .min(left);
        left -= segments;
        slot.total_segments.set(small(segments)?);
    }
    // As mkfs.f2fs counts them: with the ends of devices that are no whole segment.
    let blocks = sectors / (BLOCK_SIZE as u64 / u64::from(sector));
    raw.block_count.set(blocks);
    Ok(())
}

fn set_features(raw: &mut RawSuperblock, opts: &FormatOptions) {
    raw.feature.set(opts.features.0);
    if let Some((number, flags)) = opts.encoding.map(Encoding::to_disk) {
        raw.encoding.set(number);
        raw.encoding_flags.set(flags);
    }
    // As in mkfs.f2fs, the feature project_quota creates a project quota file by itself.
    let quota = opts.features.contains(Features::QUOTA_INO);
    let project = opts.features.contains(Features::PROJECT_QUOTA);
    let mut next = FIRST_QUOTA_FILE;
    for (wanted, file) in [quota, quota, project].into_iter().zip(&mut raw.qf_ino) {
        if wanted {
            raw.feature.set(raw.feature.get() | Features::QUOTA_INO.0);
            file.set(next.0);
            next.0 += 1;
        }
    }
}

/// The address of the first block of a log.
pub(super) fn first_block(plan: &Plan, log: LogType) -> BlockAddr {
    let layout = plan.superblock.layout();
    layout.block_in(plan.logs[log.index()], 0)
}
