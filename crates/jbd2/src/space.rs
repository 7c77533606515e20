//! Arithmetic of log space: pure, no locks.

use steadfs_jbd2_format::Format;

/// The log as a ring. Blocks from the tail to the head are used: their transactions may still be
/// replayed. The head is the start of the next transaction.
#[derive(Clone, Debug)]
pub(crate) struct LogRing {
    /// First block of the log.
    first: u32,
    /// Blocks in the log.
    len: u32,
    head: u32,
    used: u32,
}

impl LogRing {
    /// An empty ring of the log blocks from `first` to `last`, exclusive.
    pub(crate) fn new(first: u32, last: u32) -> Self {
        assert!(first < last, "a log has blocks");
        Self {
            first,
            len: last - first,
            head: first,
            used: 0,
        }
    }

    /// Blocks that can be used. One block never is, so that the two ends of a full log differ from those of
    /// an empty one.
    pub(crate) fn capacity(&self) -> u32 {
        self.len - 1
    }

    /// Free blocks.
    pub(crate) fn free(&self) -> u32 {
        self.capacity() - self.used
    }

    /// Start of the next transaction.
    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// The block that is `n` blocks after `block`, around the end.
    pub(crate) fn after(&self, block: u32, n: u32) -> u32 {
        debug_assert!(block >= self.first && block - self.first < self.len && n <= self.len);
        let at = u64::from(block - self.first) + u64::from(n);
        self.first + u32::try_from(at % u64::from(self.len)).expect("less than the length")
    }

    /// Takes `n` blocks at the head and returns the first.
    pub(crate) fn take(&mut self, n: u32) -> u32 {
        assert!(n > 0, "a transaction has at least its commit record");
        assert!(n <= self.free(), "space is reserved before a handle joins");
        let start = self.head;
        self.head = self.after(start, n);
        self.used += n;
        start
    }

    /// Frees the `n` oldest blocks.
    pub(crate) fn release(&mut self, n: u32) {
        assert!(n <= self.used, "only used blocks are freed");
        self.used -= n;
    }
}

/// Log blocks that a transaction takes, and its limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogCosts {
    tags_per_descriptor: u32,
    revokes_per_block: u32,
    /// Limit of one transaction in log blocks, including descriptors, revokes and the commit record.
    pub max_transaction: u32,
}

impl LogCosts {
    /// For a log of `capacity` blocks: the limit is a quarter of it, or `max_transaction` if that is less.
    pub(crate) fn new(format: &Format, capacity: u32, max_transaction: Option<u32>) -> Self {
        let quarter = capacity / 4;
        let max_transaction = max_transaction
            .map_or(quarter, |max| max.min(quarter))
            .max(4);
        Self {
            tags_per_descriptor: format.tags_per_descriptor(),
            revokes_per_block: format.revokes_per_block(),
            max_transaction,
        }
    }

    /// Log blocks of a transaction with `blocks` blocks and `revokes` revoked ones: the blocks, descriptors,
    /// revoke blocks and the commit record.
    pub(crate) fn log_blocks(&self, blocks: u32, revokes: u32) -> u32 {
        blocks
            .saturating_add(blocks.div_ceil(self.tags_per_descriptor))
            .saturating_add(revokes.div_ceil(self.revokes_per_block))
            .saturating_add(1)
    }

    /// Most credits of a handle: alone in a transaction, with one revoke block.
    pub(crate) fn max_credits(&self) -> u32 {
        // One of `tags + 1` blocks is a descriptor, rounded up.
        let space = self.max_transaction - 2;
        let descriptors = space.div_ceil(self.tags_per_descriptor + 1);
        assert!(
            space > descriptors,
            "the smallest transaction holds one block"
        );
        space - descriptors
    }
}

#[cfg(test)]
mod tests {
    use steadfs_base::BlockSize;

    use super::*;
    use crate::Checksum;

    #[test]
    fn the_ring_goes_around() {
        let mut ring = LogRing::new(1, 11);
        assert_eq!((ring.capacity(), ring.free()), (9, 9));
        assert_eq!(ring.take(7), 1);
        ring.release(5);
        assert_eq!(ring.take(6), 8);
        assert_eq!((ring.head(), ring.free()), (4, 1));
        assert_eq!(ring.after(10, 1), 1);
        assert_eq!(ring.after(3, 10), 3);
    }

    #[test]
    fn the_largest_handle_fits_a_transaction_and_no_larger_one_by_much() {
        for bytes in [1024, 4096, 65536] {
            for checksum in [Checksum::None, Checksum::V2, Checksum::V3] {
                let size = BlockSize::new(bytes).unwrap();
                let format = Format::new(size, true, checksum, [0; 16]);
                for capacity in [40, 100, 1023, 4096, 32767, 262_143] {
                    let costs = LogCosts::new(&format, capacity, None);
                    let max = costs.max_credits();
                    assert!(costs.log_blocks(max, 1) <= costs.max_transaction);
                    assert!(costs.log_blocks(max + 3, 1) > costs.max_transaction);
                }
            }
        }
    }

    #[test]
    fn a_credit_spent_on_either_kind_never_needs_more_than_was_reserved() {
        let format = Format::new(BlockSize::new(1024).unwrap(), false, Checksum::V3, [0; 16]);
        let costs = LogCosts::new(&format, 4096, None);
        for blocks in 0..200 {
            for revokes in [0, 1, 250, 251, 252, 253, 254, 600] {
                let reserved = costs.log_blocks(blocks + 1, revokes);
                assert!(costs.log_blocks(blocks, revokes + 1) <= reserved);
            }
        }
    }
}
