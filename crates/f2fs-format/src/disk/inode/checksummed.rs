//! The checksum of an inode's block (feature `inode_checksum`).

use super::super::node::Footer;
use super::super::num::{get32, put32};
use super::super::{BLOCK_SIZE, DiskError, Features, Layout, Result, Structure, checksum};
use super::{FIXED, Inline};

const CHECKSUM_AT: usize = FIXED + 8;
const GENERATION_AT: usize = 68;

/// Whether this inode's block has a checksum.
fn has_checksum(layout: &Layout, block: &[u8]) -> bool {
    layout.has(Features::INODE_CHECKSUM)
        && Inline(block[3]).contains(Inline::EXTRA)
        && u16::from_le_bytes([block[FIXED], block[FIXED + 1]]) >= 12
}

fn compute(layout: &Layout, block: &[u8]) -> u32 {
    let nid = Footer::parse(block).ino;
    let generation = get32(block, GENERATION_AT);
    let seed = checksum::seed_of_inode(layout.checksum_seed, nid, generation);
    let sum = checksum::over(seed, &block[..CHECKSUM_AT]);
    let sum = checksum::over(sum, &[0; 4]);
    checksum::over(sum, &block[CHECKSUM_AT + 4..])
}

/// Verifies an inode's checksum, if it has one.
pub fn verify_checksum(layout: &Layout, block: &[u8]) -> Result<()> {
    assert_eq!(block.len(), BLOCK_SIZE);
    if !has_checksum(layout, block) {
        return Ok(());
    }
    let (stored, computed) = (get32(block, CHECKSUM_AT), compute(layout, block));
    if stored != computed {
        return Err(DiskError::checksum(Structure::Inode, stored, computed));
    }
    Ok(())
}

/// Sets an inode's checksum, if it has one. It covers the footer, which must be set before.
pub fn seal(layout: &Layout, block: &mut [u8]) {
    assert_eq!(block.len(), BLOCK_SIZE);
    if has_checksum(layout, block) {
        let sum = compute(layout, block);
        put32(block, CHECKSUM_AT, sum);
    }
}
