//! Throttled writers beside the flusher.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::Urgency;
use steadfs_block::{DeviceModel, ModelDevice};
use steadfs_rt::{inherit, sim};
use steadfs_vfs::Cx;

use super::{FILE, image_with_file};
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
