//! Running batches of requests on the calling task, one system call each or several at a time.

use std::os::fd::AsFd;
use std::sync::Arc;

use steadfs_rt::{Mutex, Rank};

use super::awake::Awake;
use super::jobs::{Job, Source};
use super::ring::{RING, Ring};
use super::transfer::Target;
use crate::Op;

/// Most rings that are kept for the next batch.
const SPARE_RINGS: usize = 8;
/// Longest read in bytes that may be over before it was worth a sleep.
const SMALL: u64 = 64 << 10;

/// Runs requests on an open file.
pub(super) struct Runner {
    pub(super) target: Arc<Target>,
    /// Rings that no task uses; `None` if each request is a system call.
    rings: Option<Mutex<Vec<Ring>>>,
    awake: Awake,
}

impl Runner {
    /// One system call for each request.
    pub(super) fn by_calls(target: Arc<Target>) -> Self {
        Self {
            target,
            rings: None,
            awake: Awake::new(),
        }
    }

    /// Several requests at a time through a ring, or why not.
    pub(super) fn by_rings(target: Arc<Target>) -> Result<Self, String> {
        let ring = Ring::new(target.fd.as_fd())?;
        Ok(Self {
            target,
            rings: Some(Mutex::new(Rank::DeviceInner, vec![ring])),
            awake: Awake::new(),
        })
    }

    /// Whether a task can run several requests at a time.
    pub(super) fn has_rings(&self) -> bool {
        self.rings.is_some()
    }

    /// How many requests one task runs at a time.
    pub(super) fn width(&self) -> usize {
        if self.has_rings() { RING } else { 1 }
    }

    /// Runs `jobs` to their ends. A single one is a system call: that is quicker than a ring that sleeps.
    pub(super) fn run(&self, jobs: Vec<Job>, source: &mut dyn Source) {
        let _busy = self.awake.enter();
        let awake = self.awake_for(&jobs, source);
        if (jobs.len() > 1 || awake.is_some())
            && let Some(rings) = &self.rings
            && let Some(mut ring) = self.ring(rings)
        {
            ring.run(&self.target, jobs, source, awake);
            let mut spare = rings.lock();
            if spare.len() < SPARE_RINGS {
                spare.push(ring);
            }
            return;
        }
        for (mut bio, done) in jobs {
            let result = self.target.run(&mut bio);
            source.back();
            done(bio, result);
        }
    }

    /// Whether to stay awake for `jobs`: a single read that waits for a device.
    fn awake_for(&self, jobs: &[Job], source: &dyn Source) -> Option<&Awake> {
        let [(bio, _)] = jobs else { return None };
        let small = bio.op == Op::Read && bio.len <= SMALL && self.target.is_direct();
        (small && source.waits() && self.has_rings() && self.awake.is_worth_it())
            .then_some(&self.awake)
    }

    /// A ring for one batch. Where the kernel gives no further one, it goes without.
    fn ring(&self, rings: &Mutex<Vec<Ring>>) -> Option<Ring> {
        let spare = rings.lock().pop();
        spare.or_else(|| Ring::new(self.target.fd.as_fd()).ok())
    }
}
