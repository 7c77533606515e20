//! Space and inodes of files that are unlinked while in use: after the last reference, an unmount or a power cut.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, World};
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::FsError;

on_every!(
    a_full_volume_has_space_again_after_a_late_forget,
    an_open_unlinked_file_delays_writers_for_a_second_at_most,
    an_unmount_frees_orphans,
);

on!((
    ext3 ext4_1k ext4_4k ext4_indirect ext4_unindexed ext4_orphan_file ext4_small_inodes ext4_large_inodes
    f2fs f2fs_all f2fs_two_logs f2fs_four_logs f2fs_not_inline f2fs_xattr_nodes f2fs_small_xattrs f2fs_lfs
) a_mount_after_a_power_cut_frees_orphans);

/// A volume without blocks that are reserved for root.
fn unreserved(kind: &'static Kind) -> World {
    let setup = Setup {
        mke2fs: &["-m", "0"],
        ..Setup::default()
    };
    World::with(kind, &setup)
}

fn fill(world: &World, name: &[u8]) -> (InodeNo, u64) {
    let made = world.fs.mknod(&world.cx, world.root, name, 0o100_644, 0);
    let ino = made.unwrap().ino;
    let (data, mut size) = (vec![7; 1 << 20], 0);
    loop {
        match world.write(ino, size, &data) {
            Ok(written) => size += written as u64,
            Err(error) => {
                assert_eq!(error, FsError::NoSpace);
                return (ino, size);
            }
        }
    }
}

fn a_full_volume_has_space_again_after_a_late_forget(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || late_forget(unreserved(kind)));
}

fn late_forget(world: World) {
    let forget_late = |ino| {
        let fs = Arc::clone(&world.fs);
        spawn("late", move || {
            sleep(Duration::from_millis(30));
            fs.forget(ino, 1);
        })
    };
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let empty = world.free().0;
    let (big, size) = fill(&world, b"big");
    fs.unlink(cx, root, b"big").unwrap();
    let late = forget_late(big);
    let (again, reached) = fill(&world, b"again");
    late.join();
    assert!(reached >= size - (2 << 20), "{reached} of {size}");
    fs.unlink(cx, root, b"again").unwrap();
    let late = forget_late(again);
    assert_eq!(world.free().0, empty);
    late.join();
    world.close();
}

fn an_open_unlinked_file_delays_writers_for_a_second_at_most(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || stays_open(unreserved(kind)));
}

fn stays_open(world: World) {
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let small = fs.mknod(cx, root, b"f", 0o100_644, 0).unwrap().ino;
    let (big, _) = fill(&world, b"big");
    fs.unlink(cx, root, b"big").unwrap();
    let began = now();
    for _ in 0..20 {
        let full = world.write(small, 0, &vec![1; 1 << 20]);
        assert_eq!(full, Err(FsError::NoSpace));
    }
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(2), "{waited:?}");
    world.forget(big);
    world.forget(small);
    world.close();
}

/// Open files without names.
fn orphans(world: &World, count: usize) -> Vec<InodeNo> {
    let new = |_| world.fs.tmpfile(&world.cx, world.root, 0o600).unwrap().ino;
    (0..count).map(new).collect()
}

fn an_unmount_frees_orphans(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let free = world.free();
    orphans(&world, 20);
    let file = fs.mknod(cx, root, b"file", 0o100_600, 0).unwrap().ino;
    world.write(file, 0, &[7; 50_000]).unwrap();
    fs.unlink(cx, root, b"file").unwrap();
    assert_eq!(world.attr(file).nlink, 0);
    let world = World::open(kind, world.close(), &Setup::default());
    assert_eq!(world.free(), free);
    world.close();
}

fn a_mount_after_a_power_cut_frees_orphans(kind: &'static Kind) {
    let setup = Setup {
        mib: 64,
        mke2fs: &["-N", "4096"],
        ..Setup::default()
    };
    let world = World::with(kind, &setup);
    let free = world.free();
    let held = orphans(&world, 700);
    for &ino in &held[..50] {
        world.write(ino, 0, &[7; 40_000]).unwrap();
    }
    for &ino in held.iter().skip(100).step_by(3) {
        world.forget(ino);
    }
    let found = world.after_power_cut(true, World::free);
    assert_eq!(found, free);
    world.close();
}
