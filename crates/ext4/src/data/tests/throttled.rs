//! Throttled writers beside the flusher.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::Urgency;
use steadfs_block::{DeviceModel, FaultDevice, ModelDevice};
use steadfs_rt::{inherit, sim};
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::{FILE, image_with_file};
use crate::test_world::ROOT;
use crate::{CacheSizes, Ext4, MountOptions};

#[test]
fn a_throttled_writer_does_not_boost_the_flusher() {
    let config = sim::Config {
        allow_daemons: true,
        ..sim::Config::new(1)
    };
    sim::run(config, || {
        let image = image_with_file(&["-t", "ext4", "-b", "4096"], "64M");
        let model = DeviceModel {
            bytes_per_second: 50 << 20,
            latency: Duration::from_micros(50),
            flush: Duration::from_millis(1),
            depth: 8,
        };
        let device = Arc::new(ModelDevice::new(image.device(), model));
        let options = MountOptions::parse("").unwrap();
        let (fs, _) = Ext4::open(device, options, CacheSizes::of(8 << 20)).unwrap();
        let cx = Cx::default();
        let inode = fs.inode(FILE, cx.tag).unwrap();
        let before = fs.queue.stats().boosts.inherited;
        // As a request of a mount does.
        let task_tag = inherit::set_task_tag(cx.tag.with_urgency(Urgency::Waited));
        let piece = vec![7; 256 << 10];
        for n in 0..96 {
            let at = n * piece.len() as u64;
            fs.write_file(&cx, &inode, at, &piece, false).unwrap();
        }
        drop(task_tag);
        let stats = fs.queue.stats();
        let dirty = fs.writeback.dirty_bytes();
        assert!(dirty <= 8 << 20, "{dirty} bytes: no writer was throttled");
        // A writer may wait for the map's lock while a batch is in flight; otherwise every throttled write would boost
        // one.
        let raised = stats.boosts.inherited - before;
        assert!(raised <= 2, "{raised} requests were raised");
        drop(inode);
        fs.close().unwrap();
    });
}

const CACHE: u64 = 8 << 20;
const PIECE: usize = 1 << 20;

/// Writes pieces until one is refused, up to 64; the device fails all writes. The data's limit is a quarter of the cache.
fn write_until_refused(mut write: impl FnMut(&Ext4, usize) -> Result<usize, FsError>) {
    let image = image_with_file(&["-t", "ext4", "-b", "4096"], "256M");
    let device = FaultDevice::new(image.device());
    let options = MountOptions::parse("").unwrap();
    let sizes = CacheSizes::of(CACHE);
    let (fs, _) = Ext4::open(Arc::clone(&device) as _, options, sizes).unwrap();
    fs.writeback.stop();
    device.fail_writes(true);
    let mut accepted = 0;
    let refused = (0..64).find_map(|n| match write(&fs, n) {
        Ok(bytes) => {
            accepted += bytes as u64;
            None
        }
        Err(error) => Some(error),
    });
    assert!(matches!(refused, Some(FsError::Io(_))), "{refused:?}");
    assert_eq!(
        fs.writeback.dirty_bytes(),
        accepted,
        "a refused write has taken nothing"
    );
    assert!(
        (CACHE / 4..=CACHE / 2 + PIECE as u64).contains(&accepted),
        "{accepted}"
    );
    device.fail_writes(false);
    fs.sync_volume(&Cx::default()).unwrap();
    assert_eq!(fs.writeback.dirty_bytes(), 0);
    write(&fs, 64).unwrap();
    fs.close().unwrap();
}

#[test]
fn a_writer_is_refused_while_the_device_fails_its_data() {
    let cx = Cx::default();
    let piece = vec![7; PIECE];
    write_until_refused(|fs, n| {
        let inode = fs.inode(FILE, cx.tag).unwrap();
        let size = inode.size();
        let written = fs.write_file(&cx, &inode, (n * PIECE) as u64, &piece, false);
        if written.is_err() {
            assert_eq!(inode.size(), size);
        }
        written
    });
}

#[test]
fn writers_of_many_files_are_refused_while_the_device_fails_their_data() {
    let cx = Cx::default();
    let piece = vec![7; PIECE];
    write_until_refused(|fs, n| {
        let name = format!("f{n}");
        let ino = FileSystem::mknod(fs, &cx, ROOT, name.as_bytes(), 0o100_644, 0)?.ino;
        let written = FileSystem::write(fs, &cx, ino, 0, &piece, false);
        FileSystem::forget(fs, ino, 1);
        written
    });
}
