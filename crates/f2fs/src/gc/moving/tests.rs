//! Removing files while GC moves their blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Device, DeviceModel, ModelDevice};
use steadfs_rt::sim::{Config, run};
use steadfs_rt::spawn;
use steadfs_vfs::{Cx, FileSystem, FsError};

use crate::disk::BLOCK_SIZE;
use crate::format::{FormatOptions, image};
use crate::test_world::{ROOT, fsck};
use crate::{CacheSizes, F2fs, MountOptions};

const FILES: usize = 300;
const MODEL: DeviceModel = DeviceModel {
    bytes_per_second: 100 << 20,
    latency: Duration::from_millis(1),
    flush: Duration::from_millis(1),
    depth: 8,
};

fn open(device: Arc<dyn Device>) -> Arc<F2fs> {
    let options = MountOptions::parse("mode=lfs,background_gc=off").unwrap();
    F2fs::open(device, options, CacheSizes::of(8 << 20))
        .unwrap()
        .0
}

fn name(n: usize) -> Vec<u8> {
    format!("name{n}").into_bytes()
}

/// Creates files, and long symbolic links, which have a block.
fn fill(device: Arc<dyn Device>) {
    let (fs, cx) = (open(device), Cx::default());
    for n in 0..FILES {
        let made = if n % 3 == 0 {
            fs.symlink(&cx, ROOT, &name(n), &[b't'; 4000]).unwrap()
        } else {
            let made = fs.mknod(&cx, ROOT, &name(n), 0o100_644, 0).unwrap();
            let data = vec![7; 4 * BLOCK_SIZE];
            fs.write(&cx, made.ino, 0, &data, false).unwrap();
            made
        };
        fs.forget(made.ino, 1);
    }
    fs.close().unwrap();
}

fn clean_beside_removals() {
    let device = image(64 << 20, &FormatOptions::default()).unwrap();
    fill(Arc::clone(&device) as _);
    let fs = open(Arc::new(ModelDevice::new(Arc::clone(&device) as _, MODEL)));
    let done = Arc::new(AtomicBool::new(false));
    let remover = {
        let (fs, done) = (Arc::clone(&fs), Arc::clone(&done));
        spawn("remover", move || {
            for n in 0..FILES {
                fs.unlink(&Cx::default(), ROOT, &name(n)).unwrap();
            }
            done.store(true, Ordering::Release);
        })
    };
    let sections = fs.layout.main_blocks() / (fs.layout.segments_per_section * 512);
    while !done.load(Ordering::Acquire) {
        for section in 0..sections {
            match fs.clean_section(section, IoTag::default()) {
                Ok(_) | Err(FsError::Busy) => {}
                Err(error) => panic!("section {section}: {error}"),
            }
        }
        steadfs_rt::sleep(Duration::from_millis(1));
    }
    remover.join();
    assert!(!fs.is_corrupt());
    fs.close().unwrap();
    fsck(&device);
}

#[test]
fn removing_a_file_during_gc_is_no_corruption() {
    for seed in 0..6 {
        run(Config::new(seed), clean_beside_removals);
    }
}
