//! Remount to read-only and back, shutdown, and hosts that refuse further tasks.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, TestDevice, World, judge};
use steadfs_rt::{Mutex, Rank, sim, sleep, spawn};
use steadfs_vfs::{FsError, SHUT_DOWN, SetAttr, ShutdownMode};

on_every!(
    writable_read_only_and_back,
    unlinked_files_in_use_keep_a_volume_writable,
    writers_lose_nothing_when_the_volume_becomes_read_only,
    without_further_tasks_a_volume_stays_read_only,
    a_refused_remount_needs_no_new_tasks,
    without_tasks_a_volume_is_mounted_for_reading_only,
    a_remount_drops_blocks_read_ahead,
);

// Those that a mount after a power cut makes consistent.
on!((
    ext3 ext4_1k ext4_4k ext4_indirect ext4_unindexed ext4_orphan_file ext4_small_inodes ext4_large_inodes
    f2fs f2fs_all f2fs_two_logs f2fs_four_logs f2fs_not_inline f2fs_xattr_nodes f2fs_small_xattrs f2fs_lfs
) shutdown_modes_keep_what_they_wrote);

fn remount(world: &World, options: &str) -> Result<(), FsError> {
    world.fs.remount(&world.cx, options)
}

/// Makes a file that is unlinked while in use.
fn unlinked(world: &World, name: &[u8]) -> InodeNo {
    let (fs, cx, root) = (&world.fs, &world.cx, world.root);
    let ino = fs.mknod(cx, root, name, 0o100_644, 0).unwrap().ino;
    fs.unlink(cx, root, name).unwrap();
    ino
}

fn writable_read_only_and_back(kind: &'static Kind) {
    let world = World::make(kind);
    let (fs, cx) = (&world.fs, &world.cx);
    let memory = &world.device.faults.memory;
    for round in 0..3 {
        let name = format!("file{round}").into_bytes();
        world.written(&name, &[7; 10_000]).unwrap();
        remount(&world, "ro,noatime").unwrap();
        judge(kind, memory);
        assert!(kind.is_marked_clean(memory));
        assert!(kind.mounts(memory).is_none_or(|mounts| mounts == round + 1));
        let shown = fs.options();
        assert!(shown.starts_with("ro,noatime"), "{shown}");
        assert_eq!(world.written(b"no", b""), Err(FsError::ReadOnly));
        let file = fs.lookup(cx, world.root, &name).unwrap().ino;
        assert_eq!(world.write(file, 0, b"x"), Err(FsError::ReadOnly));
        let perm = Some(0o600);
        let all = SetAttr::default();
        let set = world.set(file, SetAttr { perm, ..all });
        assert_eq!(set, Err(FsError::ReadOnly));
        world.fsync(file).unwrap();
        world.forget(file);
        assert_eq!(world.content(&name), [7; 10_000]);
        let before = world.device.bytes();
        world.sync();
        assert!(world.device.bytes() == before, "it was written");
        remount(&world, "rw,relatime").unwrap();
        let shown = fs.options();
        assert!(shown.starts_with("rw,relatime"), "{shown}");
    }
    world.written(b"last", b"content").unwrap();
    let setup = Setup {
        mount: "ro",
        ..Setup::default()
    };
    let world = World::open(kind, world.close(), &setup);
    assert_eq!(world.content(b"last"), b"content");
    assert_eq!(world.new_names().len(), 4);
    world.close();
}

fn unlinked_files_in_use_keep_a_volume_writable(kind: &'static Kind) {
    // In simulated time: the remount waits half a second for a file that is still in use.
    sim::run(sim::Config::new(1), move || remount_while_in_use(kind));
}

fn remount_while_in_use(kind: &'static Kind) {
    let world = World::make(kind);
    let ino = unlinked(&world, b"file");
    assert_eq!(remount(&world, "ro"), Err(FsError::Busy));
    world.written(b"still", b"writable").unwrap();
    assert_eq!(world.write(ino, 0, b"too"), Ok(3));
    // The kernel's FORGET arrives after the remount has begun.
    let late = Arc::clone(&world.fs);
    let task = spawn("late", move || {
        sleep(Duration::from_millis(50));
        late.forget(ino, 1);
    });
    remount(&world, "ro").unwrap();
    task.join();
    let memory = &world.device.faults.memory;
    judge(kind, memory);
    assert!(!kind.lists_orphans(memory));
    remount(&world, "rw").unwrap();
    world.reopen().close();
}

fn writers_lose_nothing_when_the_volume_becomes_read_only(kind: &'static Kind) {
    // All files of all writers fit.
    let setup = Setup {
        mib: if kind.block > 4096 { 512 } else { 128 },
        ..Setup::default()
    };
    let world = Arc::new(World::with(kind, &setup));
    let acknowledged: Arc<Mutex<Vec<(String, usize)>>> =
        Arc::new(Mutex::new(Rank::Leaf, Vec::new()));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (world, acknowledged) = (Arc::clone(&world), Arc::clone(&acknowledged));
            spawn("writer", move || {
                for n in 0..1000 {
                    let name = format!("w{writer}-{n}");
                    let len = 1 + n * 977 % 20_000;
                    match world.written(name.as_bytes(), &vec![writer; len]) {
                        Ok(_) => acknowledged.lock().push((name, len)),
                        Err(error) => {
                            assert_eq!(error, FsError::ReadOnly);
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    while acknowledged.lock().len() < 40 {
        sleep(Duration::from_millis(1));
    }
    remount(&world, "ro").unwrap();
    let copy = world.left_by_power_cut();
    for writer in writers {
        writer.join();
    }
    judge(kind, &copy);
    assert!(kind.is_marked_clean(&copy));
    let setup = Setup {
        mount: "ro",
        ..Setup::default()
    };
    let again = World::open(kind, copy, &setup);
    let acknowledged = acknowledged.lock().clone();
    assert!(!acknowledged.is_empty());
    for (name, len) in acknowledged {
        let found = again.content(name.as_bytes());
        assert_eq!(found.len(), len, "{name}");
        let writer = name.as_bytes()[1] - b'0';
        assert!(found.iter().all(|byte| *byte == writer), "{name}");
    }
    again.close();
    Arc::into_inner(world)
        .expect("all tasks have ended")
        .close();
}

fn shutdown_modes_keep_what_they_wrote(kind: &'static Kind) {
    for (mode, kept, has_data) in [
        (ShutdownMode::Sync, true, true),
        (ShutdownMode::FlushLog, true, false),
        (ShutdownMode::NoFlush, false, false),
    ] {
        let world = World::make(kind);
        world.written(b"before", &[7; 9000]).unwrap();
        world.sync();
        world.written(b"name", &[8; 9000]).unwrap();
        world.fs.shutdown(&world.cx, mode).unwrap();
        let stopped = FsError::Stopped(SHUT_DOWN.to_owned());
        assert!(stopped.is_stop());
        assert_eq!(world.file(world.root, b"later"), Err(stopped.clone()));
        assert_eq!(world.fs.sync_all(&world.cx), Err(stopped.clone()));
        let shown = world.errors();
        assert!(
            shown.starts_with("stopped: shut down on request\n"),
            "{shown}"
        );
        // Not everything was written.
        assert_eq!(world.fs.unmount(), Err(stopped));
        let copy = world.left_by_power_cut();
        let again = World::open(kind, copy, &Setup::default());
        assert_eq!(again.content(b"before"), [7; 9000]);
        let name = again.lookup(again.root, b"name");
        assert_eq!(name.is_ok(), kept, "{mode:?}");
        if has_data {
            assert_eq!(again.content(b"name"), [8; 9000]);
        }
        assert!(again.lookup(again.root, b"later").is_err());
        again.fs.unmount().unwrap();
        judge(kind, &again.device.faults.memory);
    }
}

/// Nothing is written without the tasks that write: if they cannot be started, the volume stays read-only.
fn without_further_tasks_a_volume_stays_read_only(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || {
        let world = World::make(kind);
        remount(&world, "ro").unwrap();
        sim::refuse_tasks(true);
        let refused = remount(&world, "rw");
        assert!(matches!(refused, Err(FsError::NoThread(_))), "{refused:?}");
        assert!(world.fs.options().starts_with("ro"));
        sim::refuse_tasks(false);
        remount(&world, "rw").unwrap();
        world.written(b"file", &[7; 9000]).unwrap();
        world.close();
    });
}

/// The flusher of a volume that stays writable continues, although no new task could be started.
fn a_refused_remount_needs_no_new_tasks(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || {
        let world = World::make(kind);
        let used = unlinked(&world, b"used");
        sim::refuse_tasks(true);
        assert_eq!(remount(&world, "ro"), Err(FsError::Busy));
        world.written(b"file", &[7; 9000]).unwrap();
        sleep(Duration::from_secs(120));
        sim::refuse_tasks(false);
        // Without a journal the flusher writes and does not FLUSH.
        let left = match kind.recovers {
            true => world.left_by_power_cut(),
            false => world.device.copy(),
        };
        let there = World::open(kind, left, &Setup::default());
        assert_eq!(there.content(b"file"), [7; 9000]);
        match kind.recovers {
            true => drop(there.close()),
            false => there.fs.unmount().unwrap(),
        }
        sim::refuse_tasks(true);
        world.forget(used);
        remount(&world, "ro").unwrap();
        sim::refuse_tasks(false);
        remount(&world, "rw").unwrap();
        world.close();
    });
}

/// A mount for writing that fails writes nothing, so the volume is still clean.
fn without_tasks_a_volume_is_mounted_for_reading_only(kind: &'static Kind) {
    sim::run(sim::Config::new(1), move || {
        let memory = World::make(kind).close();
        let before = memory.to_bytes();
        let device = TestDevice::new(memory);
        let mount = |mount| {
            let setup = Setup {
                mount,
                ..Setup::default()
            };
            World::try_open(kind, Arc::clone(&device), &setup)
        };
        sim::refuse_tasks(true);
        let refused = mount("").err();
        assert!(matches!(refused, Some(FsError::NoThread(_))), "{refused:?}");
        assert!(device.bytes() == before, "the volume was written");
        mount("ro").unwrap().fs.unmount().unwrap();
        assert!(device.bytes() == before, "the volume was written");
        sim::refuse_tasks(false);
        let world = mount("").unwrap();
        world.written(b"file", &[7; 9000]).unwrap();
        world.close();
    });
}

/// A replay or recovery writes through another queue: blocks that this queue read ahead before must not be used.
fn a_remount_drops_blocks_read_ahead(kind: &'static Kind) {
    let world = World::make(kind);
    let kept = || {
        let stats = world.control("io/stats.json");
        let (_, rest) = stats.split_once("\"read_ahead\":{").unwrap();
        let (ahead, _) = rest.split_once('}').unwrap();
        let number = |name: &str| -> u64 {
            let item = ahead.split(',').find_map(|item| {
                let (key, value) = item.split_once(':')?;
                (key.trim_matches('"') == name).then_some(value)
            });
            item.unwrap().parse().unwrap()
        };
        (number("kept"), number("bytes"))
    };
    let file = world.written(b"stream", &vec![7; 4 << 20]).unwrap();
    remount(&world, "ro").unwrap();
    for n in 0..4 {
        world.read(file, n << 17, 1 << 17);
    }
    assert!(kept().0 > 0);
    remount(&world, "rw").unwrap();
    assert_eq!(kept(), (0, 0));
    world.close();
}
