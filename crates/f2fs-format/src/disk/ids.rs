//! Types for node ids, block addresses and segment numbers, which are all 32-bit numbers on disk.

use std::fmt;

use steadfs_base::DevBlock;
use steadfs_format_base::inode_numbers;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u32);

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
    /// A node id. An inode number is the id of the inode's node. 0 means "none".
    Nid
);
number!(
    /// A block address; three values are not addresses but have a special meaning.
    BlockAddr
);
number!(
    /// A segment of the main area, counted from its start.
    SegNo
);

impl Nid {
    /// The kernel's internal inode for nodes; never on disk (`F2FS_NODE_INO`).
    pub const NODE: Self = Self(1);
    /// The kernel's internal inode for metadata; never on disk (`F2FS_META_INO`).
    pub const META: Self = Self(2);
    /// The root directory (`F2FS_ROOT_INO`).
    pub const ROOT: Self = Self(3);
}

inode_numbers!(Nid);

impl BlockAddr {
    /// No block: a hole, or a node that does not exist (`NULL_ADDR`).
    pub const NULL: Self = Self(0);
    /// Space is reserved, no block is allocated: reads as zeros (`NEW_ADDR`).
    pub const NEW: Self = Self(u32::MAX);
    /// The first slot of a compressed cluster (`COMPRESS_ADDR`).
    pub const COMPRESSED: Self = Self(u32::MAX - 1);

    /// The block; `None` for the special values.
    pub fn block(self) -> Option<DevBlock> {
        match self {
            Self::NULL | Self::NEW | Self::COMPRESSED => None,
            Self(block) => Some(DevBlock(block.into())),
        }
    }

    /// Whether this is an address and not a special value.
    pub fn is_block(self) -> bool {
        self.block().is_some()
    }

    /// The address `n` blocks further, which the caller knows to exist.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}

/// The number as it is, for messages; [`BlockAddr::block`] returns only blocks.
impl From<BlockAddr> for DevBlock {
    fn from(addr: BlockAddr) -> Self {
        Self(addr.0.into())
    }
}
