//! Log blocks written at the same time as file data.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Bio, DeviceModel, Fault, FaultDevice, MemDevice, ModelDevice, Op};
use steadfs_rt::{now, sim, spawn, yield_now};
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::{FILE, image_with_file, judge};
use crate::disk::test_images::Image;
use crate::test_world::ROOT;
use crate::{CacheSizes, Ext4, MountOptions};

const EXT4: &[&str] = &["-t", "ext4", "-b", "4096"];
const EXT3: &[&str] = &["-t", "ext3", "-b", "1024"];
const ACCESS: Duration = Duration::from_millis(1);

fn open(device: Arc<dyn steadfs_block::Device>, mount: &str) -> Arc<Ext4> {
    let options = MountOptions::parse(mount).unwrap();
    let (fs, _) = Ext4::open(device, options, CacheSizes::of(16 << 20)).unwrap();
    // Only the test writes.
    fs.writeback.stop();
    fs
}

fn beside_data(fs: &Ext4) -> u64 {
    fs.txns.journal().unwrap().stats().beside_data
}

fn image_of(device: &MemDevice, like: &Image, what: &str) {
    judge(device, like, what);
}

/// The time of one append and fsync on a device where each access takes [`ACCESS`], in accesses, and the commits whose
/// log was written beside data.
fn accesses_of_an_append(mkfs: &'static [&'static str], bytes: usize) -> (u128, u64) {
    let (accesses, beside, _) = ten_syncs(mkfs, bytes, false, move |n| n * bytes);
    (accesses, beside)
}

/// As [`accesses_of_an_append`], of a write of `bytes` at the offset that `place` chooses from its number, and fsync
/// (`datasync`: fdatasync); and the number of commits.
fn ten_syncs(
    mkfs: &'static [&'static str],
    bytes: usize,
    datasync: bool,
    place: impl Fn(usize) -> usize + Send + 'static,
) -> (u128, u64, u32) {
    let image = image_with_file(mkfs, "16M");
    let store = image.device();
    let run = move || {
        let model = DeviceModel {
            bytes_per_second: u64::MAX,
            latency: ACCESS,
            flush: ACCESS,
            depth: 16,
        };
        let fs = open(Arc::new(ModelDevice::new(store, model)), "");
        let (cx, file) = (Cx::default(), fs.inode(FILE, IoTag::default()).unwrap());
        let write = |nth: usize| {
            let (at, data) = (place(nth) as u64, vec![1; bytes]);
            fs.write_file(&cx, &file, at, &data, false).unwrap();
            let began = now();
            fs.fsync_inode(&cx, &file, datasync).unwrap();
            began.elapsed()
        };
        let durable = || fs.txns.journal().unwrap().durable_tid().0;
        // The first one marks the log as used.
        write(0);
        let (before, first) = (beside_data(&fs), durable());
        let took: Duration = (1..=10).map(write).sum();
        let (beside, commits) = (beside_data(&fs) - before, durable() - first);
        drop(file);
        fs.close().unwrap();
        (took.as_micros() / ACCESS.as_micros() / 10, beside, commits)
    };
    let config = sim::Config {
        preempt: 0,
        ..sim::Config::new(1)
    };
    sim::run(config, run).value
}

#[test]
fn a_lone_append_saves_one_access_of_five() {
    for mkfs in [EXT4, EXT3] {
        // Data and log, the record's latency, its FLUSH and its FUA.
        assert_eq!(accesses_of_an_append(mkfs, 4096), (4, 10));
        assert_eq!(accesses_of_an_append(mkfs, 100), (4, 10));
        // More data than the handles of other tasks may wait for.
        assert_eq!(accesses_of_an_append(mkfs, 256 << 10), (5, 0));
    }
}

/// Nothing is committed after a write over blocks that are mapped, unless its new times must be durable, too.
#[test]
fn a_rewrite_commits_only_changed_times() {
    for mkfs in [EXT4, EXT3] {
        // Data, the latency of the FLUSH, and the FLUSH.
        assert_eq!(ten_syncs(mkfs, 4096, true, |_| 0), (3, 0, 0));
        // Each write is in another tick of the clock: the times go beside the data.
        assert_eq!(ten_syncs(mkfs, 4096, false, |_| 0), (4, 10, 10));
    }
}

/// Fails the write number `nth` of data that is recognised by its content.
fn fail_data(device: &FaultDevice, nth: u64) {
    let mut seen = 0;
    device.fail(move |bio: &Bio| {
        let is_data = bio.op == Op::Write && bio.bufs.iter().any(|buf| buf.contains(&0xd7));
        seen += u64::from(is_data);
        is_data && seen == nth
    });
}

/// The data of an fsync whose log was written beside it fails: the file keeps its size on disk, the error is reported
/// once, and the next fsync writes all.
#[test]
fn a_failed_write_of_data_beside_the_log_is_undone() {
    for (mkfs, name) in [(EXT4, "ext4"), (EXT3, "ext3")] {
        for (at, len, nth) in [
            (8192, 4096, 1),
            (5000, 3000, 1),
            (9000, 60_000, 1),
            (100, 4000, 1),
        ] {
            let what = format!("{name}: {len} bytes at {at}");
            let image = image_with_file(mkfs, "16M");
            let device = FaultDevice::new(image.device());
            let fs = open(Arc::clone(&device) as _, "");
            let cx = Cx::default();
            let file = fs.inode(FILE, IoTag::default()).unwrap();
            fs.write_file(&cx, &file, 0, &[1; 8192], false).unwrap();
            fs.fsync_inode(&cx, &file, false).unwrap();
            let free = fs.alloc.totals().free;
            let blocks = file.core.read().blocks;
            let beside = beside_data(&fs);
            fs.write_file(&cx, &file, at, &vec![0xd7; len], false)
                .unwrap();
            fail_data(&device, nth);
            let failed = fs.fsync_inode(&cx, &file, false);
            assert!(matches!(failed, Err(FsError::Io(_))), "{what}: {failed:?}");
            assert_eq!(device.failures(), 1, "{what}");
            device.set(|_| Fault::None);
            assert_eq!(beside_data(&fs), beside, "{what}: nothing was committed");
            assert_eq!(file.core.read().size, 8192, "{what}");
            assert_eq!(file.core.read().blocks, blocks, "{what}");

            // A commit of something else does not make the file grow.
            let cut = {
                fs.commit_running(IoTag::default()).unwrap();
                // A block of the map that was allocated and freed is free now.
                let now = fs.alloc.totals().free;
                assert_eq!(now, free, "{what}: blocks that leaked");
                Arc::new(device.memory.copy())
            };
            let after = open(Arc::clone(&cut) as _, "");
            let there = after.inode(FILE, IoTag::default()).unwrap();
            assert_eq!(there.size(), 8192, "{what}: size after a power cut");
            drop(there);
            after.close().unwrap();
            image_of(&cut, &image, &what);

            fs.fsync_inode(&cx, &file, false).expect(&what);
            let size = (at + len as u64).max(8192);
            assert_eq!(file.core.read().size, size, "{what}");
            let cut = Arc::new(device.memory.copy());
            let after = open(Arc::clone(&cut) as _, "");
            let there = after.inode(FILE, IoTag::default()).unwrap();
            let read = after
                .read_file(&cx, &there, 0, size as usize)
                .unwrap()
                .to_vec();
            let mut wanted = vec![1; 8192];
            wanted.resize(size as usize, 0);
            wanted[at as usize..][..len].fill(0xd7);
            assert!(read == wanted, "{what}: content after a power cut");
            drop(there);
            after.close().unwrap();
            image_of(&cut, &image, &what);
            drop(file);
            fs.close().unwrap();
            image_of(&device.memory, &image, &what);
        }
    }
}

/// Handles and fsyncs of other tasks that begin while the data is in flight.
#[test]
fn other_tasks_go_on_beside_a_lone_fsync() {
    for seed in 0..20 {
        let image = image_with_file(EXT4, "16M");
        let store = image.device();
        let kept = Arc::clone(&store);
        let run = move || {
            let model = DeviceModel {
                bytes_per_second: 1 << 30,
                latency: ACCESS,
                flush: ACCESS,
                depth: 16,
            };
            let fs = open(Arc::new(ModelDevice::new(store, model)), "");
            let tasks: Vec<_> = (0..3u64)
                .map(|n| {
                    let fs = Arc::clone(&fs);
                    spawn("writer", move || {
                        let cx = Cx::default();
                        let name = format!("new{n}");
                        let made =
                            FileSystem::mknod(&*fs, &cx, ROOT, name.as_bytes(), 0o100_644, 0);
                        let ino = made.unwrap().ino;
                        for round in 0..8 {
                            let inode = fs.by_number(ino, IoTag::default()).unwrap();
                            fs.write_file(&cx, &inode, round * 3000, &[7; 3000], false)
                                .unwrap();
                            if n > 0 || round % 3 == 0 {
                                fs.fsync_inode(&cx, &inode, false).unwrap();
                            }
                            yield_now();
                        }
                        FileSystem::forget(&*fs, ino, 1);
                    })
                })
                .collect();
            tasks.into_iter().for_each(|task| task.join());
            let beside = beside_data(&fs);
            fs.close().unwrap();
            beside
        };
        sim::run(sim::Config::new(seed), run);
        judge(&kept, &image, &format!("seed {seed}"));
    }
}
