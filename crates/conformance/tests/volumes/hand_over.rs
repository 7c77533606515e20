//! Handing a mounted volume over to a successor.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::{Bio, Fault, Op};
use steadfs_conformance::{Kind, World};
use steadfs_rt::sim;
use steadfs_vfs::FsError;

on_every!(
    files_in_use_stay_with_a_successor,
    a_successor_that_never_comes_loses_nothing,
    a_handed_over_volume_is_not_changed_any_more,
    a_frozen_volume_is_not_handed_over,
    a_read_only_volume_is_handed_over,
    a_hand_over_that_fails_leaves_the_volume_in_service,
);

/// A file that the caller refers to, without a name.
fn unlinked(world: &World, name: &[u8], data: &[u8]) -> InodeNo {
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let ino = fs.mknod(cx, root, name, 0o100_644, 0).unwrap().ino;
    world.write(ino, 0, data).unwrap();
    fs.unlink(cx, root, name).unwrap();
    ino
}

fn files_in_use_stay_with_a_successor(kind: &'static Kind) {
    let world = World::make(kind);
    let empty = world.free();
    let gone = unlinked(&world, b"gone", &[1; 100_000]);
    let kept = unlinked(&world, b"kept", &[2; 30_000]);
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let unnamed = fs.tmpfile(cx, root, 0o600).unwrap().ino;
    world.write(unnamed, 0, &[5; 20_000]).unwrap();
    let dir = fs.mkdir(cx, root, b"dir", 0o755).unwrap().ino;
    fs.rmdir(cx, root, b"dir").unwrap();
    // Two references, one of which was dropped.
    let named = fs.mknod(cx, root, b"named", 0o100_644, 0).unwrap().ino;
    fs.lookup(cx, root, b"named").unwrap();
    fs.lookup(cx, root, b"named").unwrap();
    world.forget(named);
    world.write(named, 0, &[3; 50_000]).unwrap();

    let mut world = world.hand_over().unwrap();
    for round in 0..2 {
        let (fs, cx, root) = (&world.fs, &world.cx, world.root);
        assert_eq!(world.read(gone, 0, 200_000), [1; 100_000]);
        assert_eq!(world.attr(gone).nlink, 0);
        assert_eq!(world.attr(dir).nlink, 0);
        world.write(kept, 30_000 + round * 10, &[4; 10]).unwrap();
        world.fsync(kept).unwrap();
        // Unlinked under the successor, while the references are those of the predecessor.
        if round == 0 {
            assert_eq!(world.content(b"named"), [3; 50_000]);
            fs.unlink(cx, root, b"named").unwrap();
        }
        assert_eq!(world.read(named, 0, 50_000), [3; 50_000]);
        world = world.hand_over().unwrap();
    }
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    fs.link(cx, unnamed, root, b"linked").unwrap();
    assert_eq!(world.content(b"linked"), [5; 20_000]);
    fs.unlink(cx, root, b"linked").unwrap();
    // Once it had a name, it does not get another one.
    assert_eq!(fs.link(cx, unnamed, root, b"again"), Err(FsError::NotFound));
    world.forget(unnamed);
    world.forget(named);
    assert_eq!(world.read(named, 0, 10), [3; 10], "one reference is left");
    let mut data = vec![2; 30_000];
    data.extend([4; 20]);
    assert_eq!(world.read(kept, 0, 40_000), data);
    for ino in [named, gone, kept, dir, unnamed] {
        world.forget(ino);
        assert!(world.fs.getattr(&world.cx, ino).is_err(), "{ino:?}");
    }
    world.sync();
    assert_eq!(world.free(), empty);
    assert!(!kind.lists_orphans(&world.close()));
}

fn a_successor_that_never_comes_loses_nothing(kind: &'static Kind) {
    let world = World::make(kind);
    let empty = world.free();
    unlinked(&world, b"gone", &[1; 1_000_000]);
    world.written(b"file", &[7; 70_000]).unwrap();
    world.fs.hand_over().unwrap();
    let there = world.cut_power();
    assert_eq!(there.content(b"file"), [7; 70_000]);
    // The unlinked file is freed.
    there.fs.unlink(&there.cx, there.root, b"file").unwrap();
    there.sync();
    assert_eq!(there.free(), empty);
    there.close();
}

fn a_handed_over_volume_is_not_changed_any_more(kind: &'static Kind) {
    let world = World::make(kind);
    let ino = world.written(b"file", &[7; 10_000]).unwrap();
    let shared = Arc::clone(&world.fs);
    shared.hand_over().unwrap();
    let before = world.device.bytes();
    assert!(world.write(ino, 0, &[8; 10]).is_err());
    assert!(world.mkdir(world.root, b"dir").is_err());
    assert!(shared.hand_over().is_err(), "once");
    world.forget(ino);
    let _ = world.fs.sync_all(&world.cx);
    shared.unmount().unwrap();
    assert!(world.device.bytes() == before);
}

fn a_frozen_volume_is_not_handed_over(kind: &'static Kind) {
    let world = World::make(kind);
    world.freeze("1").unwrap();
    assert_eq!(world.fs.hand_over(), Err(FsError::Busy));
    world.freeze("0").unwrap();
    world.written(b"file", &[7; 10]).unwrap();
    world.close();
}

fn a_read_only_volume_is_handed_over(kind: &'static Kind) {
    let world = World::make(kind);
    world.written(b"file", &[7; 10_000]).unwrap();
    world.fs.remount(&world.cx, "ro").unwrap();
    let before = world.device.bytes();
    let file = world.fs.lookup(&world.cx, world.root, b"file").unwrap().ino;
    let world = world.hand_over().unwrap();
    assert_eq!(world.read(file, 0, 20_000), [7; 10_000]);
    assert_eq!(world.write(file, 0, b"x"), Err(FsError::ReadOnly));
    assert!(world.device.bytes() == before);
    world.fs.remount(&world.cx, "rw").unwrap();
    world.fs.unlink(&world.cx, world.root, b"file").unwrap();
    assert_eq!(world.read(file, 0, 20_000), [7; 10_000]);
    world.forget(file);
    world.close();
}

/// A failed data write is reported, and the volume is in service until a hand-over succeeds.
fn a_hand_over_that_fails_leaves_the_volume_in_service(kind: &'static Kind) {
    // In simulated time, so that no task writes in the background.
    sim::run(sim::Config::new(1), move || hand_over_fails(kind));
}

fn hand_over_fails(kind: &'static Kind) {
    let world = World::make(kind);
    let gone = unlinked(&world, b"gone", &[1; 20_000]);
    world.sync();
    world.write(gone, 0, &[2; 20_000]).unwrap();
    let is_write = |bio: &Bio| bio.op == Op::Write;
    world.device.faults.next(1, is_write, Fault::Fail);
    let failed = world.fs.hand_over();
    assert!(matches!(failed, Err(FsError::Io(_))), "{failed:?}");
    world.written(b"file", &[3; 5000]).unwrap();
    assert_eq!(world.read(gone, 0, 30_000), [2; 20_000]);
    let world = world.hand_over().unwrap();
    assert_eq!(world.content(b"file"), [3; 5000]);
    assert_eq!(world.read(gone, 0, 30_000), [2; 20_000]);
    world.forget(gone);
    world.close();
}
