//! The mark of a superblock while the areas of a volume are rewritten for another size.
//!
//! A marked superblock is that of the old size, and at last that of the new one, except that it has no segments, which every
//! program refuses, and that it names the place of what is to be written. The kernel and fsck.f2fs know no such mark; it is in bytes that the format
//! reserves.

use zerocopy::{FromBytes, IntoBytes};

use super::{RawSuperblock, SUPERBLOCK_SIZE, Superblock};
use crate::disk::num::{get32, idx, join32, put32};
use crate::disk::{BlockAddr, checksum};

/// Begins the mark in `reserved`.
const MAGIC: [u8; 8] = *b"SFRESIZE";
/// Bytes of the mark: the magic number, the number of the resize, the first staged block, the checksum.
const MARK_SIZE: usize = 24;

/// A resize that has begun to rewrite the areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resizing {
    /// A random number that its staged blocks have, too.
    pub id: u64,
    /// The first of its staged blocks.
    pub staged: BlockAddr,
}

/// The mark's place in a superblock.
const fn at() -> usize {
    std::mem::offset_of!(RawSuperblock, reserved)
}

/// The checksum of a marked superblock: of all its bytes but those of both checksums.
fn compute(bytes: &[u8]) -> u32 {
    let end = idx(super::CRC_AT);
    let sum = checksum::of(&bytes[..at() + MARK_SIZE - 4]);
    checksum::over(sum, &bytes[at() + MARK_SIZE..end])
}

impl Resizing {
    /// The mark in a superblock (3072 bytes; more are ignored), if it has a complete one.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SUPERBLOCK_SIZE)?;
        let (raw, _) = RawSuperblock::ref_from_prefix(bytes).ok()?;
        let mark = &bytes[at()..at() + MARK_SIZE];
        let is_mark = mark.starts_with(&MAGIC) && raw.segment_count.get() == 0;
        (is_mark && get32(mark, 20) == compute(bytes)).then(|| Self {
            id: join32(get32(mark, 12), get32(mark, 8)),
            staged: BlockAddr(get32(mark, 16)),
        })
    }

    /// The 3072 bytes of a superblock with this mark.
    pub fn encode(self, superblock: &Superblock) -> Vec<u8> {
        let mut raw = superblock.raw.clone();
        raw.segment_count.set(0);
        let mut bytes = raw.as_bytes().to_vec();
        let mark = &mut bytes[at()..at() + MARK_SIZE];
        mark[..8].copy_from_slice(&MAGIC);
        mark[8..16].copy_from_slice(&self.id.to_le_bytes());
        put32(mark, 16, self.staged.0);
        let sum = compute(&bytes);
        put32(&mut bytes, at() + MARK_SIZE - 4, sum);
        bytes
    }
}
