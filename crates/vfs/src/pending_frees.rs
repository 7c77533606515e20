//! Space that is about to become free.
//!
//! A caller that unlinks a file hears of it before the file is freed: the kernel says a moment later
//! that it knows the file no longer, and freeing a large one takes several transactions. To who writes
//! or asks for the free space in between, the volume would look full although nothing fills it. So a
//! shortage waits a moment, as long as something is being freed or is going to be.

use std::time::Duration;

use steadfs_rt::{Condvar, Instant, Mutex, Rank, now};

/// How long after the last unlink the kernel may still be about to let a file go. Later it has it open.
const RECENT: Duration = Duration::from_millis(100);
/// How long a question for the free space waits at most.
const ANSWER: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(10);

/// What is being freed.
pub struct PendingFrees {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Unlinked inodes that a caller knows.
    awaited: u64,
    /// When the last of them was unlinked.
    last: Option<Instant>,
    /// Inodes whose blocks are being freed.
    under_way: u32,
}

impl State {
    fn is_pending(&self) -> bool {
        let recent = |last: Instant| last.elapsed() < RECENT;
        self.under_way > 0 || (self.awaited > 0 && self.last.is_some_and(recent))
    }
}

/// While it lives, an inode's blocks are being freed.
pub struct FreeGuard<'a>(&'a PendingFrees);

impl Drop for FreeGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.ended.notify_all();
    }
}

impl PendingFrees {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, State::default()),
            ended: Condvar::new(),
        }
    }

    /// An inode without names is freed when its last caller lets it go.
    pub fn expect_release(&self) {
        let mut state = self.state.lock();
        state.awaited += 1;
        state.last = Some(now());
    }

    /// A caller has let an inode without names go.
    pub fn released(&self) {
        let mut state = self.state.lock();
        state.awaited = state.awaited.saturating_sub(1);
    }

    /// An inode's blocks are being freed from now on.
    pub fn begin(&self) -> FreeGuard<'_> {
        self.state.lock().under_way += 1;
        FreeGuard(self)
    }

    /// Whether something is about to become free.
    pub fn is_pending(&self) -> bool {
        self.state.lock().is_pending()
    }

    /// Waits a little for something to become free; false at once if nothing will.
    pub fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_pending() {
            return false;
        }
        self.ended.wait_for(&mut state, LOOK);
        true
    }

    /// Waits until nothing is about to become free, but not long.
    pub fn wait_all(&self) {
        let until = now() + ANSWER;
        while !until.since(now()).is_zero() && self.wait() {}
    }
}

impl Default for PendingFrees {
    fn default() -> Self {
        Self::new()
    }
}
