//! Waiting for space that is being freed.
//!
//! **Problem.** An allocation finds too little space although blocks or inodes are about to become free: an unlinked
//! file is being freed, a commit or a discard is running.
//!
//! **Rule.** A [`Shortage`] retries the allocation whenever there is more than before its last attempt, and waits for
//! at most 1 s in total.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Instant, now, sleep};
use steadfs_vfs::Result;

use crate::fs::Ext4;

/// Longest wait of a shortage.
const SHORTAGE_WAIT_MAX: Duration = Duration::from_secs(1);
/// Delay before a retry if the blocks that a commit freed are not free yet.
const COMMIT_RETRY_DELAY: Duration = Duration::from_millis(10);

/// A task's shortage of space. While it exists, no free blocks are taken for a discard.
pub(crate) struct Shortage<'a> {
    fs: &'a Ext4,
    /// Set by the first retry; earlier steps are not limited.
    until: Option<Instant>,
    before: SpaceSnapshot,
}

/// Free space before an attempt. (A count of what became free would not do: a failed attempt allocates and frees.)
#[derive(PartialEq, Eq)]
struct SpaceSnapshot {
    blocks: u64,
    inodes: u64,
    trimmed: u64,
}

impl SpaceSnapshot {
    fn now(fs: &Ext4) -> Self {
        let trimmed = fs.alloc.trimmed();
        fs.alloc.with_totals(|t| Self {
            blocks: t.free,
            inodes: t.free_inodes,
            trimmed,
        })
    }

    fn has_less_than(&self, now: &Self) -> bool {
        now.blocks > self.blocks || now.inodes > self.inodes || now.trimmed != self.trimmed
    }
}

impl<'a> Shortage<'a> {
    /// The shortage of a task that found too little space.
    pub(crate) fn new(fs: &'a Ext4) -> Self {
        fs.alloc.enter_shortage();
        Self {
            fs,
            until: None,
            before: SpaceSnapshot::now(fs),
        }
    }

    /// Makes another attempt.
    pub(crate) fn attempt<T>(&mut self, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
        self.before = SpaceSnapshot::now(self.fs);
        attempt()
    }

    /// Whether there is more space than before the last attempt. Commits, and waits while space is being freed. The
    /// caller holds no handle.
    pub(crate) fn should_retry(&mut self, tag: IoTag) -> Result<bool> {
        let fs = self.fs;
        let until = *self.until.get_or_insert_with(|| now() + SHORTAGE_WAIT_MAX);
        while !until.since(now()).is_zero() {
            // Both before the comparison: what becomes free meanwhile is seen there.
            let is_freeing = fs.freeing.is_pending();
            let pending = fs.alloc.totals().pending > 0;
            if self.before.has_less_than(&SpaceSnapshot::now(fs)) {
                return Ok(true);
            }
            if pending {
                fs.commit_running(tag)?;
                if !self.before.has_less_than(&SpaceSnapshot::now(fs)) {
                    sleep(COMMIT_RETRY_DELAY);
                }
            } else if is_freeing {
                fs.freeing.wait();
            } else {
                return Ok(false);
            }
        }
        Ok(false)
    }
}

impl Drop for Shortage<'_> {
    fn drop(&mut self) {
        self.fs.alloc.leave_shortage();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_rt::{sim, spawn};
    use steadfs_vfs::FileSystem;

    use super::*;
    use crate::test_world::{ROOT, World};

    #[test]
    fn an_inode_is_free_again_after_a_late_forget() {
        for kind in ["ext4", "ext2"] {
            let run = move || inode_late_forget(World::make(&["-t", kind, "-N", "128"], "16M"));
            sim::run(sim::Config::new(1), run);
        }
    }

    fn inode_late_forget(world: World) {
        let make = |n: u32| {
            let name = format!("f{n}");
            FileSystem::mknod(&*world.fs, &world.cx, ROOT, name.as_bytes(), 0o100_644, 0)
        };
        let mut inodes = Vec::new();
        while let Ok(attr) = make(inodes.len() as u32) {
            inodes.push(attr.ino);
        }
        assert!(inodes.len() > 100);
        for (n, &ino) in inodes.iter().enumerate().take(10) {
            let name = format!("f{n}");
            FileSystem::unlink(&*world.fs, &world.cx, ROOT, name.as_bytes()).unwrap();
            let fs = Arc::clone(&world.fs);
            let late = spawn("late", move || {
                sleep(Duration::from_millis(n as u64));
                fs.forget(ino, 1);
            });
            make(1000 + n as u32).unwrap();
            late.join();
        }
        world.close();
    }
}
