//! The blocks of an external journal, on a device on which the volume is followed by it.

use steadfs_base::{BlockSize, Corruption, DevBlock, IoTag};
use steadfs_block::Queue;
use steadfs_jbd2_format::{JournalMap, Superblock as LogSuperblock};
use steadfs_vfs::{FsError, Result};

use crate::disk::Superblock;
use crate::disk::external_journal::ExternalJournal;
use crate::disk::superblock::{JournalPlace, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::{io_error, journal_format_error};

/// The name of the option that gives it, for messages.
const OPTION: &str = "option journal_path";

/// The place of an external journal on a device that the volume begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalArea {
    /// The journal's first byte.
    pub at: u64,
    /// Bytes of the device that are the volume's.
    pub volume_bytes: u64,
}

/// Maps the journal of the volume `sb` in this place.
///
/// # Errors
/// It is not the journal of this volume, is corrupt, or cannot be read.
pub fn map(queue: &Queue, sb: &Superblock, area: JournalArea) -> Result<JournalMap> {
    let (at, block_size) = (area.at, sb.geometry().block_size);
    let sector = queue.geometry().logical_block;
    if block_size.bytes_u64() < sector.into() {
        let why = format!(
            "blocks of {} bytes are less than a sector of {sector}",
            block_size.bytes()
        );
        return Err(FsError::BadOption(format!("{OPTION}: {why}")));
    }
    let read = queue.read(at, block_size.bytes().max(HEAD_BYTES), IoTag::default());
    let head = read.map_err(io_error)?;
    let start = usize::try_from(SUPERBLOCK_OFFSET).unwrap_or(HEAD_BYTES);
    let found = ExternalJournal::parse(&head[start..][..SUPERBLOCK_SIZE]);
    let found = found.map_err(|error| {
        FsError::BadOption(format!("{OPTION}: this is no external journal: {error}"))
    })?;
    check_owner(sb, &found)?;
    let device = queue.geometry().size.saturating_sub(at) / block_size.bytes_u64();
    if found.blocks > device {
        let what = format!(
            "the journal has {} blocks, its device only {device}",
            found.blocks
        );
        return Err(Corruption::new(what).into());
    }
    let first = DevBlock(at / block_size.bytes_u64());
    let map = map_from(first, found.log_superblock(), found.blocks)?;
    check_log(queue, block_size, &map, found.log_superblock())?;
    let end = DevBlock(area.volume_bytes / block_size.bytes_u64());
    Ok(map.behind_volume(end))
}

/// Bytes at the device's start, with its superblock.
const HEAD_BYTES: usize = 4096;

fn check_owner(sb: &Superblock, journal: &ExternalJournal) -> Result<()> {
    let refuse = |why: &str| Err(FsError::BadOption(format!("{OPTION}: {why}")));
    match sb.journal() {
        JournalPlace::External(uuid) if uuid == [0; 16] => refuse("the volume names no journal"),
        JournalPlace::External(uuid) if uuid != journal.uuid => {
            refuse("this is the journal of another volume")
        }
        JournalPlace::External(_) if sb.geometry().block_size != journal.block_size => {
            refuse("the journal has other blocks than the volume")
        }
        JournalPlace::External(_) => Ok(()),
        JournalPlace::Inode(_) => refuse("the volume's journal is inside it"),
        JournalPlace::None => refuse("the volume has no journal"),
    }
}

/// Blocks of the log have the numbers of the device's blocks. The superblock of jbd2, at `log`, is block 0 of the map; no
/// block of the log is before it.
fn map_from(first: DevBlock, log: u64, blocks: u64) -> Result<JournalMap> {
    let before = (1..log).map(|n| (first.plus(n), 1));
    let runs = [(first.plus(log), 1)].into_iter().chain(before);
    let runs = runs.chain([(first, 1)]);
    let rest = (first.plus(log + 1), blocks.saturating_sub(log + 1));
    JournalMap::new(runs.chain([rest])).map_err(journal_format_error)
}

/// Refuses a log that would overwrite the superblocks before it.
fn check_log(queue: &Queue, size: BlockSize, map: &JournalMap, log: u64) -> Result<()> {
    let (at, _) = map.locate(0);
    let read = queue.read(size.offset_of(at), size.bytes(), IoTag::default());
    let block = read.map_err(io_error)?;
    let parsed = LogSuperblock::parse(&block, size, map.len()).map_err(journal_format_error)?;
    if parsed.raw.users.get() != 1 {
        let why = "the journal has no volume; Linux does not mount it, either";
        return Err(FsError::BadOption(format!("{OPTION}: {why}")));
    }
    if u64::from(parsed.first) <= log {
        let what = format!(
            "the external journal's log begins at its block {}",
            parsed.first
        );
        return Err(Corruption::new(what).into());
    }
    Ok(())
}
