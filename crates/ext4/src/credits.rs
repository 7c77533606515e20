//! Journal credits: the number of blocks that an operation on names or attributes changes at worst. A handle begins
//! with that number; unused credits are returned when it ends.
//!
//! Rare steps (growth of a directory, undoing a failed operation) are not included: they extend the handle when needed,
//! or restart it where nothing has changed yet.

use crate::disk;
use crate::fs::Ext4;
use crate::orphan;

/// A directory's block with the changed name, and the directory's inode.
const NAME: u32 = 2;
/// A new inode: bitmap and descriptor (and the block bitmap of a group that was never used), its
/// slot in the table.
pub(crate) const INODE: u32 = 4;
/// One block for a new inode's content: the block, bitmap and descriptor. Its map is in the inode.
const CONTENT: u32 = 3;
/// Attributes: the old block (its count, or freed: bitmap, descriptor) and the new one (block, bitmap, descriptor), and
/// the superblock if they are the volume's first. The caller counts the inode.
pub(crate) const XATTR_BLOCKS: u32 = 7;

/// A new name for a new inode, which may inherit attributes and may have a block; or, on failure, an orphan entry.
pub(crate) const CREATE: u32 = NAME + INODE + CONTENT + XATTR_BLOCKS + orphan::CREDITS;
/// A new inode without a name.
pub(crate) const TMPFILE: u32 = INODE + XATTR_BLOCKS + orphan::CREDITS;
/// A new name for an inode that may be on the orphan list.
pub(crate) const LINK: u32 = NAME + 1 + orphan::CREDITS;
/// Removal of a name of an inode, which may become an orphan.
pub(crate) const UNLINK: u32 = NAME + 1 + orphan::CREDITS;
/// Two names changed or removed, one added; the moved inode and its `..`, the replaced inode, which may become an
/// orphan, and a whiteout.
pub(crate) const RENAME: u32 = 2 * NAME + 3 + 1 + orphan::CREDITS + INODE + XATTR_BLOCKS;
/// An inode with its attributes.
pub(crate) const ATTRIBUTES: u32 = 1 + XATTR_BLOCKS;

/// One step of a directory's growth: a new block and its mapping, the block that is split, the index node above, and
/// the inode.
pub(crate) fn grow(fs: &Ext4, core: &disk::Inode) -> u32 {
    fs.map_credits(core, 1) + 4
}
