//! The file of an overlay.
//!
//! | bytes | content |
//! |---|---|
//! | 0 to 4095 | the header; its first 512 bytes are used |
//! | from 4096 on | the map: a bit for each unit of the base, the lowest bit of a byte first; set: the unit is in this file |
//! | from `data_at` on | the units, each as far from `data_at` as in the base; those without a bit are holes |
//!
//! The header, little-endian: magic `steadfs overlay\0`, version (32 bits), bytes of a unit (32), bytes of the base (64), the
//! base's identity (32 bytes), first byte of the map (64) and of the data (64), SHA-256 of all this.
//!
//! The identity of a base is the SHA-256 of its size, its first and last 64 KiB, and 4 KiB at each power of two between them,
//! where superblocks and f2fs's checkpoints are: it changes when the volume on the base is mounted for writing.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use steadfs_base::{IoTag, is_zero};
use steadfs_block::{Device, IoError, Queue, QueueOptions};

use crate::bytes::{le32, le64};

const MAGIC: &[u8; 16] = b"steadfs overlay\0";
const VERSION: u32 = 1;
/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 512;
/// Bytes of a block of the map.
pub(super) const MAP_BLOCK: u64 = 4096;
/// Units that a block of the map has bits for.
pub(super) const BLOCK_UNITS: u64 = MAP_BLOCK * 8;
/// Smallest unit.
const UNIT_MIN: u64 = 4096;
/// Most bytes of a map, which is in memory: larger bases have larger units.
const MAP_MAX: u64 = 32 << 20;
const DATA_ALIGN: u64 = 64 << 10;

/// Which base an overlay belongs to.
pub type BaseId = [u8; 32];

/// Where everything is in an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of the base.
    pub size: u64,
    /// Bytes of a unit.
    pub unit: u64,
    /// First byte of the data.
    pub data_at: u64,
}

impl Layout {
    /// The layout of an overlay over a base of `size` bytes; `None` if it is too large.
    pub fn of(size: u64) -> Option<Self> {
        let mut unit = UNIT_MIN;
        while size.div_ceil(unit).div_ceil(8) > MAP_MAX {
            unit = unit.checked_mul(2)?;
        }
        let layout = Self {
            size,
            unit,
            data_at: 0,
        };
        let map_end = MAP_BLOCK + layout.map_blocks() * MAP_BLOCK;
        let layout = Self {
            data_at: map_end.next_multiple_of(DATA_ALIGN),
            ..layout
        };
        let fits = layout.data_at.checked_add(size)? <= i64::MAX as u64;
        (fits && u32::try_from(unit).is_ok()).then_some(layout)
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.data_at + self.size
    }

    pub(super) fn units(&self) -> u64 {
        self.size.div_ceil(self.unit)
    }

    pub(super) fn map_blocks(&self) -> u64 {
        self.units().div_ceil(BLOCK_UNITS)
    }

    /// The header of this layout.
    pub(super) fn header(&self, id: &BaseId) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u32::try_from(self.unit).unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(id);
        bytes.extend_from_slice(&MAP_BLOCK.to_le_bytes());
        bytes.extend_from_slice(&self.data_at.to_le_bytes());
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum);
        bytes.resize(HEADER_BYTES, 0);
        bytes
    }
}

/// What the first bytes of a file say about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The file is an overlay of this base.
    Ours,
    /// It has no content yet.
    New,
}

/// Checks the first bytes of a file of `len` bytes that is to be the overlay of a base. `head` has up to 4096 bytes.
///
/// # Errors
/// Why it cannot be.
pub fn check_head(head: &[u8], len: u64, layout: &Layout, id: &BaseId) -> Result<Head, String> {
    let is_blank = is_zero(head);
    if is_blank && (len == 0 || len == layout.file_bytes()) {
        // Made just now, or by a process that ended before it had written the header.
        return Ok(Head::New);
    }
    let header = head.get(..HEADER_BYTES).unwrap_or_default();
    if !header.starts_with(MAGIC) {
        return Err("is no overlay: it has other content".to_owned());
    }
    if le32(header, 16) != VERSION {
        let version = le32(header, 16);
        return Err(format!("is an overlay of the unknown version {version}"));
    }
    let sum = Sha256::digest(&header[..80]);
    if header[80..112] != sum[..] {
        return Err("is an overlay whose header has a wrong checksum".to_owned());
    }
    let size = le64(header, 24);
    if size != layout.size {
        return Err(format!(
            "is the overlay of another base: of one with {size} bytes, and this one has {}",
            layout.size
        ));
    }
    if header[32..64] != id[..] {
        return Err(
            "is the overlay of another base, or its base has been changed since".to_owned(),
        );
    }
    if header != layout.header(id) {
        return Err("is an overlay with another layout".to_owned());
    }
    if len < layout.file_bytes() {
        return Err(format!(
            "is cut off: it has {len} bytes of {}",
            layout.file_bytes()
        ));
    }
    Ok(Head::Ours)
}

/// The identity of a base.
///
/// # Errors
/// It cannot be read.
pub fn identity(base: &Arc<dyn Device>) -> Result<BaseId, IoError> {
    const ENDS: u64 = 64 << 10;
    const SAMPLE: u64 = 4096;
    let size = base.geometry().size;
    let queue = Queue::new(Arc::clone(base), QueueOptions::default());
    let mut sum = Sha256::new();
    sum.update(size.to_le_bytes());
    let mut add = |at: u64, len: u64| -> Result<(), IoError> {
        if len > 0 {
            sum.update(&*queue.read(at, len as usize, IoTag::default())?);
        }
        Ok(())
    };
    add(0, ENDS.min(size))?;
    let last = size.saturating_sub(ENDS).max(ENDS.min(size));
    let mut at = 2 * ENDS;
    while at.saturating_add(SAMPLE) <= last {
        add(at, SAMPLE)?;
        at *= 2;
    }
    add(last, size - last)?;
    Ok(sum.finalize().into())
}
