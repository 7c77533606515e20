//! Whether a volume may be used and changed.
//!
//! **Problem.** A volume stops for good at its first error, becomes read-only and writable by remounts, and is
//! unmounted; each call has to find out which of these holds.
//! **Rule.** The first cause of a stop is kept, and a stopped volume is read-only. An unmount begins once. Only a
//! volume that has not stopped becomes writable.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_rt::{Mutex, Rank};

use crate::{FsError, Result};

/// What a volume is: writable, read-only, stopped by an error, or unmounted.
pub struct StopState {
    /// Why the volume stopped, if it did.
    cause: Mutex<Option<String>>,
    read_only: AtomicBool,
    /// An unmount has begun.
    unmounting: AtomicBool,
    /// The unmount has ended: calls fail.
    unmounted: AtomicBool,
}

impl StopState {
    /// A mounted volume.
    pub fn new(read_only: bool) -> Self {
        Self {
            cause: Mutex::new(Rank::Leaf, None),
            read_only: AtomicBool::new(read_only),
            unmounting: AtomicBool::new(false),
            unmounted: AtomicBool::new(false),
        }
    }

    /// Stops the volume for good. Returns whether this is the first cause, which is kept.
    pub fn stop(&self, cause: &str) -> bool {
        let first = {
            let mut kept = self.cause.lock();
            let first = kept.is_none();
            kept.get_or_insert_with(|| cause.to_owned());
            first
        };
        self.read_only.store(true, Ordering::Release);
        first
    }

    /// Why the volume stopped, if it did.
    pub fn cause(&self) -> Option<String> {
        self.cause.lock().clone()
    }

    /// Whether an error has stopped the volume.
    pub fn is_stopped(&self) -> bool {
        self.cause.lock().is_some()
    }

    /// Whether the volume was mounted or remounted read-only, was unmounted, or has stopped.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// The volume is read-only from now on.
    pub fn become_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// The volume is writable from now on, unless it has stopped. Returns whether it is.
    pub fn become_writable(&self) -> bool {
        let cause = self.cause.lock();
        let writable = cause.is_none();
        // Under the lock, so that a stop in between is not lost.
        self.read_only.store(!writable, Ordering::Release);
        writable
    }

    /// Begins the unmount; `false` if it has begun before.
    pub fn begin_unmount(&self) -> bool {
        !self.unmounting.swap(true, Ordering::AcqRel)
    }

    /// Whether an unmount has begun.
    pub fn is_unmounting(&self) -> bool {
        self.unmounting.load(Ordering::Acquire)
    }

    /// The unmount has ended: [`StopState::check_open`] fails.
    pub fn end_unmount(&self) {
        assert!(self.is_unmounting(), "an unmount ends after it began");
        self.read_only.store(true, Ordering::Release);
        self.unmounted.store(true, Ordering::Release);
    }

    /// Fails after the unmount.
    ///
    /// # Errors
    /// `Stopped`: the volume is unmounted.
    pub fn check_open(&self) -> Result<()> {
        match self.unmounted.load(Ordering::Acquire) {
            true => Err(FsError::Stopped("unmounted".to_owned())),
            false => Ok(()),
        }
    }

    /// Fails if the volume has stopped, with what `refused` makes of the cause, or is read-only.
    ///
    /// # Errors
    /// That of `refused`, or `ReadOnly`.
    pub fn check_writable(&self, refused: impl FnOnce(&str) -> FsError) -> Result<()> {
        if let Some(cause) = self.cause.lock().as_deref() {
            return Err(refused(cause));
        }
        match self.is_read_only() {
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_is_kept_and_forbids_writing() {
        let state = StopState::new(false);
        let writable = || state.check_writable(FsError::refused);
        assert_eq!((writable(), state.cause()), (Ok(()), None));
        assert!(state.stop("one") && !state.stop("two"));
        assert_eq!(state.cause().as_deref(), Some("one"));
        assert!(state.is_stopped() && state.is_read_only() && !state.become_writable());
        assert_eq!(writable(), Err(FsError::TurnedReadOnly("one".to_owned())));
        assert_eq!(state.check_open(), Ok(()), "it can be read");
    }

    #[test]
    fn a_volume_is_unmounted_once() {
        let state = StopState::new(true);
        assert!(state.become_writable() && !state.is_read_only());
        assert!(state.begin_unmount() && !state.begin_unmount());
        assert_eq!(state.check_open(), Ok(()), "until it has ended");
        state.end_unmount();
        assert!(state.check_open().is_err() && state.is_read_only());
    }
}
