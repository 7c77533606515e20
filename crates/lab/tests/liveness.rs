//! Liveness: every wait for write-back ends, although a file grows or is overwritten continuously, faster than the
//! device writes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::{InodeNo, IoTag, OwnerId};
use steadfs_block::{Device, DeviceModel, MemDevice, ModelDevice, Policy, Queue, QueueOptions};
use steadfs_ext4::{CacheSizes, Ext4};
use steadfs_f2fs::F2fs;
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, SetAttr};

const VOLUME: u64 = 512 << 20;
const RATE: u64 = 20 << 20;
/// At most half of it is dirty: 0.8 s of device time, which the writer shares.
const CACHE: u64 = 32 << 20;
/// Bytes of the overwritten file, and the maximum size of the growing one: 11 s of device time.
const LAP: u64 = 220 << 20;
const BOUND: Duration = Duration::from_secs(4);
const PIECE: usize = 128 << 10;

#[derive(Clone, Copy, Debug)]
enum Format {
    Ext4,
    Ext2,
    F2fs,
}

/// The operation that waits.
#[derive(Clone, Copy, Debug)]
enum Wait {
    SyncAll,
    Fsync,
    Remount,
    Freeze,
    Unmount,
}

fn open(format: Format, policy: Policy) -> Arc<dyn FileSystem> {
    let store = match format {
        Format::F2fs => steadfs_f2fs::format::image(VOLUME, &Default::default()).unwrap(),
        Format::Ext4 | Format::Ext2 => {
            let store = Arc::new(MemDevice::new(VOLUME));
            let plain = Queue::new(Arc::clone(&store) as _, QueueOptions::default());
            let mut options = steadfs_ext4::format::FormatOptions::default();
            if matches!(format, Format::Ext2) {
                options.set_kind("ext2").unwrap();
            }
            steadfs_ext4::format::format(&plain, VOLUME, &options).unwrap();
            store
        }
    };
    let model = DeviceModel {
        bytes_per_second: RATE,
        latency: Duration::from_micros(500),
        flush: Duration::from_millis(1),
        depth: 4,
    };
    let device: Arc<dyn Device> = Arc::new(ModelDevice::new(store, model));
    let sizes = CacheSizes::of(CACHE);
    let configure = |queue: &Arc<Queue>| {
        let mut settings = queue.settings();
        settings.policy = policy;
        queue.configure(settings);
    };
    match format {
        Format::F2fs => {
            let options = steadfs_f2fs::MountOptions::parse("").unwrap();
            let (fs, _) = F2fs::open(device, options, sizes).unwrap();
            configure(fs.queue());
            fs
        }
        Format::Ext4 | Format::Ext2 => {
            let options = steadfs_ext4::MountOptions::parse("").unwrap();
            let (fs, _) = Ext4::open(device, options, sizes).unwrap();
            configure(fs.queue());
            fs
        }
    }
}

fn process(owner: u32) -> Cx {
    let tag = IoTag {
        owner: OwnerId(owner),
        ..IoTag::default()
    };
    Cx {
        tag,
        caller: owner.into(),
        ..Cx::default()
    }
}

/// Writes without pause until `over`, from the start again after a lap.
fn writer(fs: &dyn FileSystem, file: InodeNo, appends: bool, over: &AtomicBool) {
    let cx = process(1);
    let data = vec![7; PIECE];
    let mut at = 0;
    while !over.load(Ordering::Acquire) {
        let done = match at >= LAP && appends {
            true => {
                let set = SetAttr {
                    size: Some(0),
                    ..SetAttr::default()
                };
                fs.setattr(&cx, file, &set).map(drop)
            }
            false => fs.write(&cx, file, at % LAP, &data, false).map(drop),
        };
        match done {
            Ok(()) if at >= LAP && appends => at = 0,
            Ok(()) => at += PIECE as u64,
            // The volume is frozen, or has just been unmounted.
            Err(FsError::Busy) => sleep(Duration::from_millis(10)),
            Err(error) => {
                assert!(over.load(Ordering::Acquire), "{error}");
                return;
            }
        }
    }
}

/// Changes a directory and fsyncs it repeatedly.
fn syncer(fs: &dyn FileSystem, over: &AtomicBool) {
    let cx = process(3);
    let dir = loop {
        match fs.mkdir(&cx, fs.root(), b"dir", 0o755) {
            Ok(attr) => break attr.ino,
            Err(error) => assert_eq!(error, FsError::Busy),
        }
    };
    for number in 0_u64.. {
        if over.load(Ordering::Acquire) {
            break;
        }
        let name = format!("file{}", number % 50);
        let made = fs.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0);
        if let Ok(attr) = &made {
            fs.forget(attr.ino, 1);
        }
        let done = match made {
            Err(FsError::Exists) => fs.unlink(&cx, dir, name.as_bytes()),
            made => made.map(drop),
        };
        match done.and_then(|()| fs.fsync(&cx, dir, false)) {
            Ok(()) => {}
            Err(FsError::Busy) => sleep(Duration::from_millis(10)),
            Err(error) => assert!(over.load(Ordering::Acquire), "{error}"),
        }
    }
    fs.forget(dir, 1);
}

/// The duration of the wait beside the writer.
fn measure(format: Format, policy: Policy, appends: bool, wait: Wait) -> Duration {
    let run = move || {
        let fs = open(format, policy);
        let cx = process(2);
        let attr = fs.mknod(&cx, fs.root(), b"file", 0o100_644, 0).unwrap();
        let other = fs.mknod(&cx, fs.root(), b"other", 0o100_644, 0).unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let task = {
            let (fs, over) = (Arc::clone(&fs), Arc::clone(&over));
            spawn("writer", move || writer(&*fs, attr.ino, appends, &over))
        };
        let syncs = {
            let (fs, over) = (Arc::clone(&fs), Arc::clone(&over));
            spawn("syncer", move || syncer(&*fs, &over))
        };
        // The overwritten file is past its first lap, in which it grows.
        sleep(Duration::from_secs(if appends { 3 } else { 15 }));
        fs.write(&cx, other.ino, 0, &[1; 4096], false).unwrap();
        let name = match format {
            Format::F2fs => "f2fs/freeze",
            Format::Ext4 | Format::Ext2 => "ext4/freeze",
        };
        let begun = now();
        match wait {
            Wait::SyncAll => fs.sync_all(&cx).unwrap(),
            Wait::Fsync => fs.fsync(&cx, attr.ino, false).unwrap(),
            Wait::Remount => fs.remount(&cx, "noatime").unwrap(),
            Wait::Freeze => fs.control().unwrap().write(name, b"1").unwrap(),
            Wait::Unmount => {
                over.store(true, Ordering::Release);
                fs.unmount().unwrap();
            }
        }
        let took = begun.elapsed();
        over.store(true, Ordering::Release);
        if let Wait::Freeze = wait {
            fs.control().unwrap().write(name, b"0").unwrap();
        }
        task.join();
        syncs.join();
        fs.forget(attr.ino, 1);
        fs.forget(other.ino, 1);
        fs.unmount().unwrap();
        drop(fs);
        sleep(Duration::from_millis(1));
        took
    };
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::new(1)
    };
    sim::run(config, run).value
}

fn all_end(format: Format) {
    let mut late = Vec::new();
    for policy in [Policy::Fifo, Policy::Fair, Policy::Cfq] {
        for appends in [true, false] {
            for wait in [
                Wait::SyncAll,
                Wait::Fsync,
                Wait::Remount,
                Wait::Freeze,
                Wait::Unmount,
            ] {
                let took = measure(format, policy, appends, wait);
                println!("{format:?} {policy:?} appends {appends} {wait:?}: {took:?}");
                if took > BOUND {
                    late.push((policy, appends, wait, took));
                }
            }
        }
    }
    assert!(late.is_empty(), "{format:?}: {late:#?}");
}

#[test]
fn waits_on_ext4_end_beside_a_writer() {
    all_end(Format::Ext4);
}

#[test]
fn waits_without_a_journal_end_beside_a_writer() {
    all_end(Format::Ext2);
}

#[test]
fn waits_on_f2fs_end_beside_a_writer() {
    all_end(Format::F2fs);
}
