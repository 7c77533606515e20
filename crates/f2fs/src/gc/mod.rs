//! Cleaning: making whole sections free by moving what is still valid in them.
//!
//! **Foreground** (`room`): whoever changes something when space is short cleans first, holding no lock.
//! The cheapest space comes first: blocks that became invalid are free as soon as a checkpoint is
//! durable. **Background** (`task`): when the volume is idle, by Linux's timing rules (`sleep_times`).
//!
//! **Moving** (`moving`). Data of files is copied as it is to the log of cold data and named there. Nodes
//! and blocks of directories are marked changed: the next checkpoint writes them elsewhere. A moved
//! block's old place is only free after a checkpoint, as with every block.
//!
//! **Progress.** Each round empties a section or sets it aside for the rest of the run; the number of
//! rounds is bounded; a run that brought nothing is not repeated before blocks became invalid.

mod balance;
mod control;
mod moving;
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
use stats::Stats;
use task::GcTask;
pub use timing::GcMode;
use tunables::Tunables;
pub use tunables::number;

/// No run of cleaning was in vain since something became invalid.
const NOT_IN_VAIN: u64 = u64::MAX;

/// What cleaning has for a mounted volume.
pub struct Gc {
    /// One cleans at a time.
    one: Mutex<()>,
    pub(crate) tunables: Mutex<Tunables>,
    stats: Mutex<Stats>,
    /// When the last request came, in nanoseconds of the steady clock.
    last_request: AtomicU64,
    /// How many blocks had become invalid when a run of cleaning brought nothing.
    in_vain_at: AtomicU64,
    /// How many nodes may be changed in memory: so many surely find a place in a checkpoint.
    node_capacity: AtomicU64,
    /// Recovery is over: before, nothing may be moved, and no checkpoint be written for space.
    allowed: AtomicBool,
    task: Arc<GcTask>,
}

impl Gc {
    /// For a volume that nobody cleans yet.
    pub fn new() -> Self {
        Self {
            one: Mutex::new(Rank::Gc, ()),
            tunables: Mutex::new(Rank::Leaf, Tunables::default()),
            stats: Mutex::new(Rank::Leaf, Stats::default()),
            last_request: AtomicU64::new(now().0),
            in_vain_at: AtomicU64::new(NOT_IN_VAIN),
            node_capacity: AtomicU64::new(u64::MAX),
            allowed: AtomicBool::new(false),
            task: Arc::new(GcTask::new()),
        }
    }

    /// Allows cleaning, once a volume that is written has recovered.
    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Release);
    }

    fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    /// What cleaning did.
    pub fn stats(&self) -> Stats {
        self.stats.lock().clone()
    }

    /// What was asked for, and whether `atgc` has an effect.
    fn mode(&self) -> (GcMode, bool) {
        let tunables = self.tunables.lock();
        (tunables.mode, tunables.by_age)
    }

    /// How many blocks of a file may be named by one change: each may change a node of its own.
    pub fn blocks_at_once(&self) -> usize {
        const FEWEST: u64 = 16;
        let places = self.node_capacity.load(Ordering::Relaxed);
        usize::try_from((places / 8).max(FEWEST)).unwrap_or(usize::MAX)
    }

    /// A request that changes something begins.
    fn note_request(&self) {
        self.last_request.store(now().0, Ordering::Relaxed);
    }

    /// Seconds since the last request that changed something.
    pub(crate) fn quiet_for(&self) -> u64 {
        let last = Instant(self.last_request.load(Ordering::Relaxed));
        last.elapsed().as_secs()
    }
}
