use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem};

use crate::test_world::{ROOT, World};

fn read(world: &World, path: &str) -> String {
    let bytes = world.fs.control().unwrap().read(path).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn write(world: &World, path: &str, value: &str) -> Result<(), String> {
    let control = world.fs.control().unwrap();
    control
        .write(path, value.as_bytes())
        .map_err(|e| e.to_string())
}

#[test]
fn every_file_is_readable_and_only_the_writable_ones_take_values() {
    let world = World::make("", 64);
    let control = world.fs.control().unwrap();
    for entry in control.entries() {
        assert!(read(&world, entry.path).ends_with('\n'), "{}", entry.path);
        let nonsense = control.write(entry.path, b"no such value");
        assert!(nonsense.is_err(), "{}", entry.path);
    }
    world.close();
}

#[test]
fn checkpoints_are_set_and_counted() {
    // In simulated time: no checkpoint of the background is among them.
    sim::run(sim::Config::new(1), set_and_count);
}

fn set_and_count() {
    let world = World::make("", 64);
    assert_eq!(read(&world, "f2fs/ckpt_thread_ioprio"), "be,3\n");
    write(&world, "f2fs/ckpt_thread_ioprio", "rt,3\n").unwrap();
    assert_eq!(read(&world, "f2fs/ckpt_thread_ioprio"), "rt,3\n");
    assert!(write(&world, "f2fs/ckpt_thread_ioprio", "idle,0").is_err());
    assert_eq!(read(&world, "f2fs/cp_interval"), "60\n");
    write(&world, "f2fs/cp_interval", "0x10").unwrap();
    assert_eq!(read(&world, "f2fs/cp_interval"), "16\n");
    assert!(write(&world, "f2fs/cp_interval", "0").is_err());

    assert_eq!(read(&world, "f2fs/idle_interval"), "5\n");
    write(&world, "f2fs/idle_interval", "0").unwrap();
    assert_eq!(read(&world, "f2fs/idle_interval"), "0\n");

    assert_eq!(read(&world, "f2fs/max_batch_time"), "15000\n");
    write(&world, "f2fs/max_batch_time", "0").unwrap();
    assert_eq!(read(&world, "f2fs/max_batch_time"), "0\n");
    assert!(write(&world, "f2fs/max_batch_time", "60000001").is_err());

    assert_eq!(read(&world, "f2fs/min_fsync_blocks"), "8\n");
    write(&world, "f2fs/min_fsync_blocks", "0").unwrap();
    assert_eq!(read(&world, "f2fs/min_fsync_blocks"), "0\n");
    write(&world, "f2fs/reclaim_segments", "3").unwrap();
    assert_eq!(read(&world, "f2fs/reclaim_segments"), "3\n");

    let cx = Cx::default();
    world.fs.mkdir(&cx, ROOT, b"dir", 0o755).unwrap();
    world.fs.fsync(&cx, ROOT, false).unwrap();
    // The counters are updated after the waiters are answered.
    world.fs.daemon.flush(&world.fs);
    let status = read(&world, "f2fs/status");
    for line in [
        "CP merge:\n  - Queued :    0\n  - Issued :    1\n  - Total :    1\n",
        "  - checkpoint for non regular file : 1\n",
        "Discard: 0 blocks",
    ] {
        assert!(status.contains(line), "{line} is not in {status}");
    }
    world.close();
}

/// Settings belong to the mount, not to the tasks that start and stop.
#[test]
fn settings_outlive_their_tasks() {
    let world = World::make_with("", 64, "nocheckpoint_merge,background_gc=off");
    let set = [
        ("f2fs/ckpt_thread_ioprio", "rt,2"),
        ("f2fs/gc_min_sleep_time", "1234"),
        ("f2fs/max_victim_search", "77"),
        ("f2fs/cp_interval", "11"),
        ("f2fs/idle_interval", "2"),
        ("f2fs/max_batch_time", "500"),
        ("f2fs/fsync_cluster_files", "8"),
    ];
    for (path, value) in set {
        write(&world, path, value).unwrap();
    }
    for list in ["checkpoint_merge,background_gc=on", "ro", "rw"] {
        world.fs.remount(&world.cx, list).unwrap();
        for (path, value) in set {
            assert_eq!(read(&world, path), format!("{value}\n"), "{list}");
        }
    }
    world.close();
}
