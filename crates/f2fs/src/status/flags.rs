//! `.steadfs/f2fs/stat/`: the kernel's two sets of bits that say what state a volume is in.
//!
//! `cp_status` has the flags of the last checkpoint (`ckpt_flags`), and that of an error once the volume has
//! stopped. `sb_status` has what is true at this moment, by the kernel's numbers, and `status` its names.
//! Never set there, as steadfs has nothing of it: 9 (`cp_disabled_quick`), 10 to 12 (quota), 13 (`resizefs`)
//! and 15 (`writable`, a read-only volume that is written while it recovers).

use std::sync::atomic::Ordering;

use steadfs_vfs::SHUT_DOWN;

use crate::disk::checkpoint::CpFlags;
use crate::fs::F2fs;

/// A bit of `sb_status`: its number, its name, and whether it is set.
type Bit = (u32, &'static str, fn(&F2fs) -> bool);

const BITS: [Bit; 10] = [
    // Something is not in the last checkpoint. What files have only in memory does not count.
    (0, "fs_dirty", F2fs::awaits_checkpoint),
    (1, "closing", |fs| fs.closing.load(Ordering::Acquire)),
    // Damage was met, now or before the last checkpoint.
    (2, "need_fsck", |fs| {
        fs.is_damaged() || fs.checkpoints.last().flags.contains(CpFlags::FSCK)
    }),
    (3, "recovering", |fs| fs.recovering.load(Ordering::Acquire)),
    // There is something to be noted in the superblocks.
    (4, "sb_dirty", |fs| fs.notes.is_pending()),
    // A node of an fsync was lost: no fsync after it can do without a checkpoint.
    (5, "need_cp", |fs| fs.node_writes.has_failed()),
    (6, "shutdown", |fs| {
        fs.abort_cause().as_deref() == Some(SHUT_DOWN)
    }),
    // Orphans were freed, or what fsync wrote after the checkpoint was taken over, since the mount.
    (7, "recovered", |fs| {
        fs.has_recovered.load(Ordering::Acquire) || fs.has_overlay.load(Ordering::Acquire)
    }),
    (8, "cp_disabled", F2fs::is_cp_disabled),
    // Until it is thawed.
    (14, "freezefs", F2fs::is_frozen),
];

impl F2fs {
    /// Whether something is not in the last durable checkpoint.
    fn awaits_checkpoint(&self) -> bool {
        // In this order: what a snapshot takes is in the one under way by then.
        self.has_changed() || self.checkpoints.is_in_flight()
    }

    /// What `stat/sb_status` shows.
    pub(crate) fn sb_status(&self) -> u32 {
        let set = BITS.iter().filter(|(_, _, is_set)| is_set(self));
        set.map(|(bit, ..)| 1 << bit).sum()
    }

    /// The names of these bits.
    pub(super) fn sb_status_names(&self) -> Vec<&'static str> {
        let status = self.sb_status();
        let set = BITS.iter().filter(|(bit, ..)| status >> bit & 1 == 1);
        set.map(|(_, name, _)| *name).collect()
    }

    /// What `stat/cp_status` shows.
    pub(crate) fn cp_status(&self) -> u32 {
        let last = self.checkpoints.last().flags;
        match self.abort_cause() {
            Some(_) => last.union(CpFlags::ERROR).0,
            None => last.0,
        }
    }
}

#[cfg(test)]
mod tests;
