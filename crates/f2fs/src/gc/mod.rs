//! Garbage collection (GC, cleaning): valid blocks are moved out of a section so that the whole section becomes free.
//!
//! **Foreground** (`balance`): a task that changes the volume while space is short cleans first, holding no lock. The
//! cheapest space comes first: invalid blocks are free as soon as a checkpoint is durable.
//! **Background** (`task`): while the volume is idle, by Linux's timing rules (`timing`).
//!
//! **Moving** (`moving`). File data is copied to the cold-data log and mapped there. Nodes and directory blocks are
//! marked dirty: the next checkpoint writes them elsewhere. The old place of a block is free only after a checkpoint.
//!
//! **Progress.** Each round empties a section or skips it for the rest of the run; the number of rounds is bounded; a
//! run that freed nothing is not repeated before more blocks became invalid.

mod balance;
mod control;
mod moving;
mod requests;
mod stats;
mod task;
mod timing;
mod tunables;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfs_rt::{Instant, Mutex, Rank, now};

pub use control::files;
use requests::GcTask;
use stats::Stats;
pub use timing::GcMode;
use tunables::Tunables;
pub use tunables::number;

/// `in_vain_at` while no run has failed to free space.
const NOT_IN_VAIN: u64 = u64::MAX;

/// State of GC on a mounted volume.
pub struct Gc {
    /// Held by the task that cleans.
    gc_lock: Mutex<()>,
    pub(crate) tunables: Mutex<Tunables>,
    stats: Mutex<Stats>,
    /// Operations that have called `balance`.
    operations: AtomicU64,
    /// Time of the last request that changed something, in nanoseconds of the steady clock.
    last_request: AtomicU64,
    /// The count of invalidated blocks when a run freed nothing.
    in_vain_at: AtomicU64,
    /// Dirty nodes that may be in memory: a checkpoint can allocate a block for each.
    node_capacity: AtomicU64,
    /// Set once recovery has ended: before, no block may be moved and no checkpoint written to free space.
    allowed: AtomicBool,
    task: Arc<GcTask>,
}

impl Gc {
    pub fn new() -> Self {
        Self {
            gc_lock: Mutex::new(Rank::Gc, ()),
            tunables: Mutex::new(Rank::Leaf, Tunables::default()),
            stats: Mutex::new(Rank::Leaf, Stats::default()),
            operations: AtomicU64::new(0),
            last_request: AtomicU64::new(now().0),
            in_vain_at: AtomicU64::new(NOT_IN_VAIN),
            node_capacity: AtomicU64::new(u64::MAX),
            allowed: AtomicBool::new(false),
            task: Arc::new(GcTask::new()),
        }
    }

    /// Allows GC, once recovery has ended.
    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Release);
    }

    fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    pub fn stats(&self) -> Stats {
        self.stats.lock().clone()
    }

    /// The mode, and whether `atgc` has an effect.
    fn mode(&self) -> (GcMode, bool) {
        let tunables = self.tunables.lock();
        (tunables.mode, tunables.by_age)
    }

    /// Blocks of a file that one change may map: each may dirty a node of its own.
    pub fn blocks_at_once(&self) -> usize {
        const FEWEST: u64 = 16;
        let places = self.node_capacity.load(Ordering::Relaxed);
        usize::try_from((places / 8).max(FEWEST)).unwrap_or(usize::MAX)
    }

    /// A request that changes something begins.
    fn note_request(&self) {
        self.last_request.store(now().0, Ordering::Relaxed);
    }

    /// Whether the task runs.
    pub(crate) fn has_task(&self) -> bool {
        self.task.is_running()
    }

    /// Stops the task and waits for its end. The caller holds no lock.
    pub(crate) fn stop_task(&self) {
        self.task.stop();
    }

    /// Seconds since the last request that changed something.
    pub(crate) fn quiet_for(&self) -> u64 {
        let last = Instant(self.last_request.load(Ordering::Relaxed));
        last.elapsed().as_secs()
    }
}
