//! The journal's on-disk structures: parse, verify, build. No I/O, no locks.
//!
//! Facts from the Linux documentation ("Journal (jbd2)", `Documentation/filesystems/ext4/journal.rst`);
//! field names there are `h_…`, `s_…`, `t_…` and `r_…`. All words are big-endian.

#![forbid(unsafe_code)]

mod commit;
mod descriptor;
mod error;
mod fast_commit;
mod format;
mod info;
mod map;
mod revoke;
mod superblock;

pub use commit::{CommitRecord, build_commit};
pub use descriptor::{DescriptorBuilder, Tag, TagSum, parse_tags};
pub use error::FormatError;
#[cfg(any(test, feature = "test-support"))]
pub use fast_commit::builder::FastCommitBuilder;
pub use fast_commit::{
    FastCommitChange, FastCommitPosition, FastCommitRecord, FastCommitScan, FastCommits,
    NameChange, encode_fast_commit,
};
pub use format::Checksum;
pub use format::Format;
pub use info::{JournalInfo, NewJournal};
pub use map::JournalMap;
pub use revoke::{build_revoke, parse_revoke};
pub use superblock::{RawSuperblock, Superblock, add_user};

use steadfs_base::Tid;
use steadfs_base::endian::Be32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of every journal block that is not a logged block (`h_magic`).
pub const MAGIC: u32 = 0xC03B_3998;

/// `h_blocktype` values.
pub mod block_type {
    /// Lists the blocks that follow it in the log.
    pub const DESCRIPTOR: u32 = 1;
    /// Ends a transaction.
    pub const COMMIT: u32 = 2;
    /// Superblock without features.
    pub const SUPERBLOCK_V1: u32 = 3;
    /// Superblock with features.
    pub const SUPERBLOCK_V2: u32 = 4;
    /// Lists blocks whose older copies must not be replayed.
    pub const REVOKE: u32 = 5;
}

/// Start of every block except logged blocks (`journal_header_s`).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// `h_magic`.
    pub magic: Be32,
    /// `h_blocktype`.
    pub block_type: Be32,
    /// `h_sequence`: the transaction's number.
    pub sequence: Be32,
}

const _: () = assert!(size_of::<Header>() == 12);

impl Header {
    /// A header of a block of `block_type` in transaction `tid`.
    pub fn new(block_type: u32, tid: Tid) -> Self {
        Self {
            magic: Be32::new(MAGIC),
            block_type: Be32::new(block_type),
            sequence: Be32::new(tid.0),
        }
    }

    /// The header at the start of `block`, if it begins with the journal's magic.
    pub fn of(block: &[u8]) -> Option<Self> {
        let (header, _) = Self::read_from_prefix(block).ok()?;
        (header.magic.get() == MAGIC).then_some(header)
    }
}

/// Whether a logged block must be escaped, because it begins with the journal's magic.
pub fn needs_escape(block: &[u8]) -> bool {
    block.starts_with(&MAGIC.to_be_bytes())
}

#[cfg(test)]
mod tests;
