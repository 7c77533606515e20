//! The stored size of a file that is truncated while its data is delayed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_rt::{sim, spawn, yield_now};
use steadfs_vfs::{Cx, FileSystem, InodeFlags, SetAttr};

use super::super::MapTarget;
use super::{file, fsck, open, volume_with_file};
use crate::disk::Nid;
use crate::test_world::{ALL, ROOT, World};

/// The sizes that a checkpoint of another task could have met while the file had no dirty data, which a sync waits for,
/// in the schedule of `seed`. Before the truncate, `written` blocks of the file are written.
fn stored_sizes(seed: u64, written: u64) -> BTreeSet<u64> {
    let run = move || {
        let device = volume_with_file("extra_attr", 64);
        let fs = open(&device, "noinline_data");
        let (cx, inode) = (Cx::default(), file(&fs));
        let stored = fs.write_file(&cx, &inode, 0, &[1; 5000], false);
        assert_eq!(stored, Ok(5000));
        fs.write_out_upto(&inode, written, cx.tag).unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (inode, done) = (Arc::clone(&inode), Arc::clone(&done));
            spawn("watcher", move || {
                let mut seen = BTreeSet::new();
                while !done.load(Ordering::Relaxed) {
                    if inode.pages.dirty_bytes() == 0 {
                        seen.insert(inode.core.read().size);
                    }
                    yield_now();
                }
                seen
            })
        };
        // Steps of the truncate wait for it.
        let checkpoints = {
            let (fs, done) = (Arc::clone(&fs), Arc::clone(&done));
            spawn("checkpoints", move || {
                while !done.load(Ordering::Relaxed) {
                    fs.checkpoint_unmerged(cx.tag).unwrap();
                    yield_now();
                }
            })
        };
        yield_now();
        fs.truncate(&cx, &inode, 57).unwrap();
        done.store(true, Ordering::Relaxed);
        checkpoints.join();
        let seen = watcher.join();
        assert_eq!(inode.core.read().size, 57);
        drop(inode);
        fs.close().unwrap();
        drop(fs);
        fsck(&device);
        seen
    };
    sim::run(sim::Config::new(seed), run).value
}

#[test]
fn a_truncate_stores_no_size_in_between() {
    for written in [0, 1] {
        let seen: BTreeSet<u64> = (1..=8)
            .flat_map(|seed| stored_sizes(seed, written))
            .collect();
        assert_eq!(seen, BTreeSet::from([57]), "{written} written");
    }
}

/// Some kernels show what is behind the end of a file when it grows.
#[test]
fn a_compressed_or_atomic_truncate_leaves_no_old_bytes_behind_the_end() {
    const START_ATOMIC: u32 = 0xf501;
    const COMMIT_ATOMIC: u32 = 0xf502;
    // Noise is stored as it is.
    let mut random = steadfs_rt::Random::new(3);
    let noise: Vec<u8> = (0..16384).map(|_| random.next_u64() as u8 | 1).collect();
    for (compressed, content) in [
        (true, vec![7; 16384]),
        (true, noise.clone()),
        (false, noise),
    ] {
        let world = World::make_with(ALL, 64, "noinline_data,atomic_write");
        let (fs, cx) = (&world.fs, &world.cx);
        let file = world.file(ROOT, b"file").unwrap().ino;
        if compressed {
            fs.set_flags(cx, file, InodeFlags::COMPRESSED).unwrap();
        }
        fs.write(cx, file, 0, &content, false).unwrap();
        fs.fsync(cx, file, false).unwrap();
        let cut = SetAttr {
            size: Some(5000),
            ..SetAttr::default()
        };
        if !compressed {
            fs.ioctl(cx, file, START_ATOMIC, &[]).unwrap();
        }
        fs.setattr(cx, file, &cut).unwrap();
        if !compressed {
            fs.ioctl(cx, file, COMMIT_ATOMIC, &[]).unwrap();
        }
        fs.fsync(cx, file, false).unwrap();
        assert_eq!(
            fs.read(cx, file, 0, 9000).unwrap().to_vec(),
            content[..5000]
        );
        let inode = fs.inode(Nid(file.0 as u32), cx.tag).unwrap();
        let MapTarget::Block(addr) = fs.map(&inode, 1, 1, cx.tag).unwrap().target else {
            panic!("the last block is stored as it is");
        };
        let start = addr.0 as usize * 4096;
        let block = &world.bytes()[start..start + 4096];
        assert_eq!(block[..904], content[4096..5000]);
        assert!(block[904..].iter().all(|&byte| byte == 0), "{compressed}");
        drop(inode);
        world.close();
    }
}

#[test]
fn a_truncate_leaves_no_old_bytes_behind_the_end() {
    for synced in [true, false] {
        let device = volume_with_file("extra_attr", 64);
        let fs = open(&device, "noinline_data");
        let (cx, inode) = (Cx::default(), file(&fs));
        fs.write_file(&cx, &inode, 0, &[7; 8192], false).unwrap();
        if synced {
            fs.fsync_inode(&cx, &inode, false).unwrap();
        }
        fs.truncate(&cx, &inode, 5000).unwrap();
        fs.fsync_inode(&cx, &inode, false).unwrap();
        let MapTarget::Block(addr) = fs.map(&inode, 1, 1, cx.tag).unwrap().target else {
            panic!("the last block is mapped");
        };
        let mut block = [0; 4096];
        device.read(u64::from(addr.0) * 4096, &mut block);
        assert!(block[..904].iter().all(|&byte| byte == 7));
        assert!(block[904..].iter().all(|&byte| byte == 0), "{synced}");
        drop(inode);
        fs.close().unwrap();
        drop(fs);
        fsck(&device);
    }
}
