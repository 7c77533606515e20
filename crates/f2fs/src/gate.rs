//! The gate between operations that change the volume and checkpoints.
//!
//! Whoever changes nodes, tables or counts holds a [`Change`] while it does; any number at a time. A
//! checkpoint holds the gate alone while it takes its snapshot, which is pure CPU. Inside a change
//! nobody waits for file data, an inode's lock, cleaning or a checkpoint; reading a node is allowed.
//! A waiting checkpoint lets no new change in, so a stream of them cannot keep it away.

use std::sync::atomic::Ordering;

use steadfs_rt::{RwLockReadGuard, RwLockWriteGuard};
use steadfs_vfs::{FsError, Result};

use crate::disk::BlockAddr;
use crate::fs::F2fs;

/// Held while nodes, tables and counts change. Not taken twice by a task.
#[must_use]
pub struct Change<'f> {
    _gate: RwLockReadGuard<'f, ()>,
}

impl F2fs {
    /// Refuses to change a volume that is read-only or has stopped.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if let Some(cause) = self.stopped.lock().as_ref() {
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
        let gate = self.gate.read();
        self.check_writable()?;
        Ok(Change { _gate: gate })
    }

    /// Waits until no change is under way and keeps further ones out.
    pub(crate) fn stop_changes(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write()
    }

    /// Stops the volume for good: the first cause is kept, nothing is changed any more.
    pub(crate) fn stop(&self, cause: &str) {
        tracing::error!(cause, "the volume stops");
        self.stopped.lock().get_or_insert_with(|| cause.to_owned());
        self.read_only.store(true, Ordering::Release);
    }

    /// A block of the main area has lost its owner. No node's lock is held.
    pub(crate) fn invalidate(&self, _: &Change<'_>, addr: BlockAddr) {
        if let Some(block) = addr.block() {
            self.meta.forget(block);
        }
    }
}
