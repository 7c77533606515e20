//! Node ids, block addresses and segment numbers: all 32 bits on disk, and easily confused.

use std::fmt;

use steadfs_base::{DevBlock, InodeNo};

use super::num::low32;

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
    /// A node's id; an inode's number is its node's id. 0 means "none" in every structure.
    Nid
);
number!(
    /// A block of the volume as structures name it, with three values that are no address.
    BlockAddr
);
number!(
    /// A segment of the main area, counted from its first.
    SegNo
);

impl Nid {
    /// The inode that the kernel keeps nodes under; never on disk (`F2FS_NODE_INO`).
    pub const NODE: Self = Self(1);
    /// The inode that the kernel keeps metadata under; never on disk (`F2FS_META_INO`).
    pub const META: Self = Self(2);
    /// The root directory (`F2FS_ROOT_INO`).
    pub const ROOT: Self = Self(3);

    /// The number, unless it is 0 ("none").
    pub const fn some(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(self) }
    }

    /// The inode with this number in the rest of the program; `None` where it cannot be one of an
    /// f2fs volume (0, or more than 32 bits).
    pub fn from_vfs(ino: InodeNo) -> Option<Self> {
        if ino.0 == 0 || ino.0 > u64::from(u32::MAX) {
            return None;
        }
        Some(Self(low32(ino.0)))
    }
}

impl From<Nid> for InodeNo {
    fn from(nid: Nid) -> Self {
        Self(u64::from(nid.0))
    }
}

impl BlockAddr {
    /// No block: a hole, or a node that does not exist (`NULL_ADDR`).
    pub const NULL: Self = Self(0);
    /// Promised, not yet written: reads as zeros (`NEW_ADDR`).
    pub const NEW: Self = Self(u32::MAX);
    /// In a compressed file the first slot of a cluster that is stored compressed (`COMPRESS_ADDR`).
    pub const COMPRESSED: Self = Self(u32::MAX - 1);

    /// The block, unless the value is one of the three that are none.
    pub fn block(self) -> Option<DevBlock> {
        match self {
            Self::NULL | Self::NEW | Self::COMPRESSED => None,
            Self(block) => Some(DevBlock(block.into())),
        }
    }

    /// Whether this is a block's address and not one of the special values.
    pub fn is_block(self) -> bool {
        self.block().is_some()
    }

    /// The address `n` blocks further; the caller knows that there is one.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Self(self.0 + n)
    }
}
