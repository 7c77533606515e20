//! A file's flush lock: one write-back at a time.

use steadfs_rt::{MutexGuard, Unwinding};

use crate::{FlushLock, Mapping, WritebackFile};

/// Holds a file's flush lock, and with it all of the file's blocks that are in flight. A panic marks them dirty again:
/// the volume has aborted then, and tasks that wait for the blocks get its error.
#[must_use]
pub struct FlushGuard<'a> {
    mapping: &'a Mapping,
    unwinding: Unwinding,
    _lock: MutexGuard<'a, ()>,
}

impl<'a> FlushGuard<'a> {
    /// Waits for a file's flush lock and takes it.
    pub fn lock(file: &'a impl WritebackFile) -> Self {
        Self::of(file.pages(), file.flush())
    }

    /// The same for a file's mapping.
    pub(crate) fn of(mapping: &'a Mapping, flush: &'a FlushLock) -> Self {
        Self::held(mapping, flush.lock())
    }

    /// Takes the flush lock if it is free.
    pub fn try_lock(file: &'a impl WritebackFile) -> Option<Self> {
        let lock = file.flush().try_lock()?;
        Some(Self::held(file.pages(), lock))
    }

    fn held(mapping: &'a Mapping, lock: MutexGuard<'a, ()>) -> Self {
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
