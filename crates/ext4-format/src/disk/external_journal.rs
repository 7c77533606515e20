//! The superblock of an external journal: the device of a journal that is not in its volume (feature `journal_dev`).
//!
//! Layout (`ext2fs_create_journal_superblock2` of libext2fs, `ext4_get_dev_journal` of Linux): a superblock of ext4 at byte 1024,
//! of which few fields have a meaning; in the block after it the superblock of jbd2, then the log. The log's block numbers
//! are those of the device.

use steadfs_base::BlockSize;

use super::error::{DiskError, Structure};
use super::features::Incompat;
use super::superblock::{SUPERBLOCK_OFFSET, Superblock};

/// What the superblock says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExternalJournal {
    /// The block size of volume and journal.
    pub block_size: BlockSize,
    /// Blocks of the device that belong to the journal.
    pub blocks: u64,
    /// By which the volume names it (`s_journal_uuid`).
    pub uuid: [u8; 16],
}

impl ExternalJournal {
    /// Verifies the 1024 bytes from byte 1024 of the device on.
    ///
    /// # Errors
    /// They are not such a superblock, or its checksum is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, DiskError> {
        let raw = Superblock::read_raw(bytes)?;
        let bad =
            |field, value: u64, why| DiskError::field(Structure::Superblock, field, value, why);
        let incompat = raw.features().incompat;
        if !incompat.contains(Incompat::JOURNAL_DEV) {
            let why = "is not the superblock of an external journal";
            return Err(bad("s_feature_incompat", incompat.0.into(), why));
        }
        super::superblock::verify(&raw)?;
        Ok(Self {
            block_size: super::geometry::block_size(&raw)?,
            blocks: raw.blocks_count_lo.get().into(),
            uuid: raw.uuid,
        })
    }

    /// The block that has the superblock of jbd2.
    pub fn log_superblock(&self) -> u64 {
        SUPERBLOCK_OFFSET / self.block_size.bytes_u64() + 1
    }
}
