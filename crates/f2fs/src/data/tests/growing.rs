//! The stored size of a file while it grows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, Done, FaultDevice, Geometry, MemDevice, Op};
use steadfs_cache::{Engine, WritebackReason};
use steadfs_vfs::{Cx, FsError, Result};

use super::super::BLOCK;
use super::{file, fsck, open, volume_with_file};
use crate::checkpoint::Reason;
use crate::inode::Inode;
use crate::{CacheSizes, F2fs, MountOptions};

/// A device during whose writes a file is appended to.
struct Appends {
    inner: Arc<MemDevice>,
    fs: OnceLock<Weak<F2fs>>,
    next: AtomicBool,
    bytes: usize,
}

impl Device for Appends {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn start(&self, bio: Bio, done: Done) {
        if bio.op == Op::Write && self.next.swap(false, Ordering::Relaxed) {
            let fs = self.fs.get().and_then(Weak::upgrade).unwrap();
            let more = vec![2; self.bytes];
            let append = move || {
                let inode = file(&fs);
                let written = fs.write_file(&Cx::default(), &inode, 5000, &more, true);
                assert_eq!(written.unwrap(), more.len());
            };
            // In another task, because this one may hold locks.
            steadfs_rt::spawn("append", append).join();
        }
        self.inner.start(bio, done);
    }
}

/// A file of 5000 bytes is written back and grows by this many bytes while its blocks are in flight; then it is
/// written back again. Returns the sizes and contents after power cuts.
fn written_while_it_grows(
    bytes: usize,
    write: impl Fn(&F2fs, &Arc<Inode>) -> Result<()>,
) -> [Vec<u8>; 2] {
    let inner = volume_with_file("extra_attr", 64);
    let device = Arc::new(Appends {
        inner: Arc::clone(&inner),
        fs: OnceLock::new(),
        next: AtomicBool::new(false),
        bytes,
    });
    let options = MountOptions::parse("").unwrap();
    let (fs, _) = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20)).unwrap();
    // Dirty data stays in memory until the test writes it.
    fs.writeback.stop();
    assert!(device.fs.set(Arc::downgrade(&fs)).is_ok());
    let (cx, tag) = (Cx::default(), IoTag::default());
    let inode = file(&fs);
    fs.write_file(&cx, &inode, 0, &[1; 5000], false).unwrap();
    let found = [true, false].map(|grows| {
        device.next.store(grows, Ordering::Relaxed);
        write(&fs, &inode).unwrap();
        fs.checkpoint(Reason::Sync, tag).unwrap();
        assert_eq!(inode.size(), 5000 + bytes as u64);
        let after_power_cut = open(&Arc::new(inner.copy()), "ro");
        let found = file(&after_power_cut);
        let content = after_power_cut.read_file(&cx, &found, 0, 1 << 20).unwrap();
        assert_eq!(content.len() as u64, found.size());
        content.to_vec()
    });
    drop(inode);
    fs.close().unwrap();
    found
}

#[test]
fn the_stored_size_excludes_data_added_during_write_back() {
    let tag = IoTag::default();
    let [first, second] = written_while_it_grows(700, |fs, inode| {
        let engine = Engine(fs);
        let intent = engine.intent(WritebackReason::Background, tag);
        engine.write_small_files(&[Arc::clone(inode)], intent)
    });
    assert!(first == [1; 5000]);
    assert!(second == [[1; 5000].as_slice(), &[2; 700]].concat());
}

/// Of several extents in flight one fails: the stored size does not cover it until it is written.
#[test]
fn the_stored_size_excludes_failed_blocks() {
    const PIECES: [u64; 4] = [0, 3, 6, 9];
    for failing in 1..4_u8 {
        let device = FaultDevice::new(volume_with_file("extra_attr", 64));
        let options = MountOptions::parse("").unwrap();
        let opened = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20));
        let fs = opened.unwrap().0;
        // Dirty data stays in memory until the test writes it.
        fs.writeback.stop();
        let (cx, tag) = (Cx::default(), IoTag::default());
        let inode = file(&fs);
        for (n, block) in PIECES.into_iter().enumerate() {
            let data = [n as u8 + 1; BLOCK as usize];
            fs.write_file(&cx, &inode, block * BLOCK, &data, false)
                .unwrap();
        }
        let is_it = move |bio: &Bio| bio.bufs.first().is_some_and(|b| b[0] == failing + 1);
        device.fail(move |bio| bio.op == Op::Write && is_it(bio));
        let failed = fs.write_out(&inode, WritebackReason::Background, tag);
        assert!(matches!(failed, Err(FsError::Io(_))), "{failed:?}");
        device.fail_writes(false);
        let after_power_cut = || {
            fs.checkpoint(Reason::Sync, tag).unwrap();
            let fs = open(&Arc::new(device.memory.copy()), "ro");
            file(&fs).size()
        };
        assert_eq!(
            after_power_cut(),
            (PIECES[usize::from(failing) - 1] + 1) * BLOCK
        );
        fs.write_out(&inode, WritebackReason::Background, tag)
            .unwrap();
        assert_eq!(after_power_cut(), 10 * BLOCK);
        drop(inode);
        fs.close().unwrap();
        fsck(&device.memory);
    }
}
