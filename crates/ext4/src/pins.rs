//! Read first, then change.
//!
//! **Problem.** A read that fails in the middle of a change leaves it half done, and the volume must stop.
//! **Rule.** An operation reads and verifies the blocks that it will need before it changes the first one, and keeps
//! them in memory with [`Pins`]. A failed read is then an ordinary error: nothing has changed. What cannot be known
//! before (which block a split takes) stops the volume where it fails too late ([`crate::txn`]).
//!
//! | operation | a failed read |
//! |---|---|
//! | mknod, mkdir, symlink, tmpfile | nothing changes; a new inode whose content cannot be made is freed again |
//! | link, unlink, rmdir, rename of every kind | nothing changes |
//! | attributes, flags, extended attributes, lists | nothing changes |
//! | write-back of delayed data | the blocks stay dirty, the next fsync tries again |
//! | truncate, punch, zero, allocate | what was done before the failed step stays, the rest is as it was |
//! | freeing an inode without names | it stays on the orphan record, for the next mount |
//! | a second read that fails while one of these is undone | the volume stops, marked |

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_cache::MetaBuf;
use steadfs_vfs::Result;

use crate::disk::Ino;
use crate::fs::Ext4;

/// Metadata blocks that stay in memory while this lives.
#[derive(Default)]
pub(crate) struct Pins(Vec<Arc<MetaBuf>>);

impl Pins {
    /// Keeps a block in memory.
    pub(crate) fn keep(&mut self, buf: Arc<MetaBuf>) {
        self.0.push(buf);
    }

    /// Keeps the blocks of the inode table that hold these inodes.
    pub(crate) fn of_inodes(fs: &Ext4, inodes: &[Ino], tag: IoTag) -> Result<Self> {
        let mut pins = Self::default();
        for &ino in inodes {
            pins.keep(fs.inode_slot(ino, tag)?.0);
        }
        Ok(pins)
    }

    /// Keeps the superblock's block.
    pub(crate) fn superblock(&mut self, fs: &Ext4, tag: IoTag) -> Result<()> {
        self.keep(fs.block(fs.geo().superblock_place().0, tag)?);
        Ok(())
    }
}
