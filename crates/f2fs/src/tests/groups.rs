//! Chain groups: concurrent fsyncs of growing files share one FLUSH.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Bio, Device, DeviceModel, FaultDevice, MemDevice, ModelDevice, Op};
use steadfs_rt::{now, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError};

use crate::format::{FormatOptions, image};
use crate::test_world::fsck;
use crate::test_world::{ROOT, World};
use crate::{CacheSizes, F2fs, MountOptions};

const BLOCK: usize = 4096;
/// Each byte of the files.
const DATA: u8 = 7;
/// Time of a load.
const LOAD: Duration = Duration::from_millis(400);

fn open(device: Arc<dyn Device>) -> Arc<F2fs> {
    let options = MountOptions::parse("background_gc=off").unwrap();
    let opened = F2fs::open(device, options, CacheSizes::of(64 << 20));
    opened.unwrap().0
}

/// A device whose FLUSH takes a millisecond.
fn slow(device: &Arc<FaultDevice>) -> Arc<dyn Device> {
    let model = DeviceModel {
        bytes_per_second: 500 << 20,
        latency: Duration::from_micros(40),
        flush: Duration::from_millis(1),
        depth: 8,
    };
    Arc::new(ModelDevice::new(Arc::clone(device) as _, model))
}

/// Files that are in a checkpoint.
fn files(fs: &F2fs, count: u64) -> Vec<InodeNo> {
    let make = |n: u64| {
        let name = format!("file{n}");
        let made = fs.mknod(&Cx::default(), ROOT, name.as_bytes(), 0o100_644, 0);
        made.unwrap().ino
    };
    let made = (0..count).map(make).collect();
    fs.sync_all(&Cx::default()).unwrap();
    made
}

/// Appends a block and calls fsync; the file has `blocks` blocks.
fn append(fs: &F2fs, file: InodeNo, blocks: u64) -> steadfs_vfs::Result<()> {
    let cx = Cx::default();
    fs.write(&cx, file, blocks * BLOCK as u64, &[DATA; BLOCK], false)?;
    fs.fsync(&cx, file, false)
}

/// Tasks append a block to a file of their own, call fsync, and sleep for `away`, in a loop. Returns the number of
/// fsyncs, and of writes with FUA.
fn load(tasks: u64, away: Duration) -> (u64, u64) {
    let run = move || {
        let counted = FaultDevice::new(image(64 << 20, &FormatOptions::default()).unwrap());
        let fs = open(slow(&counted));
        let files = files(&fs, tasks);
        let fua = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let count = Arc::clone(&fua);
        counted.fail(move |bio: &Bio| {
            count.fetch_add(bio.fua.into(), std::sync::atomic::Ordering::Relaxed);
            false
        });
        let until = now().0 + LOAD.as_nanos() as u64;
        let tasks: Vec<_> = (0..)
            .zip(files)
            .map(|(task, file)| {
                let fs = Arc::clone(&fs);
                spawn("caller", move || {
                    sleep(Duration::from_micros(task * 150));
                    let mut count = 0;
                    while now().0 < until {
                        append(&fs, file, count).unwrap();
                        count += 1;
                        sleep(away);
                    }
                    count
                })
            })
            .collect();
        let done = tasks.into_iter().map(|task| task.join()).sum();
        let fua = fua.load(std::sync::atomic::Ordering::Relaxed);
        fs.close().unwrap();
        (done, fua)
    };
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::new(1)
    };
    sim::run(config, run).value
}

#[test]
fn concurrent_fsyncs_share_flushes() {
    let away = Duration::from_micros(60);
    let (alone, writes) = load(1, away);
    assert!(writes >= alone, "{writes} writes with FUA for {alone}");
    for tasks in [2, 4, 8] {
        let (done, writes) = load(tasks, away);
        assert!(
            done * 10 >= alone * tasks * 6,
            "{tasks} tasks: {done} fsyncs; one task: {alone}"
        );
        assert!(writes * tasks < done * 2, "{tasks}: {writes} for {done}");
    }
}

/// Tasks that sleep for longer than a group takes are not waited for, except in rare attempts.
#[test]
fn absent_callers_do_not_delay_an_fsync() {
    let away = Duration::from_millis(7);
    let ((one, _), (three, _)) = (load(1, away), load(3, away));
    assert!(
        three * 10 >= one * 3 * 7,
        "{three} of three tasks, {one} of one"
    );
}

/// Each task's fsyncs until the first one fails, while the device fails the writes that `fails` chooses, from 5 ms on.
fn failing(seed: u64, fails: fn(&Bio) -> bool) {
    sim::run(sim::Config::new(seed), move || {
        let memory = image(64 << 20, &FormatOptions::default()).unwrap();
        let device = FaultDevice::new(Arc::clone(&memory));
        let fs = open(slow(&device));
        let files = files(&fs, 4);
        let main = u64::from(fs.layout.main_start) * BLOCK as u64;
        let began = now().0;
        device.fail(move |bio| {
            bio.op == Op::Write && bio.offset >= main && now().0 > began + 5_000_000 && fails(bio)
        });
        let tasks: Vec<_> = files
            .iter()
            .map(|&file| {
                let fs = Arc::clone(&fs);
                spawn("caller", move || {
                    for done in 0.. {
                        sleep(Duration::from_micros(200));
                        if let Err(error) = append(&fs, file, done) {
                            let known = matches!(error, FsError::Io(_) | FsError::Stopped(_));
                            assert!(known, "{error}");
                            return done;
                        }
                    }
                    unreachable!("the device fails")
                })
            })
            .collect();
        let done: Vec<u64> = tasks.into_iter().map(|task| task.join()).collect();
        assert!(fs.abort_cause().is_some());
        let _ = fs.close();
        device.fail(|_| false);
        // Whatever was acknowledged is found.
        let copy = Arc::new(MemDevice::from_bytes(&memory.to_bytes()));
        let world = World::of(copy, "");
        for (file, done) in (0..).zip(done) {
            let found = world
                .lookup(ROOT, format!("file{file}").as_bytes())
                .unwrap();
            let least = done * BLOCK as u64;
            assert!(found.size >= least, "seed {seed}: {} < {least}", found.size);
        }
        fsck(&world.close());
    });
}

/// A failed write of the gate, or of a block behind it, fails the fsyncs of the whole group.
#[test]
fn a_failed_group_acknowledges_no_member() {
    for seed in 0..20 {
        failing(seed, |bio| bio.fua);
        // Nodes behind a gate: where the group goes on in another segment.
        failing(seed, |bio| !bio.fua && bio.bufs[0][0] != DATA);
    }
}
