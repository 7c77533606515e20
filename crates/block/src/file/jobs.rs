//! Started requests, and the source of further ones for a task that runs some.

use crate::{Bio, Done};

/// A started bio.
pub(super) type Job = (Bio, Done);

/// Source of further requests for a running batch.
pub(super) trait JobSource {
    /// Whether the task only waits for the batch.
    fn waits(&self) -> bool;

    /// The task has returned from a blocking system call and will call `more`.
    fn returned(&mut self);

    /// Up to `max` more requests. Then the task blocks again or, without further requests, ends when its
    /// requests in flight have ended.
    fn more(&mut self, max: usize) -> Vec<Job>;
}

/// The source of a batch without further requests.
pub(super) struct NoMoreJobs;

impl JobSource for NoMoreJobs {
    fn waits(&self) -> bool {
        true
    }

    fn returned(&mut self) {}

    fn more(&mut self, _max: usize) -> Vec<Job> {
        Vec::new()
    }
}
