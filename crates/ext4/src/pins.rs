//! Pins: an operation reads all blocks that it will change before the first change.
//!
//! **Problem.** A read that fails in the middle of a change leaves it half done, and the volume must stop.
//!
//! **Rule.** An operation reads and verifies the blocks that it will change before it changes the first one, and keeps
//! them in memory with [`Pins`], with the quota entries of the owners. A failed read is then an ordinary error: nothing has changed. A failed read of a block
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

use crate::quota::{Dquot, QuotaHold};

/// Metadata blocks that stay in memory until this is dropped.
#[derive(Default)]
#[must_use]
pub(crate) struct Pins {
    blocks: Vec<Arc<MetaBuf>>,
    dquots: Vec<Arc<Dquot>>,
    held: QuotaHold,
}

impl Pins {
    /// Pins a block.
    pub(crate) fn keep(&mut self, buf: Arc<MetaBuf>) {
        self.blocks.push(buf);
    }

    /// Adds the pins of another.
    pub(crate) fn add(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.dquots.extend(other.dquots);
        self.held.join(other.held);
    }

    /// Holds this as well: what the operation may use under limits of quota.
    pub(crate) fn hold(&mut self, held: QuotaHold) {
        self.held.join(held);
    }

    /// Pins the entry of an owner.
    pub(crate) fn keep_dquot(&mut self, dquot: Arc<Dquot>) {
        self.dquots.push(dquot);
    }
}
