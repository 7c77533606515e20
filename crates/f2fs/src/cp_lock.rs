//! `cp_lock`: excludes operations that change the volume from a checkpoint's snapshot (the kernel's `cp_rwsem` and
//! `f2fs_lock_op`).
//!
//! **Rule.** A task holds a [`Change`] while it changes nodes, tables or counts; there can be any number at a time. A
//! checkpoint holds the lock exclusively for its snapshot, which does no I/O. Inside a `Change` a task must not wait
//! for file data, an inode's lock, GC or a checkpoint; it may read a node. While a checkpoint waits no new `Change`
//! begins, so a stream of changes cannot delay it for long.

use steadfs_rt::{PANICKED, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, Unwinding};
use steadfs_vfs::{FsError, Result, StopState};

/// The lock: held shared by changes, exclusively by a checkpoint's snapshot.
pub struct CpLock(RwLock<()>);

/// Shared guard of `cp_lock`; a task holds at most one. If a panic drops it the volume aborts: no checkpoint may
/// contain half a change.
#[must_use]
pub struct Change<'f> {
    stop: &'f StopState,
    unwinding: Unwinding,
    _gate: CpGuard<'f>,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.unwinding.has_begun() {
            // `cp_lock` is still held.
            abort_for_panic(self.stop);
        }
    }
}

/// How `cp_lock` is held.
#[expect(dead_code, reason = "held until it is dropped")]
enum CpGuard<'f> {
    Shared(RwLockReadGuard<'f, ()>),
    Exclusive(RwLockWriteGuard<'f, ()>),
}

impl CpLock {
    pub fn new() -> Self {
        Self(RwLock::new(Rank::TxnHandle, ()))
    }

    /// Begins a change.
    ///
    /// # Errors
    /// As [`check_writable`].
    pub fn change<'f>(&'f self, stop: &'f StopState) -> Result<Change<'f>> {
        Change::begin(stop, CpGuard::Shared(self.0.read()))
    }

    /// Waits until no change is in progress and begins one that excludes all others: for a checkpoint's snapshot.
    ///
    /// # Errors
    /// As [`check_writable`].
    pub fn change_exclusive<'f>(&'f self, stop: &'f StopState) -> Result<Change<'f>> {
        Change::begin(stop, CpGuard::Exclusive(self.0.write()))
    }

    /// Whether no change is in progress.
    pub fn is_idle(&self) -> bool {
        self.0.try_write().is_some()
    }
}

impl<'f> Change<'f> {
    fn begin(stop: &'f StopState, gate: CpGuard<'f>) -> Result<Self> {
        check_writable(stop)?;
        Ok(Self {
            stop,
            unwinding: Unwinding::watch(),
            _gate: gate,
        })
    }
}

/// Fails if the volume is read-only, aborted or unmounted.
///
/// # Errors
/// `Stopped` with the cause, or `ReadOnly`.
pub fn check_writable(stop: &StopState) -> Result<()> {
    stop.check_open()?;
    stop.check_writable(|cause| FsError::Stopped(cause.to_owned()))
}

/// Stops the volume because its code panicked, as a power cut would: nothing is recorded on the device, which has a
/// state that the volume passed through.
pub fn abort_for_panic(stop: &StopState) {
    tracing::error!(cause = PANICKED, "the volume stops");
    stop.stop(PANICKED);
}
