//! Damaged groups, which are passed over while others have room.
//!
//! A group whose bitmap cannot be believed gives no block and no inode away. The others do, and what was found is told
//! once, to whoever next asks: an allocation runs inside a handle and under locks, where damage cannot be noted.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::Corruption;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use super::Allocator;
use crate::disk::GroupNo;

/// What was found in groups that were passed over.
pub(super) struct Passed {
    news: Mutex<Vec<Corruption>>,
    /// There are some: for a look without the lock.
    any: AtomicBool,
}

impl Passed {
    pub(super) fn new() -> Self {
        Self {
            news: Mutex::new(Rank::Leaf, Vec::new()),
            any: AtomicBool::new(false),
        }
    }
}

impl Allocator {
    /// What was found in a group; nothing in a damaged one, of which `damage` keeps the first: the answer where no
    /// other group has anything.
    pub(super) fn pass_over<T>(
        &self,
        no: GroupNo,
        found: Result<Option<T>>,
        damage: &mut Option<FsError>,
    ) -> Result<Option<T>> {
        let Err(FsError::Corrupt(what)) = found else {
            return found;
        };
        let mut group = self.group(no);
        if !std::mem::replace(&mut group.passed, true) {
            self.passed.news.lock().push((*what).clone());
            self.passed.any.store(true, Ordering::Release);
        }
        damage.get_or_insert(FsError::Corrupt(what));
        Ok(None)
    }

    /// What was found in groups that were passed over since this was asked last.
    #[inline]
    pub(crate) fn take_damage(&self) -> Vec<Corruption> {
        if !self.passed.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut news = self.passed.news.lock();
        self.passed.any.store(false, Ordering::Release);
        std::mem::take(&mut news)
    }
}
