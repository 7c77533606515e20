//! Inode and group numbers: both have 32 bits on disk and must not be confused.

use std::fmt;

use steadfs_base::InodeNo;

use super::num::low32;

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

    /// The number, unless it is 0 ("none").
    pub const fn some(self) -> Option<Self> {
        if self.0 == 0 { None } else { Some(self) }
    }

    /// The inode with this number; `None` if no ext volume can have it (0, or more than 32 bits).
    pub fn from_vfs(ino: InodeNo) -> Option<Self> {
        if ino.0 == 0 || ino.0 > u64::from(u32::MAX) {
            return None;
        }
        Some(Self(low32(ino.0)))
    }
}

impl From<Ino> for InodeNo {
    fn from(ino: Ino) -> Self {
        Self(u64::from(ino.0))
    }
}

/// A block group's number, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNo(pub u32);

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
