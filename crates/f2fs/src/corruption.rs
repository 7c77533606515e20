//! Reactions to errors: the volume stops, or corruption is recorded and the volume goes on. What is recorded is kept
//! and written by the [`ErrorLog`](crate::error_log::ErrorLog).

use steadfs_vfs::{FsError, Result};

use crate::cp_lock;
use crate::disk::superblock::StopReason;
use crate::fs::F2fs;

impl F2fs {
    /// Stops the volume for good: the first cause is kept, nothing is changed any more.
    pub(crate) fn abort(&self, reason: StopReason, cause: &str) {
        tracing::error!(cause, "the volume stops");
        if self.stop_state.stop(cause) {
            self.errors.record_stop(reason);
        }
        assert!(
            self.stop_state.is_read_only(),
            "a stopped volume is not changed"
        );
    }

    /// Stops the volume because its code panicked ([`cp_lock::abort_for_panic`]).
    pub(crate) fn abort_for_panic(&self) {
        cp_lock::abort_for_panic(&self.stop_state);
    }

    /// Why the volume stopped, if it did.
    pub(crate) fn abort_cause(&self) -> Option<String> {
        self.stop_state.cause()
    }

    /// Whether corruption was found.
    pub(crate) fn is_corrupt(&self) -> bool {
        self.errors.is_corrupt()
    }

    /// Records corruption that does not fail the operation. The next checkpoint requests a check of the volume.
    pub(crate) fn record_corruption(&self, error: &FsError) {
        if self.errors.record(error) {
            tracing::error!(%error, "the volume is corrupt; run fsck.f2fs");
        }
    }

    /// Writes the superblocks if errors are recorded. A failure is logged and retried by later calls, at intervals. The
    /// caller holds no lock.
    pub(crate) fn write_errors(&self) {
        // While the volume is frozen not even this is written.
        if !self.is_frozen() && self.errors.is_due() {
            // Logged by the function itself; the unmount returns it.
            let _ = self.write_errors_now();
        }
    }

    /// As [`F2fs::write_errors`], without an interval.
    ///
    /// # Errors
    /// The device failed: the superblocks lack the errors.
    pub(crate) fn write_errors_now(&self) -> Result<()> {
        // A volume that was only ever read is not written.
        match self.segments.get() {
            Some(_) => self.errors.write(&self.queue),
            None => Ok(()),
        }
    }

    /// The content of `.steadfs/errors`, one line each: why the volume stopped, data that could not be written and is
    /// retried, corruption found since the mount, and what the superblock has recorded; `none` if there is nothing.
    pub(crate) fn show_errors(&self) -> String {
        let cause = self.abort_cause();
        let mut text = cause.map_or_else(String::new, |cause| format!("stopped: {cause}\n"));
        text += &self.errors.show(&self.writeback.dirty_files());
        if text.is_empty() {
            text.push_str("none\n");
        }
        text
    }
}

#[cfg(test)]
mod tests;
