//! fsync of a file whose inode has left memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::IoTag;
use steadfs_block::{Bio, Fault, FaultDevice};
use steadfs_cache::WritebackReason;
use steadfs_vfs::{Cx, FsError};

use super::{FILE, image_with_file, judge};
use crate::disk::test_images::Image;
use crate::{CacheSizes, Ext4, MountOptions};

/// A volume with a file and without a flusher.
fn opened() -> (Image, Arc<FaultDevice>, Arc<Ext4>) {
    let image = image_with_file(&["-t", "ext4", "-b", "4096"], "16M");
    let device = FaultDevice::new(image.device());
    let options = MountOptions::parse("").unwrap();
    let sizes = CacheSizes::of(16 << 20);
    let (fs, _) = Ext4::open(Arc::clone(&device) as _, options, sizes).unwrap();
    fs.writeback.stop();
    (image, device, fs)
}

/// A file whose writes a FLUSH has covered needs no other one, and one whose writes none has covered does.
#[test]
fn the_flush_that_covers_an_inode_is_known_after_it_is_evicted() {
    let (image, device, fs) = opened();
    let (cx, tag) = (Cx::default(), IoTag::default());
    let requests = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&requests);
    device.set(move |_: &Bio| {
        count.fetch_add(1, Ordering::Relaxed);
        Fault::None
    });
    let sync_again = || {
        fs.forget_clean();
        let inode = fs.inode(FILE, tag).unwrap();
        let before = requests.load(Ordering::Relaxed);
        fs.fsync_inode(&cx, &inode, false).unwrap();
        requests.load(Ordering::Relaxed) - before
    };
    // The mount has flushed what the server before this one may have written.
    assert_eq!(sync_again(), 0);
    let inode = fs.inode(FILE, tag).unwrap();
    fs.write_file(&cx, &inode, 0, &[1; 9000], false).unwrap();
    fs.fsync_inode(&cx, &inode, false).unwrap();
    drop(inode);
    assert_eq!(sync_again(), 0);
    let inode = fs.inode(FILE, tag).unwrap();
    inode.mark_unflushed(fs.queue.next_flush());
    drop(inode);
    assert_eq!(sync_again(), 1);
    assert_eq!(sync_again(), 0);
    fs.close().unwrap();
    judge(&device.memory, &image, "evicted");
}

/// A later write of the same blocks may succeed: the error is reported all the same.
#[test]
fn an_error_that_no_fsync_has_reported_outlives_the_memory_of_inodes() {
    let (image, device, fs) = opened();
    let (cx, tag) = (Cx::default(), IoTag::default());
    let inode = fs.inode(FILE, tag).unwrap();
    fs.write_file(&cx, &inode, 0, &[1; 9000], false).unwrap();
    device.fail_writes(true);
    let failed = fs.write_out(&inode, WritebackReason::Background, tag);
    assert!(matches!(failed, Err(FsError::Io(_))), "{failed:?}");
    device.fail_writes(false);
    fs.write_out(&inode, WritebackReason::Background, tag)
        .unwrap();
    fs.sync_volume(&cx).unwrap();
    drop(inode);
    fs.forget_clean();
    let inode = fs.inode(FILE, tag).unwrap();
    let reported = fs.fsync_inode(&cx, &inode, false);
    assert!(matches!(reported, Err(FsError::Io(_))), "{reported:?}");
    fs.fsync_inode(&cx, &inode, false).unwrap();
    drop(inode);
    fs.close().unwrap();
    judge(&device.memory, &image, "evicted with an error");
}
