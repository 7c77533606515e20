//! Runs of consecutive blocks.

use steadfs_base::DevBlock;

/// A run of blocks within one group. On a volume with clusters, allocation and freeing know whole clusters only; a file's
/// run may be the part of them that it maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: DevBlock,
    /// Blocks, at least one.
    pub len: u32,
}

impl Run {
    /// The blocks after the first `n`.
    pub fn after(self, n: u32) -> Self {
        assert!(n <= self.len, "no block follows the run");
        Self {
            start: self.start.plus(n.into()),
            len: self.len - n,
        }
    }

    /// The first `len` blocks (at least one), and the others.
    pub(super) fn split(self, len: u32) -> (Self, Option<Self>) {
        let len = len.clamp(1, self.len);
        let first = Self { len, ..self };
        let rest = Self {
            start: self.start.plus(len.into()),
            len: self.len - len,
        };
        debug_assert_eq!(first.len + rest.len, self.len, "no block is lost");
        (first, (rest.len > 0).then_some(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u32) -> Run {
        Run {
            start: DevBlock(start),
            len,
        }
    }

    #[test]
    fn a_split_run_keeps_all_blocks_in_order() {
        assert_eq!(run(100, 8).split(3), (run(100, 3), Some(run(103, 5))));
        assert_eq!(run(100, 8).split(8), (run(100, 8), None));
        assert_eq!(run(100, 8).split(20), (run(100, 8), None));
        assert_eq!(run(100, 8).split(0), (run(100, 1), Some(run(101, 7))));
        assert_eq!(run(100, 8).after(3), run(103, 5));
        assert_eq!(run(100, 8).after(8).len, 0);
    }
}
