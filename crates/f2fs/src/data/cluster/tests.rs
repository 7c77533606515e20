use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Device, MemDevice, Op};
use steadfs_rt::{sim, sleep};
use steadfs_vfs::{Cx, FileSystem};

use crate::test_world::fsck;
use crate::{CacheSizes, F2fs, MountOptions};
use steadfs_f2fs_format::test_support::Image;

fn open(device: &Arc<MemDevice>) -> Arc<F2fs> {
    let options = MountOptions::parse("").unwrap();
    let device = Arc::clone(device) as Arc<dyn Device>;
    F2fs::open(device, options, CacheSizes::of(8 << 20))
        .unwrap()
        .0
}

fn flushes(fs: &F2fs) -> u64 {
    let stats = fs.queue.stats();
    let flushes = stats.ops.iter().filter(|o| o.op == Op::Flush);
    flushes.map(|o| o.count).sum()
}

/// The dirty files without the root directory, which a checkpoint writes.
fn dirty(fs: &F2fs) -> Vec<u64> {
    let mut dirty = fs.writeback.dirty_files();
    dirty.retain(|ino| *ino != fs.root().0);
    dirty
}

fn written(fs: &F2fs, from: usize, count: usize) -> Vec<InodeNo> {
    let cx = Cx::default();
    let new = |n| {
        let name = format!("file{n}");
        let root = fs.root();
        let ino = fs
            .mknod(&cx, root, name.as_bytes(), 0o100_644, 0)
            .unwrap()
            .ino;
        fs.write(&cx, ino, 0, &[n as u8; 5000], false).unwrap();
        ino
    };
    (from..from + count).map(new).collect()
}

/// The age of dirty data matters here.
fn in_simulated_time(test: fn()) {
    sim::run(sim::Config::new(1), test);
}

#[test]
fn files_written_before_share_flushes_and_all_survive() {
    in_simulated_time(share_flushes);
}

fn share_flushes() {
    let device = Image::make(&[], 64).device();
    let fs = open(&device);
    let cx = Cx::default();
    let files = written(&fs, 0, 100);
    sleep(Duration::from_millis(10));
    let before = flushes(&fs);
    for ino in &files {
        fs.fsync(&cx, *ino, false).unwrap();
    }
    let taken = flushes(&fs) - before;
    assert!(taken < 30, "{taken} flushes");
    assert!(fs.syncs.reasons().is_empty());
    assert!(dirty(&fs).is_empty());

    // Files that were not synced are lost by a crash; all others are there.
    written(&fs, 100, 1);
    let copy = Arc::new(device.copy());
    fsck(&copy);
    let after = open(&copy);
    for n in 0..100 {
        let name = format!("file{n}");
        let found = after.lookup(&cx, after.root(), name.as_bytes()).unwrap();
        assert_eq!(found.size, 5000);
        let content = after.read(&cx, found.ino, 0, 5000).unwrap();
        assert!(
            content.to_vec().iter().all(|byte| *byte == n as u8),
            "{name}"
        );
    }
    assert!(after.lookup(&cx, after.root(), b"file100").is_err());
    after.unmount().unwrap();
    fsck(&copy);
    fs.unmount().unwrap();
    fsck(&device);
}

#[test]
fn a_file_synced_at_once_has_no_cluster() {
    in_simulated_time(synced_at_once);
}

fn synced_at_once() {
    let device = Image::make(&[], 64).device();
    let fs = open(&device);
    let waiting = written(&fs, 0, 1);
    for n in 1..6 {
        let ino = written(&fs, n, 1)[0];
        fs.fsync(&Cx::default(), ino, false).unwrap();
    }
    assert_eq!(dirty(&fs), [waiting[0].0]);
    fs.unmount().unwrap();
}
