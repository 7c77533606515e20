//! Checkpoints disabled and enabled: the state after an unmount and a power cut, and what is refused.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::FaultDevice;
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FileSystem, FsError, ShutdownMode};

use crate::disk::checkpoint::CpFlags;
use crate::test_world::{ALL, ROOT, World};
use crate::{CacheSizes, F2fs, MountOptions};

fn write(world: &World, file: InodeNo, block: u64, fill: u8) -> Result<usize, FsError> {
    let at = block * 4096;
    world.fs.write(&world.cx, file, at, &[fill; 4096], false)
}

fn content(world: &World, name: &[u8]) -> Vec<u8> {
    let attr = world.lookup(ROOT, name).unwrap();
    let read = world.fs.read(&world.cx, attr.ino, 0, attr.size as usize);
    read.unwrap().to_vec()
}

/// A volume with some files, all of them durable.
fn world(features: &str, options: &str) -> World {
    let world = World::make_with(features, 128, options);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    for n in 0..300 {
        let file = world.file(dir, format!("file {n}").as_bytes()).unwrap().ino;
        if n % 7 == 0 {
            write(&world, file, n, n as u8).unwrap();
        }
    }
    let large = world.file(ROOT, b"large").unwrap().ino;
    for block in 0..2000 {
        write(&world, large, block, 1).unwrap();
    }
    world.fs.sync_all(&world.cx).unwrap();
    world
}

/// Changes all files and directories, and calls fsync now and then.
fn turn_over(world: &World, rounds: u64) {
    let mut random = Random::new(rounds);
    let dir = world.lookup(ROOT, b"dir").unwrap().ino;
    let large = world.lookup(ROOT, b"large").unwrap().ino;
    for n in 0..rounds {
        write(world, large, random.below(2000) as u64, 2).unwrap();
        match n % 10 {
            0 => drop(
                world
                    .fs
                    .unlink(&world.cx, dir, format!("file {}", n / 10).as_bytes()),
            ),
            3 => drop(world.file(dir, format!("new {n}").as_bytes()).unwrap()),
            5 => world.fs.fsync(&world.cx, large, n % 20 == 5).unwrap(),
            7 => world.fs.sync_all(&world.cx).unwrap(),
            _ => {}
        }
        if n % 50 == 0 {
            world.fs.segments().check();
        }
    }
}

#[test]
fn an_unmount_returns_to_the_last_checkpoint() {
    for (features, options) in [("", ""), (ALL, "alloc_mode=default,active_logs=4")] {
        let world = world(features, options);
        world
            .fs
            .remount(&world.cx, "checkpoint=disable:50%")
            .unwrap();
        let before = world.tree();
        let versions = world.fs.checkpoints.last().version;
        assert!(
            world
                .fs
                .checkpoints
                .last()
                .flags
                .contains(CpFlags::DISABLED)
        );
        assert!(world.fs.status().contains("CP: Disabled"));
        turn_over(&world, 1500);
        assert_ne!(world.tree(), before);
        assert!(content(&world, b"large").contains(&2));
        // The content of the device still is the last checkpoint's.
        world.judge_device();
        assert_eq!(world.fs.checkpoints.last().version, versions);
        let world = World::of(world.close(), options);
        assert_eq!(world.tree(), before, "{features}");
        assert!(content(&world, b"large").iter().all(|byte| *byte == 1));
        assert!(
            !world
                .fs
                .checkpoints
                .last()
                .flags
                .contains(CpFlags::DISABLED)
        );
        let _mounted = world.reopen();
    }
}

#[test]
fn a_power_cut_returns_to_the_last_checkpoint() {
    let world = world("", "");
    let before = world.tree();
    let world = World::of(world.close(), "checkpoint=disable:100%");
    assert!(world.fs.options().contains(",checkpoint=disable:"));
    turn_over(&world, 300);
    world.fs.shutdown(&world.cx, ShutdownMode::Sync).unwrap();
    assert!(world.fs.unmount().is_err(), "the volume stopped");
    for options in ["ro", "", "ro"] {
        let again = world.look_at_again(options);
        assert_eq!(again.tree(), before, "{options}");
        assert_eq!(again.fs.recovered().files(), 0);
        again.close();
    }
}

#[test]
fn enabling_checkpoints_makes_all_changes_durable() {
    let world = world(ALL, "");
    world
        .fs
        .remount(&world.cx, "checkpoint=disable:50%")
        .unwrap();
    turn_over(&world, 1500);
    let unusable = world.fs.unusable();
    assert!(
        unusable > 0,
        "blocks of the last checkpoint were invalidated"
    );
    let free = world.fs.usage().blocks_free;
    world.fs.remount(&world.cx, "checkpoint=enable").unwrap();
    assert!(world.fs.usage().blocks_free >= free + unusable - 100);
    assert!(!world.fs.options().contains("checkpoint=disable"));
    world.judge_device();
    let world = world.reopen();
    assert!(content(&world, b"large").contains(&2));
    // fsync makes data durable again.
    let large = world.lookup(ROOT, b"large").unwrap().ino;
    write(&world, large, 5, 9).unwrap();
    world.fs.fsync(&world.cx, large, false).unwrap();
    world.fs.shutdown(&world.cx, ShutdownMode::NoFlush).unwrap();
    let world = world.open_again();
    assert_eq!(content(&world, b"large")[5 * 4096], 9);
    world.close();
}

/// The volume is full in time, and keeps the blocks of the last checkpoint and those written since.
#[test]
fn a_volume_without_checkpoints_fills_up_in_time() {
    let world = world("", "");
    world
        .fs
        .remount(&world.cx, "checkpoint=disable:100%")
        .unwrap();
    let before = world.tree();
    let large = world.lookup(ROOT, b"large").unwrap().ino;
    let mut random = Random::new(1);
    let mut written = 0;
    loop {
        // In existing blocks, which uses new ones each time, and behind them.
        let block = match written % 2 {
            0 => random.below(2000) as u64,
            _ => 2000 + written,
        };
        match write(&world, large, block, 3) {
            Ok(_) => written += 1,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
        if written % 100 == 0 {
            let dir = world.lookup(ROOT, b"dir").unwrap().ino;
            match world.mkdir(dir, format!("more {written}").as_bytes()) {
                Ok(_) | Err(FsError::NoSpace) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(written > 8000, "{written}");
    for n in 0..300 {
        let dir = world.lookup(ROOT, b"dir").unwrap().ino;
        match world
            .fs
            .unlink(&world.cx, dir, format!("file {n}").as_bytes())
        {
            Ok(()) | Err(FsError::NoSpace) => {}
            Err(error) => panic!("{error}"),
        }
    }
    world.fs.segments().check();
    world.judge_device();
    world.fs.remount(&world.cx, "checkpoint=enable").unwrap();
    world.judge_device();
    assert_ne!(world.tree(), before);
    world.reopen().close();
}

#[test]
fn a_remount_to_ro_that_enables_checkpoints_keeps_all_changes() {
    let world = world("", "");
    let remount = |options: &str| world.fs.remount(&world.cx, options).unwrap();
    remount("checkpoint=disable:100%");
    let file = world.file(ROOT, b"later").unwrap().ino;
    write(&world, file, 0, 7).unwrap();
    remount("ro,checkpoint=enable");
    assert!(!world.fs.is_cp_disabled());
    let world = world.reopen();
    assert_eq!(content(&world, b"later"), [7; 4096]);
    world.close();
}

#[test]
fn too_much_unusable_space_is_refused() {
    let world = World::make("", 256);
    // Every other block of each segment is invalid.
    let file = world.file(ROOT, b"file").unwrap().ino;
    let other = world.file(ROOT, b"other").unwrap().ino;
    for block in 0..16000 {
        write(&world, file, block, 1).unwrap();
        write(&world, other, block, 1).unwrap();
        if block % 64 == 0 {
            world.fs.sync_all(&world.cx).unwrap();
        }
    }
    world.fs.unlink(&world.cx, ROOT, b"other").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let unusable = world.fs.unusable();
    assert!(unusable > 0);
    let said = world.fs.control().unwrap().read("f2fs/unusable").unwrap();
    assert_eq!(said, format!("{unusable}\n").into_bytes());
    // GC cannot move pinned files.
    world.pin_where_it_lies(file);
    let refused = world.fs.remount(&world.cx, "checkpoint=disable:3%");
    assert_eq!(refused.unwrap_err().errno(), 11);
    assert!(!world.fs.is_cp_disabled() && !world.fs.options().contains("checkpoint=disable"));
    unpin(&world, file);
    world.judge_now();
    // GC runs first and reduces the unusable space below the limit.
    world.fs.remount(&world.cx, "checkpoint=disable:0").unwrap();
    assert!(world.fs.is_cp_disabled());
    assert_eq!(
        world.fs.remount(&world.cx, "ro").unwrap_err().errno(),
        22,
        "not while checkpoints are disabled"
    );
    world.fs.remount(&world.cx, "checkpoint=enable").unwrap();
    assert!(!world.fs.is_cp_disabled());
    world.close();
}

fn unpin(world: &World, file: InodeNo) {
    let (number, argument) = (0x4004_f50d, 0u32.to_ne_bytes());
    let answer = world.fs.ioctl(&world.cx, file, number, &argument);
    assert!(answer.unwrap().is_some());
}

/// Other files do not pay for one that cannot be written.
#[test]
fn checkpoints_are_enabled_in_spite_of_data_that_cannot_be_written() {
    const BAD: u8 = 0xbb;
    let world = World::make("", 64);
    let files = [b"good", b"bad!"].map(|name| world.file(ROOT, name).unwrap().ino);
    files.iter().for_each(|file| world.forget(*file));
    let memory = world.close();
    let device = FaultDevice::new(Arc::clone(&memory));
    let options = MountOptions::parse("").unwrap();
    let (fs, _) = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20)).unwrap();
    let cx = Cx {
        admin: true,
        ..Cx::default()
    };
    fs.remount(&cx, "checkpoint=disable").unwrap();
    device.fail(|bio| {
        bio.bufs
            .iter()
            .any(|buf| buf.iter().all(|&byte| byte == BAD))
    });
    for (file, fill) in files.into_iter().zip([1, BAD]) {
        fs.write(&cx, file, 0, &[fill; 9 * 4096], false).unwrap();
    }
    fs.remount(&cx, "checkpoint=enable").unwrap();
    assert!(!fs.is_cp_disabled() && device.failures() > 0);
    // A power cut from here on leaves what the good file has.
    let after = World::of(Arc::new(memory.copy()), "");
    assert_eq!(content(&after, b"good"), [1; 9 * 4096]);
    after.close();
    assert!(
        fs.fsync(&cx, files[1], false).is_err(),
        "it knows its error"
    );
    device.fail(|_| false);
    fs.fsync(&cx, files[1], false).unwrap();
    fs.close().unwrap();
    let after = World::of(memory, "");
    assert_eq!(content(&after, b"bad!"), [BAD; 9 * 4096]);
    after.close();
}

/// Programs that know the addresses of a pinned file go on to use them.
#[test]
fn pinned_files_are_overwritten_in_place() {
    let world = world("", "");
    let large = world.lookup(ROOT, b"large").unwrap().ino;
    world.pin_where_it_lies(large);
    world.fs.sync_all(&world.cx).unwrap();
    let inode = world.fs.by_number(large, world.cx.tag).unwrap();
    let places = || {
        let place = |block| world.fs.slot(&inode, block, world.cx.tag).unwrap();
        [5, 6, 1999].map(place)
    };
    let before = places();
    let options = "checkpoint=disable:50%";
    world.fs.remount(&world.cx, options).unwrap();
    let reserved = world.fs.space.counts().reserved;
    for block in [5, 6, 1999] {
        write(&world, large, block, 9).unwrap();
    }
    assert_eq!(world.fs.space.counts().reserved, reserved);
    world.fs.fsync(&world.cx, large, false).unwrap();
    assert_eq!(places(), before);
    assert_eq!(content(&world, b"large")[1999 * 4096], 9);
    world.fs.remount(&world.cx, "checkpoint=enable").unwrap();
    assert_eq!(places(), before);
    drop(inode);
    world.reopen().close();
}
