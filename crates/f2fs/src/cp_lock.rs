//! `cp_lock`: excludes operations that change the volume from a checkpoint's snapshot (the kernel's `cp_rwsem` and
//! `f2fs_lock_op`).
//!
//! **Rule.** A task holds a [`Change`] while it changes nodes, tables or counts; there can be any number at a time. A
//! checkpoint holds the lock exclusively for its snapshot, which does no I/O. Inside a `Change` a task must not wait
//! for file data, an inode's lock, GC or a checkpoint; it may read a node. While a checkpoint waits no new `Change`
//! begins, so a stream of changes cannot delay it for long.

use std::sync::atomic::Ordering;

use steadfs_rt::{RwLockReadGuard, RwLockWriteGuard, Unwinding};
use steadfs_vfs::{FsError, Result};

use crate::disk::BlockAddr;
use crate::fs::F2fs;
use crate::segment::BlockKind;

/// Shared guard of `cp_lock`; a task holds at most one. If a panic drops it the volume aborts: no checkpoint may
/// contain half a change.
#[must_use]
pub struct Change<'f> {
    fs: &'f F2fs,
    unwinding: Unwinding,
    _gate: CpGuard<'f>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.unwinding.has_begun() {
            // `cp_lock` is still held.
            self.fs.abort_for_panic();
        }
    }
}

/// How `cp_lock` is held.
#[expect(dead_code, reason = "held until it is dropped")]
enum CpGuard<'f> {
    Shared(RwLockReadGuard<'f, ()>),
    Exclusive(RwLockWriteGuard<'f, ()>),
}

impl F2fs {
    /// Fails if the volume is read-only, aborted or unmounted.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if let Some(cause) = self.aborted.lock().as_ref() {
            return Err(FsError::Stopped(cause.clone()));
        }
        if self.read_only.load(Ordering::Acquire) {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }

    /// Begins a change.
    ///
    /// # Errors
    /// The volume is read-only or has aborted.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        self.change_with(CpGuard::Shared(self.cp_lock.read()))
    }

    /// Waits until no change is in progress and begins one that excludes all others: for a checkpoint's snapshot.
    ///
    /// # Errors
    /// The volume has aborted.
    pub(crate) fn change_exclusive(&self) -> Result<Change<'_>> {
        self.change_with(CpGuard::Exclusive(self.cp_lock.write()))
    }

    fn change_with<'f>(&'f self, cp_lock: CpGuard<'f>) -> Result<Change<'f>> {
        self.check_writable()?;
        Ok(Change {
            fs: self,
            unwinding: Unwinding::watch(),
            _gate: cp_lock,
        })
    }

    /// A structure no longer refers to a block of the main area. Returns whether the block was valid and of this kind:
    /// if not, the structure was corrupt, which is recorded, and no block becomes free. The caller holds no node's
    /// lock.
    pub(crate) fn invalidate(&self, _: &Change<'_>, addr: BlockAddr, content: BlockKind) -> bool {
        let (Some(block), Some(segments)) = (addr.block(), self.segments.get()) else {
            return false;
        };
        self.meta.forget(block);
        match segments.invalidate(addr, content) {
            Ok(unusable) => {
                if unusable {
                    self.space.add_unusable(1);
                }
                true
            }
            Err(error) => {
                self.record_corruption(&error.into());
                false
            }
        }
    }
}
