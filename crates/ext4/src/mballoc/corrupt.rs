//! Damaged groups, which are passed over while others have room.
//!
//! A group whose bitmap cannot be believed gives no block and no inode away. The others do, and what was found is told
//! once, to whoever next asks: an allocation runs inside a handle and under locks, where first_error cannot be noted.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::Corruption;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use super::Allocator;
use crate::disk::GroupNo;

/// What was found in groups that were passed over.
pub(super) struct CorruptGroups {
    reports: Mutex<Vec<Corruption>>,
    /// There are some: for a look without the lock.
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
    /// What was found in a group; nothing in a damaged one, of which `first_error` keeps the first: the answer where no
    /// other group has anything.
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

    /// What was found in groups that were passed over since this was asked last.
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
