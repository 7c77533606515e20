//! Types for block, inode and transaction numbers, block sizes and time stamps.

use std::fmt;

use crate::limits::{MAX_BLOCK_SIZE, MIN_BLOCK_SIZE};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number!(
    /// A block of the volume, counted in file-system blocks from the volume's first byte.
    DevBlock, u64
);
number!(
    /// A block of a file, counted in file-system blocks from the file's first byte.
    FileBlock, u64
);
number!(
    /// An inode's number, as stored on disk.
    InodeNo, u64
);

impl DevBlock {
    /// The block `n` after this one.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

impl FileBlock {
    /// The block `n` after this one.
    pub const fn plus(self, n: u64) -> Self {
        Self(self.0 + n)
    }
}

/// The number of a journal transaction. It wraps around; 0 is a valid number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Tid(pub u32);

impl Tid {
    /// The transaction after this one.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// Whether this transaction is older than `other`, modulo 2^32.
    pub const fn before(self, other: Self) -> bool {
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Whether this transaction is `other` or newer, modulo 2^32.
    pub const fn at_least(self, other: Self) -> bool {
        !self.before(other)
    }
}

impl fmt::Debug for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tid({})", self.0)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A file system's block size: a power of two from 1 KiB to 64 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockSize(u32);

impl BlockSize {
    /// Block size in bytes, or `None` where it is not a power of two from 1 KiB to 64 KiB.
    pub const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= MIN_BLOCK_SIZE && bytes <= MAX_BLOCK_SIZE {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// Bytes in a block.
    pub const fn bytes(self) -> usize {
        self.0 as usize
    }

    /// Bytes in a block, as the unit of offsets.
    pub const fn bytes_u64(self) -> u64 {
        self.0 as u64
    }

    /// Base-2 logarithm of the bytes in a block.
    pub const fn bits(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// Offset in bytes of a device block.
    pub const fn offset_of(self, block: DevBlock) -> u64 {
        block.0 << self.bits()
    }

    /// The file block that holds byte `offset`.
    pub const fn file_block(self, offset: u64) -> FileBlock {
        FileBlock(offset >> self.bits())
    }

    /// The number of blocks for `bytes` bytes, rounded up.
    pub const fn blocks_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0 as u64)
    }

    /// The position of byte `offset` in its block.
    pub const fn offset_in_block(self, offset: u64) -> usize {
        (offset & (self.0 as u64 - 1)) as usize
    }
}

impl fmt::Debug for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockSize({})", self.0)
    }
}

/// A point in calendar time: seconds since 1970-01-01 UTC (negative before) and nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Timestamp {
    /// Whole seconds since the epoch, rounded down.
    pub secs: i64,
    /// Nanoseconds after `secs`, 0 to 999 999 999.
    pub nanos: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tids_compare_across_the_wrap() {
        let last = Tid(u32::MAX);
        assert!(last.before(last.next()));
        assert_eq!(last.next(), Tid(0));
        assert!(Tid(0).at_least(last));
        assert!(Tid(7).at_least(Tid(7)));
        assert!(!Tid(7).before(Tid(7)));
    }

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        assert!(BlockSize::new(512).is_none());
        assert!(BlockSize::new(3072).is_none());
        assert!(BlockSize::new(131_072).is_none());
        let bs = BlockSize::new(4096).expect("4 KiB is a block size");
        assert_eq!(bs.bits(), 12);
        assert_eq!(bs.offset_of(DevBlock(3)), 12288);
        assert_eq!(bs.blocks_for(1), 1);
        assert_eq!(bs.blocks_for(0), 0);
        assert_eq!(bs.offset_in_block(4097), 1);
        assert_eq!(bs.file_block(8191), FileBlock(1));
    }
}
