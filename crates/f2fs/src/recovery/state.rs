//! What a mount recovers, and whether it is doing so.
//!
//! **Rule.** Recovery runs while no caller can change the volume: during a mount or a remount `rw`. One at a time.

use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_vfs::Result;

use super::overlay::{Overlay, Recovered};

/// Recovery of a volume.
pub struct RecoveryState {
    /// What fsync wrote after the checkpoint, on a volume that is only read.
    overlay: Overlay,
    running: AtomicBool,
    /// Since the mount orphans were freed, or roll-forward recovered files.
    has_recovered: AtomicBool,
}

impl RecoveryState {
    /// A volume over whose checkpoint reads see `found`.
    pub fn new(found: Recovered) -> Self {
        Self {
            overlay: Overlay::new(found),
            running: AtomicBool::new(false),
            has_recovered: AtomicBool::new(false),
        }
    }

    /// What reads see over the checkpoint.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Runs recovery.
    ///
    /// # Errors
    /// Those of `recover`.
    pub fn run(&self, recover: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = self.running.swap(true, Ordering::AcqRel);
        assert!(!before, "one recovery at a time");
        let ended = recover();
        let was_running = self.running.swap(false, Ordering::AcqRel);
        assert!(was_running, "only this call ends recovery");
        ended
    }

    /// Whether recovery is in progress.
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire)
    }

    /// Something was recovered into the volume.
    pub fn record_recovered(&self) {
        assert!(self.is_running(), "only recovery recovers");
        self.has_recovered.store(true, Ordering::Release);
    }

    /// Whether anything was recovered since the mount, into the volume or the overlay.
    pub fn has_recovered(&self) -> bool {
        self.has_recovered.load(Ordering::Acquire) || self.overlay.is_in_use()
    }
}
