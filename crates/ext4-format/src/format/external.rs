//! External journals (mke2fs `-O journal_dev` and `-J device=`): the journal's device, and the volume that names it.

use steadfs_base::{DevBlock, IoTag};
use steadfs_block::{Bio, Buf, Queue};
use steadfs_format_base::format::check_device;
use steadfs_jbd2_format::{JournalInfo, NewJournal, add_user};
use steadfs_rt::wall_clock;
use zerocopy::{FromZeros, IntoBytes};

use super::numbers::FIRST_INO;
use super::plan;
use super::write::Writer;
use super::{FormatError, FormatOptions};
use crate::disk::external_journal::ExternalJournal;
use crate::disk::features::Incompat;
use crate::disk::num::{idx, low32};
use crate::disk::superblock::{
    MAGIC, RawSuperblock, STATE_CLEAN, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE,
};

/// Least blocks of a journal, its superblocks left out.
const BLOCKS_MIN: u64 = 1024;
/// Most blocks of a group, as mke2fs has it.
const GROUP_BLOCKS_MAX: u32 = (1 << 16) - 8;
/// Bytes in front that are written at once: superblocks and what another file system may have left.
const HEAD_BYTES: usize = 128 << 10;

/// An external journal that a new volume is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedJournal {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// The number of its block device, as in stat(2); 0: none.
    pub device: u32,
    /// Bytes in its blocks, and in the volume's.
    pub block_size: u32,
}

/// Facts of an external journal that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalReport {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// UUID.
    pub uuid: [u8; 16],
}

/// Refuses options that contradict the volume's external journal.
pub(super) fn check(opts: &FormatOptions) -> Result<(), FormatError> {
    let Some(journal) = opts.external_journal else {
        return Ok(());
    };
    let wrong = |why: String| Err(FormatError::option("-J device", why));
    if let Some(bytes) = opts.block_size.filter(|&bytes| bytes != journal.block_size) {
        let of_journal = journal.block_size;
        return wrong(format!(
            "the journal has blocks of {of_journal} bytes, -b says {bytes}"
        ));
    }
    let internal = opts.journal_size.is_some()
        || opts.fast_commit_size.is_some()
        || opts.journal_location.is_some();
    match internal {
        true => wrong(
            "size, fast_commit_size and location are of a journal inside the volume".to_owned(),
        ),
        false => Ok(()),
    }
}

/// Names the journal in a volume's superblock.
pub(super) fn name_in(raw: &mut RawSuperblock, opts: &FormatOptions) {
    if let Some(journal) = opts.external_journal {
        raw.journal_uuid = journal.uuid;
        raw.journal_dev.set(journal.device);
    }
}

/// Whether the options ask for a journal's device instead of a volume.
pub fn makes_journal(opts: &FormatOptions) -> bool {
    opts.features.split([',', ' ']).any(is_journal_dev)
}

fn is_journal_dev(feature: &str) -> bool {
    feature.eq_ignore_ascii_case("journal_dev")
}

/// Makes an external journal of `size` bytes (rounded down to whole blocks) at the start of the device. The content of the
/// device is lost. When this returns without an error the journal is durable.
///
/// # Errors
/// The options ask for what a journal has not; the size is none for a journal; the device fails.
pub fn format_journal(
    queue: &Queue,
    size: u64,
    opts: &FormatOptions,
) -> Result<JournalReport, FormatError> {
    check_device(queue, size)?;
    let sector = opts.sector_size.unwrap_or(queue.geometry().logical_block);
    let raw = superblock(size, sector, opts)?;
    let journal = ExternalJournal::parse(raw.as_bytes())?;
    let log = journal.log_superblock();
    let new = NewJournal {
        block_size: journal.block_size,
        blocks: low32(journal.blocks),
        fast_commit_blocks: 0,
        uuid: journal.uuid,
        first: low32(log) + 1,
        users: 0,
    };
    let mut head = Buf::zeroed(HEAD_BYTES);
    let bytes = head.make_mut();
    let at = journal.block_size.offset_of(DevBlock(log));
    bytes[idx(low32(SUPERBLOCK_OFFSET))..][..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
    bytes[idx(low32(at))..][..1024].copy_from_slice(&new.superblock());
    let mut writer = Writer::new(queue, journal.block_size);
    let all = journal.block_size.offset_of(DevBlock(journal.blocks));
    let zeroed = (opts.discard && writer.discard(all)?) || opts.prezeroed;
    if !zeroed {
        writer.zero(std::slice::from_ref(&(0..journal.blocks)))?;
    }
    let write = Bio::write(0, vec![head]).with_fua();
    queue.submit(write, IoTag::default()).wait()?;
    queue.flush(IoTag::default()).wait()?;
    Ok(JournalReport {
        block_size: low32(journal.block_size.bytes_u64()),
        blocks: journal.blocks,
        uuid: journal.uuid,
    })
}

/// The superblock of a journal of `size` bytes.
fn superblock(size: u64, sector: u32, opts: &FormatOptions) -> Result<RawSuperblock, FormatError> {
    let refuse = |why: String| Err(FormatError::option("-O journal_dev", why));
    let others = opts.features.split([',', ' ']);
    let mut others = others.filter(|name| !name.is_empty() && !is_journal_dev(name));
    if let Some(other) = others.next() {
        return refuse(format!(
            "an external journal has no other features ({other})"
        ));
    }
    if opts.journal || opts.external_journal.is_some() {
        return refuse("it is the journal; -J is for its volume".to_owned());
    }
    let block_size = plan::block_size(size, sector, opts)?;
    let bits = block_size.trailing_zeros();
    let blocks = size >> bits;
    if !(BLOCKS_MIN..=u32::MAX.into()).contains(&blocks) {
        let why = format!(
            "{blocks} blocks; a journal has {BLOCKS_MIN} to {}",
            u32::MAX
        );
        return Err(FormatError::option("size", why));
    }
    let mut raw = RawSuperblock::new_zeroed();
    raw.blocks_count_lo.set(low32(blocks));
    raw.first_data_block.set(u32::from(bits == 10));
    raw.log_block_size.set(bits - 10);
    raw.log_cluster_size.set(bits - 10);
    let per_group = (8 << bits).min(GROUP_BLOCKS_MAX);
    raw.blocks_per_group.set(per_group);
    raw.clusters_per_group.set(per_group);
    raw.max_mnt_count.set(u16::MAX);
    raw.magic.set(MAGIC);
    raw.state.set(STATE_CLEAN);
    raw.errors.set(1);
    raw.rev_level.set(1);
    raw.first_ino.set(FIRST_INO);
    raw.inode_size.set(256);
    raw.min_extra_isize.set(32);
    raw.want_extra_isize.set(32);
    raw.feature_incompat.set(Incompat::JOURNAL_DEV.0);
    raw.default_mount_opts.set(plan::DEFAULT_MOUNT_OPTS);
    raw.def_hash_version = plan::HALF_MD4;
    plan::set_identity(&mut raw, opts);
    plan::set_times(&mut raw, opts.time.unwrap_or_else(wall_clock))?;
    Ok(raw)
}

/// The external journal on a device, which no volume has yet.
///
/// # Errors
/// There is none, or a volume has it; the device fails.
pub fn unused_journal(queue: &Queue) -> Result<ExternalJournal, FormatError> {
    let found = read_journal(queue)?;
    let at = found.block_size.offset_of(DevBlock(found.log_superblock()));
    let block = queue.read(at, found.block_size.bytes(), IoTag::default())?;
    match JournalInfo::parse(&block) {
        Ok(info) if info.users == 0 && info.start == 0 && info.checksum_is_right => Ok(found),
        Ok(_) => {
            let why = "a volume has this journal; format -O journal_dev makes it anew";
            Err(FormatError::option("-J device", why))
        }
        Err(error) => Err(FormatError::option("-J device", error.to_string())),
    }
}

/// Makes the journal on a device the one of the volume with this UUID (`s_users`), durably.
///
/// # Errors
/// It is none, or has another volume; the device fails.
pub fn take_journal(queue: &Queue, volume: [u8; 16]) -> Result<(), FormatError> {
    let found = read_journal(queue)?;
    let at = found.block_size.offset_of(DevBlock(found.log_superblock()));
    let read = queue.read(at, found.block_size.bytes(), IoTag::default());
    let mut block = read?;
    let wrong = |why| FormatError::option("-J device", why);
    add_user(block.make_mut(), volume).map_err(wrong)?;
    let write = Bio::write(at, vec![block]).preflush_and_fua();
    Ok(queue.submit(write, IoTag::default()).wait()?)
}

/// The external journal on a device.
///
/// # Errors
/// There is none; the device fails.
fn read_journal(queue: &Queue) -> Result<ExternalJournal, FormatError> {
    let head = queue.read(0, 4096, IoTag::default())?;
    let bytes = &head[idx(low32(SUPERBLOCK_OFFSET))..][..SUPERBLOCK_SIZE];
    ExternalJournal::parse(bytes).map_err(|error| {
        FormatError::option("-J device", format!("this is no external journal: {error}"))
    })
}
