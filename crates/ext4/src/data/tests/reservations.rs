//! Delayed data on a volume that is almost full: nothing else uses its reservation.

use std::sync::Arc;

use steadfs_rt::{JoinHandle, Random, sim, spawn};
use steadfs_vfs::{Cx, FallocMode, FileSystem, FsError, SetAttr, SetXattr};

use crate::test_world::{ROOT, World};

/// Allocates blocks in some way until none is left.
type Taker = fn(&World, u32) -> Result<(), FsError>;

const TAKERS: [(&str, Taker); 4] = [
    ("mkdir", |world, n| {
        let name = format!("dir{n}");
        world.mkdir(ROOT, name.as_bytes()).map(drop)
    }),
    ("symlink", |world, n| {
        let (name, target) = (format!("link{n}"), [b'x'; 300]);
        let made = FileSystem::symlink(&*world.fs, &world.cx, ROOT, name.as_bytes(), &target);
        made.map(|attr| world.forget(attr.ino))
    }),
    ("setxattr", |world, n| {
        let file = world.file(ROOT, format!("file{n}").as_bytes())?.ino;
        let (name, value) = (b"user.large", [b'x'; 700]);
        FileSystem::setxattr(&*world.fs, &world.cx, file, name, &value, SetXattr::Any)
    }),
    ("fallocate", |world, n| {
        // Separate extents, so that the map needs blocks, too.
        let file = world.file(ROOT, format!("pieces{}", n / 100).as_bytes());
        let file = file.or_else(|_| world.lookup(ROOT, format!("pieces{}", n / 100).as_bytes()));
        let (file, at) = (file?.ino, u64::from(n % 100) * 8192);
        let keep = FallocMode::Allocate { keep_size: true };
        FileSystem::fallocate(&*world.fs, &world.cx, file, keep, at, 1024)
    }),
];

/// Acknowledged data finds its blocks, whatever else is allocated on a volume that is almost full.
#[test]
fn delayed_data_keeps_its_reservation() {
    for kind in ["ext4", "ext3", "ext2"] {
        for (what, take) in TAKERS {
            if (what, kind) == ("fallocate", "ext3") || (what, kind) == ("fallocate", "ext2") {
                continue; // only by extents
            }
            let run = move || keeps_its_promise(kind, take);
            sim::run(sim::Config::new(1), run);
        }
    }
}

fn keeps_its_promise(kind: &str, take: Taker) {
    let options = ["-t", kind, "-b", "1024", "-m", "0", "-N", "400"];
    let world = World::make(&options, "8M");
    let free = || world.fs.statfs(&Cx::default()).unwrap().blocks_free;
    let big = world.file(ROOT, b"big").unwrap().ino;
    let mut size = 0;
    while free() > 120 {
        let len = ((free() - 110) * 512).clamp(1024, 1 << 19) as usize;
        size += world
            .fs
            .write(&world.cx, big, size, &vec![7; len], false)
            .unwrap() as u64;
        world.fs.sync_all(&world.cx).unwrap();
    }
    let delayed = world.file(ROOT, b"delayed").unwrap().ino;
    let content = [5; 3000];
    assert_eq!(
        world.fs.write(&world.cx, delayed, 0, &content, false),
        Ok(3000)
    );
    let mut made = 0;
    let full = loop {
        match take(&world, made) {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full, FsError::NoSpace);
    assert!(made > 50, "{made}");
    world.fs.fsync(&world.cx, delayed, false).unwrap();
    let read = world.fs.read(&world.cx, delayed, 0, 4000).unwrap();
    assert_eq!(read.to_vec(), content);
    world.close();
}

/// Several tasks fill and empty a volume of many groups: acknowledged data finds its blocks at any time.
#[test]
fn syncs_find_space_while_other_tasks_allocate() {
    for seed in 1..=12 {
        let run = move || {
            let options = [
                "-t", "ext4", "-b", "1024", "-g", "512", "-m", "0", "-N", "400",
            ];
            let world = Arc::new(World::make(&options, "8M"));
            let tasks: Vec<_> = (0..6)
                .map(|task| {
                    let world = Arc::clone(&world);
                    spawn("writer", move || fill_and_empty(&world, seed * 100 + task))
                })
                .collect();
            tasks.into_iter().for_each(JoinHandle::join);
            Arc::into_inner(world).unwrap().close();
        };
        sim::run(sim::Config::new(seed), run);
    }
}

fn fill_and_empty(world: &World, seed: u64) {
    let mut random = Random::new(seed);
    let file = world
        .file(ROOT, format!("file{seed}").as_bytes())
        .unwrap()
        .ino;
    let (fs, cx) = (&*world.fs, &world.cx);
    let full = |result: Result<(), FsError>| match result {
        Ok(()) | Err(FsError::NoSpace) => {}
        Err(error) => panic!("{error}"),
    };
    for step in 0..300 {
        let at = random.below(1 << 21) as u64;
        match random.below(12) {
            0..7 => {
                let data = vec![3; 1 + random.below(20_000)];
                full(fs.write(cx, file, at, &data, false).map(drop));
            }
            7 => {
                let mode = FallocMode::Allocate { keep_size: true };
                full(FileSystem::fallocate(fs, cx, file, mode, at, 30_000));
            }
            8 => full(FileSystem::fallocate(
                fs,
                cx,
                file,
                FallocMode::PunchHole,
                at,
                100_000,
            )),
            9 => full(
                world
                    .mkdir(ROOT, format!("dir{seed}-{step}").as_bytes())
                    .map(drop),
            ),
            10 => {
                let set = SetAttr {
                    size: Some(at),
                    ..SetAttr::default()
                };
                full(FileSystem::setattr(fs, cx, file, &set).map(drop));
            }
            _ => FileSystem::fsync(fs, cx, file, false).unwrap(),
        }
    }
}
