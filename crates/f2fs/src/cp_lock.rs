//! The gate between operations that change the volume and checkpoints.
//!
//! Whoever changes nodes, tables or counts holds a [`Change`] while it does; any number at a time. A
//! checkpoint holds the gate alone while it takes its snapshot, which is pure CPU. Inside a change
//! nobody waits for file data, an inode's lock, cleaning or a checkpoint; reading a node is allowed.
//! A waiting checkpoint lets no new change in, so a stream of them cannot keep it away.

use std::sync::atomic::Ordering;

use steadfs_rt::{RwLockReadGuard, RwLockWriteGuard, Unwinding};
use steadfs_vfs::{FsError, Result};

use crate::disk::BlockAddr;
use crate::fs::F2fs;
use crate::segment::BlockKind;

/// Held while nodes, tables and counts change. Not taken twice by a task. Dropped by a panic it stops the volume: no
/// checkpoint must contain what was half changed.
#[must_use]
pub struct Change<'f> {
    fs: &'f F2fs,
    unwinding: Unwinding,
    _gate: CpGuard<'f>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.unwinding.has_begun() {
            // The gate is still held.
            self.fs.abort_for_panic();
        }
    }
}

/// How the gate is held.
#[expect(dead_code, reason = "held, never looked at")]
enum CpGuard<'f> {
    Shared(RwLockReadGuard<'f, ()>),
    Exclusive(RwLockWriteGuard<'f, ()>),
}

impl F2fs {
    /// Refuses to change a volume that is read-only or has stopped.
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
    /// The volume is read-only or has stopped.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        self.change_with(CpGuard::Shared(self.cp_lock.read()))
    }

    /// Waits until no change is under way and keeps further ones out: a checkpoint's own change.
    ///
    /// # Errors
    /// The volume has stopped.
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

    /// A block of the main area has lost its owner. No node's lock is held. Whether it was his: if not,
    /// he was damaged, which is noted, and nothing of the volume is free for it.
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
                self.note_damage(&error.into());
                false
            }
        }
    }
}
