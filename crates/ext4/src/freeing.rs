//! A shortage of space that may be about to end.

use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Instant, now};
use steadfs_vfs::Result;

use crate::fs::Ext4;

/// How long a shortage waits at most.
const PATIENCE: Duration = Duration::from_secs(1);
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

    use steadfs_rt::{sim, sleep, spawn};
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
        for kind in ["ext4", "ext2"] {
            let run = move || let_go_late(World::make(&["-t", kind, "-m", "0"], "32M"));
            sim::run(sim::Config::new(1), run);
        }
    }

    fn let_go_late(world: World) {
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

    #[test]
    fn a_file_that_stays_open_holds_nobody_up_for_long() {
        let run = || stays_open(World::make(&["-t", "ext4", "-m", "0"], "32M"));
        sim::run(sim::Config::new(1), run);
    }

    fn stays_open(world: World) {
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
