//! What GC and a full volume do to a file's blocks, and the size of a file that grows. fsck.f2fs checks the volume.

mod clustered;
mod evicted;
mod growing;
mod largest;
mod leaving_inline;
mod numbers;
mod throttled;
mod truncated;

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Device, MemDevice};
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FileSystem, FsError};

use super::BLOCK;
use crate::inode::Inode;
use crate::test_world::fsck;
use crate::{CacheSizes, F2fs, MountOptions};
use steadfs_f2fs_format::test_support::{Image, LOAD_FEATURES};

/// A volume with an empty file in its root directory.
fn volume_with_file(features: &str, mib: u64) -> Arc<MemDevice> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let image = Image::make(&["-O", features], mib);
    image.load(dir.path(), &[]);
    image.device()
}

fn open(device: &Arc<MemDevice>, options: &str) -> Arc<F2fs> {
    let options = MountOptions::parse(options).unwrap();
    let device = Arc::clone(device) as Arc<dyn Device>;
    F2fs::open(device, options, CacheSizes::of(8 << 20))
        .unwrap()
        .0
}

fn file(fs: &F2fs) -> Arc<Inode> {
    let attr = fs.lookup(&Cx::default(), fs.root(), b"file").unwrap();
    fs.by_number(attr.ino, IoTag::default()).unwrap()
}

/// Blocks that GC moves keep their content, in the inode and direct nodes, through an indirect node and through the
/// double indirect one.
#[test]
fn moved_blocks_keep_their_content() {
    const BLOCKS: u64 = 140;
    for (base, seed) in [(0, 1), (2905, 2), (903, 3), (2_075_195, 4)] {
        for mount in ["", "mode=lfs"] {
            let device = volume_with_file(LOAD_FEATURES, 64);
            let fs = open(&device, mount);
            let (cx, tag, inode) = (Cx::default(), IoTag::default(), file(&fs));
            let mut random = Random::new(seed);
            let mut model = [0; BLOCKS as usize];
            let mut moves = 0;
            for step in 0..200 {
                let first = random.below(BLOCKS as usize - 20) as u64;
                if random.below(2) == 0 {
                    let fill = 1 + step as u8;
                    let data = vec![fill; 5 * BLOCK as usize];
                    let at = (base + first) * BLOCK;
                    fs.write_file(&cx, &inode, at, &data, false).unwrap();
                    model[first as usize..first as usize + 5].fill(fill);
                    if random.below(3) == 0 {
                        fs.fsync_inode(&cx, &inode, false).unwrap();
                    }
                } else {
                    moves += relocate(&fs, &inode, base + first, step % 2 == 0);
                }
            }
            assert!(moves > 200, "{moves} blocks moved");
            fs.segments().check();
            for (block, fill) in (base..).zip(model) {
                let read = fs.read_file(&cx, &inode, block * BLOCK, BLOCK as usize);
                let read = read.unwrap().to_vec();
                assert!(read.iter().all(|byte| *byte == fill), "block {block}");
            }
            drop(inode);
            fs.sync_volume(&cx).unwrap();
            fs.checkpoint(crate::checkpoint::Reason::Unmount, tag)
                .unwrap();
            drop(fs);
            fsck(&device);
        }
    }
}

/// Moves up to 20 blocks as GC does; returns their number.
fn relocate(fs: &F2fs, inode: &Inode, first: u64, by_age: bool) -> u64 {
    if inode.has_inline_data() {
        return 0;
    }
    let tag = IoTag::default();
    let blocks: Vec<_> = (first..first + 20)
        .map(|block| (block, fs.slot(inode, block, tag).unwrap()))
        .filter(|(_, addr)| addr.is_block())
        .collect();
    let moved = fs.relocate_blocks(inode, &blocks, by_age, tag).unwrap();
    assert_eq!(moved, blocks.len() as u64);
    for (block, old) in blocks {
        assert_ne!(fs.slot(inode, block, tag).unwrap(), old);
    }
    moved
}

#[test]
fn a_full_volume_has_hardly_a_block_left() {
    let device = volume_with_file("extra_attr", 64);
    let fs = open(&device, "");
    let (inode, mut end) = (file(&fs), 0);
    let full = loop {
        match fs.write_file(&Cx::default(), &inode, end, &[7; 30_000], false) {
            Ok(n) => end += n as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full, FsError::NoSpace);
    let counts = fs.space.counts();
    let left = counts.user_blocks - counts.valid_blocks - counts.reserved;
    let (segments, policy) = (fs.segments().counts(), fs.segments().policy());
    assert!(left < 10, "{counts:?} {segments:?} {policy:?}");
    fs.sync_volume(&Cx::default()).unwrap();
    assert_eq!(fs.space.counts().reserved, 0);
    drop(inode);
    fs.close().unwrap();
    fsck(&device);
}
