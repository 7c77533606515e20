//! Requests in the queue and in the device over virtual time, waited and background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use steadfs_block::Queue;
use steadfs_rt::{Mutex, Rank, now, sim};

/// Numbers of requests at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Depths {
    /// In the queue, with a waiting task.
    pub waited: u32,
    /// In the queue, in the background.
    pub background: u32,
    /// In the device, with a waiting task.
    pub device_waited: u32,
    /// In the device, in the background.
    pub device_background: u32,
}

/// Queue depths while the arms of a cell ran.
#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    /// The cell.
    pub cell: String,
    /// Sampling interval in virtual nanoseconds.
    pub step_ns: u64,
    /// Per arm: the last samples before its measurement ended.
    pub arms: Vec<(String, Vec<Depths>)>,
}

/// Number of samples kept.
const KEPT: usize = 600;

impl Depths {
    /// The depths of a queue.
    fn of(queue: &Queue) -> Self {
        let depths = queue.depths();
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            waited: count(depths.waited),
            background: count(depths.background),
            device_waited: count(depths.device_waited),
            device_background: count(depths.device_background),
        }
    }

    /// All four, the device's first.
    pub const fn parts(&self) -> [u32; 4] {
        [
            self.device_waited,
            self.device_background,
            self.waited,
            self.background,
        ]
    }
}

/// Samples a queue periodically until it is stopped. Only in simulations: a sample is a timed callback.
pub(super) struct Sampler(Arc<Inner>);

struct Inner {
    queue: Arc<Queue>,
    step: Duration,
    stop: AtomicBool,
    seen: Mutex<Vec<Depths>>,
}

impl Sampler {
    pub(super) fn start(queue: &Arc<Queue>, step: Duration) -> Self {
        let inner = Arc::new(Inner {
            queue: Arc::clone(queue),
            step,
            stop: AtomicBool::new(false),
            seen: Mutex::new(Rank::Leaf, Vec::new()),
        });
        look(&inner);
        Self(inner)
    }

    pub(super) fn stop(&self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }

    /// The last samples.
    pub(super) fn end(&self) -> Vec<Depths> {
        self.stop();
        let seen = std::mem::take(&mut *self.0.seen.lock());
        seen[seen.len().saturating_sub(KEPT)..].to_vec()
    }
}

fn look(inner: &Arc<Inner>) {
    if inner.stop.load(Ordering::Relaxed) {
        return;
    }
    let depths = Depths::of(&inner.queue);
    let mut seen = inner.seen.lock();
    if seen.len() >= 2 * KEPT {
        seen.drain(..KEPT);
    }
    seen.push(depths);
    drop(seen);
    let again = Arc::clone(inner);
    sim::at(now() + inner.step, move || look(&again));
}
