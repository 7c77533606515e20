//! Metadata checksums: one seed type for every structure that has one.

use steadfs_base::checksum::crc32c;

use super::{CorruptKind, Ino, Result, Structure};

/// The CRC-32C at which the checksum of a structure starts: the volume's seed, or an inode's. Empty on volumes without
/// `metadata_csum`; then nothing is verified or sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ChecksumSeed(Option<u32>);

impl ChecksumSeed {
    /// The volume has no metadata checksums.
    pub const NONE: Self = Self(None);

    /// Starts at `seed`.
    pub const fn new(seed: u32) -> Self {
        Self(Some(seed))
    }

    /// Whether the volume has metadata checksums.
    pub const fn enabled(self) -> bool {
        self.0.is_some()
    }

    /// Continued over `bytes`.
    #[must_use]
    pub fn over(self, bytes: &[u8]) -> Self {
        Self(self.0.map(|seed| crc32c(seed, bytes)))
    }

    /// The seed of an inode, from the volume's: for the inode itself and everything it owns
    /// (extent nodes, directory blocks, index nodes, orphan-file blocks).
    #[must_use]
    pub fn of_inode(self, ino: Ino, generation: u32) -> Self {
        self.over(&ino.0.to_le_bytes())
            .over(&generation.to_le_bytes())
    }

    /// The checksum after everything it covers; `None` where there are none.
    pub const fn value(self) -> Option<u32> {
        self.0
    }

    /// Compares with the stored checksum, of which only the bits in `mask` exist.
    pub fn compare(self, what: Structure, stored: u32, mask: u32) -> Result<()> {
        match self.0.map(|sum| sum & mask) {
            Some(computed) if computed != stored => Err(CorruptKind::Checksum {
                what,
                stored,
                computed,
            }
            .into()),
            _ => Ok(()),
        }
    }
}
