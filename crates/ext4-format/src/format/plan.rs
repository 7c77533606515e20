//! From options to a superblock: everything about the volume that does not depend on the places of its files.

use steadfs_base::{BlockSize, Timestamp, uuid_seed};
use steadfs_rt::{Random, random_u64, wall_clock};
use zerocopy::FromZeros;

use super::numbers::{FIRST_INO, Numbers, Request, cluster_bits};
use super::{FormatError, FormatOptions, OnError, Usage, features, quota};
use crate::disk::features::{Compat, Incompat, RoCompat};
use crate::disk::mmp::UPDATE_INTERVAL;
use crate::disk::num::{high32, low8, low16, low32};
use crate::disk::superblock::{FLAG_SIGNED_HASH, MAGIC, RawSuperblock, STATE_CLEAN};
use crate::disk::{Features, Superblock};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// `s_encrypt_algos`: of contents, and of names (`FSCRYPT_MODE_*`).
const AES_256_XTS: u8 = 1;
const AES_256_CTS: u8 = 4;
/// `s_encoding`; bit 0 of `s_encoding_flags` is strict mode.
const ENCODING_UTF8_12_1: u16 = 1;
/// `s_default_mount_opts`: extended attributes of users, and access control lists.
pub(super) const DEFAULT_MOUNT_OPTS: u32 = 0x4 | 0x8;
/// `s_def_hash_version`: half MD4.
pub(super) const HALF_MD4: u8 = 1;
/// Default number of groups in a flex group.
const FLEX_GROUP_SIZE: u32 = 16;
/// Sizes a journal can have, in blocks.
const JOURNAL_BLOCKS: std::ops::RangeInclusive<u64> = 1024..=10_240_000;
/// One block for fast commits is added for this number of journal blocks.
const FAST_COMMIT_SHARE: u32 = 64;

/// The journal to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JournalPlan {
    /// All its blocks.
    pub blocks: u32,
    /// Blocks of the fast-commit area among them.
    pub fast_commit_blocks: u32,
}

/// A volume to be made.
#[derive(Debug)]
pub(super) struct Plan {
    /// The final superblock except for counts and places of files.
    pub superblock: Superblock,
    pub journal: Option<JournalPlan>,
    /// Blocks of the orphan file.
    pub orphan_blocks: Option<u32>,
    pub now: Timestamp,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl Plan {
    /// Plans a volume of at most `size` bytes on a device with sectors of `sector` bytes.
    pub(super) fn new(size: u64, sector: u32, opts: &FormatOptions) -> Result<Self, FormatError> {
        check_options(opts)?;
        let mut features = features::choose(opts)?;
        let block_size = block_size(size, sector, opts)?;
        let blocks = size / u64::from(block_size);
        if blocks > u32::MAX.into() {
            if !features.incompat.contains(Incompat::BIT64) {
                let why = format!(
                    "{blocks} blocks of {block_size} bytes need the feature 64bit or larger blocks"
                );
                return Err(FormatError::option("features", why));
            }
            // The resize inode's block numbers have 32 bits.
            features.compat = features.compat.without(Compat::RESIZE_INODE);
        }
        if blocks >= 1 << 48 {
            return Err(FormatError::option(
                "size",
                format!("{blocks} blocks are more than a volume can have"),
            ));
        }
        let request = request(size, blocks, block_size, &mut features, opts)?;
        features::check(features)?;
        let (numbers, mut features) = request.fit()?;
        let mut notes = Vec::new();
        let journal = journal(&numbers, &mut features, block_size, opts, &mut notes)?;
        let orphan_blocks = orphan_blocks(&request, numbers.blocks, features, opts)?;
        let now = opts.time.unwrap_or_else(wall_clock);
        let raw = superblock(&request, &numbers, features, now, opts)?;
        let superblock = Superblock::from_raw(raw)?;
        if let Some(journal) = journal
            && (opts.journal_size.is_some() || opts.fast_commit_size.is_some())
            && u64::from(journal.blocks) > free_before_tables(&superblock, &numbers) / 2
        {
            let why = format!("{} blocks are more than half of the volume", journal.blocks);
            return Err(FormatError::option("journal size", why));
        }
        Ok(Self {
            superblock,
            journal,
            orphan_blocks,
            now,
            notes,
        })
    }
}

fn check_options(opts: &FormatOptions) -> Result<(), FormatError> {
    super::external::check(opts)?;
    if !(0.0..=50.0).contains(&opts.reserved_percent) {
        let why = format!("{} is not a percentage from 0 to 50", opts.reserved_percent);
        return Err(FormatError::option("reserved blocks", why));
    }
    for (option, text, limit) in [
        ("label", &opts.label, 16),
        ("last mounted", &opts.last_mounted, 64),
    ] {
        if text.len() > limit || text.contains('\0') {
            let why = format!("at most {limit} bytes, none of them zero");
            return Err(FormatError::option(option, why));
        }
    }
    if opts.backup_superblocks > 2 {
        return Err(FormatError::option("num_backup_sb", "at most 2"));
    }
    if let Some(ratio) = opts.inode_ratio
        && !(1024..=64 << 20).contains(&ratio)
    {
        let why = format!("{ratio} is not between 1024 and 67108864 bytes for each inode");
        return Err(FormatError::option("inode ratio", why));
    }
    if let Some(groups) = opts.flex_group_size
        && (!groups.is_power_of_two() || groups > 1 << 31)
    {
        return Err(FormatError::option("flex group size", "not a power of two"));
    }
    Ok(())
}

fn usages(size: u64, opts: &FormatOptions) -> Vec<Usage> {
    if !opts.usage.is_empty() {
        return opts.usage.clone();
    }
    let unit = opts.block_size.unwrap_or(1024).max(1);
    vec![match size / u64::from(unit) * u64::from(unit) {
        s if s < 3 * MIB => Usage::Floppy,
        s if s < 512 * MIB => Usage::Small,
        s if s < 4 * TIB => Usage::Default,
        s if s < 16 * TIB => Usage::Big,
        _ => Usage::Huge,
    }]
}

impl Usage {
    fn block_size(self) -> Option<u32> {
        match self {
            Self::Floppy | Self::Small => Some(1024),
            Self::LargeFile | Self::LargeFile4 => Some(4096),
            Self::Default | Self::Big | Self::Huge | Self::News => None,
        }
    }

    fn inode_ratio(self) -> Option<u64> {
        match self {
            Self::Floppy => Some(8 * KIB),
            Self::Small | Self::News => Some(4 * KIB),
            Self::Default => None,
            Self::Big => Some(32 * KIB),
            Self::Huge => Some(64 * KIB),
            Self::LargeFile => Some(MIB),
            Self::LargeFile4 => Some(4 * MIB),
        }
    }
}

pub(super) fn block_size(size: u64, sector: u32, opts: &FormatOptions) -> Result<u32, FormatError> {
    let usages = usages(size, opts);
    let by_usage = usages.iter().rev().find_map(|usage| usage.block_size());
    let bytes = match opts
        .block_size
        .or(opts.external_journal.map(|journal| journal.block_size))
    {
        None => {
            let least = opts.least_block_size.unwrap_or(0);
            by_usage.unwrap_or(4096).max(sector).max(least)
        }
        Some(bytes) => bytes,
    };
    if BlockSize::new(bytes).is_none() {
        let why = format!("{bytes} is not a power of two from 1024 to 65536");
        return Err(FormatError::option("block size", why));
    }
    if bytes < sector {
        let why = format!(
            "{bytes} is less than the device's sectors of {sector} bytes: the kernel would not mount it"
        );
        return Err(FormatError::option("block size", why));
    }
    Ok(bytes)
}

fn request(
    size: u64,
    blocks: u64,
    block_size: u32,
    features: &mut Features,
    opts: &FormatOptions,
) -> Result<Request, FormatError> {
    if let Some(per_group) = opts.blocks_per_group
        && (!(256..=block_size * 8).contains(&per_group) || !per_group.is_multiple_of(8))
    {
        let most = block_size * 8;
        let why = format!("{per_group} is not a multiple of 8 between 256 and {most}");
        return Err(FormatError::option("blocks per group", why));
    }
    let inode_size = u32::from(opts.inode_size.unwrap_or(256));
    if !inode_size.is_power_of_two() || !(128..=block_size.min(1 << 15)).contains(&inode_size) {
        let why = format!("{inode_size} is not a power of two from 128 to the block size");
        return Err(FormatError::option("inode size", why));
    }
    if features.ro_compat.contains(RoCompat::PROJECT) && inode_size == 128 {
        let why = "project needs inodes larger than 128 bytes, which have no place for the project";
        return Err(FormatError::option("features", why));
    }
    if features.incompat.contains(Incompat::INLINE_DATA) && inode_size == 128 {
        let why = "inline_data needs inodes larger than 128 bytes, which have no place for data";
        return Err(FormatError::option("features", why));
    }
    let wide = features.incompat.contains(Incompat::BIT64);
    let cluster_bits = cluster_bits(block_size, *features, opts)?;
    let mut request = Request {
        blocks,
        reserved: (opts.reserved_percent * blocks as f64 / 100.0) as u64,
        block_size,
        cluster_bits,
        blocks_per_group: opts.blocks_per_group,
        inodes: inodes(size, blocks, (block_size, cluster_bits), wide, opts)?,
        inode_size,
        desc_size: if wide { 64 } else { 32 },
        features: *features,
        backups: opts.backup_superblocks,
        reserved_gdt: None,
    };
    if let Some(growth) = opts.resize.map(|size| size.whole_blocks(block_size)) {
        if growth <= blocks {
            let why = format!("{growth} blocks are not more than the volume has, {blocks}");
            return Err(FormatError::option("resize", why));
        }
        let more = request.gdt_for_growth(growth);
        if more > 0 {
            features.compat = features.compat.union(Compat::RESIZE_INODE);
            request.features = *features;
            request.reserved_gdt = Some(more);
        }
    }
    if blocks == 0 {
        let why = format!("not even a block of {block_size} bytes");
        return Err(FormatError::TooSmall(why));
    }
    let table = u64::from(request.inodes) * u64::from(inode_size);
    if table >= blocks.saturating_mul(block_size.into()) {
        let why = format!(
            "{} inodes of {inode_size} bytes leave no room",
            request.inodes
        );
        return Err(FormatError::option("number of inodes", why));
    }
    Ok(request)
}

fn inodes(
    size: u64,
    blocks: u64,
    (block_size, cluster_bits): (u32, Option<u32>),
    wide: bool,
    opts: &FormatOptions,
) -> Result<u32, FormatError> {
    if let Some(count) = opts.inodes.filter(|&count| count > 0) {
        return u32::try_from(count).map_err(|_| {
            FormatError::option("number of inodes", format!("{count} is 2^32 or more"))
        });
    }
    let ratio = match opts.inode_ratio {
        Some(ratio) => ratio.into(),
        None => {
            let usages = usages(size, opts);
            let by_usage = usages.iter().rev().find_map(|usage| usage.inode_ratio());
            let unit = u64::from(block_size) << cluster_bits.unwrap_or(0);
            by_usage.unwrap_or(16 * KIB).max(unit)
        }
    };
    let count = blocks.saturating_mul(block_size.into()) / ratio;
    if count == 0 {
        // The ratio does not apply to a volume this small.
        return Ok(low32(blocks / u64::from(4096 / block_size.min(4096))));
    }
    match u32::try_from(count) {
        Ok(count) => Ok(count),
        Err(_) if wide => Ok(u32::MAX),
        Err(_) => {
            let why = format!("makes {count} inodes: raise it");
            Err(FormatError::option("inode ratio", why))
        }
    }
}

/// Blocks of a journal for a volume of `blocks`; none for very small ones.
fn default_journal(blocks: u64) -> Option<u32> {
    const STEPS: [(u64, u32); 8] = [
        (32 << 10, 1 << 10),
        (256 << 10, 4 << 10),
        (512 << 10, 8 << 10),
        (4096 << 10, 16 << 10),
        (8192 << 10, 32 << 10),
        (16384 << 10, 64 << 10),
        (32768 << 10, 128 << 10),
        (u64::MAX, 256 << 10),
    ];
    if blocks < 2048 {
        return None;
    }
    STEPS
        .iter()
        .find(|(below, _)| blocks < *below)
        .map(|&(_, journal)| journal)
}

fn journal(
    numbers: &Numbers,
    features: &mut Features,
    block_size: u32,
    opts: &FormatOptions,
    notes: &mut Vec<String>,
) -> Result<Option<JournalPlan>, FormatError> {
    if !features.compat.contains(Compat::HAS_JOURNAL) || opts.external_journal.is_some() {
        return Ok(None);
    }
    let Some(default) = default_journal(numbers.blocks) else {
        let without = Compat::HAS_JOURNAL.union(Compat::ORPHAN_FILE);
        features.compat = features.compat.without(without);
        notes.push("the volume is too small for a journal and has none".to_owned());
        return Ok(None);
    };
    let fast = features.compat.contains(Compat::FAST_COMMIT);
    let size = opts.journal_size.filter(|&mib| mib > 0);
    let fast_size = opts.fast_commit_size.filter(|&kib| kib > 0 && fast);
    let blocks = match size {
        Some(mib) => u64::from(mib) * MIB / u64::from(block_size),
        None => default.into(),
    };
    let fast_blocks = match fast_size {
        Some(kib) => u64::from(kib) * KIB / u64::from(block_size),
        None if fast => (default / FAST_COMMIT_SHARE).into(),
        None => 0,
    };
    let all = blocks + fast_blocks;
    if (size.is_some() || fast_size.is_some()) && !JOURNAL_BLOCKS.contains(&all) {
        let (least, most) = (JOURNAL_BLOCKS.start(), JOURNAL_BLOCKS.end());
        let why = format!("{all} blocks, not between {least} and {most}");
        return Err(FormatError::option("journal size", why));
    }
    Ok(Some(JournalPlan {
        blocks: low32(all),
        fast_commit_blocks: low32(fast_blocks),
    }))
}

/// Free blocks after superblocks and descriptors (and, without flex groups, each group's own metadata) are placed. The
/// journal may take half of them.
fn free_before_tables(superblock: &Superblock, numbers: &Numbers) -> u64 {
    let geo = superblock.geometry();
    let copies: u64 = geo
        .groups()
        .map(|group| u64::from(geo.overhead(group).total()))
        .sum();
    let own = if geo.flex_bits == 0 {
        u64::from(numbers.groups) * u64::from(2 + numbers.itable_blocks)
    } else {
        0
    };
    (numbers.blocks - u64::from(numbers.first_data_block)).saturating_sub(copies + own)
}

/// Most blocks of an orphan file: Linux 6.18 and later refuse to mount a volume with a larger one.
const MAX_ORPHAN_BLOCKS: u64 = 512;

fn orphan_blocks(
    request: &Request,
    blocks: u64,
    features: Features,
    opts: &FormatOptions,
) -> Result<Option<u32>, FormatError> {
    let fail = |why: String| FormatError::option("-E orphan_file_size", why);
    let wanted = opts.orphan_file;
    let wanted = wanted.map_or(0, |size| size.blocks(request.block_size));
    if !features.compat.contains(Compat::ORPHAN_FILE) {
        return match opts.orphan_file {
            Some(_) => Err(fail(
                "needs the feature orphan_file (-O orphan_file)".to_owned(),
            )),
            None => Ok(None),
        };
    }
    if wanted > MAX_ORPHAN_BLOCKS {
        let why = format!(
            "{wanted} blocks: Linux mounts no volume whose orphan file has more than {MAX_ORPHAN_BLOCKS}"
        );
        return Err(fail(why));
    }
    let usual = match blocks {
        blocks if blocks < 128 << 10 => 32,
        blocks if blocks < 2048 << 10 => blocks / 4096,
        _ => MAX_ORPHAN_BLOCKS,
    };
    let cluster = 1 << request.cluster_bits.unwrap_or(0);
    let usual = usual.next_multiple_of(cluster).min(MAX_ORPHAN_BLOCKS);
    Ok(Some(low32(if wanted > 0 { wanted } else { usual })))
}

/// A random UUID (version 4).
fn random_uuid() -> [u8; 16] {
    uuid_of([random_u64(), random_u64()])
}

/// A UUID (version 4) of two numbers.
fn uuid_of([low, high]: [u64; 2]) -> [u8; 16] {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&low.to_le_bytes());
    uuid[8..].copy_from_slice(&high.to_le_bytes());
    uuid[6] = uuid[6] & 0x0F | 0x40;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

fn superblock(
    request: &Request,
    numbers: &Numbers,
    features: Features,
    now: Timestamp,
    opts: &FormatOptions,
) -> Result<RawSuperblock, FormatError> {
    let mut raw = RawSuperblock::new_zeroed();
    set_numbers(&mut raw, request, numbers);
    raw.magic.set(MAGIC);
    raw.state.set(STATE_CLEAN);
    raw.errors.set(match opts.errors {
        OnError::Continue => 1,
        OnError::ReadOnly => 2,
        OnError::Panic => 3,
    });
    raw.rev_level.set(1);
    raw.first_ino.set(FIRST_INO);
    raw.inode_size.set(low16(request.inode_size));
    if request.inode_size > 128 {
        raw.min_extra_isize.set(32);
        raw.want_extra_isize.set(32);
    }
    raw.feature_compat.set(features.compat.0);
    raw.feature_incompat.set(features.incompat.0);
    raw.feature_ro_compat.set(features.ro_compat.0);
    raw.max_mnt_count.set(u16::MAX);
    raw.default_mount_opts.set(DEFAULT_MOUNT_OPTS);
    raw.def_hash_version = HALF_MD4;
    raw.flags.set(FLAG_SIGNED_HASH);
    set_identity(&mut raw, opts);
    super::external::name_in(&mut raw, opts);
    if features.incompat.contains(Incompat::CSUM_SEED) {
        raw.checksum_seed
            .set(steadfs_base::checksum::crc32c(!0, &raw.uuid));
    }
    // The inodes after lost+found.
    let next = quota::set_numbers(&mut raw, quota::kinds(opts, features), FIRST_INO + 1);
    if features.compat.contains(Compat::ORPHAN_FILE) {
        raw.orphan_file_inum.set(next);
    }
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        raw.checksum_type = 1;
    }
    set_names(&mut raw, features, opts)?;
    set_times(&mut raw, now)?;
    raw.raid_stripe_width.set(opts.stripe_width);
    let stride = u16::try_from(opts.stride)
        .map_err(|_| FormatError::option("stride", format!("{} is above 65535", opts.stride)))?;
    raw.raid_stride.set(stride);
    let protected = features.incompat.contains(Incompat::MMP);
    // As mke2fs, which stores a given number on all volumes.
    let interval = match opts.mmp_update_interval {
        0 if protected => UPDATE_INTERVAL,
        secs => secs,
    };
    raw.mmp_update_interval.set(interval);
    set_flex(&mut raw, features, opts)?;
    Ok(raw)
}

/// How names are compared and encrypted.
fn set_names(
    raw: &mut RawSuperblock,
    features: Features,
    opts: &FormatOptions,
) -> Result<(), FormatError> {
    if features.incompat.contains(Incompat::ENCRYPT) {
        raw.encrypt_algos = [AES_256_XTS, AES_256_CTS, 0, 0];
    }
    match features.incompat.contains(Incompat::CASEFOLD) {
        true => {
            raw.encoding.set(ENCODING_UTF8_12_1);
            let is_strict = opts.strict_names.unwrap_or_default();
            raw.encoding_flags.set(is_strict.into());
        }
        false if opts.strict_names.is_some() => {
            let why = "needs the feature casefold, or -E encoding=utf8";
            return Err(FormatError::option("-E encoding_flags", why));
        }
        false => {}
    }
    Ok(())
}

pub(super) fn set_identity(raw: &mut RawSuperblock, opts: &FormatOptions) {
    raw.uuid = opts.uuid.unwrap_or_else(random_uuid);
    let seed = match (opts.hash_seed, opts.uuid, opts.time) {
        (Some(seed), ..) => seed,
        (None, Some(uuid), Some(_)) => {
            let mut numbers = Random::new(uuid_seed(uuid));
            uuid_of([numbers.next_u64(), numbers.next_u64()])
        }
        _ => random_uuid(),
    };
    for (word, bytes) in raw.hash_seed.iter_mut().zip(seed.chunks_exact(4)) {
        word.set(crate::disk::num::get32(bytes, 0));
    }
    raw.volume_name[..opts.label.len()].copy_from_slice(opts.label.as_bytes());
    raw.last_mounted[..opts.last_mounted.len()].copy_from_slice(opts.last_mounted.as_bytes());
}

pub(super) fn set_times(raw: &mut RawSuperblock, now: Timestamp) -> Result<(), FormatError> {
    let secs = u64::try_from(now.secs)
        .ok()
        .filter(|&secs| secs < 1 << 40)
        .ok_or_else(|| FormatError::option("time", "outside the range of a superblock"))?;
    for (low, high) in [
        (&mut raw.mkfs_time, &mut raw.mkfs_time_hi),
        (&mut raw.lastcheck, &mut raw.lastcheck_hi),
        (&mut raw.wtime, &mut raw.wtime_hi),
    ] {
        low.set(low32(secs));
        *high = low8(high32(secs));
    }
    Ok(())
}

fn set_numbers(raw: &mut RawSuperblock, request: &Request, numbers: &Numbers) {
    let log = request.block_size.trailing_zeros() - 10;
    raw.log_block_size.set(log);
    let cluster_bits = request.cluster_bits.unwrap_or(0);
    raw.log_cluster_size.set(log + cluster_bits);
    raw.blocks_count_lo.set(low32(numbers.blocks));
    raw.blocks_count_hi.set(high32(numbers.blocks));
    raw.r_blocks_count_lo.set(low32(numbers.reserved));
    raw.r_blocks_count_hi.set(high32(numbers.reserved));
    raw.first_data_block.set(numbers.first_data_block);
    raw.blocks_per_group.set(numbers.blocks_per_group);
    raw.clusters_per_group
        .set(numbers.blocks_per_group >> cluster_bits);
    raw.inodes_per_group.set(numbers.inodes_per_group);
    // Checked when the numbers were found.
    raw.inodes_count
        .set(numbers.inodes_per_group * numbers.groups);
    raw.reserved_gdt_blocks.set(low16(numbers.reserved_gdt));
    if request.desc_size > 32 {
        raw.desc_size.set(low16(request.desc_size));
    }
    for (field, group) in raw.backup_bgs.iter_mut().zip(numbers.backup_groups) {
        field.set(group);
    }
}

fn set_flex(
    raw: &mut RawSuperblock,
    features: Features,
    opts: &FormatOptions,
) -> Result<(), FormatError> {
    let flex = features.incompat.contains(Incompat::FLEX_BG);
    match opts.flex_group_size {
        Some(_) if !flex => Err(FormatError::option(
            "flex group size",
            "needs the feature flex_bg",
        )),
        size if flex => {
            let bits = size.unwrap_or(FLEX_GROUP_SIZE).trailing_zeros();
            raw.log_groups_per_flex = low8(bits);
            Ok(())
        }
        _ => Ok(()),
    }
}
