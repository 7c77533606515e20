//! Fast commits: the changes of an fsync since the last transaction, recorded by ext4 in an area behind the log.
//!
//! **Layout.** The area is a row of tags: type, length, value, all little-endian (`ext4_fc_tl`). No tag crosses a block.
//! The first tag is a head with the number of the transaction that the changes belong to; each fast commit ends with a
//! tail, which has that number again and the CRC-32C of the tags before it.
//!
//! **Rule.** The fast commits before the first tail that does not match were acknowledged. What follows was being
//! written at the crash, or is left from an earlier transaction: it is ignored, whatever it is. In an acknowledged one
//! every tag must be valid.

use std::fmt;

use steadfs_base::Tid;
use steadfs_base::checksum::crc32c;
use steadfs_base::endian::{Le16, Le32};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::FormatError;

/// Types of tags (`EXT4_FC_TAG_…`).
const UNUSED: u16 = 0;
const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREATE: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;
const PAD: u16 = 7;
const TAIL: u16 = 8;
const HEAD: u16 = 9;

const TAG_LEN: usize = 4;
/// Bytes of an extent (`ext4_extent`).
const EXTENT_LEN: usize = 12;
/// Bytes of an inode without extra fields.
const INODE_LEN_MIN: usize = 128;
const NAME_LEN_MAX: usize = 255;
/// Changes of all fast commits that are read: more do not fit into the log, and a corrupt journal could map one block
/// as often as it likes.
const RECORDS_MAX: usize = 1 << 20;
/// Blocks in which the end of a fast commit is sought from an invalid tag on.
const INVALID_BLOCKS_MAX: u32 = 1 << 14;

/// `ext4_fc_tl`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawTag {
    tag: Le16,
    len: Le16,
}

const _: () = assert!(size_of::<RawTag>() == TAG_LEN);

/// Two words: `ext4_fc_head` (features, transaction), `ext4_fc_tail` (transaction, checksum) and the start of
/// `ext4_fc_dentry_info` (directory, inode).
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawPair {
    first: Le32,
    second: Le32,
}

const _: () = assert!(size_of::<RawPair>() == 8);

/// `ext4_fc_add_range`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawAddRange {
    ino: Le32,
    extent: [u8; EXTENT_LEN],
}

const _: () = assert!(size_of::<RawAddRange>() == 16);

/// `ext4_fc_del_range`.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawDelRange {
    ino: Le32,
    first: Le32,
    count: Le32,
}

const _: () = assert!(size_of::<RawDelRange>() == 12);

/// Where a tag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCommitPosition {
    /// Block of the fast-commit area, counted from its first.
    pub block: u32,
    /// Byte in the block.
    pub offset: usize,
}

impl fmt::Display for FastCommitPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fast-commit block {}, byte {}", self.block, self.offset)
    }
}

/// What a tag does to a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameChange {
    /// A new inode gets its first name.
    Create,
    /// An inode gets one more name.
    Link,
    /// A name is removed.
    Unlink,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FastCommitChange {
    /// File blocks are mapped.
    AddRange {
        /// The file.
        ino: u32,
        /// File blocks and device blocks, as an extent tree has them.
        extent: [u8; EXTENT_LEN],
    },
    /// File blocks are unmapped.
    DelRange {
        /// The file.
        ino: u32,
        /// First file block.
        first: u32,
        /// Number of blocks.
        count: u32,
    },
    /// A directory gets or loses a name.
    Name {
        /// What happens to the name.
        change: NameChange,
        /// The directory.
        parent: u32,
        /// The inode that is named.
        ino: u32,
        /// 1 to 255 bytes.
        name: Box<[u8]>,
    },
    /// An inode has these fields; its block map and its number of blocks have no meaning.
    Inode {
        /// Its number.
        ino: u32,
        /// The start of its slot in the inode table, at least 128 bytes.
        raw: Box<[u8]>,
    },
}

impl FastCommitChange {
    /// The tag's name in messages.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AddRange { .. } => "add range",
            Self::DelRange { .. } => "delete range",
            Self::Name { change, .. } => match change {
                NameChange::Create => "create",
                NameChange::Link => "link",
                NameChange::Unlink => "unlink",
            },
            Self::Inode { .. } => "inode",
        }
    }
}

/// One change with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastCommitRecord {
    /// Where its tag is.
    pub at: FastCommitPosition,
    /// What it changes.
    pub change: FastCommitChange,
}

/// The acknowledged fast commits of a journal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FastCommits {
    /// Each with its changes, in the order of the commits.
    pub commits: Vec<Vec<FastCommitRecord>>,
    /// Another one follows that was not finished.
    pub is_torn: bool,
}

impl FastCommits {
    /// Whether there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }
}

/// Reads the fast-commit area, block by block.
pub struct FastCommitScan {
    tid: Tid,
    /// The next block.
    block: u32,
    found: FastCommits,
    /// Changes since the last tail.
    pending: Vec<FastCommitRecord>,
    /// The first invalid tag since the last tail.
    invalid: Option<FormatError>,
    /// Blocks since that tag.
    invalid_blocks: u32,
    /// Changes in all.
    records: usize,
    /// CRC-32C since the last tail.
    sum: u32,
}

impl FastCommitScan {
    /// For fast commits that belong to transaction `tid`: the one after the last in the log.
    pub fn new(tid: Tid) -> Self {
        Self {
            tid,
            block: 0,
            found: FastCommits::default(),
            pending: Vec::new(),
            invalid: None,
            invalid_blocks: 0,
            records: 0,
            sum: 0,
        }
    }

    /// Reads the next block of the area. False: what follows is not of a finished fast commit.
    ///
    /// # Errors
    /// A tag of a finished fast commit is invalid or not supported.
    pub fn block(&mut self, block: &[u8]) -> Result<bool, FormatError> {
        let mut at = FastCommitPosition {
            block: self.block,
            offset: 0,
        };
        self.block += 1;
        self.invalid_blocks += u32::from(self.invalid.is_some());
        if self.invalid_blocks > INVALID_BLOCKS_MAX {
            return Ok(false);
        }
        while let Some(header) = block.get(at.offset..at.offset + TAG_LEN) {
            let raw = RawTag::ref_from_bytes(header).expect("the slice has a tag's length");
            let start = at.offset + TAG_LEN;
            let end = start + usize::from(raw.len.get());
            let Some(value) = block.get(start..end) else {
                self.found.is_torn |= at != AREA_START;
                return Ok(false);
            };
            let goes_on = match raw.tag.get() {
                HEAD => self.head(at, header, value),
                _ if at == AREA_START => false,
                TAIL => self.tail(header, value)?,
                // Behind the last fast commit, in a block that had none before.
                UNUSED if self.sum == 0 => false,
                tag => {
                    self.sum = crc32c(crc32c(self.sum, header), value);
                    self.tag(at, tag, value)?;
                    true
                }
            };
            if !goes_on {
                return Ok(false);
            }
            at.offset = end;
        }
        Ok(true)
    }

    /// The fast commits that were found.
    pub fn finish(self) -> FastCommits {
        let is_torn = self.found.is_torn || !self.pending.is_empty() || self.invalid.is_some();
        FastCommits {
            is_torn,
            ..self.found
        }
    }

    /// False: the fast commits are of another transaction.
    fn head(&mut self, at: FastCommitPosition, header: &[u8], value: &[u8]) -> bool {
        let Ok((raw, _)) = RawPair::ref_from_prefix(value) else {
            self.found.is_torn |= at != AREA_START;
            return false;
        };
        if raw.second.get() != self.tid.0 {
            return false;
        }
        if value.len() != size_of::<RawPair>() {
            self.invalidate(bad_length(at, "head", value));
        }
        let features = raw.first.get();
        if features != 0 {
            let what = format!("fast commits with unknown features {features:#x} ({at})");
            self.invalidate(FormatError::Unsupported(what));
        }
        self.sum = crc32c(crc32c(self.sum, header), value);
        true
    }

    /// False: the fast commit was not finished.
    fn tail(&mut self, header: &[u8], value: &[u8]) -> Result<bool, FormatError> {
        let fits = RawPair::ref_from_prefix(value).is_ok_and(|(raw, _)| {
            let sum = crc32c(crc32c(self.sum, header), &value[..size_of::<Le32>()]);
            raw.first.get() == self.tid.0 && raw.second.get() == sum
        });
        if !fits {
            return Ok(false);
        }
        if let Some(invalid) = self.invalid.take() {
            return Err(invalid);
        }
        self.found.commits.push(std::mem::take(&mut self.pending));
        self.sum = 0;
        Ok(true)
    }

    fn tag(&mut self, at: FastCommitPosition, tag: u16, value: &[u8]) -> Result<(), FormatError> {
        match parse(at, tag, value) {
            Ok(Some(_)) if self.records == RECORDS_MAX => {
                let what = format!("fast commits with more than {RECORDS_MAX} changes");
                return Err(FormatError::Unsupported(what));
            }
            Ok(Some(change)) => {
                self.records += 1;
                self.pending.push(FastCommitRecord { at, change });
            }
            Ok(None) => {}
            Err(error) => self.invalidate(error),
        }
        Ok(())
    }

    /// Records what is wrong, should the fast commit turn out to be finished.
    fn invalidate(&mut self, error: FormatError) {
        self.invalid.get_or_insert(error);
    }
}

const AREA_START: FastCommitPosition = FastCommitPosition {
    block: 0,
    offset: 0,
};

fn bad_length(at: FastCommitPosition, tag: &str, value: &[u8]) -> FormatError {
    let len = value.len();
    FormatError::Corrupt(format!("{at}: tag {tag} has a length of {len}"))
}

/// The change of a tag; `None` for padding.
fn parse(
    at: FastCommitPosition,
    tag: u16,
    value: &[u8],
) -> Result<Option<FastCommitChange>, FormatError> {
    let change = match tag {
        PAD => return Ok(None),
        ADD_RANGE => {
            let raw = RawAddRange::ref_from_bytes(value);
            let raw = raw.map_err(|_| bad_length(at, "add range", value))?;
            FastCommitChange::AddRange {
                ino: raw.ino.get(),
                extent: raw.extent,
            }
        }
        DEL_RANGE => {
            let raw = RawDelRange::ref_from_bytes(value);
            let raw = raw.map_err(|_| bad_length(at, "delete range", value))?;
            FastCommitChange::DelRange {
                ino: raw.ino.get(),
                first: raw.first.get(),
                count: raw.count.get(),
            }
        }
        CREATE => name_change(at, NameChange::Create, value)?,
        LINK => name_change(at, NameChange::Link, value)?,
        UNLINK => name_change(at, NameChange::Unlink, value)?,
        INODE => {
            let split = Le32::ref_from_prefix(value);
            let (ino, raw) = split.map_err(|_| bad_length(at, "inode", value))?;
            if raw.len() < INODE_LEN_MIN {
                return Err(bad_length(at, "inode", value));
            }
            FastCommitChange::Inode {
                ino: ino.get(),
                raw: raw.into(),
            }
        }
        other => {
            let what = format!("{at}: tag {other} is unknown");
            return Err(FormatError::Corrupt(what));
        }
    };
    Ok(Some(change))
}

fn name_change(
    at: FastCommitPosition,
    change: NameChange,
    value: &[u8],
) -> Result<FastCommitChange, FormatError> {
    let split = RawPair::ref_from_prefix(value).ok();
    let split = split.filter(|(_, name)| (1..=NAME_LEN_MAX).contains(&name.len()));
    let (raw, name) = split.ok_or_else(|| bad_length(at, "of a name", value))?;
    Ok(FastCommitChange::Name {
        change,
        parent: raw.first.get(),
        ino: raw.second.get(),
        name: name.into(),
    })
}

mod encode;

pub use encode::encode_fast_commit;

#[cfg(any(test, feature = "test-support"))]
pub mod builder;
#[cfg(test)]
mod tests;
