//! Pins: an operation reads all blocks that it will change before the first change.
//!
//! **Problem.** A read that fails in the middle of a change leaves it half done, and the volume must stop.
//!
//! **Rule.** An operation reads and verifies the blocks that it will change before it changes the first one, and keeps
//! them in memory with [`Pins`]. A failed read is then an ordinary error: nothing has changed. A failed read of a block
//! that is not known in advance (such as the new block of a split) stops the volume ([`crate::txn`]).
//!
//! | operation | a failed read |
//! |---|---|
//! | mknod, mkdir, symlink, tmpfile | nothing changes; a new inode whose content cannot be written is freed |
//! | link, unlink, rmdir, rename of every kind | nothing changes |
//! | attributes, flags, extended attributes, lists | nothing changes |
//! | write-back of delayed data | the blocks stay dirty, the next fsync tries again |
//! | truncate, punch, zero, allocate | the steps before the failed one stay, the rest is unchanged |
//! | freeing an inode without names | it stays an orphan, for the next mount |
//! | a second failed read while one of these is undone | the volume stops and is marked as having errors |

use std::sync::Arc;

use steadfs_cache::MetaBuf;

/// Metadata blocks that stay in memory until this is dropped.
#[derive(Default)]
pub(crate) struct Pins(Vec<Arc<MetaBuf>>);

impl Pins {
    /// Pins a block.
    pub(crate) fn keep(&mut self, buf: Arc<MetaBuf>) {
        self.0.push(buf);
    }

    /// Pins a block, if there is one.
    pub(crate) fn keep_any(&mut self, buf: Option<Arc<MetaBuf>>) {
        self.0.extend(buf);
    }
}
