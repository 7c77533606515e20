//! Inode and group numbers: both have 32 bits on disk and must not be confused.

use std::fmt;

use steadfs_format_base::inode_numbers;

/// An inode's number on an ext volume. Numbers start at 1; 0 means "none" in every structure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ino(pub u32);

impl Ino {
    /// Bad blocks (`EXT4_BAD_INO`).
    pub const BAD_BLOCKS: Self = Self(1);
    /// The root directory (`EXT4_ROOT_INO`).
    pub const ROOT: Self = Self(2);
    /// User quota file (`EXT4_USR_QUOTA_INO`).
    pub const USER_QUOTA: Self = Self(3);
    /// Group quota file (`EXT4_GRP_QUOTA_INO`).
    pub const GROUP_QUOTA: Self = Self(4);
    /// Boot loader (`EXT4_BOOT_LOADER_INO`).
    pub const BOOT_LOADER: Self = Self(5);
    /// Undelete directory (`EXT4_UNDEL_DIR_INO`).
    pub const UNDELETE: Self = Self(6);
    /// Reserved group descriptors (`EXT4_RESIZE_INO`).
    pub const RESIZE: Self = Self(7);
    /// The journal (`EXT4_JOURNAL_INO`).
    pub const JOURNAL: Self = Self(8);
    /// Snapshot exclusion (`EXT4_EXCLUDE_INO`).
    pub const EXCLUDE: Self = Self(9);
    /// Snapshot replica (`EXT4_REPLICA_INO`).
    pub const REPLICA: Self = Self(10);
}

inode_numbers!(Ino);

/// A block group's number, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNo(pub u32);

impl From<GroupNo> for u32 {
    fn from(group: GroupNo) -> Self {
        group.0
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ino({})", self.0)
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for GroupNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupNo({})", self.0)
    }
}

impl fmt::Display for GroupNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
