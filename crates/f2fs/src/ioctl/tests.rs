//! ioctls by the kernel's numbers, checked by fsck.f2fs.

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, FsError};

use crate::disk::BlockAddr;
use crate::test_world::{ROOT, World};

const GARBAGE_COLLECT: u32 = 0x4004_f506;
const WRITE_CHECKPOINT: u32 = 0xf507;
const DEFRAGMENT: u32 = 0xc010_f508;
const GARBAGE_COLLECT_RANGE: u32 = 0x4018_f50b;
const GET_FEATURES: u32 = 0x8004_f50c;
const SET_PIN_FILE: u32 = 0x4004_f50d;
const GET_PIN_FILE: u32 = 0x8004_f50e;
const PRECACHE_EXTENTS: u32 = 0xf50f;

fn call(
    world: &World,
    file: InodeNo,
    number: u32,
    input: &[u8],
) -> Result<(i32, Vec<u8>), FsError> {
    let answer = world.fs.ioctl(&world.cx, file, number, input)?;
    let answer = answer.expect("known");
    Ok((answer.result, answer.output))
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Two files that share every segment, block by block; one of them is removed.
fn fragmented(world: &World, blocks: u64) -> InodeNo {
    let files = [b"kept", b"gone"].map(|name| world.file(ROOT, name).unwrap().ino);
    for block in 0..blocks {
        for file in files {
            let data = [block as u8; 4096];
            world
                .fs
                .write(&world.cx, file, block * 4096, &data, false)
                .unwrap();
            world.fs.fsync(&world.cx, file, true).unwrap();
        }
    }
    world.fs.unlink(&world.cx, ROOT, b"gone").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    files[0]
}

fn places(world: &World, file: InodeNo, blocks: u64) -> Vec<BlockAddr> {
    let inode = world.fs.by_number(file, world.cx.tag).unwrap();
    let place = |block| world.fs.slot(&inode, block, world.cx.tag).unwrap();
    (0..blocks).map(place).collect()
}

fn check(world: &World, file: InodeNo, blocks: u64) {
    for block in 0..blocks {
        let read = world.fs.read(&world.cx, file, block * 4096, 4096).unwrap();
        assert_eq!(read.to_vec(), [block as u8; 4096]);
    }
    world.fs.segments().check();
    world.judge_now();
}

#[test]
fn gc_empties_all_sections_without_pinned_files() {
    let world = World::make("", 128);
    let file = fragmented(&world, 1000);
    assert_eq!(
        call(&world, file, SET_PIN_FILE, &1u32.to_ne_bytes()),
        Err(FsError::FileTooBig),
        "it has blocks"
    );
    world.pin_where_it_lies(file);
    let pinned = places(&world, file, 1000);
    for _ in 0..4 {
        let _ = call(&world, file, GARBAGE_COLLECT, &1u32.to_ne_bytes());
    }
    assert_eq!(places(&world, file, 1000), pinned);
    // Each attempt counts.
    let (failures, output) = call(&world, file, GET_PIN_FILE, &[]).unwrap();
    assert!(failures > 0);
    assert_eq!(output, (failures as u32).to_ne_bytes());
    // Written in place whatever `ipu_policy` is.
    world.fs.set_gc("ipu_policy", "0").unwrap();
    world
        .fs
        .write(&world.cx, file, 4096, &[1; 4096], false)
        .unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    assert_eq!(places(&world, file, 1000), pinned);
    // (fsck.f2fs resets the count and reports it.)
    assert_eq!(
        call(&world, file, SET_PIN_FILE, &0u32.to_ne_bytes()),
        Ok((0, vec![]))
    );
    let mut cleaned = 0;
    loop {
        match call(&world, file, GARBAGE_COLLECT, &1u32.to_ne_bytes()) {
            Ok(_) => cleaned += 1,
            Err(FsError::NoData) => break,
            Err(FsError::Again(_)) => {}
            Err(error) => panic!("{error}"),
        }
        if cleaned > 20 {
            // GC never finishes: it makes a new partly valid section of each.
            break;
        }
    }
    assert!(cleaned > 0, "{cleaned}");
    assert_ne!(places(&world, file, 1000), pinned);
    check(&world, file, 1000);
    world.reopen().close();
}

#[test]
fn a_file_that_blocks_gc_too_often_is_unpinned() {
    let world = World::make("", 128);
    let file = fragmented(&world, 600);
    world.fs.set_gc("gc_pin_file_thresh", "3").unwrap();
    world.pin_where_it_lies(file);
    for _ in 0..8 {
        let _ = call(&world, file, GARBAGE_COLLECT, &1u32.to_ne_bytes());
        world.fs.segments().forget_pins();
    }
    assert_eq!(call(&world, file, GET_PIN_FILE, &[]).unwrap().0, 0);
    check(&world, file, 600);
    assert!(world.fs.set_gc("gc_pin_file_thresh", "65536").is_err());
    world.close();
}

#[test]
fn a_fragmented_file_becomes_contiguous() {
    let world = World::make("extra_attr", 128);
    let file = fragmented(&world, 500);
    let follow = |places: &[BlockAddr]| places.windows(2).filter(|p| p[0].plus(1) == p[1]).count();
    assert!(follow(&places(&world, file, 500)) < 100);
    let (_, output) = call(&world, file, DEFRAGMENT, &words(&[0, 1 << 40])).unwrap();
    assert_eq!(output, words(&[0, 500 * 4096]));
    assert!(follow(&places(&world, file, 500)) > 490);
    let (_, output) = call(&world, file, DEFRAGMENT, &words(&[0, 100 * 4096])).unwrap();
    assert_eq!(output, words(&[0, 0]), "it lies well");
    assert!(call(&world, file, DEFRAGMENT, &words(&[1, 4096])).is_err());
    assert!(call(&world, ROOT, DEFRAGMENT, &words(&[0, 4096])).is_err());
    assert_eq!(call(&world, file, PRECACHE_EXTENTS, &[]), Ok((0, vec![])));
    check(&world, file, 500);
    world.close();
}

#[test]
fn gc_empties_the_sections_of_a_range() {
    let world = World::make("", 128);
    let file = fragmented(&world, 600);
    let before = places(&world, file, 600);
    let start = u64::from(world.fs.layout().main_start);
    let blocks = u64::from(world.fs.layout().main_blocks());
    for wrong in [
        [0, start, 0],
        [0, start - 1, 5],
        [0, start, blocks + 1],
        [0, u64::MAX, 2],
    ] {
        let result = call(&world, file, GARBAGE_COLLECT_RANGE, &words(&wrong));
        assert!(matches!(result, Err(FsError::Invalid(_))), "{wrong:?}");
    }
    let first = u64::from(before[0].0);
    call(&world, file, GARBAGE_COLLECT_RANGE, &words(&[1, first, 1])).unwrap();
    let after = places(&world, file, 600);
    let section = |addr: &BlockAddr| (u64::from(addr.0) - start) / 512;
    let cleaned = section(&before[0]);
    assert!(after.iter().all(|addr| section(addr) != cleaned));
    check(&world, file, 600);
    world.close();
}

#[test]
fn unsupported_ioctls_fail_and_root_is_required() {
    let mut world = World::make("extra_attr", 64);
    let file = world.file(ROOT, b"file").unwrap().ino;
    let (_, features) = call(&world, file, GET_FEATURES, &[]).unwrap();
    assert_eq!(features, world.fs.superblock.features().0.to_ne_bytes());
    call(&world, file, WRITE_CHECKPOINT, &[]).unwrap();
    for refused in [
        0xf501,
        0xf502,
        0xf505,
        0xc020_f509,
        0x4008_f50a,
        0x4008_f510,
    ] {
        let result = call(&world, file, refused, &[0; 32]);
        assert_eq!(result.unwrap_err().errno(), 95, "{refused:#x}");
    }
    assert_eq!(world.fs.ioctl(&world.cx, file, 0xf5ff, &[]), Ok(None));
    assert_eq!(world.fs.ioctl(&world.cx, file, 0x1234, &[]), Ok(None));
    assert!(
        call(&world, file, GARBAGE_COLLECT, &[]).is_err(),
        "no argument"
    );
    world.cx = Cx {
        uid: 1000,
        admin: false,
        ..world.cx
    };
    for number in [
        GARBAGE_COLLECT,
        WRITE_CHECKPOINT,
        GARBAGE_COLLECT_RANGE,
        DEFRAGMENT,
    ] {
        let result = call(&world, file, number, &[0; 24]);
        assert_eq!(result, Err(FsError::NotPermitted));
    }
    assert_eq!(
        call(&world, file, SET_PIN_FILE, &[0; 4]),
        Err(FsError::Access)
    );
    world.cx = Cx { uid: 0, ..world.cx };
    // Root in a container.
    let cleaned = call(&world, file, GARBAGE_COLLECT, &[0; 4]);
    assert_eq!(cleaned, Err(FsError::NotPermitted));
    world.fs.remount(&world.cx, "ro").unwrap();
    assert_eq!(
        call(&world, file, SET_PIN_FILE, &[0; 4]),
        Err(FsError::ReadOnly)
    );
    assert!(call(&world, file, GET_FEATURES, &[]).is_ok());
    world.close();
}
