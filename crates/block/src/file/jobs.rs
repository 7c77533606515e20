//! Requests that were started, and where a task that runs some finds more.

use crate::{Bio, Done};

/// A started bio.
pub(super) type Job = (Bio, Done);

/// Where a batch that is being run gets more requests from.
pub(super) trait Source {
    /// Whether the task has nothing else to do than to wait for the batch.
    fn waits(&self) -> bool;

    /// The task is back from a blocking system call and will ask for more.
    fn back(&mut self);

    /// Up to `room` more requests; then the task blocks again or, given none, ends when what it has
    /// under way has ended.
    fn more(&mut self, room: usize) -> Vec<Job>;
}

/// A batch that is complete from the start.
pub(super) struct NoMore;

impl Source for NoMore {
    fn waits(&self) -> bool {
        true
    }

    fn back(&mut self) {}

    fn more(&mut self, _room: usize) -> Vec<Job> {
        Vec::new()
    }
}
