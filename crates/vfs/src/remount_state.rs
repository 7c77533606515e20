//! Remount and freeze: what keeps calls away while a volume changes from read-only to writable and back, is frozen or
//! thawed.
//!
//! **Problem.** A call that changes the volume must not run while the volume becomes read-only, writable or frozen. A
//! call that waited for the thaw would block the thread that could thaw the volume.
//! **Rule.** Such a call holds `remount_lock` shared; a remount, freeze, thaw or unmount takes it exclusively, and only
//! the holder of that guard freezes or thaws. One remount, freeze or thaw runs at a time. An unlinked file whose last
//! reference is dropped while the volume is frozen is kept for the thaw, which frees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_rt::{Mutex, MutexGuard, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks and state of remount and freeze. `I`: an inode in memory.
pub struct RemountState<I> {
    /// Held during a remount, freeze or thaw.
    one: Mutex<()>,
    /// Held shared by calls that may change the volume.
    remount_lock: RwLock<()>,
    frozen: AtomicBool,
    /// Unlinked inodes whose last reference was dropped while frozen.
    deferred: Mutex<Vec<Arc<I>>>,
}

/// `remount_lock`, held shared.
pub type OpenGuard<'a> = RwLockReadGuard<'a, ()>;
/// `remount_lock`, held exclusively.
pub type AloneGuard<'a> = RwLockWriteGuard<'a, ()>;

impl<I> RemountState<I> {
    /// Not frozen.
    pub fn new() -> Self {
        Self {
            one: Mutex::with_key(Rank::Mount, 0, ()),
            remount_lock: RwLock::with_key(Rank::Mount, 1, ()),
            frozen: AtomicBool::new(false),
            deferred: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    /// Begins a remount, freeze or thaw: one at a time.
    pub fn begin(&self) -> MutexGuard<'_, ()> {
        self.one.lock()
    }

    /// Keeps the volume from becoming read-only, writable or frozen while the guard lives.
    pub fn hold_open(&self) -> OpenGuard<'_> {
        self.remount_lock.read()
    }

    /// The same without waiting; `None` while a remount, freeze, thaw or unmount is in progress.
    pub fn try_hold_open(&self) -> Option<OpenGuard<'_>> {
        self.remount_lock.try_read()
    }

    /// Waits until no call that may change the volume is in progress, and keeps such calls away.
    pub fn exclude_changes(&self) -> AloneGuard<'_> {
        self.remount_lock.write()
    }

    /// Whether the volume is frozen.
    pub fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::Acquire)
    }

    /// Everything is written: changes are refused from now on.
    pub fn freeze(&self, _: &AloneGuard<'_>) {
        self.frozen.store(true, Ordering::Release);
    }

    /// Changes are allowed again. The caller then frees what [`RemountState::take_deferred`] returns.
    pub fn thaw(&self, _: &AloneGuard<'_>) {
        self.frozen.store(false, Ordering::Release);
    }

    /// Keeps an unlinked inode, whose last reference was dropped while frozen, for the thaw.
    pub fn defer(&self, inode: Arc<I>) {
        self.deferred.lock().push(inode);
    }

    /// The inodes kept for the thaw.
    pub fn take_deferred(&self) -> Vec<Arc<I>> {
        std::mem::take(&mut *self.deferred.lock())
    }
}

impl<I> Default for RemountState<I> {
    fn default() -> Self {
        Self::new()
    }
}
