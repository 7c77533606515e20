//! Writers during a slow discard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{DeviceModel, ModelDevice};
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, SetAttr};

use crate::CacheSizes;
use crate::disk::test_images::Image;
use crate::fs::Ext4;
use crate::options::MountOptions;
use crate::test_world::ROOT;

/// A volume of one group on a device with a delay for every request.
fn slow_volume(kind: &str, options: MountOptions) -> Arc<Ext4> {
    let image = Image::make(&["-t", kind, "-b", "4096", "-m", "0"], "16M");
    let model = DeviceModel {
        bytes_per_second: 1 << 30,
        latency: Duration::from_millis(40),
        flush: Duration::ZERO,
        depth: 4,
    };
    let device = Arc::new(ModelDevice::new(image.device(), model));
    let (fs, _) = Ext4::open(device, options, CacheSizes::of(64 << 20)).unwrap();
    fs
}

fn cut(fs: &Ext4, ino: InodeNo) {
    let set = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    FileSystem::setattr(fs, &Cx::default(), ino, &set).unwrap();
}

/// Writes a file until the volume is full, makes it durable and truncates it; returns its size.
fn fill(fs: &Ext4) -> u64 {
    let cx = Cx::default();
    let ino = match FileSystem::lookup(fs, &cx, ROOT, b"big") {
        Ok(attr) => attr.ino,
        Err(_) => {
            let made = FileSystem::mknod(fs, &cx, ROOT, b"big", 0o100_644, 0);
            made.unwrap().ino
        }
    };
    let (data, mut size) = (vec![7; 256 << 10], 0);
    loop {
        match fs.write(&cx, ino, size, &data, false) {
            Ok(written) => size += written as u64,
            Err(error) => break assert_eq!(error, FsError::NoSpace),
        }
    }
    FileSystem::fsync(fs, &cx, ino, false).unwrap();
    cut(fs, ino);
    size
}

/// Trims repeatedly while `work` runs; returns the number of trims.
fn beside_trims<R>(fs: &Arc<Ext4>, work: impl FnOnce() -> R) -> (R, u64) {
    let (done, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let trimmer = {
        let (fs, done, rounds) = (Arc::clone(fs), Arc::clone(&done), Arc::clone(&rounds));
        spawn("trimmer", move || {
            while !done.load(Ordering::Relaxed) {
                fs.trim(&Cx::default(), 0, u64::MAX, 0).unwrap();
                rounds.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(1));
            }
        })
    };
    let result = work();
    done.store(true, Ordering::Relaxed);
    trimmer.join();
    (result, rounds.load(Ordering::Relaxed))
}

#[test]
fn blocks_being_discarded_cause_no_enospc() {
    for kind in ["ext4", "ext2"] {
        sim::run(sim::Config::new(1), move || {
            let fs = slow_volume(kind, MountOptions::default());
            let alone = fill(&fs);
            let (beside, rounds) = beside_trims(&fs, || fill(&fs));
            assert!(rounds > 0, "nothing was trimmed meanwhile");
            // With more extents it may need a few more blocks for its map.
            assert!(beside + 8 * 4096 >= alone, "{kind}: {beside} of {alone}");
            fs.close().unwrap();
        });
    }
}

#[test]
fn small_files_are_written_and_synced_during_a_trim() {
    sim::run(sim::Config::new(1), || {
        let fs = slow_volume("ext4", MountOptions::default());
        let ((), rounds) = beside_trims(&fs, || {
            let cx = Cx::default();
            for n in 0..40_u32 {
                let name = format!("f{n}");
                let made = FileSystem::mknod(&*fs, &cx, ROOT, name.as_bytes(), 0o100_644, 0);
                let ino = made.unwrap().ino;
                fs.write(&cx, ino, 0, &[1; 100_000], false).unwrap();
                FileSystem::fsync(&*fs, &cx, ino, false).unwrap();
            }
        });
        assert!(rounds > 0, "nothing was trimmed meanwhile");
        fs.close().unwrap();
    });
}

#[test]
fn blocks_freed_by_a_commit_are_free_after_their_discard() {
    sim::run(sim::Config::new(1), || {
        let options = MountOptions {
            discard: true,
            ..MountOptions::default()
        };
        let fs = slow_volume("ext4", options);
        let first = fill(&fs);
        assert_eq!(fill(&fs), first);
        fs.close().unwrap();
    });
}

/// One at a time they would take 2.4 s.
#[test]
fn a_commit_discards_what_it_freed_at_once() {
    sim::run(sim::Config::new(1), || {
        let options = MountOptions {
            discard: true,
            ..MountOptions::default()
        };
        let fs = slow_volume("ext4", options);
        let cx = Cx::default();
        let name = |n: u32| format!("f{n}").into_bytes();
        for n in 0..121 {
            let made = FileSystem::mknod(&*fs, &cx, ROOT, &name(n), 0o100_644, 0);
            let ino = made.unwrap().ino;
            fs.write(&cx, ino, 0, &[1; 4096], false).unwrap();
            FileSystem::forget(&*fs, ino, 1);
        }
        FileSystem::sync_all(&*fs, &cx).unwrap();
        for n in (1..120).step_by(2) {
            FileSystem::unlink(&*fs, &cx, ROOT, &name(n)).unwrap();
        }
        let began = now();
        FileSystem::sync_all(&*fs, &cx).unwrap();
        let took = began.elapsed();
        assert!(took < Duration::from_millis(1500), "{took:?}");
        assert_eq!(fs.alloc.totals().pending, 0);
        fs.close().unwrap();
    });
}

#[test]
fn a_trim_waits_for_tasks_that_are_short_of_space() {
    sim::run(sim::Config::new(1), || {
        let fs = slow_volume("ext4", MountOptions::default());
        let trim = || {
            let began = now();
            assert!(fs.trim(&Cx::default(), 0, u64::MAX, 0).unwrap() > 0);
            began.elapsed()
        };
        let usual = trim();
        assert!(usual < Duration::from_millis(900), "{usual:?}");
        fs.alloc.enter_shortage();
        // At most a second for each discard.
        let longest = trim();
        assert!(longest >= usual + Duration::from_secs(1), "{longest:?}");
        let task = {
            let fs = Arc::clone(&fs);
            spawn("short of space", move || {
                sleep(Duration::from_millis(200));
                fs.alloc.leave_shortage();
            })
        };
        let waited = trim() - usual;
        let range = Duration::from_millis(150)..Duration::from_millis(300);
        assert!(range.contains(&waited), "{waited:?}");
        task.join();
        fs.close().unwrap();
    });
}

#[test]
fn blocks_just_freed_are_trimmed() {
    sim::run(sim::Config::new(1), || {
        let fs = slow_volume("ext4", MountOptions::default());
        let trim = |min| FileSystem::trim(&*fs, &Cx::default(), 0, u64::MAX, min);
        let empty = trim(0).unwrap();
        assert!(empty > 8 << 20, "{empty}");
        fill(&fs);
        assert_eq!(trim(0).unwrap(), empty);
        let group = 32_768 * 4096;
        assert_eq!(trim(group), Ok(0));
        assert!(matches!(trim(group + 1), Err(FsError::Invalid(_))));
        fs.close().unwrap();
    });
}

#[test]
fn a_freeze_does_not_wait_for_the_end_of_a_trim() {
    sim::run(sim::Config::new(1), || {
        let fs = slow_volume("ext4", MountOptions::default());
        // The trim pauses before each piece.
        fs.alloc.enter_shortage();
        let trim = {
            let fs = Arc::clone(&fs);
            spawn("trimmer", move || {
                FileSystem::trim(&*fs, &Cx::default(), 0, u64::MAX, 0)
            })
        };
        sleep(Duration::from_millis(1_020));
        let began = now();
        fs.freeze().unwrap();
        let waited = began.elapsed();
        assert!(waited < Duration::from_millis(500), "{waited:?}");
        assert_eq!(trim.join(), Err(FsError::Busy));
        fs.alloc.leave_shortage();
        fs.thaw().unwrap();
        fs.close().unwrap();
    });
}
