//! Writers above the limit of dirty data.

use std::sync::Arc;

use steadfs_block::FaultDevice;
use steadfs_vfs::{Cx, FsError};

use super::{file, volume_with_file};
use crate::{CacheSizes, F2fs, MountOptions};

/// A refused write has taken nothing, so what the device fails does not fill the memory.
#[test]
fn a_writer_is_refused_while_the_device_fails_its_data() {
    const CACHE: u64 = 8 << 20;
    const PIECE: u64 = 1 << 20;
    let device = FaultDevice::new(volume_with_file("extra_attr", 128));
    let options = MountOptions::parse("").unwrap();
    let (fs, _) = F2fs::open(Arc::clone(&device) as _, options, CacheSizes::of(CACHE)).unwrap();
    fs.writeback.stop();
    let (cx, inode) = (Cx::default(), file(&fs));
    let piece = vec![7; PIECE as usize];
    let write = |n: u64| fs.write_file(&cx, &inode, n * PIECE, &piece, false);
    device.fail_writes(true);
    let refused = (0..32).find_map(|n| Some((n, write(n).err()?)));
    let (accepted, error) = refused.expect("the limit holds");
    assert!(matches!(error, FsError::Io(_)), "{error:?}");
    assert_eq!(inode.size(), accepted * PIECE);
    // A quarter of the cache, and one write.
    assert_eq!(fs.writeback.dirty_bytes(), CACHE / 4 + PIECE);
    device.fail_writes(false);
    assert_eq!(write(accepted), Ok(PIECE as usize));
    drop(inode);
    fs.close().unwrap();
}
