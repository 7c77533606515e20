//! Counts of the whole volume, and promises on them.

/// Counts of the whole volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks that can be claimed now.
    pub free: u64,
    /// Blocks freed by transactions that are not durable yet.
    pub pending: u64,
    /// Blocks promised to cached data that has no place yet, with the metadata it may need at worst.
    pub promised: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub dirs: u64,
}

/// Promised for each dirty block of a file mapped by extents: itself and, at worst, a share of new
/// tree blocks that no fragmentation exceeds.
pub const WEIGHT_EXTENT: u64 = 2;
/// Promised for each dirty block of a file mapped by indirect blocks: itself and up to three levels.
pub const WEIGHT_INDIRECT: u64 = 4;
/// Kept free beside promises, for tree blocks above the leaves.
const SLACK: u64 = 64;

impl Totals {
    /// Promises `blocks` if free space covers them beside all other promises and `keep` blocks
    /// reserved for the superuser.
    pub fn promise(&mut self, blocks: u64, keep: u64) -> bool {
        let wanted = self.promised + blocks + keep + SLACK;
        if wanted > self.free {
            return false;
        }
        self.promised += blocks;
        true
    }

    /// Free blocks that nobody was promised, nor may need for tree blocks above the leaves of what was; `keep` left
    /// alone.
    pub fn spare(&self, keep: u64) -> u64 {
        let promised = self.promised + self.promised.min(SLACK);
        self.free.saturating_sub(promised + keep)
    }

    /// Whether there may be more free blocks than the counts say: promises are for the worst, and some
    /// freed blocks wait for a commit.
    pub fn is_uncertain(&self) -> bool {
        self.promised > 0 || self.pending > 0
    }

    /// Takes back `settled` of what was promised and promises `kept` again, whatever is free.
    pub fn adjust(&mut self, settled: u64, kept: u64) {
        self.settle(settled);
        self.promised += kept;
    }

    /// Takes a promise back: kept, or not needed.
    pub fn settle(&mut self, blocks: u64) {
        assert!(blocks <= self.promised, "only what was promised is settled");
        self.promised -= blocks;
    }
}
