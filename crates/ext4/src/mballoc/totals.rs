//! Counts of the whole volume, and reservations of delayed allocation.
//!
//! **Rule.** A write(2) reserves space for the worst case before it returns; write-back replaces the reservation by the
//! blocks that it allocates. So write-back of acknowledged data never fails for lack of space.

/// Counts of the whole volume. Where a volume has clusters (`bigalloc`), each block here stands for one of them: a delayed
/// block needs a cluster at worst, and so does a block of the map.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(free: u64, reserved: u64) -> Totals {
        Totals {
            free,
            reserved,
            ..Totals::default()
        }
    }

    #[test]
    fn a_reservation_leaves_others_the_kept_blocks_and_the_slack() {
        let mut totals = totals(1000, 100);
        let most = 1000 - 100 - 50 - TREE_SLACK_BLOCKS;
        assert!(!totals.reserve(most + 1, 50));
        assert_eq!(
            totals.reserved, 100,
            "a refused reservation changes nothing"
        );
        assert!(totals.reserve(most, 50));
        assert_eq!(totals.reserved, 100 + most);
        assert!(!totals.reserve(51, 0));
        assert!(totals.reserve(50, 0));
    }

    #[test]
    fn spare_blocks_are_neither_reserved_nor_kept() {
        assert_eq!(totals(1000, 0).spare(0), 1000);
        assert_eq!(totals(1000, 0).spare(30), 970);
        // Tree blocks above few reserved blocks are few.
        assert_eq!(totals(1000, 10).spare(30), 950);
        assert_eq!(totals(1000, 300).spare(30), 670 - TREE_SLACK_BLOCKS);
        assert_eq!(totals(1000, 300).spare(900), 0);
    }

    #[test]
    fn reserved_and_pending_blocks_may_become_free() {
        assert!(!totals(5, 0).is_uncertain());
        assert!(totals(5, 1).is_uncertain());
        let pending = Totals {
            pending: 1,
            ..totals(5, 0)
        };
        assert!(pending.is_uncertain());
    }

    #[test]
    fn an_adjusted_reservation_has_the_kept_blocks_only() {
        let mut totals = totals(1000, 100);
        totals.adjust(30, 4);
        assert_eq!(totals.reserved, 74);
        totals.release_reserved(74);
        assert_eq!(totals.reserved, 0);
    }

    #[test]
    #[should_panic(expected = "only reserved blocks are released")]
    fn only_reserved_blocks_are_released() {
        totals(1000, 7).release_reserved(8);
    }
}
