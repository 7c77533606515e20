//! Remounts that recover, and the tasks that options ask for; judged by fsck.f2fs.

use steadfs_base::Corruption;
use steadfs_vfs::{FileSystem, FsError, ShutdownMode};

use crate::lifecycle::VolumeTasks;
use crate::test_world::{ROOT, World};

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

/// Between them other programs copy the device.
#[test]
fn nothing_is_written_between_freeze_and_thaw() {
    let world = World::make("extra_attr", 64);
    let (fs, cx) = (&world.fs, &world.cx);
    let file = world.file(ROOT, b"file").unwrap().ino;
    fs.write(cx, file, 0, &[7; 9000], false).unwrap();
    fs.freeze(cx).unwrap();
    let before = world.bytes();
    fs.read(cx, file, 0, 9000).unwrap();
    fs.readdir(cx, ROOT, 0, &mut |_| true).unwrap();
    fs.sync_all(cx).unwrap();
    assert_eq!(fs.trim(cx, 0, u64::MAX, 0), Err(FsError::Busy));
    let checked = fs.shutdown(cx, ShutdownMode::NeedCheck);
    assert_eq!(checked, Err(FsError::Busy));
    assert!(world.bytes() == before);
    fs.thaw();
    fs.sync_all(cx).unwrap();
    world.close();
}

#[test]
fn options_of_checkpoints_change_while_mounted() {
    let world = World::make("extra_attr", 64);
    let (fs, cx) = (&world.fs, &world.cx);
    fs.remount(cx, "ro").unwrap();
    fs.remount(cx, "rw").unwrap();
    world.file(ROOT, b"after").unwrap();
    fs.remount(cx, "nocheckpoint_merge,noatime").unwrap();
    fs.sync_all(cx).unwrap();
    fs.remount(cx, "checkpoint_merge").unwrap();
    fs.sync_all(cx).unwrap();
    assert!(fs.remount(cx, "active_logs=2").is_err());
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

/// A volume that corruption made read-only can be remounted `ro`, but does not become writable by that.
#[test]
fn a_remount_does_not_undo_the_effect_of_corruption() {
    let world = World::make("", 64);
    let (fs, cx) = (&world.fs, &world.cx);
    fs.remount(cx, "errors=remount-ro").unwrap();
    let corrupt = FsError::from(Corruption::new("is wrong"));
    assert!(fs.report_corruption::<()>(Err(corrupt)).is_err());
    let running = fs.running_tasks();
    for list in ["rw", "ro", "rw", "ro,noatime", "rw"] {
        match list.starts_with("ro") {
            true => fs.remount(cx, list).unwrap(),
            false => assert!(matches!(fs.remount(cx, list), Err(FsError::Stopped(_)))),
        }
        assert!(fs.options().starts_with("ro"), "{}", fs.options());
    }
    assert!(fs.options().contains("noatime"), "{}", fs.options());
    assert_eq!(fs.running_tasks(), running);
    assert!(matches!(world.file(ROOT, b"new"), Err(FsError::ReadOnly)));
    fs.unmount().unwrap();
}
