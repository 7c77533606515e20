//! Limits: how long a soft limit has been exceeded.

use crate::disk::quota::{Entry, LIMIT_UNIT};

/// Ends the time in which a soft limit may be exceeded where it no longer is.
pub(super) fn settle_timers(entry: &mut Entry) {
    if entry.bytes <= entry.block_limit.soft.saturating_mul(LIMIT_UNIT) {
        entry.block_limit.until = 0;
    }
    if entry.inodes <= entry.inode_limit.soft {
        entry.inode_limit.until = 0;
    }
}
