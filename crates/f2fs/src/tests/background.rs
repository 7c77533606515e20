//! Background checkpoints, and which thread writes requested ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Device, DeviceModel, ModelDevice};
use steadfs_cache::CacheSizes;
use steadfs_rt::{sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::checkpoints::make_file;
use crate::disk::checkpoint::CpFlags;
use crate::format::{FormatOptions, image};
use crate::test_world::{ROOT, World};
use crate::{F2fs, MountOptions};

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn open(options: &str, cache: u64) -> Arc<F2fs> {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    let model = DeviceModel {
        bytes_per_second: 100 << 20,
        latency: Duration::from_millis(3),
        flush: Duration::ZERO,
        depth: 4,
    };
    let device: Arc<dyn Device> = Arc::new(ModelDevice::new(device as _, model));
    let options = MountOptions::parse(options).unwrap();
    let (fs, _) = F2fs::open(device, options, CacheSizes::of(cache)).unwrap();
    // Only the test calls for checkpoints.
    fs.checkpoints.set_interval(DAY);
    fs
}

/// Checkpoints written by one background check, with this `cp_interval`.
pub(super) fn looked(fs: &F2fs, seconds: u64) -> u64 {
    let before = fs.checkpoints.written();
    fs.checkpoints.set_interval(Duration::from_secs(seconds));
    fs.background_checkpoint();
    fs.checkpoints.set_interval(DAY);
    fs.checkpoints.written() - before
}

#[test]
fn an_old_checkpoint_waits_for_idle_but_at_most_two_intervals() {
    sim::run(sim::Config::new(1), || {
        let fs = open("background_gc=off", 64 << 20);
        let busy = Arc::new(AtomicBool::new(true));
        let reader = spawn("reader", {
            let (fs, busy) = (Arc::clone(&fs), Arc::clone(&busy));
            move || {
                while busy.load(Ordering::Acquire) {
                    fs.queue.read(0, 64 << 10, IoTag::default()).unwrap();
                }
            }
        });
        make_file(&fs, b"one", 0);
        sleep(Duration::from_millis(11_001));
        assert_eq!(looked(&fs, 12), 0, "not old enough");
        assert_eq!(looked(&fs, 10), 0, "the device has I/O in flight");
        assert_eq!(looked(&fs, 5), 1, "it has waited long enough");
        assert_eq!(looked(&fs, 5), 0, "nothing is changed");
        busy.store(false, Ordering::Release);
        reader.join();

        make_file(&fs, b"two", 0);
        sleep(Duration::from_millis(11_001));
        fs.balance(IoTag::default()).unwrap();
        let change = fs.change().unwrap();
        assert_eq!(
            looked(&fs, 10),
            0,
            "an operation is in progress, and others came just now"
        );
        fs.checkpoints.set_idle(Duration::ZERO);
        let slow = spawn("slow", {
            let fs = Arc::clone(&fs);
            move || looked(&fs, 10)
        });
        sleep(Duration::from_millis(50));
        drop(change);
        assert_eq!(slow.join(), 1, "the last operation was long ago");
        assert_eq!(fs.checkpoints.calls().1, 2);
        fs.close().unwrap();
    });
}

/// All kinds of changes are counted, not nodes alone.
#[test]
fn each_kind_of_dirty_blocks_triggers_a_checkpoint() {
    sim::run(sim::Config::new(1), || {
        let fs = open("background_gc=off,noinline_dentry", 8 << 20);
        let cx = Cx::default();
        assert_eq!(looked(&fs, 3600), 0);
        let most = fs.node_limit();
        let mut made = 0;
        while !fs.needs_background_checkpoint() {
            assert!(made < most, "{most}");
            fs.mkdir(&cx, fs.root(), format!("{made}").as_bytes(), 0o755)
                .unwrap();
            made += 1;
        }
        assert!(fs.nodes.dirty_count() < most, "{most}");
        assert_eq!(looked(&fs, 3600), 1);
        assert!(!fs.needs_background_checkpoint());
        fs.close().unwrap();
    });
}

#[test]
fn remount_and_freeze_write_unmerged_checkpoints() {
    sim::run(sim::Config::new(1), || {
        let fs = open("", 64 << 20);
        let control = fs.control().unwrap();
        let steps: [&dyn Fn(); 3] = [
            &|| fs.remount(&Cx::default(), "noatime").unwrap(),
            &|| control.write("f2fs/freeze", b"1").unwrap(),
            &|| {
                let refused = fs.remount(&Cx::default(), "checkpoint=disable,active_logs=2");
                assert!(matches!(refused, Err(FsError::BadOption(_))), "{refused:?}");
            },
        ];
        for (n, step) in (0..).zip(steps) {
            make_file(&fs, format!("{n}").as_bytes(), 0);
            let written = fs.checkpoints.written();
            step();
            assert_eq!(fs.checkpoints.written() - written, u64::from(n < 2));
            control.write("f2fs/freeze", b"0").unwrap();
            assert_eq!(fs.daemon.stats().total, n, "not by the task");
            // A failure must not end the merging of other requests.
            make_file(&fs, format!("{n} later").as_bytes(), 0);
            fs.request_checkpoint(IoTag::default()).unwrap();
            fs.daemon.flush(&fs);
            assert_eq!(fs.daemon.stats().total, n + 1);
        }
        fs.close().unwrap();
    });
}

#[test]
fn fastboot_packs_have_node_summaries() {
    let world = World::make_with("", 64, "fastboot");
    world.mkdir(ROOT, b"dir").unwrap();
    world.fs.fsync(&world.cx, ROOT, false).unwrap();
    let last = world.fs.checkpoints.last();
    assert!(last.flags.contains(CpFlags::FASTBOOT) && last.has_node_summaries());
    assert!(!last.flags.contains(CpFlags::UNMOUNT));
    assert_eq!(world.fs.daemon.stats().total, 0, "none is merged");
    world.judge_device();
    let mode = steadfs_vfs::ShutdownMode::NoFlush;
    world.fs.shutdown(&world.cx, mode).unwrap();
    assert!(world.fs.unmount().is_err());
    let world = world.open_again();
    world.lookup(ROOT, b"dir").unwrap();
    world.close();
}

/// The same operations leave the same volume, byte by byte, with and without checkpoint merging.
#[test]
fn merged_checkpoints_leave_the_same_bytes() {
    let run = |options: &'static str| {
        let run = move || {
            let format = FormatOptions {
                uuid: Some([7; 16]),
                time: Some(1),
                checkpoint_version: Some(1),
                ..FormatOptions::default()
            };
            let device = image(64 << 20, &format).unwrap();
            let parsed = MountOptions::parse(options).unwrap();
            let sizes = CacheSizes::of(64 << 20);
            let (fs, _) = F2fs::open(Arc::clone(&device) as _, parsed, sizes).unwrap();
            let cx = Cx::default();
            let mut after = Vec::new();
            for n in 0..20u8 {
                let name = [b'a' + n];
                let dir = fs.mkdir(&cx, fs.root(), &name, 0o755).unwrap().ino;
                let file = fs.mknod(&cx, dir, b"file", 0o100_644, 0).unwrap().ino;
                fs.write(&cx, file, 0, &vec![n; 1000 * usize::from(n)], false)
                    .unwrap();
                fs.fsync(&cx, if n % 3 == 0 { file } else { dir }, false)
                    .unwrap();
                if n % 5 == 4 {
                    fs.rmdir(&cx, fs.root(), &[b'a' + n - 1]).unwrap_err();
                    fs.unlink(&cx, dir, b"file").unwrap();
                    fs.sync_all(&cx).unwrap();
                }
                after.push(device.to_bytes());
            }
            fs.close().unwrap();
            after.push(device.to_bytes());
            after
        };
        sim::run(sim::Config::new(2), run).value
    };
    let [merged, apart] = ["checkpoint_merge", "nocheckpoint_merge"].map(run);
    for (n, (merged, apart)) in merged.iter().zip(&apart).enumerate() {
        let differs = merged.iter().zip(apart).position(|(a, b)| a != b);
        assert_eq!(differs, None, "after step {n}");
    }
}
