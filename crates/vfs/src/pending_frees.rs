//! Pending frees: space that is about to become free.
//!
//! Problem: unlink(2) returns before the file is freed. The kernel sends FORGET for it later, and freeing a large file
//! takes several transactions. A write or statfs in between would find the volume full although no file uses the space.
//! Rule: an operation that lacks space waits while blocks are being freed, or while an unlink within the last
//! [`FORGET_WAIT_MAX`] has not been followed by its FORGET.

use std::time::Duration;

use steadfs_rt::{Condvar, Instant, Mutex, Rank, now};

/// How long after the last unlink a FORGET is expected; later the file is taken to be open.
const FORGET_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long statfs waits at most.
const STATFS_WAIT_MAX: Duration = Duration::from_millis(100);
/// How long one wait lasts at most.
const WAIT_MAX: Duration = Duration::from_millis(10);

/// The inodes of a volume that are being freed, or will be.
pub struct PendingFrees {
    state: Mutex<PendingState>,
    freed: Condvar,
}

#[derive(Default)]
struct PendingState {
    /// Unlinked inodes with lookup counts.
    referenced: u64,
    /// When the last of them was unlinked.
    last_unlink: Option<Instant>,
    /// Inodes whose blocks are being freed.
    in_progress: u32,
}

impl PendingState {
    fn is_pending(&self) -> bool {
        let recent = |last: Instant| last.elapsed() < FORGET_WAIT_MAX;
        self.in_progress > 0 || (self.referenced > 0 && self.last_unlink.is_some_and(recent))
    }
}

/// An inode's blocks are being freed while this guard lives.
pub struct FreeGuard<'a>(&'a PendingFrees);

impl Drop for FreeGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().in_progress -= 1;
        self.0.freed.notify_all();
    }
}

impl PendingFrees {
    /// No pending frees.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, PendingState::default()),
            freed: Condvar::new(),
        }
    }

    /// Records an unlinked inode that is freed at its last FORGET.
    pub fn expect_release(&self) {
        let mut state = self.state.lock();
        state.referenced += 1;
        state.last_unlink = Some(now());
    }

    /// Records the last FORGET of an unlinked inode.
    pub fn released(&self) {
        let mut state = self.state.lock();
        state.referenced = state.referenced.saturating_sub(1);
    }

    /// Begins to free an inode's blocks.
    pub fn begin(&self) -> FreeGuard<'_> {
        self.state.lock().in_progress += 1;
        FreeGuard(self)
    }

    /// Whether space is about to become free.
    pub fn is_pending(&self) -> bool {
        self.state.lock().is_pending()
    }

    /// Waits at most [`WAIT_MAX`] for space to become free. Returns false at once if none will.
    pub fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_pending() {
            return false;
        }
        self.freed.wait_for(&mut state, WAIT_MAX);
        true
    }

    /// Waits until nothing is pending, at most [`STATFS_WAIT_MAX`].
    pub fn wait_all(&self) {
        let until = now() + STATFS_WAIT_MAX;
        while !until.since(now()).is_zero() && self.wait() {}
    }
}

impl Default for PendingFrees {
    fn default() -> Self {
        Self::new()
    }
}
