//! Indirect maps of ext2 and ext3 files: which of the 15 words of `i_block` and which words of the
//! blocks below lead to a file block, and how large files can be.

use steadfs_base::FileBlock;

use super::Geometry;
use super::features::RoCompat;
use super::num::{low32, wide};

/// Words of `i_block` that name data directly.
pub const DIRECT: u32 = 12;
/// Word of `i_block` that names the block of block numbers.
pub const INDIRECT: u32 = 12;
/// Word of `i_block` that names the doubly indirect block.
pub const DOUBLE: u32 = 13;
/// Word of `i_block` that names the triply indirect block.
pub const TRIPLE: u32 = 14;

/// The path from the inode to a file block: an index into `i_block`, then into up to three blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    indices: [u32; 4],
    len: usize,
    /// How many file blocks after this one are in the same last block (or among the direct words).
    pub to_boundary: u32,
}

impl Path {
    /// The path to `block` with `per_block` numbers in a block; `None` if it is beyond the largest map.
    pub fn to(block: FileBlock, per_block: u32) -> Option<Self> {
        let per = u64::from(per_block);
        let mut left = block.0;
        if left < DIRECT.into() {
            let first = low32(left);
            return Some(Self {
                indices: [first, 0, 0, 0],
                len: 1,
                to_boundary: DIRECT - 1 - first,
            });
        }
        left -= u64::from(DIRECT);
        for (levels, word) in [(1, INDIRECT), (2, DOUBLE), (3, TRIPLE)] {
            // At most 2^42.
            let reach = per.pow(levels);
            if left >= reach {
                left -= reach;
                continue;
            }
            let mut indices = [word, 0, 0, 0];
            let len = super::num::idx(levels) + 1;
            for slot in indices[1..len].iter_mut().rev() {
                *slot = low32(left % per);
                left /= per;
            }
            return Some(Self {
                indices,
                len,
                to_boundary: per_block - 1 - indices[len - 1],
            });
        }
        None
    }

    /// The indices: first into `i_block`, then into each block on the path.
    pub fn indices(&self) -> &[u32] {
        &self.indices[..self.len]
    }

    /// Blocks of block numbers on the path: 0 to 3.
    pub const fn depth(&self) -> usize {
        self.len - 1
    }
}

/// Block numbers in a block.
pub fn per_block(geo: &Geometry) -> u32 {
    low32(geo.block_size.bytes_u64() / 4)
}

/// First file block below each of the words 12, 13 and 14 of `i_block`, and the one after all.
pub fn bases(per_block: u32) -> [u64; 4] {
    let per = u64::from(per_block);
    let single = u64::from(DIRECT);
    let double = single + per;
    let triple = double + per * per;
    [single, double, triple, triple + per * per * per]
}

/// Largest size in bytes of a file by the kernel's limits: reach of the map, 32-bit file block numbers, and the range
/// of `i_blocks`, metadata included.
pub fn max_file_size(geo: &Geometry, extents: bool) -> u64 {
    const LFS_LIMIT: u64 = (1 << 63) - 1;
    let bits = geo.block_size.bits();
    let huge = geo.has_ro_compat(RoCompat::HUGE_FILE);
    let reach = if extents {
        u64::from(u32::MAX)
    } else {
        bases(per_block(geo))[3].min(u64::from(u32::MAX))
    };
    // Units that i_blocks can count, as blocks.
    let countable = if huge {
        u64::MAX >> 16 >> (bits - 9)
    } else {
        u64::from(u32::MAX) >> (bits - 9)
    };
    let mapped = if extents {
        reach.min(countable)
    } else {
        largest_with_map(per_block(geo), reach, countable)
    };
    (mapped << bits).min(LFS_LIMIT)
}

/// The most data blocks, up to `reach`, that together with their blocks of block numbers are at
/// most `countable`.
fn largest_with_map(per_block: u32, reach: u64, countable: u64) -> u64 {
    let (mut low, mut high) = (0, reach);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if middle + map_blocks(per_block, middle) <= countable {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Blocks of block numbers that a file without holes of `blocks` blocks needs.
pub fn map_blocks(per_block: u32, blocks: u64) -> u64 {
    let per = u64::from(per_block);
    let mut left = blocks.saturating_sub(DIRECT.into());
    let mut sum = 0;
    for levels in 1..=3u32 {
        let here = left.min(per.pow(levels));
        if here == 0 {
            break;
        }
        left -= here;
        sum += (1..=levels)
            .map(|level| here.div_ceil(per.pow(level)))
            .sum::<u64>();
    }
    sum
}

const _: () = assert!(wide(4) * wide(15) == wide(super::inode::I_BLOCK_SIZE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_at_every_boundary() {
        let indices = |block, per| Path::to(FileBlock(block), per).map(|p| p.indices().to_vec());
        for per in [256u32, 1024, 16384] {
            let p = u64::from(per);
            let last = per - 1;
            assert_eq!(indices(0, per), Some(vec![0]));
            assert_eq!(indices(11, per), Some(vec![11]));
            assert_eq!(indices(12, per), Some(vec![12, 0]));
            assert_eq!(indices(11 + p, per), Some(vec![12, last]));
            assert_eq!(indices(12 + p, per), Some(vec![13, 0, 0]));
            assert_eq!(indices(11 + p + p * p, per), Some(vec![13, last, last]));
            assert_eq!(indices(12 + p + p * p, per), Some(vec![14, 0, 0, 0]));
            let end = 12 + p + p * p + p * p * p;
            assert_eq!(indices(end - 1, per), Some(vec![14, last, last, last]));
            assert_eq!(indices(end, per), None);
            assert_eq!(bases(per), [12, 12 + p, 12 + p + p * p, end]);
        }
        assert_eq!(Path::to(FileBlock(3), 256).map(|p| p.to_boundary), Some(8));
        assert_eq!(
            Path::to(FileBlock(14), 256).map(|p| p.to_boundary),
            Some(253)
        );
    }

    #[test]
    fn map_blocks_of_full_trees() {
        assert_eq!(map_blocks(256, 12), 0);
        assert_eq!(map_blocks(256, 13), 1);
        assert_eq!(map_blocks(256, 12 + 256), 1);
        assert_eq!(map_blocks(256, 12 + 256 + 1), 3);
        assert_eq!(map_blocks(256, 12 + 256 + 65536), 1 + 257);
        assert_eq!(map_blocks(256, 12 + 256 + 65536 + 1), 1 + 257 + 3);
    }
}
