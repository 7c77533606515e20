//! Kinds of metadata content for [`steadfs_cache::MetaBuf::verify_once`]: a block that has passed the
//! check of its kind is not checked again while it stays in memory.

/// A group's block bitmap.
pub(crate) const BLOCK_BITMAP: u8 = 1;
/// A group's inode bitmap.
pub(crate) const INODE_BITMAP: u8 = 2;
/// A node of an extent tree.
pub(crate) const EXTENT_NODE: u8 = 3;
/// A directory's block of entries.
pub(crate) const DIR_LEAF: u8 = 16;
/// The root of a directory's index.
pub(crate) const DIR_ROOT: u8 = 17;
/// A node of a directory's index below the root.
pub(crate) const DIR_NODE: u8 = 18;
/// A block of extended attributes.
pub(crate) const XATTR: u8 = 19;
/// A block of the orphan file.
pub(crate) const ORPHANS: u8 = 20;
