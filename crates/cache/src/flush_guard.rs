//! A file's flush lock: one write-back at a time.

use steadfs_rt::{MutexGuard, Unwinding};

use crate::Mapping;

/// Holds a file's flush lock, and with it all of the file's blocks that are in flight. A panic gives them back as dirty:
/// a library's volume has stopped then, and tasks that wait for the blocks get its error.
#[must_use]
pub struct FlushGuard<'a> {
    mapping: &'a Mapping,
    unwinding: Unwinding,
    _lock: MutexGuard<'a, ()>,
}

impl<'a> FlushGuard<'a> {
    /// After the flush lock of the mapping's file was taken.
    pub fn new(mapping: &'a Mapping, lock: MutexGuard<'a, ()>) -> Self {
        Self {
            mapping,
            unwinding: Unwinding::watch(),
            _lock: lock,
        }
    }
}

impl Drop for FlushGuard<'_> {
    fn drop(&mut self) {
        if self.unwinding.has_begun() {
            self.mapping.redirty(0..u64::MAX, true);
        }
    }
}
