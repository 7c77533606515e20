//! Blocks of the orphan file: inode numbers of orphans, 0 where a slot is free, and a tail with
//! magic and checksum. It replaces the orphan list, whose single head every unlink must change.

use steadfs_base::DevBlock;

use super::num::{get32, idx, low32, put32, wide};
use super::{ChecksumSeed, DiskError, Geometry, Ino, Result, Structure};

/// `ob_magic`.
pub const MAGIC: u32 = 0x0B10_CA04;

const TAIL_SIZE: usize = 8;

/// Slots in a block.
pub fn slots_per_block(geo: &Geometry) -> u32 {
    low32(wide((geo.block_size.bytes() - TAIL_SIZE) / 4))
}

fn checksum(geo: &Geometry, seed: ChecksumSeed, at: DevBlock, block: &[u8]) -> ChecksumSeed {
    seed.over(&at.0.to_le_bytes())
        .over(&block[..idx(slots_per_block(geo)) * 4])
}

/// Verifies and validates the block of the orphan file at `at`; `seed` is the file's inode's.
pub fn verify(geo: &Geometry, seed: ChecksumSeed, at: DevBlock, block: &[u8]) -> Result<()> {
    assert_eq!(block.len(), geo.block_size.bytes());
    let tail = block.len() - TAIL_SIZE;
    let magic = get32(block, tail);
    if magic != MAGIC {
        return Err(DiskError::magic(Structure::OrphanFile, magic).in_block(at));
    }
    checksum(geo, seed, at, block)
        .compare(Structure::OrphanFile, get32(block, tail + 4), u32::MAX)
        .map_err(|e| e.in_block(at))?;
    for slot in 0..slots_per_block(geo) {
        let ino = Ino(get32(block, idx(slot) * 4));
        if ino.0 != 0 && !geo.is_inode(ino) {
            let rule = "names an inode that does not exist";
            return Err(DiskError::entry(Structure::OrphanFile, slot, rule).in_block(at));
        }
    }
    Ok(())
}

/// The orphans of a verified block, with their slots.
pub fn orphans<'a>(geo: &Geometry, block: &'a [u8]) -> impl Iterator<Item = (u32, Ino)> + use<'a> {
    (0..slots_per_block(geo))
        .map(|slot| (slot, Ino(get32(block, idx(slot) * 4))))
        .filter(|(_, ino)| ino.0 != 0)
}

/// The inode in `slot`.
pub fn slot(block: &[u8], slot: u32) -> Option<Ino> {
    Ino(get32(block, idx(slot) * 4)).some()
}

/// Fills or frees a slot. Seal the block afterwards.
pub fn set_slot(block: &mut [u8], slot: u32, ino: Option<Ino>) {
    put32(block, idx(slot) * 4, ino.map_or(0, |ino| ino.0));
}

/// Makes an empty block. Seal it afterwards.
pub fn init(block: &mut [u8]) {
    block.fill(0);
    let tail = block.len() - TAIL_SIZE;
    put32(block, tail, MAGIC);
}

/// Writes the checksum; `at` is where the block is, `seed` the file's inode's.
pub fn seal(geo: &Geometry, seed: ChecksumSeed, at: DevBlock, block: &mut [u8]) {
    if let Some(sum) = checksum(geo, seed, at, block).value() {
        let tail = block.len() - TAIL_SIZE;
        put32(block, tail + 4, sum);
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_images::geometry;
    use super::*;

    #[test]
    fn slots_and_checksum() {
        let geo = geometry(&["-b", "1024"]);
        let seed = geo.seed.of_inode(Ino(12), 7);
        let mut block = vec![0; 1024];
        init(&mut block);
        assert_eq!(slots_per_block(&geo), 254);
        set_slot(&mut block, 253, Some(Ino(20)));
        seal(&geo, seed, DevBlock(99), &mut block);
        verify(&geo, seed, DevBlock(99), &block).unwrap();
        assert!(verify(&geo, seed, DevBlock(98), &block).is_err());
        assert_eq!(orphans(&geo, &block).collect::<Vec<_>>(), [(253, Ino(20))]);
        assert_eq!(slot(&block, 253), Some(Ino(20)));
        set_slot(&mut block, 253, None);
        assert!(verify(&geo, seed, DevBlock(99), &block).is_err());
        set_slot(&mut block, 0, Some(Ino(u32::MAX)));
        seal(&geo, seed, DevBlock(99), &mut block);
        assert!(verify(&geo, seed, DevBlock(99), &block).is_err());
    }
}
