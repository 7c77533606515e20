//! Remount to read-only and back, freeze and shutdown; judged by fsck.f2fs.

use std::sync::Arc;

use steadfs_cache::CacheSizes;
use steadfs_vfs::{FileSystem, FsError, ShutdownMode};

use crate::fs::F2fs;
use crate::lifecycle::VolumeTasks;
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

#[test]
fn read_only_and_back() {
    let world = World::make("extra_attr", 64);
    let file = world.file(ROOT, b"before").unwrap().ino;
    world
        .fs
        .write(&world.cx, file, 0, &[7; 9000], false)
        .unwrap();
    world.fs.remount(&world.cx, "ro").unwrap();
    assert!(world.fs.options().starts_with("ro"));
    assert_eq!(world.file(ROOT, b"no").err(), Some(FsError::ReadOnly));
    assert_eq!(
        world.fs.write(&world.cx, file, 0, b"no", false),
        Err(FsError::ReadOnly)
    );
    world.judge_device();
    assert_eq!(world.fs.read(&world.cx, file, 0, 9000).unwrap().len(), 9000);
    world.fs.remount(&world.cx, "rw").unwrap();
    world.file(ROOT, b"after").unwrap();
    world
        .fs
        .remount(&world.cx, "nocheckpoint_merge,noatime")
        .unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    world.fs.remount(&world.cx, "checkpoint_merge").unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    assert!(world.fs.remount(&world.cx, "active_logs=2").is_err());
    let world = world.reopen();
    assert_eq!(world.lookup(ROOT, b"before").unwrap().size, 9000);
    world.lookup(ROOT, b"after").unwrap();
    world.close();
}

#[test]
fn an_open_unlinked_file_prevents_a_remount_to_read_only() {
    let world = World::make("", 64);
    let attr = world
        .fs
        .mknod(&world.cx, ROOT, b"open", 0o100_644, 0)
        .unwrap();
    world.fs.unlink(&world.cx, ROOT, b"open").unwrap();
    assert_eq!(world.fs.remount(&world.cx, "ro"), Err(FsError::Busy));
    world
        .fs
        .write(&world.cx, attr.ino, 0, b"still", false)
        .unwrap();
    world.forget(attr.ino);
    world.fs.remount(&world.cx, "ro").unwrap();
    world.judge_device();
    world.fs.remount(&world.cx, "rw").unwrap();
    world.close();
}

#[test]
fn a_frozen_volume_refuses_changes_and_is_consistent() {
    let world = World::make("", 64);
    world.file(ROOT, b"one").unwrap();
    let control = world.fs.control().unwrap();
    control.write("f2fs/freeze", b"1\n").unwrap();
    assert_eq!(control.read("f2fs/freeze").unwrap(), b"1\n");
    world.judge_device();
    assert_eq!(world.mkdir(ROOT, b"two").err(), Some(FsError::Busy));
    world.lookup(ROOT, b"one").unwrap();
    assert!(control.write("f2fs/freeze", b"2").is_err());
    control.write("f2fs/freeze", b"0").unwrap();
    world.mkdir(ROOT, b"two").unwrap();
    // An unmount thaws.
    control.write("f2fs/freeze", b"1").unwrap();
    world.close();
}

#[test]
fn shutdown_modes_keep_what_they_wrote() {
    for (mode, kept) in [
        (ShutdownMode::Sync, true),
        (ShutdownMode::FlushLog, true),
        (ShutdownMode::NoFlush, false),
    ] {
        let world = World::make("", 64);
        world.file(ROOT, b"name").unwrap();
        world.fs.shutdown(&world.cx, mode).unwrap();
        assert!(matches!(
            world.file(ROOT, b"later").err(),
            Some(FsError::Stopped(_))
        ));
        assert!(matches!(
            world.fs.sync_all(&world.cx),
            Err(FsError::Stopped(_))
        ));
        assert!(world.fs.unmount().is_err(), "not everything was written");
        let again = world.open_again();
        assert_eq!(again.lookup(ROOT, b"name").is_ok(), kept, "{mode:?}");
        again.close();
    }
}

/// What fsync wrote after the checkpoint is in the overlay with `ro`, and part of the volume after `rw`.
#[test]
fn a_remount_applies_the_roll_forward_overlay() {
    let world = World::make("extra_attr", 64);
    let dir = world.mkdir(ROOT, b"dir").unwrap().ino;
    let old = world.file(dir, b"old").unwrap().ino;
    let write = |world: &World, file, fill: u8, len: usize| {
        world
            .fs
            .write(&world.cx, file, 0, &vec![fill; len], false)
            .unwrap();
        world.fs.fsync(&world.cx, file, false).unwrap();
    };
    write(&world, old, 1, 50_000);
    world.fs.sync_all(&world.cx).unwrap();
    let new = world.file(dir, b"new").unwrap().ino;
    write(&world, new, 2, 3_000_000);
    write(&world, old, 3, 70_000);
    world.fs.shutdown(&world.cx, ShutdownMode::NoFlush).unwrap();
    assert!(world.fs.unmount().is_err());
    let world = world.look_at_again("ro");
    assert!(world.fs.recovered().files() > 0);
    // The kernel knows this inode when it changes below.
    let held = world.fs.lookup(&world.cx, dir, b"new").unwrap();
    let before = world.tree();
    assert_eq!(before[&b"/dir/new"[..]].attr.size, 3_000_000);
    world.fs.remount(&world.cx, "rw").unwrap();
    assert_eq!(world.fs.recovered().files(), 0);
    let after = world.tree();
    assert_eq!(
        after.keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    for (path, seen) in &after {
        let was = &before[path];
        assert_eq!(
            (seen.attr.size, seen.attr.mtime),
            (was.attr.size, was.attr.mtime)
        );
    }
    let read = |file, at| world.fs.read(&world.cx, file, at, 1).unwrap().to_vec();
    assert_eq!(
        (read(held.ino, 2_999_999), read(old, 69_999)),
        (vec![2], vec![3])
    );
    world.judge_device();
    world.file(dir, b"more").unwrap();
    write(&world, held.ino, 5, 10);
    world.forget(held.ino);
    world.reopen().close();
}

#[test]
fn the_merge_task_follows_the_option() {
    let world = World::make("", 64);
    let prio = || {
        let control = world.fs.control().unwrap();
        String::from_utf8(control.read("f2fs/ckpt_thread_ioprio").unwrap()).unwrap()
    };
    assert!(world.fs.daemon.is_running());
    for (list, runs) in [
        ("nocheckpoint_merge", false),
        ("noatime", false),
        ("checkpoint_merge", true),
        ("checkpoint_merge", true),
        ("ro", false),
        ("checkpoint_merge", false),
        ("rw", true),
        ("ro,nocheckpoint_merge", false),
        ("rw", false),
        ("ro,checkpoint_merge", false),
        ("rw", true),
    ] {
        world.fs.remount(&world.cx, list).unwrap();
        assert_eq!(world.fs.daemon.is_running(), runs, "{list}");
        if list == "nocheckpoint_merge" {
            // The priority is kept for the next task.
            let control = world.fs.control().unwrap();
            control.write("f2fs/ckpt_thread_ioprio", b"rt,1").unwrap();
        }
        assert_eq!(prio(), "rt,1\n", "{list}");
    }
    let bad = "nocheckpoint_merge,active_logs=2";
    assert!(world.fs.remount(&world.cx, bad).is_err());
    assert!(world.fs.daemon.is_running() && world.fs.options().contains(",checkpoint_merge"));
    let control = world.fs.control().unwrap();
    control.write("f2fs/freeze", b"1").unwrap();
    assert!(world.fs.daemon.is_running(), "frozen, it has nothing to do");
    control.write("f2fs/freeze", b"0").unwrap();
    world.file(ROOT, b"file").unwrap();
    world.fs.shutdown(&world.cx, ShutdownMode::NoFlush).unwrap();
    assert!(world.fs.daemon.is_running(), "it tells those who ask");
    assert!(world.fs.request_checkpoint(world.cx.tag).is_err());
    drop(world);
    let reader = World::make_with("", 64, "ro");
    assert!(!reader.fs.daemon.is_running());
    reader.fs.remount(&reader.cx, "rw").unwrap();
    assert!(reader.fs.daemon.is_running());
    reader.close();
}

fn freeze(world: &World, value: &str) {
    let control = world.fs.control().unwrap();
    control.write("f2fs/freeze", value.as_bytes()).unwrap();
}

fn free(world: &World) -> (u64, u64) {
    let stat = world.fs.statfs(&world.cx).unwrap();
    (stat.blocks_free, stat.files_free)
}

#[test]
fn thaw_frees_files_unlinked_while_frozen() {
    let world = World::make("", 64);
    let fs = &world.fs;
    let empty = free(&world);
    let [gone, kept] = [b"gone", b"kept"].map(|name| {
        let attr = fs.mknod(&world.cx, ROOT, name, 0o100_644, 0).unwrap();
        let data = vec![7; 500_000];
        fs.write(&world.cx, attr.ino, 0, &data, false).unwrap();
        fs.unlink(&world.cx, ROOT, name).unwrap();
        attr.ino
    });
    freeze(&world, "1");
    let before = (world.bytes(), free(&world));
    fs.forget(gone, 1);
    assert_eq!(free(&world), before.1, "it is frozen");
    assert!(world.bytes() == before.0, "a frozen volume was written");
    freeze(&world, "0");
    let after = free(&world);
    assert!(
        after.0 > before.1.0 + 100,
        "{after:?} {before:?}",
        before = before.1
    );
    let data = fs.read(&world.cx, kept, 0, 500_000).unwrap();
    assert_eq!(data.to_vec(), vec![7; 500_000], "it is still in use");
    fs.forget(kept, 1);
    fs.sync_all(&world.cx).unwrap();
    assert_eq!(free(&world), empty);
    // No unlinked file keeps the volume writable.
    fs.remount(&world.cx, "ro").unwrap();
    world.judge_device();
    fs.remount(&world.cx, "rw").unwrap();
    // An unmount thaws, too.
    let attr = fs.mknod(&world.cx, ROOT, b"last", 0o100_644, 0).unwrap();
    fs.unlink(&world.cx, ROOT, b"last").unwrap();
    freeze(&world, "1");
    fs.forget(attr.ino, 1);
    let world = world.reopen();
    assert_eq!(free(&world), empty);
    world.close();
}

/// A remount whose options require a task that cannot be started changes neither options nor tasks.
#[test]
fn a_remount_fails_if_its_task_cannot_start() {
    let run = || {
        let off = "background_gc=off,nogc_merge,nodiscard,nocheckpoint_merge";
        let world = World::make_with("extra_attr", 64, off);
        let (fs, cx) = (&world.fs, &world.cx);
        let before = (fs.options(), fs.running_tasks());
        assert_eq!(before.1, VolumeTasks::NONE);
        steadfs_rt::sim::refuse_tasks(true);
        for option in [
            "checkpoint_merge",
            "background_gc=on",
            "background_gc=sync",
            "gc_merge",
            "discard",
            "noatime,background_gc=on,gc_merge,discard,checkpoint_merge",
        ] {
            let refused = fs.remount(cx, option);
            assert!(matches!(refused, Err(FsError::NoThread(_))), "{option}");
            assert_eq!((fs.options(), fs.running_tasks()), before, "{option}");
        }
        fs.remount(cx, "noatime").unwrap();
        let file = world.file(ROOT, b"file").unwrap().ino;
        fs.write(cx, file, 0, &[1; 100_000], false).unwrap();
        fs.request_checkpoint(cx.tag).unwrap();
        fs.unlink(cx, ROOT, b"file").unwrap();
        fs.sync_all(cx).unwrap();
        fs.remount(cx, "ro").unwrap();
        let refused = fs.remount(cx, "rw");
        assert!(matches!(refused, Err(FsError::NoThread(_))), "{refused:?}");
        assert!(fs.options().starts_with("ro"));
        steadfs_rt::sim::refuse_tasks(false);
        fs.remount(cx, "rw,checkpoint_merge").unwrap();
        assert!(fs.daemon.is_running());
        world.mkdir(ROOT, b"dir").unwrap();
        world.close();
    };
    steadfs_rt::sim::run(steadfs_rt::sim::Config::new(1), run);
}

/// The flusher of a volume that stays writable continues, even if no thread could be created.
#[test]
fn a_failed_remount_keeps_its_tasks() {
    let run = || {
        let world = World::make("extra_attr", 64);
        let (fs, cx) = (&world.fs, &world.cx);
        let used = fs.mknod(cx, ROOT, b"used", 0o100_644, 0).unwrap();
        fs.unlink(cx, ROOT, b"used").unwrap();
        steadfs_rt::sim::refuse_tasks(true);
        assert_eq!(fs.remount(cx, "ro"), Err(FsError::Busy));
        let file = world.file(ROOT, b"file").unwrap().ino;
        fs.write(cx, file, 0, &[7; 9000], false).unwrap();
        assert!(fs.writeback.dirty_bytes() > 0);
        steadfs_rt::sleep(std::time::Duration::from_secs(120));
        assert_eq!(fs.writeback.dirty_bytes(), 0);
        fs.forget(used.ino, 1);
        fs.remount(cx, "ro").unwrap();
        steadfs_rt::sim::refuse_tasks(false);
        fs.remount(cx, "rw").unwrap();
        world.close();
    };
    steadfs_rt::sim::run(steadfs_rt::sim::Config::new(1), run);
}

#[test]
fn without_a_flusher_only_a_read_only_mount_succeeds() {
    let run = || {
        let device = World::make("extra_attr", 64).close();
        let mount = |list: &str| {
            let options = MountOptions::parse(list).unwrap();
            let opened = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(16 << 20));
            opened.map(|(fs, _)| fs)
        };
        steadfs_rt::sim::refuse_tasks(true);
        let refused = mount("").err();
        assert!(matches!(refused, Some(FsError::NoThread(_))), "{refused:?}");
        mount("ro").unwrap().close().unwrap();
        steadfs_rt::sim::refuse_tasks(false);
        mount("").unwrap().close().unwrap();
    };
    steadfs_rt::sim::run(steadfs_rt::sim::Config::new(1), run);
}

/// Recovery writes through another queue: data read ahead in this one before must not be found afterwards.
#[test]
fn a_remount_drops_read_ahead_data() {
    let world = World::make("", 64);
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(ROOT, b"stream").unwrap().ino;
    fs.write(cx, file, 0, &vec![7; 4 << 20], false).unwrap();
    fs.remount(cx, "ro").unwrap();
    for n in 0..4 {
        fs.read(cx, file, n << 17, 1 << 17).unwrap();
    }
    assert!(fs.queue.stats().read_ahead.kept > 0);
    fs.remount(cx, "rw").unwrap();
    let ahead = fs.queue.stats().read_ahead;
    assert_eq!((ahead.kept, ahead.bytes), (0, 0));
    world.close();
}
