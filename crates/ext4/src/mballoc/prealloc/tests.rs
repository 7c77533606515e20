//! Files that grow alternately.

use std::sync::Arc;

use steadfs_base::{FileBlock, IoTag};
use steadfs_vfs::{FileSystem, FsError, SetAttr};

use super::PREALLOC_IDLE_PERIODS;
use crate::inode::Inode;
use crate::place::BlockPlace;
use crate::test_world::{ROOT, World};

const BLOCK: u64 = 1024;

fn files(world: &World, count: u8) -> Vec<Arc<Inode>> {
    let make = |n| {
        let attr = world.file(ROOT, &[b'a' + n]).unwrap();
        world.fs.by_number(attr.ino, IoTag::default()).unwrap()
    };
    (0..count).map(make).collect()
}

/// Appends a block to each file in turn, and syncs it.
fn grow_by_turns(world: &World, files: &[Arc<Inode>], turns: u64) {
    for turn in 0..turns {
        for (n, file) in files.iter().enumerate() {
            let data = vec![turn as u8 ^ n as u8; BLOCK as usize];
            let offset = file.size();
            let (fs, cx) = (&world.fs, &world.cx);
            fs.write_file(cx, file, offset, &data, false).unwrap();
            fs.fsync_inode(cx, file, false).unwrap();
        }
    }
}

/// Number of extents of a file.
fn pieces(world: &World, file: &Inode) -> usize {
    let core = file.core.read();
    let mut pieces = 0;
    let mut next = None;
    for n in 0..file.size() / BLOCK {
        let tag = IoTag::default();
        let mapped = world.fs.map(file.ino(), &core, FileBlock(n), tag).unwrap();
        let BlockPlace::Written(at) = mapped.place else {
            panic!("block {n}: {:?}", mapped.place);
        };
        pieces += usize::from(next != Some(at));
        next = Some(at.plus(1));
    }
    pieces
}

fn free(world: &World) -> u64 {
    world.fs.statfs(&world.cx).unwrap().blocks_free
}

#[test]
fn files_that_grow_alternately_have_few_extents() {
    for kind in ["ext4", "ext2"] {
        let world = World::make(&["-t", kind, "-b", "1024"], "32M");
        let files = files(&world, 6);
        grow_by_turns(&world, &files, 128);
        for file in &files {
            // Each extent is as long as the file before it, beginning with one block and four.
            assert!(pieces(&world, file) <= 10, "{}", pieces(&world, file));
        }
        assert!(world.fs.alloc.preallocated_blocks() > 0);
        world.close();
    }
}

#[test]
fn preallocated_blocks_count_as_free_and_are_free_after_a_crash() {
    let world = World::make(&["-t", "ext4", "-b", "1024"], "32M");
    let files = files(&world, 3);
    let before = free(&world);
    grow_by_turns(&world, &files, 25);
    assert!(world.fs.alloc.preallocated_blocks() > 0);
    // Each file may have a block of its map, too.
    let used = before - free(&world);
    assert!((75..=78).contains(&used), "{used}");
    let device = world.cut_power_now();
    let world = world.recover(device);
    assert_eq!(before - free(&world), used);
    assert_eq!(world.fs.alloc.preallocated_blocks(), 0);
    world.close();
}

#[test]
fn a_full_volume_releases_preallocations() {
    let fill = |turns| {
        let world = World::make(&["-t", "ext4", "-b", "1024", "-m", "0"], "32M");
        let some = files(&world, 4);
        grow_by_turns(&world, &some, turns);
        assert_eq!(world.fs.alloc.preallocated_blocks() > 0, turns > 1);
        let attr = world.file(ROOT, b"big").unwrap();
        let (data, mut size) = (vec![7; 1 << 20], 0);
        loop {
            match world.fs.write(&world.cx, attr.ino, size, &data, false) {
                Ok(written) => size += written as u64,
                Err(error) => break assert_eq!(error, FsError::NoSpace),
            }
        }
        // Reserved data has its blocks, to the last one.
        world.fs.sync_all(&world.cx).unwrap();
        assert_eq!(world.fs.alloc.preallocated_blocks(), 0);
        let left = free(&world);
        world.close();
        left
    };
    assert_eq!(fill(50), fill(1));
}

#[test]
fn a_preallocation_ends_with_its_file() {
    let world = World::make(&["-t", "ext4", "-b", "1024"], "32M");
    let kept = || world.fs.alloc.preallocated_blocks();
    let file = files(&world, 1).remove(0);
    let one = [Arc::clone(&file)];
    let size = SetAttr {
        size: Some(BLOCK),
        ..SetAttr::default()
    };
    for end in ["forgotten", "truncated", "unused", "trimmed", "unlinked"] {
        while kept() == 0 {
            assert!(file.size() < 100 * BLOCK, "before it was {end}");
            grow_by_turns(&world, &one, 1);
        }
        let ino = file.ino().into();
        let look_up = || {
            FileSystem::lookup(&*world.fs, &world.cx, ROOT, b"a").unwrap();
        };
        let forget = || world.fs.forget(ino, 1);
        match end {
            "truncated" => {
                FileSystem::setattr(&*world.fs, &world.cx, ino, &size).unwrap();
            }
            "forgotten" => {
                look_up();
                forget();
            }
            "unused" => {
                (0..=PREALLOC_IDLE_PERIODS).for_each(|_| world.fs.alloc.age_preallocs(&world.fs))
            }
            "trimmed" => assert!(
                world
                    .fs
                    .alloc
                    .trim(&world.fs, &world.cx, 0..u64::MAX, 1)
                    .unwrap()
                    > 0
            ),
            _ => {
                look_up();
                FileSystem::unlink(&*world.fs, &world.cx, ROOT, b"a").unwrap();
                forget();
            }
        }
        assert_eq!(kept(), 0, "after it was {end}");
    }
    drop((file, one));
    world.close();
}
