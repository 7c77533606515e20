//! The mapping of file blocks.

use steadfs_base::{DevBlock, FileBlock};

/// What a file block is mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlace {
    /// Nothing: reads as zeros.
    Hole,
    /// This device block has its content.
    Written(DevBlock),
    /// This device block is allocated; reads as zeros.
    Unwritten(DevBlock),
}

/// The mapping of a file block and of those that continue it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Place of the first block; the next ones follow it on the device (or are holes, too).
    pub place: BlockPlace,
    /// Number of blocks mapped the same way, at least one.
    pub len: u64,
}

/// Blocks that a step has unmapped.
#[derive(Clone, Copy, Debug)]
pub struct Unmapped {
    /// The first block and the number of them.
    pub blocks: (DevBlock, u64),
    /// The whole clusters that nothing maps any more; none if the number is 0. Without `bigalloc` the same as `blocks`.
    pub clusters: (DevBlock, u64),
}

impl Unmapped {
    /// Blocks of a file without clusters.
    pub const fn each(start: DevBlock, len: u64) -> Self {
        Self {
            blocks: (start, len),
            clusters: (start, len),
        }
    }
}

/// Limits of one step of freeing mapped blocks.
#[derive(Clone, Copy, Debug)]
pub struct FreeStep {
    /// Most blocks.
    pub blocks: u64,
    /// Credits for freeing them, without those for bitmaps.
    pub credits: u32,
}

impl FreeStep {
    /// Data blocks, which the journal does not have.
    pub const DATA: Self = Self {
        blocks: u64::MAX,
        credits: 0,
    };
    /// Metadata blocks, which the journal may have: revoking costs a credit for each. They are reserved before the step
    /// begins, as unmapped blocks must be freed.
    pub const METADATA: Self = Self {
        blocks: 8,
        credits: 8,
    };
}

/// The number of holes in a list of file blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoleCount {
    /// Blocks examined, from the first on.
    pub of: usize,
    /// Holes among them.
    pub holes: u64,
}

impl HoleCount {
    /// Counts the blocks that are mapped like the first of `blocks`, which are sorted.
    pub fn add(&mut self, blocks: &[FileBlock], mapped: Mapped) {
        let Some(first) = blocks.first() else {
            return;
        };
        let alike = |block: &&FileBlock| block.0 - first.0 < mapped.len;
        let n = blocks.iter().take_while(alike).count();
        self.of += n;
        if mapped.place == BlockPlace::Hole {
            self.holes += n as u64;
        }
    }
}
