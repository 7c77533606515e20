//! Marks of an inode in memory that decide whether it may get a name, be evicted or be used.

use std::sync::atomic::{AtomicBool, Ordering};

/// Marks of an inode in memory.
#[derive(Debug, Default)]
pub struct InodeMarks {
    /// Recorded as an orphan: stays in memory.
    orphan: AtomicBool,
    /// Has no name but may get one: made by `tmpfile`, or by a former server.
    linkable: AtomicBool,
    /// Freed: it must not be used or stored again.
    dead: AtomicBool,
    /// Its hash tree is being built: its content must not change.
    becomes_verity: AtomicBool,
}

impl InodeMarks {
    /// Sets whether the inode, without a name, may get one.
    pub fn set_linkable(&self, linkable: bool) {
        self.linkable.store(linkable, Ordering::Release);
    }

    /// Whether the inode may get a name although it has none.
    pub fn is_linkable(&self) -> bool {
        self.linkable.load(Ordering::Acquire)
    }

    /// Marks an orphan that the callers of a former server use. Whether it may get a name is known to them only: the
    /// kernel refuses that (`I_LINKABLE`) unless O_TMPFILE has made the inode.
    pub fn adopt_orphan(&self) {
        self.set_orphan(true);
        self.set_linkable(true);
    }

    /// Sets whether the inode is a recorded orphan.
    pub fn set_orphan(&self, orphan: bool) {
        self.orphan.store(orphan, Ordering::Release);
    }

    /// Whether the inode is a recorded orphan.
    pub fn is_orphan(&self) -> bool {
        self.orphan.load(Ordering::Acquire)
    }

    /// Sets whether the file's hash tree is being built.
    pub fn set_becomes_verity(&self, becomes: bool) {
        self.becomes_verity.store(becomes, Ordering::Release);
    }

    /// Whether the file's hash tree is being built.
    pub fn becomes_verity(&self) -> bool {
        self.becomes_verity.load(Ordering::Acquire)
    }

    /// Marks the inode as freed.
    pub fn set_dead(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether the inode was freed.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }
}
