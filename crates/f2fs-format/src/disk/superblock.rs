//! The superblock: two copies, at offset 1024 of the volume's first two blocks.

mod error_flags;
mod resizing;

use std::borrow::Cow;

use zerocopy::{FromBytes, IntoBytes};

pub use super::raw::RawSuperblock;
pub use error_flags::{ErrorFlag, StopReason};
pub use resizing::Resizing;

use super::checksum::MAGIC;
use super::num::{idx, idx16, wide};
use super::{
    BLOCK_SIZE, CorruptKind, DiskError, Features, Layout, MountMode, Nid, Result, SEGMENT_BLOCKS,
    Structure, checksum, mount_mode,
};

/// Bytes of a superblock on disk.
pub const SUPERBLOCK_SIZE: usize = 3072;
/// Offset of the superblock in its block.
pub const SUPERBLOCK_OFFSET: usize = 1024;
/// Byte offsets of both copies in the volume.
pub const COPIES: [u64; 2] = [1024, 1024 + 4096];
/// The most extensions in the list, cold and hot together (`F2FS_MAX_EXTENSION`).
pub const MAX_EXTENSIONS: u32 = 64;
/// The fewest segments of a volume (`F2FS_MIN_SEGMENT`).
pub const MIN_SEGMENTS: u32 = 9;
/// The most segments of a volume: 16 TiB (`F2FS_MAX_SEGMENT`).
pub const MAX_SEGMENTS: u32 = 16 * 1024 * 1024 / 2;
/// Offset of the checksum in the superblock, if it has one.
const CRC_AT: u32 = 3068;
/// `log_blocksize` of volumes from kernels with larger pages: 8 to 64 KiB.
const LARGE_BLOCKS: std::ops::RangeInclusive<u32> = 13..=16;

const _: () = assert!(SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE == BLOCK_SIZE);

/// A validated superblock.
#[derive(Clone, Debug)]
pub struct Superblock {
    raw: RawSuperblock,
    layout: Layout,
}

impl Superblock {
    /// Decodes and validates a superblock (3072 bytes; more are ignored). Features are not checked here: see
    /// [`mount_mode`](super::mount_mode).
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let superblock = Self::parse_lenient(bytes)?;
        superblock.verify_checksum()?;
        Ok(superblock)
    }

    /// As [`Superblock::parse`], but a wrong checksum is not an error, for the checker.
    pub fn parse_lenient(bytes: &[u8]) -> Result<Self> {
        let (raw, _) = RawSuperblock::read_from_prefix(bytes).map_err(|_| {
            let what = Structure::Superblock;
            DiskError::field(what, "length", wide(bytes.len()), "shorter than 3072 bytes")
        })?;
        if raw.magic.get() != MAGIC {
            return Err(DiskError::magic(Structure::Superblock, raw.magic.get()));
        }
        Self::from_raw(raw.clone()).map_err(|error| unsupported(&raw).unwrap_or(error))
    }

    /// Creates a superblock from fields set by mkfs, with the same validation except for the checksum, which
    /// encoding sets.
    pub fn from_raw(raw: RawSuperblock) -> Result<Self> {
        let layout = Layout::of(&raw)?;
        Ok(Self { raw, layout })
    }

    /// Whether bytes (as for [`Superblock::parse`]) have the magic number.
    pub fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC.to_le_bytes())
    }

    /// Verifies the checksum, if the volume has one.
    pub fn verify_checksum(&self) -> Result<()> {
        if !self.layout.has(Features::SB_CHECKSUM) {
            return Ok(());
        }
        let at = self.raw.checksum_offset.get();
        if at != CRC_AT {
            let what = Structure::Superblock;
            return Err(DiskError::field(
                what,
                "checksum_offset",
                at,
                "not the offset of the checksum",
            ));
        }
        let computed = self.compute();
        if computed != self.raw.crc.get() {
            let stored = self.raw.crc.get();
            return Err(DiskError::checksum(Structure::Superblock, stored, computed));
        }
        Ok(())
    }

    fn compute(&self) -> u32 {
        checksum::of(&self.raw.as_bytes()[..idx(CRC_AT)])
    }

    /// The 3072 bytes to write, with the checksum set.
    pub fn encode(&mut self) -> Vec<u8> {
        if self.layout.has(Features::SB_CHECKSUM) {
            self.raw.checksum_offset.set(CRC_AT);
            let sum = self.compute();
            self.raw.crc.set(sum);
        }
        self.raw.as_bytes().to_vec()
    }

    /// Everything that does not change while the volume is mounted.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The fields as stored.
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// Feature bits.
    pub fn features(&self) -> Features {
        self.layout.features
    }

    /// The volume's UUID.
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.uuid
    }

    /// The label (`volume_name`, UTF-16).
    pub fn label(&self) -> String {
        let units = self.raw.volume_name.iter().map(|unit| unit.get());
        let units: Vec<u16> = units.take_while(|&unit| unit != 0).collect();
        String::from_utf16_lossy(&units)
    }

    /// The kernels that made the volume (`init_version`) and wrote it last (`version`).
    pub fn versions(&self) -> [Cow<'_, str>; 2] {
        [text(&self.raw.init_version), text(&self.raw.version)]
    }

    /// File name extensions of cold data, then of hot data.
    pub fn extensions(&self) -> (Vec<Cow<'_, str>>, Vec<Cow<'_, str>>) {
        let cold = idx(self.raw.extension_count.get());
        let both = cold + usize::from(self.raw.hot_ext_count);
        let names = |range: std::ops::Range<usize>| {
            let list = self.raw.extension_list.get(range).unwrap_or_default();
            list.iter().map(|entry| text(entry)).collect()
        };
        (names(0..cold), names(cold..both))
    }

    /// Paths and segment counts of the devices of a multi-device volume; empty for one device.
    pub fn devices(&self) -> Vec<(Cow<'_, str>, u32)> {
        let named = self.raw.devs.iter().take_while(|dev| dev.path[0] != 0);
        named
            .map(|dev| (text(&dev.path), dev.total_segments.get()))
            .collect()
    }

    /// Bytes of the volume on each of its devices, in their order; empty for one device. The first one also has what comes
    /// before the first segment (the kernel's `f2fs_scan_devices`).
    pub fn device_bytes(&self) -> Vec<u64> {
        let before = u64::from(self.raw.segment0_blkaddr.get()) * wide(BLOCK_SIZE);
        let segment = u64::from(SEGMENT_BLOCKS) * wide(BLOCK_SIZE);
        let mut bytes: Vec<u64> = (self.devices().iter())
            .map(|(_, segments)| u64::from(*segments) * segment)
            .collect();
        if let Some(first) = bytes.first_mut() {
            *first += before;
        }
        bytes
    }

    /// Blocks that the devices of the volume have together at least.
    pub fn needed_blocks(&self) -> u64 {
        let bytes = self.device_bytes();
        match bytes.is_empty() {
            true => self.layout.block_count,
            // mkfs.f2fs counts the ends of devices, too, which are less than a segment.
            false => bytes.iter().sum::<u64>() / wide(BLOCK_SIZE),
        }
    }

    /// Why the device with this superblock alone is not enough, and what is; `None` for a volume on one device.
    pub fn missing_devices(&self) -> Option<String> {
        let (devices, bytes) = (self.devices(), self.device_bytes());
        let named = devices.iter().zip(&bytes).skip(1);
        let others: Vec<String> = named
            .map(|((path, _), bytes)| format!("{path} ({} MiB)", bytes >> 20))
            .collect();
        (!devices.is_empty()).then(|| {
            format!(
                "the volume is on {} devices: name the others with -o device=PATH,device=PATH in the order {}",
                devices.len(),
                others.join(", ")
            )
        })
    }

    /// Inodes of the quota files: user, group, project.
    pub fn quota_inodes(&self) -> [Option<Nid>; 3] {
        if !self.layout.has(Features::QUOTA_INO) {
            return [None; 3];
        }
        [0, 1, 2].map(|i: usize| Nid(self.raw.qf_ino[i].get()).some())
    }

    /// Encoding and encoding flags of casefolded names.
    pub fn encoding(&self) -> Option<(u16, u16)> {
        self.layout
            .has(Features::CASEFOLD)
            .then(|| (self.raw.encoding.get(), self.raw.encoding_flags.get()))
    }

    /// Whether the superblock has recorded corruption or an abort (`s_errors`, `s_stop_reason`), so that fsck
    /// should be run.
    pub fn has_errors(&self) -> bool {
        // The first stop reason is an intended shutdown.
        self.raw.errors.iter().any(|&b| b != 0) || self.raw.stop_reason[1..].iter().any(|&b| b != 0)
    }

    /// Records a kind of corruption. Returns whether it is new.
    pub fn record_error(&mut self, note: ErrorFlag) -> bool {
        let bit = idx16(note.0);
        let byte = &mut self.raw.errors[bit / 8];
        let before = *byte;
        *byte |= 1 << (bit % 8);
        *byte != before
    }

    /// Counts a stop with this reason.
    pub fn record_stop(&mut self, reason: StopReason) {
        let count = &mut self.raw.stop_reason[idx16(reason.0)];
        *count = count.saturating_add(1);
    }

    /// The recorded kinds of corruption; those without a known name by number.
    pub fn recorded_errors(&self) -> Vec<String> {
        let bits = 0..8 * self.raw.errors.len();
        let recorded = bits.filter(|bit| self.raw.errors[bit / 8] & 1 << (bit % 8) != 0);
        recorded
            .map(|bit| name_of(error_flags::ERRORS, bit))
            .collect()
    }

    /// The recorded stop reasons and their counts.
    pub fn recorded_stops(&self) -> Vec<(String, u8)> {
        let counts = self.raw.stop_reason.iter().enumerate();
        let recorded = counts.filter(|(_, count)| **count > 0);
        recorded
            .map(|(n, count)| (name_of(error_flags::STOPS, n), *count))
            .collect()
    }

    /// Sets the program that writes the volume (`version`), cut to 256 bytes.
    pub fn set_version(&mut self, version: &str) {
        fill_text(&mut self.raw.version, version);
    }

    /// The volume id for statfs(2), derived from the UUID.
    pub fn fsid(&self) -> u64 {
        let (low, high) = self.raw.uuid.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
        word(low) ^ word(high)
    }
}

/// Writes a label to `volume_name`. Returns false if it does not fit with its terminator.
pub fn put_label(raw: &mut RawSuperblock, label: &str) -> bool {
    let units: Vec<u16> = label.encode_utf16().collect();
    if units.len() >= raw.volume_name.len() {
        return false;
    }
    for (slot, unit) in raw
        .volume_name
        .iter_mut()
        .zip(units.into_iter().chain(std::iter::repeat(0)))
    {
        slot.set(unit);
    }
    true
}

/// Copies as much of `text` as fits and fills the rest with zeros.
pub fn fill_text(field: &mut [u8], text: &str) {
    let len = text.len().min(field.len());
    field.fill(0);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
}

/// The name of a number, or the number.
fn name_of(names: &[&str], number: usize) -> String {
    let name = names.get(number).map(|name| (*name).to_owned());
    name.unwrap_or_else(|| number.to_string())
}

fn text(field: &[u8]) -> Cow<'_, str> {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end])
}

/// Why a superblock that fails validation may still be correct: it has a form that is not supported here, with
/// other rules. `None` if its checksum is wrong.
fn unsupported(raw: &RawSuperblock) -> Option<DiskError> {
    if Resizing::parse(raw.as_bytes()).is_some() {
        let what = "an interrupted resize; `steadfs resize` finishes it".to_owned();
        return Some(CorruptKind::Unsupported { what }.into());
    }
    let features = Features(raw.feature.get());
    let sum = checksum::of(&raw.as_bytes()[..idx(CRC_AT)]);
    if features.contains(Features::SB_CHECKSUM) && sum != raw.crc.get() {
        return None;
    }
    let mut what: Vec<String> = match mount_mode(features) {
        MountMode::Refused { features } => features.into_iter().map(Into::into).collect(),
        MountMode::ReadOnly { .. } | MountMode::ReadWrite => Vec::new(),
    };
    let log = raw.log_blocksize.get();
    if LARGE_BLOCKS.contains(&log) {
        what.push(format!("blocks of {} KiB", 1 << (log - 10)));
    }
    let what = what.join(", ");
    (!what.is_empty()).then(|| CorruptKind::Unsupported { what }.into())
}

#[cfg(test)]
mod tests;
