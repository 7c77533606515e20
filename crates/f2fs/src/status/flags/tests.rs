//! Each bit of `sb_status` and `cp_status` is set exactly while its condition holds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_block::{Device, DeviceModel, MemDevice, ModelDevice};
use steadfs_rt::{sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, ShutdownMode};

use crate::disk::{DiskError, Structure};
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, F2fs, MountOptions};

/// The values of the two files, and the names in `status`.
fn shown(fs: &F2fs) -> (u32, u32, String) {
    let control = fs.control().unwrap();
    let read = |path| String::from_utf8(control.read(path).unwrap()).unwrap();
    let number = |path| u32::from_str_radix(read(path).trim_end(), 16).unwrap();
    let status = read("f2fs/status");
    let second = status.lines().nth(1).unwrap();
    let names = second.strip_prefix("[SBI: ").unwrap_or("]");
    let names = names.strip_suffix(']').unwrap().to_owned();
    let [sb, cp] = ["f2fs/stat/sb_status", "f2fs/stat/cp_status"].map(number);
    (sb, cp, names)
}

/// The bits of `sb_status`; their names must be those in `status`.
fn bits(fs: &F2fs, names: &str) -> u32 {
    let (bits, _, seen) = shown(fs);
    assert_eq!(seen, names);
    bits
}

#[test]
fn bits_are_set_while_their_condition_holds() {
    // In simulated time: no background checkpoint is written meanwhile.
    sim::run(sim::Config::new(1), || {
        let world = World::make("", 64);
        let (fs, cx) = (&world.fs, &world.cx);
        // CP_COMPACT_SUM_FLAG and CP_CRC_RECOVERY_FLAG.
        assert_eq!(shown(fs), (0, 0x44, String::new()));
        world.file(ROOT, b"file").unwrap();
        assert_eq!(bits(fs, "fs_dirty"), 1);
        fs.sync_all(cx).unwrap();
        assert_eq!(bits(fs, ""), 0);

        fs.control().unwrap().write("f2fs/freeze", b"1").unwrap();
        assert_eq!(bits(fs, "freezefs"), 0x4000);
        fs.control().unwrap().write("f2fs/freeze", b"0").unwrap();
        assert_eq!(bits(fs, ""), 0);

        fs.remount(cx, "checkpoint=disable").unwrap();
        // CP_DISABLED_FLAG.
        assert_eq!(shown(fs), (0x100, 0x1044, "cp_disabled".to_owned()));
        world.file(ROOT, b"later").unwrap();
        assert_eq!(bits(fs, "fs_dirty cp_disabled"), 0x101);
        fs.remount(cx, "checkpoint=enable").unwrap();
        assert_eq!(shown(fs), (0, 0x44, String::new()));

        fs.remount(cx, "ro").unwrap();
        // CP_UMOUNT_FLAG.
        assert_eq!(shown(fs), (0, 0x45, String::new()));
        fs.remount(cx, "rw").unwrap();
        assert_eq!(shown(fs), (0, 0x44, String::new()));
        fs.close().unwrap();
        assert_eq!(shown(fs), (2, 0x45, "closing".to_owned()));
    });
}

#[test]
fn bits_report_errors() {
    sim::run(sim::Config::new(1), || {
        let world = World::make("", 64);
        let fs = &world.fs;
        let wrong = DiskError::entry(Structure::Node, 1, "of a test");
        fs.record_corruption(&FsError::from(wrong));
        assert_eq!(bits(fs, "need_fsck sb_dirty"), 0x14);
        fs.write_errors_now().unwrap();
        assert_eq!(bits(fs, "need_fsck"), 4);
        world.file(ROOT, b"file").unwrap();
        fs.sync_all(&world.cx).unwrap();
        // CP_FSCK_FLAG, which the next mount finds.
        assert_eq!(shown(fs), (4, 0x54, "need_fsck".to_owned()));
        fs.close().unwrap();
        let again = world.open_again();
        let fs = &again.fs;
        assert_eq!(shown(fs), (4, 0x54, "need_fsck".to_owned()));
        fs.close().unwrap();

        let world = World::make("", 64);
        let (lost, order) = world.fs.node_writes.begin();
        drop((order, lost));
        assert_eq!(bits(&world.fs, "need_cp"), 0x20);
        assert!(world.fs.close().is_err());
    });
}

/// A volume after a shutdown, with an fsync after the last checkpoint.
fn cut_off() -> World {
    let world = World::make("", 64);
    let (fs, cx) = (&world.fs, &world.cx);
    let ino = world.file(ROOT, b"file").unwrap().ino;
    fs.sync_all(cx).unwrap();
    fs.write(cx, ino, 0, &[7; 90_000], false).unwrap();
    fs.fsync(cx, ino, false).unwrap();
    world.file(ROOT, b"lost").unwrap();
    fs.shutdown(cx, ShutdownMode::NoFlush).unwrap();
    fs.write_errors_now().unwrap();
    // CP_ERROR_FLAG.
    assert_eq!(shown(fs), (0x41, 0x4c, "fs_dirty shutdown".to_owned()));
    assert!(fs.close().is_err());
    world
}

#[test]
fn recovered_stays_set_until_unmount() {
    sim::run(sim::Config::new(1), || {
        let world = cut_off();
        let reader = world.look_at_again("ro");
        assert_eq!(bits(&reader.fs, "recovered"), 0x80);
        reader.fs.remount(&reader.cx, "rw").unwrap();
        assert_eq!(bits(&reader.fs, "recovered"), 0x80);
        reader.file(ROOT, b"more").unwrap();
        assert_eq!(bits(&reader.fs, "fs_dirty recovered"), 0x81);
        let world = World::of(reader.close(), "");
        assert_eq!(bits(&world.fs, ""), 0);
        // Unlinked and open at the power cut: the next mount frees it.
        let (fs, cx) = (&world.fs, &world.cx);
        fs.mknod(cx, ROOT, b"open", 0o100_644, 0).unwrap();
        fs.unlink(cx, ROOT, b"open").unwrap();
        fs.sync_all(cx).unwrap();
        // CP_ORPHAN_PRESENT_FLAG.
        assert_eq!(shown(fs), (0, 0x46, String::new()));
        fs.shutdown(cx, ShutdownMode::NoFlush).unwrap();
        assert!(fs.close().is_err());
        let world = world.open_again();
        assert_eq!(shown(&world.fs), (0x80, 0x44, "recovered".to_owned()));
        world.close();
    });
}

/// Observed by another task: a checkpoint in flight to a slow device, and the recovery of a remount.
#[test]
fn bits_are_set_while_a_checkpoint_is_in_flight() {
    sim::run(sim::Config::new(1), || {
        let world = cut_off();
        let memory = Arc::new(MemDevice::from_bytes(&world.bytes()));
        let model = DeviceModel {
            bytes_per_second: 100 << 20,
            latency: Duration::from_millis(20),
            flush: Duration::from_millis(20),
            depth: 4,
        };
        let device = Arc::new(ModelDevice::new(memory, model)) as Arc<dyn Device>;
        let options = MountOptions::parse("ro").unwrap();
        let (fs, _) = F2fs::open(device, options, CacheSizes::of(64 << 20)).unwrap();
        let beside = |work: fn(&F2fs)| {
            let (other, ended) = (Arc::clone(&fs), Arc::new(AtomicBool::new(false)));
            let end = Arc::clone(&ended);
            let task = spawn("beside", move || {
                work(&other);
                end.store(true, Ordering::Release);
            });
            let mut seen = BTreeSet::new();
            while !ended.load(Ordering::Acquire) {
                sleep(Duration::from_millis(5));
                if !fs.has_changed() {
                    seen.insert(shown(&fs).2);
                }
            }
            task.join();
            (seen, shown(&fs).2)
        };
        let (seen, then) = beside(|fs| fs.remount(&Cx::default(), "rw").unwrap());
        assert!(seen.contains("recovering recovered"), "{seen:?}");
        assert_eq!(then, "recovered");
        let cx = Cx::default();
        fs.mknod(&cx, ROOT, b"new", 0o100_644, 0).unwrap();
        // All changes are in the checkpoint's snapshot by then, which is not durable.
        let (seen, then) = beside(|fs| fs.sync_all(&Cx::default()).unwrap());
        assert!(fs.checkpoints.written() > 1);
        assert!(seen.contains("fs_dirty recovered"), "{seen:?}");
        assert_eq!(then, "recovered");
        fs.close().unwrap();
    });
}
