//! Pinned files: where fallocate allocates them, which operations they allow, what a crash leaves.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::{FallocMode, FileSystem, FsError, SetAttr};

use crate::disk::{BLOCK_SIZE, BlockAddr};
use crate::format::{FormatOptions, image};
use crate::test_world::{ROOT, World};

const MIB: u64 = 1 << 20;
const ALLOCATE: FallocMode = FallocMode::Allocate { keep_size: false };
const KEEP_SIZE: FallocMode = FallocMode::Allocate { keep_size: true };

/// A volume with `per_section` segments per section.
fn world(mib: u64, per_section: u32) -> World {
    let format = FormatOptions {
        segments_per_section: per_section,
        ..FormatOptions::default()
    };
    World::of(image(mib << 20, &format).unwrap(), "")
}

fn pinned(world: &World, name: &[u8]) -> InodeNo {
    let file = world.file(ROOT, name).unwrap().ino;
    let (number, argument) = (0x4004_f50d, 1u32.to_ne_bytes());
    let answer = world.fs.ioctl(&world.cx, file, number, &argument);
    assert!(answer.unwrap().is_some());
    file
}

fn fallocate(
    world: &World,
    file: InodeNo,
    mode: FallocMode,
    start: u64,
    len: u64,
) -> Result<(), FsError> {
    world.fs.fallocate(&world.cx, file, mode, start, len)
}

fn write(world: &World, file: InodeNo, at: u64, data: &[u8]) -> Result<usize, FsError> {
    world.fs.write(&world.cx, file, at, data, false)
}

fn truncate(world: &World, file: InodeNo, size: u64) -> Result<(), FsError> {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    world.fs.setattr(&world.cx, file, &set).map(|_| ())
}

fn places(world: &World, file: InodeNo, blocks: u64) -> Vec<BlockAddr> {
    let inode = world.fs.by_number(file, world.cx.tag).unwrap();
    let place = |block| world.fs.slot(&inode, block, world.cx.tag).unwrap();
    (0..blocks).map(place).collect()
}

/// Each section of the file is a section of the volume.
fn assert_aligned(world: &World, places: &[BlockAddr]) {
    let layout = world.fs.layout();
    let size = layout.segments_per_section * crate::disk::SEGMENT_BLOCKS;
    for section in places.chunks(size as usize) {
        assert_eq!((section[0].0 - layout.main_start) % size, 0, "{section:?}");
        assert!(section.windows(2).all(|pair| pair[0].plus(1) == pair[1]));
    }
}

/// A volume whose blocks were used by other files and are free again.
fn used(mib: u64, per_section: u32) -> World {
    let world = world(mib, per_section);
    let file = world.file(ROOT, b"old").unwrap().ino;
    let mut at = 0;
    while write(&world, file, at, &[0xee; 1 << 20]).is_ok_and(|n| n == 1 << 20) {
        at += MIB;
    }
    world.fs.sync_all(&world.cx).unwrap();
    world.fs.unlink(&world.cx, ROOT, b"old").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    world
}

#[test]
fn fallocate_allocates_whole_sections() {
    for per_section in [1, 2, 3] {
        let world = used(192, per_section);
        let file = pinned(&world, b"file");
        let section = u64::from(per_section) * 2 * MIB;
        fallocate(&world, file, ALLOCATE, 0, section + 5000).unwrap();
        let attr = world.lookup(ROOT, b"file").unwrap();
        assert_eq!(attr.size, section + 5000);
        assert_eq!(attr.blocks * 512 / section, 2, "both sections");
        let blocks = 2 * section / BLOCK_SIZE as u64;
        let before = places(&world, file, blocks);
        assert_aligned(&world, &before);
        // The old content is not visible.
        let read = world.fs.read(&world.cx, file, 0, MIB as usize).unwrap();
        assert!(read.to_vec().iter().all(|byte| *byte == 0));
        // Again, and beyond: allocated blocks stay.
        fallocate(&world, file, KEEP_SIZE, 3 * section - 1, 1).unwrap();
        fallocate(&world, file, ALLOCATE, 0, 100).unwrap();
        let now = places(&world, file, blocks + section / BLOCK_SIZE as u64);
        assert_eq!(now[..blocks as usize], before);
        assert_aligned(&world, &now);
        world.fs.segments().check();
        world.judge_now();
        world.reopen().close();
    }
}

#[test]
fn a_pinned_file_is_written_in_its_blocks_and_truncated_by_sections() {
    let world = world(128, 1);
    let file = pinned(&world, b"file");
    assert!(matches!(write(&world, file, 0, b"x"), Err(FsError::Io(_))));
    fallocate(&world, file, ALLOCATE, 0, 4 * MIB).unwrap();
    let before = places(&world, file, 1024);
    write(&world, file, 4 * MIB - 3, b"end").unwrap();
    write(&world, file, 5000, &[7; 9000]).unwrap();
    assert!(matches!(
        write(&world, file, 4 * MIB - 1, b"xy"),
        Err(FsError::Io(_))
    ));
    world.fs.sync_all(&world.cx).unwrap();
    assert_eq!(places(&world, file, 1024), before, "in place");
    let refused = FsError::NotSupported("punching or zeroing a pinned file");
    for mode in [
        FallocMode::PunchHole,
        FallocMode::ZeroRange { keep_size: true },
    ] {
        assert_eq!(fallocate(&world, file, mode, 0, 4096), Err(refused.clone()));
    }
    for size in [3 * MIB, 4 * MIB - 1, 1] {
        let result = truncate(&world, file, size);
        assert!(matches!(result, Err(FsError::Invalid(_))), "{size}");
    }
    truncate(&world, file, 2 * MIB).unwrap();
    truncate(&world, file, 9 * MIB).unwrap();
    assert!(matches!(
        write(&world, file, 3 * MIB, b"hole"),
        Err(FsError::Io(_))
    ));
    assert_eq!(places(&world, file, 512), before[..512]);
    truncate(&world, file, 0).unwrap();
    world.fs.segments().check();
    world.judge_now();
    world.reopen().close();
}

#[test]
fn a_crash_after_fsync_finds_a_pinned_file_where_it_was() {
    let world = world(128, 2);
    let (first, second) = (pinned(&world, b"first"), pinned(&world, b"second"));
    world.fs.sync_all(&world.cx).unwrap();
    let checkpoints = world.fs.checkpoints.written();
    fallocate(&world, first, ALLOCATE, 0, 5 * MIB).unwrap();
    write(&world, first, 4 * MIB, b"here").unwrap();
    world.fs.fsync(&world.cx, first, false).unwrap();
    // Not synced: after a crash the file has no blocks, and the section is free.
    fallocate(&world, second, ALLOCATE, 0, MIB).unwrap();
    assert_eq!(
        world.fs.checkpoints.written(),
        checkpoints,
        "rolled forward"
    );
    let before = places(&world, first, 2048);
    let device = Arc::new(steadfs_block::MemDevice::from_bytes(&world.bytes()));
    let again = World::of(device, "");
    assert_eq!(again.lookup(ROOT, b"first").unwrap().size, 5 * MIB);
    assert_eq!(places(&again, first, 2048), before);
    assert_eq!(again.lookup(ROOT, b"second").unwrap().size, 0);
    let read = again.fs.read(&again.cx, first, 4 * MIB, 5).unwrap();
    assert_eq!(read.to_vec(), b"here\0");
    again.fs.segments().check();
    again.close();
    world.close();
}

#[test]
fn gc_frees_sections_for_a_pinned_file() {
    let world = world(128, 1);
    // Every fourth block of all sections stays valid.
    let files = [b"kept", b"gone"].map(|name| world.file(ROOT, name).unwrap().ino);
    let mut block = 0;
    loop {
        let data = [block as u8; 3 * 4096];
        let kept = write(&world, files[0], block * 4096, &data[..4096]);
        let gone = write(&world, files[1], block * 3 * 4096, &data);
        if kept.is_err() || gone.is_err() {
            break;
        }
        block += 1;
        if block % 128 == 0 {
            world.fs.sync_all(&world.cx).unwrap();
        }
    }
    world.fs.unlink(&world.cx, ROOT, b"gone").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    let free = world.fs.segments().sections_for_users();
    let usage = || world.fs.statfs(&world.cx).unwrap().blocks_free;
    let file = pinned(&world, b"file");
    let wanted = u64::from(free) * 2 * MIB + 10 * MIB;
    fallocate(&world, file, ALLOCATE, 0, wanted).unwrap();
    assert_aligned(&world, &places(&world, file, wanted / 4096));
    // More than the volume has: what was allocated before stays, and no data is lost.
    let result = fallocate(&world, file, ALLOCATE, 0, 1 << 30);
    assert_eq!(result, Err(FsError::NoSpace));
    assert_eq!(world.lookup(ROOT, b"file").unwrap().size, wanted);
    world.fs.segments().check();
    world.judge_now();
    let before = usage();
    world.fs.unlink(&world.cx, ROOT, b"file").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    assert!(usage() > before + wanted / 4096 - 1);
    for n in 0..block {
        let read = world.fs.read(&world.cx, files[0], n * 4096, 4096).unwrap();
        assert_eq!(read.to_vec(), [n as u8; 4096]);
    }
    world.reopen().close();
}
