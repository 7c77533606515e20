//! Corrupt groups, from which nothing is allocated.
//!
//! **Problem.** Allocation finds a bitmap or descriptor that fails verification. It runs inside a handle and under
//! locks, where the corruption cannot be recorded in the superblock.
//!
//! **Rule.** The group is skipped, and the allocation continues in the other groups. Each corruption is queued once,
//! and the end of the operation takes it from the queue ([`CorruptGroups::take`]) and records it. (As
//! `EXT4_GROUP_INFO_BBITMAP_CORRUPT` in Linux.)

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::Corruption;
use steadfs_rt::{Mutex, Rank};

/// Corruption found by allocation and not yet recorded.
pub(super) struct CorruptGroups {
    reports: Mutex<Vec<Corruption>>,
    /// Whether `reports` has entries, read without the lock.
    has_reports: AtomicBool,
}

impl CorruptGroups {
    pub(super) fn new() -> Self {
        Self {
            reports: Mutex::new(Rank::Leaf, Vec::new()),
            has_reports: AtomicBool::new(false),
        }
    }

    /// Queues corruption.
    pub(super) fn record(&self, what: Corruption) {
        self.reports.lock().push(what);
        self.has_reports.store(true, Ordering::Release);
    }

    /// Takes what is queued.
    #[inline]
    pub(super) fn take(&self) -> Vec<Corruption> {
        if !self.has_reports.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut reports = self.reports.lock();
        self.has_reports.store(false, Ordering::Release);
        std::mem::take(&mut reports)
    }
}
