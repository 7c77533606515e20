//! Layout and checksums of log blocks, as determined by the journal's features.

use steadfs_base::checksum::crc32c;
use steadfs_base::{BlockSize, Tid};

use super::descriptor::{TAG_V1_LEN, TAG_V1_WIDE_LEN, TAG_V3_LEN, UUID_LEN};
use super::revoke::REVOKE_HEADER_LEN;

/// Checksum version of a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checksum {
    /// No checksums.
    None,
    /// One CRC-32 over a transaction's descriptors and blocks, in the commit record (compatible
    /// feature CHECKSUM).
    V1,
    /// CRC-32C of every descriptor, revoke block and commit record, and 16 bits of it per logged block
    /// (incompatible feature CSUM_V2).
    V2,
    /// CRC-32C of every block (incompatible feature CSUM_V3).
    V3,
}

/// Layout of descriptors, revoke blocks and commit records in one journal.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Bytes in a log block.
    pub block_size: BlockSize,
    /// Block numbers have 64 bits (incompatible feature 64BIT).
    pub wide: bool,
    /// Checksum version.
    pub checksum: Checksum,
    /// The journal's `s_uuid`.
    pub uuid: [u8; UUID_LEN],
    /// CRC-32C of the journal's UUID: the seed of versions 2 and 3.
    pub seed: u32,
}

/// Bytes of the checksum at the end of a descriptor or revoke block (`jbd2_journal_block_tail`).
const TAIL_LEN: usize = 4;

impl Format {
    /// The layout for blocks of `block_size`; `uuid` seeds the checksums.
    pub fn new(block_size: BlockSize, wide: bool, checksum: Checksum, uuid: [u8; 16]) -> Self {
        Self {
            block_size,
            wide,
            checksum,
            uuid,
            seed: crc32c(!0, &uuid),
        }
    }

    /// Whether log blocks contain CRC-32C checksums.
    pub fn sealed(&self) -> bool {
        matches!(self.checksum, Checksum::V2 | Checksum::V3)
    }

    /// Bytes of a tag, without the UUID that follows the first one.
    pub fn tag_len(&self) -> usize {
        let narrow_or_wide = if self.wide {
            TAG_V1_WIDE_LEN
        } else {
            TAG_V1_LEN
        };
        match self.checksum {
            Checksum::V3 => TAG_V3_LEN,
            // Two unused bytes follow each tag, an accident of the format.
            Checksum::V2 => narrow_or_wide + 2,
            Checksum::V1 | Checksum::None => narrow_or_wide,
        }
    }

    /// Bytes at the end of descriptor and revoke blocks that hold no entries.
    pub fn tail_len(&self) -> usize {
        if self.sealed() { TAIL_LEN } else { 0 }
    }

    /// Capacity of a descriptor in blocks.
    pub fn tags_per_descriptor(&self) -> u32 {
        let space = self.block_size.bytes() - 12 - UUID_LEN - self.tail_len();
        u32::try_from(space / self.tag_len()).expect("a block holds fewer than 2^32 tags")
    }

    /// Bytes of a revoked block's number.
    pub fn revoke_len(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    /// Capacity of a revoke block in blocks.
    pub fn revokes_per_block(&self) -> u32 {
        let space = self.block_size.bytes() - REVOKE_HEADER_LEN - self.tail_len();
        u32::try_from(space / self.revoke_len()).expect("a block holds fewer than 2^32 revokes")
    }

    /// Writes the checksum into a descriptor's or revoke block's tail, if this journal has them.
    pub fn seal(&self, block: &mut [u8]) {
        if self.sealed() {
            let body = block.len() - TAIL_LEN;
            let sum = self.block_sum(&block[..body]);
            block[body..].copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Whether a descriptor's or revoke block's checksum is correct.
    pub fn is_sealed(&self, block: &[u8]) -> bool {
        if !self.sealed() {
            return true;
        }
        let (body, tail) = block.split_at(block.len() - TAIL_LEN);
        tail == self.block_sum(body).to_be_bytes()
    }

    /// The checksum of a block, with zeros in place of its last four bytes, the checksum.
    fn block_sum(&self, body: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, body), &[0; TAIL_LEN])
    }

    /// The checksum of a logged block, as stored in the log, in transaction `tid`.
    pub fn data_sum(&self, tid: Tid, block: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, &tid.0.to_be_bytes()), block)
    }
}
