//! Running batches of requests on the calling task, one system call each or several at a time.

use std::os::fd::AsFd;
use std::sync::Arc;

use steadfs_rt::{Mutex, Rank};

use super::busy_poll::BusyPoll;
use super::jobs::{Job, JobSource};
use super::ring::{RING_ENTRIES, Ring, are_prepared};
use super::transfer::Target;
use crate::Op;

/// Most rings that are kept for the next batch.
pub(super) const SPARE_RINGS: usize = 8;
/// Longest read in bytes that is polled for.
const MAX_POLLED_READ_BYTES: u64 = 64 << 10;

/// Runs requests on an open file.
pub(super) struct RequestRunner {
    pub(super) target: Arc<Target>,
    /// Rings that no task uses; `None` if each request is a system call.
    rings: Option<Mutex<Vec<Ring>>>,
    poll: BusyPoll,
}

impl RequestRunner {
    /// One system call for each request.
    pub(super) fn by_calls(target: Arc<Target>) -> Self {
        Self {
            target,
            rings: None,
            poll: BusyPoll::new(),
        }
    }

    /// Several requests at a time through a ring, or why not.
    pub(super) fn by_rings(target: Arc<Target>) -> Result<Self, String> {
        let ring = Ring::new(target.fd.as_fd())?;
        Ok(Self {
            target,
            rings: Some(Mutex::new(Rank::DeviceInner, vec![ring])),
            poll: BusyPoll::new(),
        })
    }

    /// Whether a task can run several requests at a time.
    pub(super) fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// How many requests one task runs at a time.
    pub(super) fn width(&self) -> usize {
        if self.has_rings() { RING_ENTRIES } else { 1 }
    }

    /// Runs `jobs` to their ends. A single one is a system call: that is faster than a ring that sleeps.
    pub(super) fn run(&self, jobs: Vec<Job>, source: &mut dyn JobSource) {
        let _busy = self.poll.enter();
        let poll = self.poll_for(&jobs, source);
        if (jobs.len() > 1 || poll.is_some())
            && let Some(rings) = &self.rings
            && let Some(mut ring) = self.ring(rings)
        {
            ring.run(&self.target, jobs, source, poll);
            let mut spare = rings.lock();
            if spare.len() < SPARE_RINGS || are_prepared() {
                spare.push(ring);
            }
            return;
        }
        for (mut bio, done) in jobs {
            let result = self.target.run(&mut bio);
            source.returned();
            done(bio, result);
        }
    }

    /// Whether to busy-poll for `jobs`: only for a single small read that waits for the device.
    fn poll_for(&self, jobs: &[Job], source: &dyn JobSource) -> Option<&BusyPoll> {
        let [(bio, _)] = jobs else { return None };
        let small =
            bio.op == Op::Read && bio.len <= MAX_POLLED_READ_BYTES && self.target.is_direct();
        (small && source.waits() && self.has_rings() && self.poll.should_poll())
            .then_some(&self.poll)
    }

    /// A ring for one batch; `None` if the kernel refuses another one.
    fn ring(&self, rings: &Mutex<Vec<Ring>>) -> Option<Ring> {
        let spare = rings.lock().pop();
        spare.or_else(|| Ring::new(self.target.fd.as_fd()).ok())
    }
}
