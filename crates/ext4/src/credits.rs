//! How many blocks an operation on names or attributes changes at worst. A handle begins with that
//! many credits; what is not used goes back when it ends.
//!
//! Steps that are needed seldom (a directory that grows, a failed operation that is undone) are not
//! in the beginning's sum: they extend the handle when they come, or begin again where nothing has
//! happened yet.

use crate::disk;
use crate::fs::Ext4;
use crate::orphan;

/// A directory's block with the changed name, and the directory's inode.
const NAME: u32 = 2;
/// A new inode: bitmap and descriptor (and the block bitmap of a group that was never used), its
/// slot in the table.
const INODE: u32 = 4;
/// One block for a new inode's content: the block, bitmap and descriptor. Its map is in the inode.
const CONTENT: u32 = 3;
/// Attributes: the old block (its count, or freed: bitmap, descriptor) and the new one (block,
/// bitmap, descriptor), and the superblock where they are the volume's first. The inode is counted by
/// whoever changes them.
pub(crate) const XATTR_BLOCKS: u32 = 7;

/// A new name for a new inode, which may inherit attributes and may have a block; or, should that
/// fail, an entry on the orphan list.
pub(crate) const CREATE: u32 = NAME + INODE + CONTENT + XATTR_BLOCKS + orphan::CREDITS;
/// A new inode without a name.
pub(crate) const TMPFILE: u32 = INODE + XATTR_BLOCKS + orphan::CREDITS;
/// A new name for an inode that may be on the orphan list.
pub(crate) const LINK: u32 = NAME + 1 + orphan::CREDITS;
/// A name less for an inode, which may become an orphan.
pub(crate) const UNLINK: u32 = NAME + 1 + orphan::CREDITS;
/// Two names that change or go, one that comes; the moved inode and its `..`, the replaced one that
/// may become an orphan, and a whiteout.
pub(crate) const RENAME: u32 = 2 * NAME + 3 + 1 + orphan::CREDITS + INODE + XATTR_BLOCKS;
/// An inode with its attributes.
pub(crate) const ATTRIBUTES: u32 = 1 + XATTR_BLOCKS;

/// One step by which a directory grows: a new block with its place in the map, the block that is
/// split, the index node above, and the inode.
pub(crate) fn grow(fs: &Ext4, core: &disk::Inode) -> u32 {
    fs.map_credits(core, 1) + 4
}
