//! Counts of the whole volume, and promises on them.

/// Counts of the whole volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks that can be claimed now.
    pub free: u64,
    /// Blocks freed by transactions that are not durable yet.
    pub pending: u64,
    /// Blocks reserved to cached data that has no place yet, with the metadata it may need at worst.
    pub reserved: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub dirs: u64,
}

/// Promised for each dirty block of a file mapped by extents: itself and, at worst, a share of new
/// tree blocks that no fragmentation exceeds.
pub const RESERVE_PER_BLOCK_EXTENT: u64 = 2;
/// Promised for each dirty block of a file mapped by indirect blocks: itself and up to three levels.
pub const RESERVE_PER_BLOCK_INDIRECT: u64 = 4;
/// Kept free beside promises, for tree blocks above the leaves.
const SLACK: u64 = 64;

impl Totals {
    /// Promises `blocks` if free space covers them beside all other promises and `keep` blocks
    /// reserved for the superuser.
    pub fn reserve(&mut self, blocks: u64, keep: u64) -> bool {
        let wanted = self.reserved + blocks + keep + SLACK;
        if wanted > self.free {
            return false;
        }
        self.reserved += blocks;
        true
    }

    /// Free blocks that nobody was reserved, nor may need for tree blocks above the leaves of what was; `keep` left
    /// alone.
    pub fn spare(&self, keep: u64) -> u64 {
        let reserved = self.reserved + self.reserved.min(SLACK);
        self.free.saturating_sub(reserved + keep)
    }

    /// Whether there may be more free blocks than the counts say: promises are for the worst, and some
    /// freed blocks wait for a commit.
    pub fn is_uncertain(&self) -> bool {
        self.reserved > 0 || self.pending > 0
    }

    /// Takes back `used` of what was reserved and promises `kept` again, whatever is free.
    pub fn adjust(&mut self, used: u64, kept: u64) {
        self.release_reserved(used);
        self.reserved += kept;
    }

    /// Takes a promise back: kept, or not needed.
    pub fn release_reserved(&mut self, blocks: u64) {
        assert!(blocks <= self.reserved, "only what was reserved is used");
        self.reserved -= blocks;
    }
}
