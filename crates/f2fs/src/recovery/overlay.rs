//! The roll-forward overlay of a volume that is only read: what fsync wrote after the checkpoint, seen by all reads.
//!
//! **Rule.** Reads hold the overlay shared while it is in use. A remount `rw` holds it exclusively while it makes the
//! content part of the volume, and retires it: no read sees half of both.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_rt::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{NOTHING, Recovered};

/// The overlay of a volume; empty where nothing was recovered or the volume is written.
pub struct Overlay {
    recovered: Recovered,
    /// Cleared once the content is part of the volume.
    in_use: AtomicBool,
    lock: RwLock<()>,
}

impl Overlay {
    pub fn new(recovered: Recovered) -> Self {
        Self {
            in_use: AtomicBool::new(recovered.files() > 0),
            recovered,
            lock: RwLock::with_key(Rank::Mount, 2, ()),
        }
    }

    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }

    /// The content, empty if the overlay is not in use.
    pub fn recovered(&self) -> &Recovered {
        match self.is_in_use() {
            true => &self.recovered,
            false => &NOTHING,
        }
    }

    /// Taken by each read; `None` if the overlay is not in use.
    pub fn read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.is_in_use().then(|| self.lock.read())
    }

    /// Excludes reads while the content becomes part of the volume.
    pub fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.write()
    }

    /// The content is part of the volume. The caller holds the overlay exclusively.
    pub fn retire(&self, _: &RwLockWriteGuard<'_, ()>) {
        self.in_use.store(false, Ordering::Release);
    }
}
