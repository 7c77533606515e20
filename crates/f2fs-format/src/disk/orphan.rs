//! Orphan blocks in a checkpoint pack: inodes without links that were open when it was written.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use super::raw::RawOrphanBlock;

use super::num::{idx, low16, short};
use super::{BLOCK_SIZE, DiskError, Layout, Nid, Result, Structure, checksum};

/// Inode numbers per block (`F2FS_ORPHANS_PER_BLOCK`).
pub const PER_BLOCK: usize = 1020;

/// Decodes one orphan block. (The kernel leaves the checksum field 0, so it is not verified; [`encode`] sets it.)
pub fn parse(layout: &Layout, block: &[u8]) -> Result<Vec<Nid>> {
    assert_eq!(block.len(), BLOCK_SIZE);
    let raw = RawOrphanBlock::ref_from_bytes(block).expect("a block is an orphan block's size");
    let count = raw.entry_count.get();
    if idx(count) > PER_BLOCK {
        let what = Structure::OrphanBlock;
        return Err(DiskError::field(
            what,
            "entry_count",
            count,
            "more than fit",
        ));
    }
    raw.ino[..idx(count)]
        .iter()
        .zip(0..)
        .map(|(ino, i)| match Nid(ino.get()) {
            nid if layout.is_nid(nid) => Ok(nid),
            _ => Err(DiskError::entry(
                Structure::OrphanBlock,
                i,
                "is not a valid inode number",
            )),
        })
        .collect()
}

/// Encodes the orphan blocks; none for an empty list.
pub fn encode(orphans: &[Nid]) -> Vec<Vec<u8>> {
    let blocks = orphans.len().div_ceil(PER_BLOCK);
    orphans
        .chunks(PER_BLOCK)
        .zip(1..)
        .map(|(chunk, number)| {
            let mut raw = RawOrphanBlock::new_zeroed();
            for (slot, nid) in raw.ino.iter_mut().zip(chunk) {
                slot.set(nid.0);
            }
            raw.blk_addr.set(number);
            raw.blk_count.set(low16(short(blocks)));
            raw.entry_count.set(short(chunk.len()));
            let sum = checksum::of(&raw.as_bytes()[..BLOCK_SIZE - 4]);
            raw.check_sum.set(sum);
            raw.as_bytes().to_vec()
        })
        .collect()
}
