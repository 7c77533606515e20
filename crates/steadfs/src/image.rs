//! What lies on a device that holds no volume: names for what people put in front of the program, and partition
//! tables with the offsets to type.
//!
//! This knows magic numbers and tables, and no file system that is served here: `volume` asks it where it finds no
//! volume. Nothing that is read here is believed: reads are bounded, and so is what a table may list.

mod formats;
mod partitions;

use std::fmt::{self, Display, Formatter};

use steadfs_block::BlockSource;

pub use formats::Format;
pub use partitions::{Partition, Table};

/// Bytes from the start that are looked at for what fills a device: all magic numbers lie there, or at its end.
const HEAD: u64 = 256 << 10;
/// Bytes from the end.
const TAIL: u64 = 128 << 10;
/// Bytes that have to be zeros for a device to be called empty.
const ZEROS: u64 = 1 << 20;

/// What a device holds in place of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// No bytes at all.
    Empty,
    /// Fewer bytes than any volume has.
    TooSmall {
        /// How many.
        bytes: u64,
    },
    /// Something with a name.
    Named(&'static Format),
    /// A partition table.
    Partitioned(Table),
    /// Zeros as far as was looked.
    Zeros,
    /// Nothing that is known.
    Unknown,
}

impl Found {
    /// Whether it is known what it is.
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

/// Says what a device holds that is no volume. `holds` names the volume that begins at a byte of it, if one does.
pub fn recognise(src: &dyn BlockSource, holds: &dyn Fn(u64) -> Option<String>) -> Found {
    let size = src.size_bytes();
    if size == 0 {
        return Found::Empty;
    }
    let head = read(src, 0, HEAD.min(size)).unwrap_or_default();
    let named = |found: Option<&'static Format>| found.map(Found::Named);
    named(formats::at_start(&head))
        .or_else(|| partitions::gpt(src, holds).map(Found::Partitioned))
        .or_else(|| named(formats::before_a_table(&head)))
        .or_else(|| partitions::mbr(src, holds).map(Found::Partitioned))
        .or_else(|| named(formats::within(&head)))
        .or_else(|| {
            let from = size - TAIL.min(size);
            let tail = read(src, from, size - from).unwrap_or_default();
            named(formats::at_end(&tail, size))
        })
        .unwrap_or_else(|| rest(src, &head))
}

/// The same of a part of a device, in a word: for lists of partitions.
fn word_for(src: &dyn BlockSource, at: u64, bytes: u64) -> Option<&'static str> {
    let head = read(src, at, HEAD.min(bytes))?;
    formats::at_start(&head)
        .or_else(|| formats::before_a_table(&head))
        .or_else(|| formats::within(&head))
        .map(|format| format.word)
}

fn rest(src: &dyn BlockSource, head: &[u8]) -> Found {
    const LEAST: u64 = 2048;
    let size = src.size_bytes();
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    if size < LEAST {
        return Found::TooSmall { bytes: size };
    }
    if is_zero(head) && read(src, 0, ZEROS.min(size)).is_some_and(|bytes| is_zero(&bytes)) {
        return Found::Zeros;
    }
    Found::Unknown
}

/// Bytes within the device; `None` where they are not, or cannot be read.
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
