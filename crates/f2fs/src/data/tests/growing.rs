//! What is stored of a file's size while the file grows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, Done, Geometry, MemDevice, Op};
use steadfs_vfs::Cx;

use super::super::placement::Occasion;
use super::{file, open, volume_with_file};
use crate::checkpoint::Reason;
use crate::{CacheSizes, F2fs, MountOptions};

/// A device on which a file is appended to while it has a write.
struct Appends {
    inner: Arc<MemDevice>,
    fs: OnceLock<Weak<F2fs>>,
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
                let inode = file(&fs);
                let written = fs.write_file(&Cx::default(), &inode, 5000, &[2; 700], true);
                assert_eq!(written.unwrap(), 700);
            };
            // Another task's: this one may hold locks.
            steadfs_rt::spawn("append", append).join();
        }
        self.inner.start(bio, done);
    }
}

#[test]
fn a_size_covers_nothing_that_came_while_the_block_was_written() {
    let inner = volume_with_file("extra_attr", 64);
    let device = Arc::new(Appends {
        inner: Arc::clone(&inner),
        fs: OnceLock::new(),
        next: AtomicBool::new(false),
    });
    let options = MountOptions::parse("").unwrap();
    let (fs, _) = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20)).unwrap();
    // What is dirty stays so until the test wants it written.
    fs.writeback.stop();
    assert!(device.fs.set(Arc::downgrade(&fs)).is_ok());
    let (cx, tag) = (Cx::default(), IoTag::default());
    let inode = file(&fs);
    fs.write_file(&cx, &inode, 0, &[1; 5000], false).unwrap();
    for size in [5000, 5700] {
        device.next.store(size == 5000, Ordering::Relaxed);
        fs.write_small(None, &[Arc::clone(&inode)], Occasion::Background, tag)
            .unwrap();
        fs.checkpoint(Reason::Sync, tag).unwrap();
        assert_eq!(inode.size(), 5700);
        let after_power_cut = open(&Arc::new(inner.copy()), "ro");
        let found = file(&after_power_cut);
        assert_eq!(found.size(), size);
        let content = after_power_cut.read_file(&cx, &found, 0, 6000).unwrap();
        let due = [[1; 5000].as_slice(), &[2; 700]].concat();
        assert!(content.to_vec() == due[..size as usize]);
    }
    drop(inode);
    fs.close().unwrap();
}
