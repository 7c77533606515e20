//! What a map says of a file block.

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
    /// Where the first block is; the next ones follow it on the device (or are holes too).
    pub place: BlockPlace,
    /// How many blocks are mapped alike, at least one.
    pub len: u64,
}

/// How much of a map is freed at a time.
#[derive(Clone, Copy, Debug)]
pub struct FreeStep {
    /// Blocks at most.
    pub blocks: u64,
    /// Credits that giving them back takes, bitmaps apart.
    pub credits: u32,
}

impl FreeStep {
    /// Blocks that only the map knows.
    pub const DATA: Self = Self {
        blocks: u64::MAX,
        credits: 0,
    };
    /// Blocks that the journal may know, too: each costs a credit to revoke. Nobody else may take those from
    /// a step that has begun, for what is out of the map must get free.
    pub const METADATA: Self = Self {
        blocks: 8,
        credits: 8,
    };
}

/// How many of a list of file blocks are mapped to nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoleCount {
    /// Blocks that were looked at, from the first on.
    pub of: usize,
    /// Those of them that are holes.
    pub holes: u64,
}

impl HoleCount {
    /// Counts the blocks that are mapped like the first of `blocks`, which are in order.
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
