use std::sync::Arc;
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::{Device, MemDevice, Op};
use steadfs_rt::{sim, sleep};
use steadfs_vfs::{Cx, FileSystem};

use crate::disk::test_images::Image;
use crate::{CacheSizes, Ext4, MountOptions};

const ROOT: InodeNo = InodeNo(2);

fn commits(fs: &Ext4) -> u64 {
    let info = fs.txns().journal().unwrap().info();
    info.split_whitespace().next().unwrap().parse().unwrap()
}

fn lone_flushes(fs: &Ext4) -> u64 {
    let stats = fs.queue().stats();
    let flushes = stats.ops.iter().filter(|o| o.op == Op::Flush);
    flushes.map(|o| o.count).sum()
}

fn volume() -> (Arc<MemDevice>, Arc<Ext4>) {
    let image = Image::make(&["-t", "ext4"], "32M");
    let device = image.device();
    let options = MountOptions::parse("").unwrap();
    let shared = Arc::clone(&device) as Arc<dyn Device>;
    let fs = Ext4::open(shared, options, CacheSizes::of(4 << 20))
        .unwrap()
        .0;
    (device, fs)
}

fn written(fs: &Ext4, count: usize) -> Vec<InodeNo> {
    let cx = Cx::default();
    let new = |n| {
        let name = format!("file{n}");
        let ino = fs
            .mknod(&cx, ROOT, name.as_bytes(), 0o100_644, 0)
            .unwrap()
            .ino;
        fs.write(&cx, ino, 0, &[n as u8; 5000], false).unwrap();
        ino
    };
    (0..count).map(new).collect()
}

#[test]
fn files_written_before_share_commits_and_flushes() {
    in_simulated_time(share_commits_and_flushes);
}

/// In simulated time, as clustering depends on how long a file has been dirty.
fn in_simulated_time(test: fn()) {
    sim::run(sim::Config::new(1), test);
}

fn share_commits_and_flushes() {
    let (_device, fs) = volume();
    let files = written(&fs, 100);
    sleep(Duration::from_millis(10));
    let before = commits(&fs);
    for ino in &files {
        fs.fsync(&Cx::default(), *ino, false).unwrap();
    }
    let taken = commits(&fs) - before;
    assert!(taken < 20, "{taken} commits");
    assert_eq!(lone_flushes(&fs), 0, "commits make durable what went along");
    assert!(fs.writeback().dirty_files().is_empty());
    fs.unmount().unwrap();
}

#[test]
fn a_file_synced_after_each_write_is_not_clustered() {
    in_simulated_time(synced_at_once);
}

fn synced_at_once() {
    let (_device, fs) = volume();
    let cx = Cx::default();
    let waiting = written(&fs, 1);
    for n in 0..5 {
        let name = format!("now{n}");
        let ino = fs
            .mknod(&cx, ROOT, name.as_bytes(), 0o100_644, 0)
            .unwrap()
            .ino;
        fs.write(&cx, ino, 0, &[9; 5000], false).unwrap();
        fs.fsync(&cx, ino, false).unwrap();
    }
    assert_eq!(fs.writeback().dirty_files(), [waiting[0].0]);
    fs.unmount().unwrap();
}
