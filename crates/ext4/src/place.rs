//! What a map says of a file block.

use steadfs_base::DevBlock;

/// What a file block is mapped to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
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
    pub place: Place,
    /// How many blocks are mapped alike, at least one.
    pub len: u64,
}
