//! The size on disk while a file grows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, Done, Geometry, MemDevice, Op};
use steadfs_cache::WritebackReason;
use steadfs_vfs::Cx;

use super::{FILE, image_with_file, judge, open};
use crate::{CacheSizes, Ext4, MountOptions};

const FIRST: [u8; 5000] = [1; 5000];
const MORE: [u8; 9000] = [2; 9000];

/// A device on which a file is appended to while it has a write.
struct Appends {
    inner: Arc<MemDevice>,
    fs: OnceLock<Weak<Ext4>>,
    next: AtomicBool,
}

impl Device for Appends {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        if bio.op == Op::Write && self.next.swap(false, Ordering::Relaxed) {
            let fs = self.fs.get().and_then(Weak::upgrade).unwrap();
            let append = move || {
                let inode = fs.inode(FILE, IoTag::default()).unwrap();
                let written = fs.write_file(&Cx::default(), &inode, 5000, &MORE, true);
                assert_eq!(written.unwrap(), MORE.len());
            };
            // In another task, as this one may hold locks.
            steadfs_rt::spawn("append", append).join();
        }
        self.inner.start(bio, done);
    }
}

/// Its last block is dirty again, and is after the blocks that are written next.
#[test]
fn a_file_does_not_grow_over_a_block_that_write_back_skipped() {
    let whole = [FIRST.as_slice(), &MORE].concat();
    for why in [WritebackReason::Background, WritebackReason::Sync] {
        let image = image_with_file(&["-t", "ext4", "-b", "4096"], "16M");
        let device = Arc::new(Appends {
            inner: image.device(),
            fs: OnceLock::new(),
            next: AtomicBool::new(false),
        });
        let shared = Arc::clone(&device) as Arc<dyn Device>;
        let options = MountOptions::parse("").unwrap();
        let (fs, _) = Ext4::open(shared, options, CacheSizes::of(8 << 20)).unwrap();
        // The flusher does not run: dirty data is written by the test only.
        fs.writeback().stop();
        assert!(device.fs.set(Arc::downgrade(&fs)).is_ok());
        let cx = Cx::default();
        let inode = fs.inode(FILE, IoTag::default()).unwrap();
        fs.write_file(&cx, &inode, 0, &FIRST, false).unwrap();
        for grows in [true, false] {
            device.next.store(grows, Ordering::Relaxed);
            fs.write_out(&inode, why, cx.tag).unwrap();
            fs.commit_running(cx.tag).unwrap();
            let after_power_cut = open(&Arc::new(device.inner.copy()), "");
            let there = after_power_cut.inode(FILE, IoTag::default()).unwrap();
            let found = after_power_cut.read_file(&cx, &there, 0, 1 << 20).unwrap();
            assert_eq!(found.len() as u64, there.size());
            let found = found.to_vec();
            assert!(whole.starts_with(&found), "{why:?}: {} bytes", found.len());
            let least = if grows { FIRST.len() } else { whole.len() };
            assert!(found.len() >= least, "{why:?}: {} bytes", found.len());
            drop(there);
            after_power_cut.close().unwrap();
        }
        drop(inode);
        fs.close().unwrap();
        judge(&device.inner, &image, &format!("{why:?}"));
    }
}
