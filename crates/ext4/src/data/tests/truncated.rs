//! The stored size of a file that is truncated while its data is delayed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_base::FileBlock;
use steadfs_rt::{sim, spawn, yield_now};

use crate::MountOptions;
use crate::disk::test_images::Image;
use crate::test_world::{ROOT, World};

/// The sizes that a commit of another task could have met while the file had no dirty data, which a sync waits for, in
/// the schedule of `seed`. Before the truncate, `written` blocks of the file are written.
fn stored_sizes(kind: &'static str, seed: u64, written: u64) -> BTreeSet<u64> {
    let run = move || {
        let world = World::make(&["-t", kind, "-b", "1024"], "8M");
        let ino = world.file(ROOT, b"file").unwrap().ino;
        let file = world.fs.by_number(ino, world.cx.tag).unwrap();
        let (fs, cx) = (&world.fs, &world.cx);
        let write = |at, len| fs.write_file(cx, &file, at, &vec![1; len], false);
        assert_eq!(write(0, 55), Ok(55));
        assert_eq!(write(1, 1024), Ok(1024));
        {
            let _one = file.lock_flush();
            fs.write_out_locked(&file, 0..written, cx.tag).unwrap();
        }
        let done = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (file, done) = (Arc::clone(&file), Arc::clone(&done));
            spawn("watcher", move || {
                let mut seen = BTreeSet::new();
                while !done.load(Ordering::Relaxed) {
                    if file.pages.dirty_bytes() == 0 {
                        seen.insert(file.core.read().size);
                    }
                    yield_now();
                }
                seen
            })
        };
        fs.truncate(cx, &file, 57).unwrap();
        done.store(true, Ordering::Relaxed);
        let seen = watcher.join();
        assert_eq!(file.core.read().size, 57);
        drop(file);
        world.close();
        seen
    };
    sim::run(sim::Config::new(seed), run).value
}

#[test]
fn a_truncate_stores_no_size_in_between() {
    for kind in ["ext4", "ext2"] {
        for written in [0, 1] {
            let sizes = |seed| stored_sizes(kind, seed, written);
            let seen: BTreeSet<u64> = (1..=40).flat_map(sizes).collect();
            assert_eq!(seen, BTreeSet::from([57]), "{kind}, {written} written");
        }
    }
}

/// Kernels before Linux 6.13 show what is behind the end of a file when it grows.
#[test]
fn a_truncate_leaves_no_old_bytes_behind_the_end() {
    for list in ["", "nodelalloc"] {
        for synced in [true, false] {
            let options = MountOptions::parse(list).unwrap();
            let image = Image::make(&["-t", "ext4", "-b", "4096"], "16M");
            let world = World::open_with(image, options);
            let ino = world.file(ROOT, b"file").unwrap().ino;
            let file = world.fs.by_number(ino, world.cx.tag).unwrap();
            let (fs, cx) = (&world.fs, &world.cx);
            fs.write_file(cx, &file, 0, &[7; 8192], false).unwrap();
            if synced {
                fs.fsync_inode(cx, &file, false).unwrap();
            }
            fs.truncate(cx, &file, 5000).unwrap();
            fs.sync_volume(cx).unwrap();
            let core = file.core.read().clone();
            let at = fs.map_block(&core, file.ino(), FileBlock(1), cx.tag);
            let at = fs.geo.block_size.offset_of(at.unwrap().unwrap());
            let block = fs.queue.read(at, 4096, cx.tag).unwrap();
            assert!(block[..904].iter().all(|&byte| byte == 7));
            assert!(
                block[904..].iter().all(|&byte| byte == 0),
                "{list:?}, {synced}"
            );
            drop(file);
            world.close();
        }
    }
}
