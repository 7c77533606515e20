//! Recognises the content of a device that holds no volume: other formats by name, and partition tables with the offsets
//! for `-o offset=`.
//!
//! This module knows magic numbers and partition tables, but no file system that is served here; `volume` uses it for its
//! error when it finds no volume. The input is not trusted: reads and the number of listed partitions are bounded.

mod choose;
mod detect;
mod formats;
mod logical;
mod partitions;

use std::fmt::{self, Display, Formatter};

use steadfs_block::BlockSource;

pub use formats::Format;
pub use partitions::{Partition, Table, Window};

/// Bytes read from the start of a device: all magic numbers are there, or in the tail.
const HEAD_BYTES: u64 = 256 << 10;
/// Bytes read from the end of a device.
const TAIL_BYTES: u64 = 128 << 10;
/// A device whose first bytes up to this are zeros is called empty.
const ZERO_BYTES: u64 = 1 << 20;

/// The content of a device that holds no volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No bytes at all.
    Empty,
    /// Fewer bytes than any volume has.
    TooSmall {
        /// The size of the device.
        bytes: u64,
    },
    /// A known format.
    Named(&'static Format),
    /// A partition table.
    Partitioned(Table),
    /// Zeros, in the bytes that were read.
    Zeros,
    /// Unknown content.
    Unknown,
}

impl Found {
    /// Whether the content was recognised.
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Named(_) | Self::Partitioned(_))
    }
}

impl Display for Found {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const NONE: &str = "no ext2, ext3, ext4 or f2fs volume";
        match self {
            Self::Empty => write!(f, "{NONE}: the file is empty"),
            Self::TooSmall { bytes } => write!(f, "{NONE}: {bytes} bytes are too few for one"),
            Self::Named(format) => write!(f, "{} and {NONE}; {}", format.name, format.advice),
            Self::Partitioned(table) => table.fmt(f),
            Self::Zeros => write!(f, "{NONE}: there are only zeros at its start"),
            Self::Unknown => write!(
                f,
                "{NONE}, and nothing else that is known: no partition table, container or compression"
            ),
        }
    }
}

/// A volume in a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The kind of file system.
    pub kind: &'static str,
    /// Its label, with printable characters only.
    pub label: String,
}

impl Display for Held {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.label[..] {
            "" => f.write_str(self.kind),
            label => write!(f, "{} \"{label}\"", self.kind),
        }
    }
}

/// Returns the volume that begins at a byte offset of a source, if there is one.
pub type Holds<'a> = &'a dyn Fn(&dyn BlockSource, u64) -> Option<Held>;

/// The partition table of a disk, if it has one.
pub fn table(src: &dyn BlockSource, holds: Holds<'_>) -> Option<Table> {
    logical::table(src, holds)
        .or_else(|| partitions::gpt(src, holds))
        .or_else(|| partitions::mbr(src, holds))
}

/// Recognises the content of a device that holds no volume.
pub fn recognise(src: &dyn BlockSource, holds: Holds<'_>) -> Found {
    let size = src.size_bytes();
    if size == 0 {
        return Found::Empty;
    }
    let head = read(src, 0, HEAD_BYTES.min(size)).unwrap_or_default();
    let named = |found: Option<&'static Format>| found.map(Found::Named);
    named(detect::at_start(&head))
        .or_else(|| logical::table(src, holds).map(Found::Partitioned))
        .or_else(|| partitions::gpt(src, holds).map(Found::Partitioned))
        .or_else(|| named(detect::before_a_table(&head)))
        .or_else(|| partitions::mbr(src, holds).map(Found::Partitioned))
        .or_else(|| named(detect::within(&head)))
        .or_else(|| {
            let from = size - TAIL_BYTES.min(size);
            let tail = read(src, from, size - from).unwrap_or_default();
            named(detect::at_end(&tail, size))
        })
        .unwrap_or_else(|| rest(src, &head))
}

/// Recognises a part of a device, as one word for lists of partitions.
fn word_for(src: &dyn BlockSource, at: u64, bytes: u64) -> Option<&'static str> {
    let head = read(src, at, HEAD_BYTES.min(bytes))?;
    detect::at_start(&head)
        .or_else(|| detect::before_a_table(&head))
        .or_else(|| detect::within(&head))
        .map(|format| format.word)
}

fn rest(src: &dyn BlockSource, head: &[u8]) -> Found {
    const LEAST: u64 = 2048;
    let size = src.size_bytes();
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    if size < LEAST {
        return Found::TooSmall { bytes: size };
    }
    if is_zero(head) && read(src, 0, ZERO_BYTES.min(size)).is_some_and(|bytes| is_zero(&bytes)) {
        return Found::Zeros;
    }
    Found::Unknown
}

/// Reads bytes of the device; `None` if they are outside it, or cannot be read.
fn read(src: &dyn BlockSource, at: u64, len: u64) -> Option<Vec<u8>> {
    let fits = at
        .checked_add(len)
        .is_some_and(|end| end <= src.size_bytes());
    let mut bytes = vec![0; usize::try_from(len).ok().filter(|_| fits)?];
    src.read(at, &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
