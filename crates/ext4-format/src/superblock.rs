//! Which superblock an open uses: the first one, or a copy of it.
//!
//! The first superblock is at byte 1024; groups 1 and, with `sparse_super`, the powers of 3, 5 and 7 begin with a
//! copy. A copy is as old as the last mke2fs, tune2fs, resize2fs or e2fsck, so what a mount changes in the first one
//! is not in it: recovery reads the journal even if the copy has no `needs_recovery`, and the volume does not
//! count as cleanly unmounted.
//!
//! **Rule.** As in Linux, a mount uses a copy only on request (`sb=`); its error message names the copies. A program
//! that only reads (`salvage`) takes the first copy that verifies, with a warning.

use std::fmt::{self, Display, Formatter};

use steadfs_base::{Corruption, IoTag};
use steadfs_block::Queue;
use steadfs_vfs::{FsError, Result};

use crate::disk::features::{MountMode, mount_mode};
use crate::disk::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{CorruptKind, DiskError, Geometry, GroupNo, Superblock};
use crate::io_error;

/// The options that select a superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SuperblockChoice {
    /// Use the one at this offset, in KiB (`sb=`).
    pub sb: Option<u64>,
    /// Without `sb`: where the first one does not verify, use the first copy that does.
    pub salvage: bool,
}

/// Groups in which a copy is looked for; with and without `sparse_super` they have one.
const COPY_GROUPS: [u32; 9] = [1, 3, 5, 7, 9, 25, 27, 49, 81];
/// Blocks in a cluster as mke2fs makes them; groups are larger by the same factor.
const CLUSTER_BLOCKS: [u64; 2] = [1, 16];
/// Most copies that a message names.
const NAMED_COPIES_MAX: usize = 3;

/// A copy of the superblock that verifies.
#[derive(Clone, Debug)]
pub struct BackupSuperblock {
    /// Its first byte.
    pub at: u64,
    /// Its content.
    pub sb: Superblock,
}

impl BackupSuperblock {
    /// Its block, as e2fsck -b takes it.
    pub fn block(&self) -> u64 {
        self.at >> self.sb.geometry().block_size.bits()
    }

    /// Its offset in KiB, as `sb=` takes it.
    pub fn sb_option(&self) -> u64 {
        self.at >> 10
    }
}

/// Displays what a user can do with the copy.
impl Display for BackupSuperblock {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (option, block) = (self.sb_option(), self.block());
        let size = self.sb.geometry().block_size.bytes();
        write!(
            f,
            "-o ro,sb={option} uses its copy at block {block}, e2fsck -b {block} -B {size} repairs it"
        )
    }
}

/// Reads bytes at an offset; false on an error.
pub type ReadBytes<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> bool;

/// Finds at most `most` copies of the superblock on a device of `size` bytes. `first` is the geometry of the first
/// superblock where that can be decoded: its groups may have another size than mke2fs gives them.
pub fn find_copies(
    size: u64,
    first: Option<&Geometry>,
    read: ReadBytes<'_>,
    most: usize,
) -> Vec<BackupSuperblock> {
    let mut found: Vec<BackupSuperblock> = Vec::new();
    for (at, group) in possible_offsets(first) {
        if found.len() == most {
            break;
        }
        let mut bytes = [0; SUPERBLOCK_SIZE];
        let fits = at
            .checked_add(SUPERBLOCK_SIZE as u64)
            .is_some_and(|end| end <= size);
        if fits
            && read(at, &mut bytes)
            && let Some(sb) = parse_copy(&bytes, at, group)
            && found.iter().all(|copy| copy.at != at)
        {
            found.push(BackupSuperblock { at, sb });
        }
    }
    found
}

/// Offsets where copies may be, with their groups.
fn possible_offsets(first: Option<&Geometry>) -> Vec<(u64, u32)> {
    let mut places = Vec::new();
    if let Some(geo) = first {
        let named = geo.copy_groups().take(COPY_GROUPS.len());
        places.extend(named.map(|group| (offset_of(geo, group), group.0)));
    }
    for bits in 10..=16 {
        for clusters in CLUSTER_BLOCKS {
            // A bitmap has a bit for each cluster of a group.
            let group_bytes = ((8 * clusters) << bits) << bits;
            let before = u64::from(bits == 10 && clusters == 1) << bits;
            places
                .extend(COPY_GROUPS.map(|group| (u64::from(group) * group_bytes + before, group)));
        }
    }
    places
}

fn offset_of(geo: &Geometry, group: GroupNo) -> u64 {
    geo.block_size.offset_of(geo.first_block_of(group))
}

/// A superblock that verifies and whose geometry has a copy at this offset. Its group number may be that of the first
/// superblock: before 6.2, Linux copied that whole when it enlarged a mounted volume.
fn parse_copy(bytes: &[u8], at: u64, group: u32) -> Option<Superblock> {
    let sb = Superblock::parse(bytes).ok()?;
    let geo = sb.geometry();
    let is_copy = group < geo.group_count
        && geo.has_super(GroupNo(group))
        && [0, group].contains(&sb.raw().block_group_nr.get().into())
        && offset_of(geo, GroupNo(group)) == at;
    is_copy.then_some(sb)
}

/// The superblock that an open uses.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Its content; a copy as [`Superblock::of_copy`] converts it.
    pub sb: Superblock,
    /// Its bytes as they are on the device.
    pub bytes: Vec<u8>,
    /// Its first byte.
    pub at: u64,
    /// Why it is not the first one, or why it is used although it does not verify.
    pub warning: Option<String>,
}

impl Chosen {
    /// Whether it is a copy.
    pub fn is_copy(&self) -> bool {
        self.at != SUPERBLOCK_OFFSET
    }
}

/// Reads and validates the first superblock.
pub fn read_superblock(queue: &Queue) -> Result<Superblock> {
    parse(&superblock_bytes(queue, SUPERBLOCK_OFFSET)?)
}

fn parse(bytes: &[u8]) -> Result<Superblock> {
    if Superblock::is_external_journal(bytes) {
        return Err(FsError::BadOption(
            "unsupported features: journal_dev; this is the journal of another volume".to_owned(),
        ));
    }
    let is_checksum = |error: &DiskError| matches!(error.kind, CorruptKind::Checksum { .. });
    match Superblock::parse(bytes) {
        Ok(sb) => Ok(sb),
        Err(error) if is_checksum(&error) => Err(error.into()),
        Err(error) => Err(match refused_features(bytes) {
            Some(names) => FsError::BadOption(format!("unsupported features: {names}")),
            None => error.into(),
        }),
    }
}

/// Names of the features that prevent even reading. The other fields are not validated, as these features may change
/// their meaning.
pub fn refused_features(bytes: &[u8]) -> Option<String> {
    match mount_mode(Superblock::raw_features(bytes)?) {
        MountMode::Refused { features } => Some(features.join(", ")),
        MountMode::ReadOnly { .. } | MountMode::ReadWrite => None,
    }
}

/// Chooses the superblock by `sb=` and `salvage`.
///
/// # Errors
/// No superblock may be used; the message names the copies that verify.
pub fn choose(queue: &Queue, choice: &SuperblockChoice) -> Result<Chosen> {
    if let Some(kib) = choice.sb {
        return choose_copy(queue, kib << 10);
    }
    let bytes = superblock_bytes(queue, SUPERBLOCK_OFFSET);
    let parsed = match &bytes {
        Ok(bytes) => parse(bytes),
        Err(error) => Err(error.clone()),
    };
    let (error, bytes) = match (parsed, bytes) {
        (Ok(sb), Ok(bytes)) => {
            return Ok(Chosen {
                sb,
                bytes,
                at: SUPERBLOCK_OFFSET,
                warning: None,
            });
        }
        (Err(error @ (FsError::Corrupt(_) | FsError::Io(_))), bytes) => (error, bytes),
        (Err(error), _) | (Ok(_), Err(error)) => return Err(error),
    };
    let lenient = bytes
        .ok()
        .and_then(|bytes| Some((Superblock::parse_lenient(&bytes).ok()?, bytes)));
    let copies = copies_on(queue, lenient.as_ref().map(|(sb, _)| sb.geometry()));
    match (copies.into_iter().next(), lenient) {
        (Some(copy), _) if choice.salvage => {
            let why = format!("the first superblock is damaged ({error}): {copy}");
            let bytes = superblock_bytes(queue, copy.at)?;
            Ok(Chosen {
                sb: copy.sb.of_copy(),
                bytes,
                at: copy.at,
                warning: Some(why),
            })
        }
        (Some(copy), _) => Err(damaged(error, &copy)),
        (None, Some((sb, bytes))) if choice.salvage => Ok(Chosen {
            sb,
            bytes,
            at: SUPERBLOCK_OFFSET,
            warning: Some(format!("{error}; there is no copy of it")),
        }),
        (None, _) => Err(error),
    }
}

/// The error of a first superblock that has a copy.
fn damaged(error: FsError, copy: &BackupSuperblock) -> FsError {
    match error {
        FsError::Corrupt(corruption) => corruption.with_hint(copy).into(),
        FsError::Io(what) => FsError::Io(format!("{what} ({copy})")),
        error => error,
    }
}

fn choose_copy(queue: &Queue, at: u64) -> Result<Chosen> {
    let option = at >> 10;
    let refuse = |why: String| {
        let others: Vec<String> = copies_on(queue, None)
            .iter()
            .map(|copy| format!("sb={}", copy.sb_option()))
            .collect();
        let others = match others.is_empty() {
            true => "no copy was found".to_owned(),
            false => format!("copies that verify: {}", others.join(", ")),
        };
        Err(FsError::BadOption(format!(
            "option sb={option}: {why}; {others}"
        )))
    };
    if at.saturating_add(SUPERBLOCK_SIZE as u64) > queue.geometry().size {
        return refuse("it is beyond the end of the device".to_owned());
    }
    let bytes = superblock_bytes(queue, at)?;
    let sb = match parse(&bytes) {
        Ok(sb) => sb,
        Err(error) => return refuse(format!("no superblock that can be used: {error}")),
    };
    let block = at >> sb.geometry().block_size.bits();
    let geo = sb.geometry();
    let group = geo.copy_groups().find(|group| offset_of(geo, *group) == at);
    if group.is_none_or(|group| parse_copy(&bytes, at, group.0).is_none()) {
        return refuse("that superblock is a copy from another offset".to_owned());
    }
    Ok(Chosen {
        sb: sb.of_copy(),
        bytes,
        at,
        warning: Some(format!(
            "using the superblock copy in block {block}, which may be older than the volume"
        )),
    })
}

/// The copies on a device that a message names.
fn copies_on(queue: &Queue, first: Option<&Geometry>) -> Vec<BackupSuperblock> {
    let mut read = |at: u64, buf: &mut [u8]| match read_bytes(queue, at, buf.len()) {
        Ok(bytes) => {
            buf.copy_from_slice(&bytes);
            true
        }
        Err(_) => false,
    };
    find_copies(queue.geometry().size, first, &mut read, NAMED_COPIES_MAX)
}

/// Reads the 1024 bytes of a superblock.
pub fn superblock_bytes(queue: &Queue, at: u64) -> Result<Vec<u8>> {
    let size = queue.geometry().size;
    if size < at.saturating_add(SUPERBLOCK_SIZE as u64) {
        return Err(Corruption::new(format!("{size} bytes are too few for an ext volume")).into());
    }
    read_bytes(queue, at, SUPERBLOCK_SIZE)
}

/// Reads bytes at any offset, in whole logical blocks of the device.
fn read_bytes(queue: &Queue, at: u64, len: usize) -> Result<Vec<u8>> {
    let unit = u64::from(queue.geometry().logical_block).max(1024);
    let start = at / unit * unit;
    let end = (at + len as u64).next_multiple_of(unit);
    let data = queue
        .read(start, (end - start) as usize, IoTag::default())
        .map_err(io_error)?;
    let from = (at - start) as usize;
    Ok(data[from..from + len].to_vec())
}

#[cfg(test)]
mod tests;
