//! Corrupt groups, from which nothing is allocated.
//!
//! **Problem.** Allocation finds a bitmap or descriptor that fails verification. It runs inside a handle and under
//! locks, where the corruption cannot be recorded in the superblock.
//!
//! **Rule.** The group is skipped, and the allocation continues in the other groups. Each corruption is queued once,
//! and the end of the operation takes it from the queue ([`Allocator::take_corruption`]) and records it. (As
//! `EXT4_GROUP_INFO_BBITMAP_CORRUPT` in Linux.)

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::Corruption;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use super::Allocator;
use crate::disk::GroupNo;

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
}

impl Allocator {
    /// Turns corruption of group `no` into `None`, so that the search continues. `first_error` keeps the first
    /// corruption, which is the result if no other group has space.
    pub(super) fn skip_corrupt<T>(
        &self,
        no: GroupNo,
        found: Result<Option<T>>,
        first_error: &mut Option<FsError>,
    ) -> Result<Option<T>> {
        let Err(FsError::Corrupt(what)) = found else {
            return found;
        };
        let mut group = self.group(no);
        if !std::mem::replace(&mut group.is_corrupt, true) {
            self.corrupt_groups.reports.lock().push((*what).clone());
            self.corrupt_groups
                .has_reports
                .store(true, Ordering::Release);
        }
        first_error.get_or_insert(FsError::Corrupt(what));
        Ok(None)
    }

    /// Takes the corruption found since the last call.
    #[inline]
    pub(crate) fn take_corruption(&self) -> Vec<Corruption> {
        if !self.corrupt_groups.has_reports.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut reports = self.corrupt_groups.reports.lock();
        self.corrupt_groups
            .has_reports
            .store(false, Ordering::Release);
        std::mem::take(&mut reports)
    }
}
