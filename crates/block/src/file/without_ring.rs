//! Rings of a build without the feature `io-uring`: there are none, so each request is a system call.

use std::os::fd::BorrowedFd;

use super::busy_poll::BusyPoll;
use super::jobs::{Job, JobSource};
use super::transfer::Target;

/// Most requests of a ring at a time.
pub(super) const RING_ENTRIES: usize = 1;

/// Makes no rings: this build uses none.
pub fn prepare_rings() {}

/// Whether a ring that is dropped could not be made again.
pub(super) fn are_prepared() -> bool {
    false
}

/// A ring, which no value of this build is.
pub(super) enum Ring {}

impl Ring {
    /// The refusal.
    pub(super) fn new(_: BorrowedFd<'_>) -> Result<Self, String> {
        Err("this program was built without it (feature io-uring)".to_owned())
    }

    pub(super) fn run(
        &mut self,
        _: &Target,
        _: Vec<Job>,
        _: &mut dyn JobSource,
        _: Option<&BusyPoll>,
    ) {
        match *self {}
    }
}
