//! Orphan blocks in a checkpoint pack: inodes without links that were open when it was written.

use zerocopy::{FromBytes, FromZeros, IntoBytes};

pub use super::raw::RawOrphanBlock;

use super::num::{idx, low16, short};
use super::{BLOCK_SIZE, DiskError, Layout, Nid, Result, SEGMENT_BLOCKS, Structure, checksum};

/// Inode numbers per block (`F2FS_ORPHANS_PER_BLOCK`).
pub const PER_BLOCK: usize = 1020;

/// Blocks of a pack that never hold orphans: the first and the last, and the summaries of six cursegs.
const OTHER_BLOCKS: u32 = 2 + 6;

/// The most orphans that a checkpoint pack can list, whatever summaries it has (`max_orphans` in Linux).
pub fn max(layout: &Layout) -> usize {
    let blocks = SEGMENT_BLOCKS.saturating_sub(OTHER_BLOCKS + layout.cp_payload);
    idx(blocks) * PER_BLOCK
}

/// Checks the number of orphans of a pack: with more, the next pack would not fit into its segment.
pub fn check_count(layout: &Layout, count: usize) -> Result<()> {
    if count <= max(layout) {
        return Ok(());
    }
    let what = Structure::OrphanBlock;
    let rule = "more than every checkpoint pack can list";
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    Err(DiskError::field(what, "orphans", count, rule))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::Image;

    #[test]
    fn a_pack_that_lists_more_orphans_than_every_pack_can_is_corrupt() {
        let opened = Image::make(&[], 64).open();
        let layout = opened.layout();
        let most = max(layout);
        assert_eq!(most, 504 * PER_BLOCK);
        assert!(check_count(layout, most).is_ok());
        assert!(check_count(layout, most + 1).is_err());
    }
}
