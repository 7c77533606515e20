//! `.steadfs/f2fs/stat/`: the kernel's two sets of state bits.
//!
//! `cp_status` has the flags of the last checkpoint (`ckpt_flags`), and the error flag once the volume has aborted.
//! `sb_status` has the current state, with the kernel's numbers; `status` shows its names. Never set, because steadfs
//! does not have what they describe: 9 (`cp_disabled_quick`), 10 and 11 (quota that a checkpoint leaves out), 13 (`resizefs`) and 15 (`writable`, a
//! read-only volume that is written during recovery).

use steadfs_vfs::SHUT_DOWN;

use crate::disk::checkpoint::CpFlags;
use crate::fs::F2fs;

/// A bit of `sb_status`: its number, its name, and whether it is set.
type Bit = (u32, &'static str, fn(&F2fs) -> bool);

const BITS: [Bit; 11] = [
    // Something is not in the last checkpoint. Data that is dirty in files does not count.
    (0, "fs_dirty", F2fs::awaits_checkpoint),
    (1, "closing", |fs| fs.stop_state.is_unmounting()),
    // Corruption was found, now or before the last checkpoint.
    (2, "need_fsck", |fs| {
        fs.is_corrupt() || fs.checkpoints.last().flags.contains(CpFlags::FSCK)
    }),
    (3, "recovering", |fs| fs.recovery.is_running()),
    // The superblocks have to record something.
    (4, "sb_dirty", |fs| fs.errors.is_pending()),
    // A node write of an fsync failed: each later fsync needs a checkpoint.
    (5, "need_cp", |fs| fs.node_writes.has_failed()),
    (6, "shutdown", |fs| {
        fs.abort_cause().as_deref() == Some(SHUT_DOWN)
    }),
    // Since the mount orphans were freed, or roll-forward recovered files.
    (7, "recovered", |fs| fs.recovery.has_recovered()),
    (8, "cp_disabled", F2fs::is_cp_disabled),
    // The usage of quota must be counted anew.
    (12, "quota_need_repair", F2fs::is_quota_out_of_date),
    // Frozen.
    (14, "freezefs", F2fs::is_frozen),
];

impl F2fs {
    /// Whether something is not in the last durable checkpoint.
    fn awaits_checkpoint(&self) -> bool {
        // In this order: a snapshot taken between the two is in flight by then.
        self.has_changed() || self.checkpoints.is_in_flight()
    }

    /// The value of `stat/sb_status`.
    pub(crate) fn sb_status(&self) -> u32 {
        let set = BITS.iter().filter(|(_, _, is_set)| is_set(self));
        set.map(|(bit, ..)| 1 << bit).sum()
    }

    /// The names of the set bits.
    pub(super) fn sb_status_names(&self) -> Vec<&'static str> {
        let status = self.sb_status();
        let set = BITS.iter().filter(|(bit, ..)| status >> bit & 1 == 1);
        set.map(|(_, name, _)| *name).collect()
    }

    /// The value of `stat/cp_status`.
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
