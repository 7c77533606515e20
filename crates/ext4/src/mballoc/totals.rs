//! Counts of the whole volume, and reservations of delayed allocation.
//!
//! **Rule.** A write(2) reserves space for the worst case before it returns; write-back replaces the reservation by the
//! blocks that it allocates. So write-back of acknowledged data never fails for lack of space.

/// Counts of the whole volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Blocks that can be allocated now, reserved ones included.
    pub free: u64,
    /// Blocks freed by transactions that are not durable yet.
    pub pending: u64,
    /// Blocks reserved for dirty data without allocated blocks, and for the metadata that it may need at worst.
    pub reserved: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Directories.
    pub dirs: u64,
}

/// Blocks reserved for each dirty block of a file mapped by extents: the block, and its share of new tree blocks at the
/// worst fragmentation.
pub const RESERVE_PER_BLOCK_EXTENT: u64 = 2;
/// Blocks reserved for each dirty block of a file mapped by indirect blocks: the block, and up to three levels.
pub const RESERVE_PER_BLOCK_INDIRECT: u64 = 4;
/// Blocks kept free beside reservations, for tree blocks above the leaves.
const TREE_SLACK_BLOCKS: u64 = 64;

impl Totals {
    /// Reserves `blocks` if free space covers them beside all other reservations and the `keep` blocks that only root
    /// may use.
    pub fn reserve(&mut self, blocks: u64, keep: u64) -> bool {
        let wanted = self.reserved + blocks + keep + TREE_SLACK_BLOCKS;
        if wanted > self.free {
            return false;
        }
        self.reserved += blocks;
        assert!(
            self.reserved <= self.free,
            "reserved blocks are free blocks"
        );
        true
    }

    /// Free blocks without the reserved ones, those for tree blocks above the leaves of reserved data, and `keep`.
    pub fn spare(&self, keep: u64) -> u64 {
        let reserved = self.reserved + self.reserved.min(TREE_SLACK_BLOCKS);
        self.free.saturating_sub(reserved + keep)
    }

    /// Whether more blocks may become free: reservations are for the worst case, and freed blocks wait for a commit.
    pub fn is_uncertain(&self) -> bool {
        self.reserved > 0 || self.pending > 0
    }

    /// Ends the reservation of `used` blocks and reserves `kept` again, however many are free.
    pub fn adjust(&mut self, used: u64, kept: u64) {
        self.release_reserved(used);
        self.reserved += kept;
    }

    /// Ends a reservation: the blocks were allocated, or are not needed.
    pub fn release_reserved(&mut self, blocks: u64) {
        assert!(blocks <= self.reserved, "only reserved blocks are released");
        self.reserved -= blocks;
    }
}
