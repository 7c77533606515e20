//! Large files, written in batches.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Device, FaultDevice, MemDevice, Op};
use steadfs_cache::WritebackReason;
use steadfs_vfs::{Cx, FsError};

use super::{FILE, image_with_file, judge};
use crate::{CacheSizes, Ext4, MountOptions};

/// Several batches, the last one partial.
const SIZE: usize = (14 << 20) + 5000;

/// A device on which one large write fails, after a number of others.
fn fails_once(memory: Arc<MemDevice>, before: u32) -> Arc<FaultDevice> {
    let device = FaultDevice::new(memory);
    let mut count = 0;
    device.fail(move |bio| {
        let large = bio.op == Op::Write && bio.len >= 256 << 10;
        count += u32::from(large);
        large && count == before + 1
    });
    device
}

fn open(device: Arc<dyn Device>, cache: u64) -> Arc<Ext4> {
    let options = MountOptions::parse("").unwrap();
    let (fs, _) = Ext4::open(device, options, CacheSizes::of(cache)).unwrap();
    // The flusher does not run: dirty data is written by the test only.
    fs.writeback.stop();
    fs
}

fn content() -> Vec<u8> {
    (0..SIZE).map(|i| (i / 1000) as u8 | 1).collect()
}

/// What a mount finds of the file after a power cut.
fn after_power_cut(device: &MemDevice) -> Vec<u8> {
    let fs = open(Arc::new(device.copy()), 64 << 20);
    let inode = fs.inode(FILE, IoTag::default()).unwrap();
    let mut found = Vec::new();
    loop {
        let at = found.len() as u64;
        let more = fs.read_file(&Cx::default(), &inode, at, 1 << 20).unwrap();
        if more.is_empty() {
            drop(inode);
            fs.close().unwrap();
            return found;
        }
        found.extend(more.to_vec());
    }
}

#[test]
fn a_file_never_grows_over_a_batch_that_failed() {
    let cx = Cx::default();
    let content = content();
    let mut failures = 0;
    for before in 0.. {
        let image = image_with_file(&["-t", "ext4", "-b", "4096"], "64M");
        let device = fails_once(image.device(), before);
        let fs = open(Arc::clone(&device) as Arc<dyn Device>, 64 << 20);
        let inode = fs.inode(FILE, IoTag::default()).unwrap();
        fs.write_file(&cx, &inode, 0, &content, false).unwrap();
        let written = fs.write_out(&inode, WritebackReason::Background, cx.tag);
        fs.commit_running(cx.tag).unwrap();
        let there = after_power_cut(&device.memory);
        assert!(content.starts_with(&there), "{} bytes", there.len());
        if written.is_ok() {
            assert_eq!(there.len(), SIZE);
            fs.close().unwrap();
            break;
        }
        failures += 1;
        assert!(there.len() < SIZE);
        // Reported once, and nothing is lost.
        let told = fs.fsync_inode(&cx, &inode, false);
        assert!(matches!(told, Err(FsError::Io(_))), "{told:?}");
        fs.fsync_inode(&cx, &inode, false).unwrap();
        assert!(after_power_cut(&device.memory) == content);
        drop(inode);
        fs.close().unwrap();
        judge(&device.memory, &image, &format!("failure {before}"));
    }
    assert!(failures > 4, "{failures} large writes");
}

#[test]
fn a_throttled_writer_continues_below_the_limit() {
    let image = image_with_file(&["-t", "ext4", "-b", "4096"], "128M");
    let fs = open(image.device(), 128 << 20);
    let cx = Cx::default();
    let inode = fs.inode(FILE, IoTag::default()).unwrap();
    let piece = vec![7; 1 << 20];
    let file = steadfs_cache::DirtyFile(inode.ino().0.into());
    let mut end = 0;
    while !fs.writeback.must_throttle(file) {
        let (bytes, result) = fs.write_pages(&cx, &inode, end, &piece, u64::MAX);
        result.unwrap();
        end += bytes as u64;
    }
    fs.write_out(&inode, WritebackReason::Throttle, cx.tag)
        .unwrap();
    let left = fs.writeback.dirty_bytes();
    assert!(!fs.writeback.must_throttle(file));
    assert!(left > end / 4, "{left} of {end} bytes are left");
    drop(inode);
    fs.close().unwrap();
}
