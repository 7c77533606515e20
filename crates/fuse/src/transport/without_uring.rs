//! FUSE over io_uring in a build without the feature `io-uring`: it is refused, so requests come through the device.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::MountError;
use crate::transport::MountThreads;

const REFUSAL: &str = "this program was built without it (feature io-uring)";

/// The ring transport, which this build does not have.
pub struct UringPool;

impl UringPool {
    /// Starts nothing.
    ///
    /// # Errors
    /// Always.
    pub fn start(
        _: &Arc<MountThreads>,
        _: Arc<OwnedFd>,
        _: u16,
        _: usize,
    ) -> Result<(), MountError> {
        Err(MountError::Uring(REFUSAL.to_owned()))
    }
}

/// Makes no rings: this build uses none.
pub fn prepare_rings(_: usize) {}

/// Why io_uring is not available.
pub fn refusal() -> Option<String> {
    Some(REFUSAL.to_owned())
}

/// Number of queues that would be served.
pub fn queue_count() -> Option<u16> {
    None
}
