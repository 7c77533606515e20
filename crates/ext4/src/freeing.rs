//! Space that is about to become free.
//!
//! A caller that unlinks a file hears of it before the file is freed: the kernel says a moment later
//! that it knows the file no longer, and freeing a large one takes several transactions. To who writes
//! or asks for the free space in between, the volume would look full although nothing fills it. So a
//! shortage waits a moment, as long as something is being freed or is going to be.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Condvar, Instant, Mutex, Rank, now};
use steadfs_vfs::Result;

use crate::fs::Ext4;

/// How long after the last unlink the kernel may still be about to let a file go. Later it has it open.
const RECENT: Duration = Duration::from_millis(100);
/// How long a shortage waits at most.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a question for the free space waits at most.
const ANSWER: Duration = Duration::from_millis(100);
const LOOK: Duration = Duration::from_millis(10);

/// What is being freed.
pub struct Freeing {
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
    fn is_hopeful(&self) -> bool {
        let recent = |last: Instant| last.elapsed() < RECENT;
        self.under_way > 0 || (self.awaited > 0 && self.last.is_some_and(recent))
    }
}

/// While it lives, an inode's blocks are being freed.
pub struct UnderWay<'a>(&'a Freeing);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.ended.notify_all();
    }
}

impl Freeing {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            state: Mutex::new(Rank::Leaf, State::default()),
            ended: Condvar::new(),
        }
    }

    /// An inode without names is freed when its last caller lets it go.
    pub fn expect(&self) {
        let mut state = self.state.lock();
        state.awaited += 1;
        state.last = Some(now());
    }

    /// A caller has let an inode without names go.
    pub fn let_go(&self) {
        let mut state = self.state.lock();
        state.awaited = state.awaited.saturating_sub(1);
    }

    /// An inode's blocks are being freed from now on.
    pub fn begin(&self) -> UnderWay<'_> {
        self.state.lock().under_way += 1;
        UnderWay(self)
    }

    fn is_hopeful(&self) -> bool {
        self.state.lock().is_hopeful()
    }

    /// Waits a little for something to become free; false at once if nothing will.
    fn wait(&self) -> bool {
        let mut state = self.state.lock();
        if !state.is_hopeful() {
            return false;
        }
        self.ended.wait_for(&mut state, LOOK);
        true
    }

    /// Waits until nothing is about to become free, but not long.
    pub fn settle(&self) {
        let until = now() + ANSWER;
        while !until.since(now()).is_zero() && self.wait() {}
    }
}

impl Default for Freeing {
    fn default() -> Self {
        Self::new()
    }
}

/// Somebody's shortage of space.
pub(crate) struct Shortage {
    until: Instant,
}

impl Shortage {
    pub(crate) fn new() -> Self {
        Self {
            until: now() + PATIENCE,
        }
    }

    /// Whether it is worth looking again: blocks that waited for a commit have become free, or may
    /// have. The caller holds no handle.
    pub(crate) fn look_again(&self, fs: &Ext4, tag: IoTag) -> Result<bool> {
        loop {
            let late = self.until.since(now()).is_zero();
            // Before looking at what has been freed: what ends now is seen there.
            let hopeful = !late && fs.freeing.is_hopeful();
            if fs.alloc.totals().pending > 0 {
                fs.commit_running(tag)?;
                return Ok(!late);
            }
            // Without a journal what is freed is free at once.
            if !hopeful || fs.freeing.wait() && !fs.txns.is_journaled() {
                return Ok(hopeful);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use steadfs_rt::{sleep, spawn};
    use steadfs_vfs::{Cx, FileSystem, FsError};

    use super::*;
    use crate::test_world::{ROOT, World};

    fn fill(world: &World, name: &[u8]) -> (steadfs_base::InodeNo, u64) {
        let attr = FileSystem::mknod(&*world.fs, &world.cx, ROOT, name, 0o100_644, 0).unwrap();
        let (data, mut size) = (vec![7; 1 << 20], 0);
        loop {
            match world.fs.write(&world.cx, attr.ino, size, &data, false) {
                Ok(written) => size += written as u64,
                Err(error) => {
                    assert_eq!(error, FsError::NoSpace);
                    return (attr.ino, size);
                }
            }
        }
    }

    #[test]
    fn a_full_volume_has_room_again_when_the_kernel_lets_a_file_go_late() {
        for options in [&["-t", "ext4", "-m", "0"][..], &["-t", "ext2", "-m", "0"]] {
            let world = World::make(options, "32M");
            let free = || world.fs.statfs(&Cx::default()).unwrap().blocks_free;
            let empty = free();
            let (big, size) = fill(&world, b"big");
            FileSystem::unlink(&*world.fs, &world.cx, ROOT, b"big").unwrap();
            let fs = Arc::clone(&world.fs);
            let late = spawn("late", move || {
                sleep(Duration::from_millis(30));
                fs.forget(big, 1);
            });
            let (again, reached) = fill(&world, b"again");
            late.join();
            assert!(reached >= size - (2 << 20), "{reached} of {size}");
            FileSystem::unlink(&*world.fs, &world.cx, ROOT, b"again").unwrap();
            let fs = Arc::clone(&world.fs);
            let late = spawn("late", move || {
                sleep(Duration::from_millis(30));
                fs.forget(again, 1);
            });
            assert_eq!(free(), empty);
            late.join();
            world.close();
        }
    }

    #[test]
    fn a_file_that_stays_open_holds_nobody_up_for_long() {
        let world = World::make(&["-t", "ext4", "-m", "0"], "32M");
        let (big, _) = fill(&world, b"big");
        FileSystem::unlink(&*world.fs, &world.cx, ROOT, b"big").unwrap();
        let attr = FileSystem::mknod(&*world.fs, &world.cx, ROOT, b"f", 0o100_644, 0).unwrap();
        let began = now();
        for _ in 0..20 {
            let full = world
                .fs
                .write(&world.cx, attr.ino, 0, &vec![1; 1 << 20], false);
            assert_eq!(full, Err(FsError::NoSpace));
        }
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        world.fs.forget(big, 1);
        world.close();
    }
}
