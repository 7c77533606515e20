//! Full volumes: acknowledged bytes are there, and the rest of a file is unchanged.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{FileBlock, IoTag};
use steadfs_block::{Device, FaultDevice};
use steadfs_rt::{sim, sleep, spawn};
use steadfs_vfs::{Cx, FallocMode, FileSystem, FsError};

use super::{image_with_file, judge};
use crate::disk::Ino;
use crate::inode::Inode;
use crate::{CacheSizes, Ext4, MountOptions};

struct Full {
    device: Arc<FaultDevice>,
    fs: Arc<Ext4>,
    cx: Cx,
}

impl Full {
    fn new(mkfs: &[&str], mount: &str) -> Self {
        let image = image_with_file(mkfs, "8M");
        let device = FaultDevice::new(image.device());
        let options = MountOptions::parse(mount).unwrap();
        let shared = Arc::clone(&device) as Arc<dyn Device>;
        let (fs, _) = Ext4::open(shared, options, CacheSizes::of(4 << 20)).unwrap();
        Self {
            device,
            fs,
            cx: Cx::default(),
        }
    }

    fn make(&self, name: &[u8]) -> Arc<Inode> {
        let attr = Ext4::mknod(
            &self.fs,
            &self.cx,
            crate::test_world::ROOT,
            name,
            0o100_644,
            0,
        );
        let ino = Ino(u32::try_from(attr.unwrap().ino.0).unwrap());
        self.fs.inode(ino, IoTag::default()).unwrap()
    }

    fn write(&self, inode: &Inode, at: u64, data: &[u8]) -> Result<usize, FsError> {
        self.fs.write_file(&self.cx, inode, at, data, false)
    }

    fn read(&self, inode: &Inode) -> Vec<u8> {
        let size = inode.size() as usize;
        self.fs
            .read_file(&self.cx, inode, 0, size)
            .unwrap()
            .to_vec()
    }

    fn free(&self) -> u64 {
        FileSystem::statfs(&*self.fs, &self.cx).unwrap().blocks_free
    }

    /// Allocates all but `left` blocks.
    fn fill(&self, left: u64) {
        let block = 1 << self.fs.geo().block_size.bits();
        let filler = self.make(b"filler");
        let mut size = 0;
        loop {
            // Blocks of the map are allocated in between.
            self.fs.sync_volume(&self.cx).unwrap();
            let free = self.free();
            if free <= left {
                assert_eq!(free, left, "no such amount of room");
                return;
            }
            let take = ((free - left).div_ceil(2)).min(1024);
            size += self
                .write(&filler, size, &vec![9; (take * block) as usize])
                .unwrap() as u64;
        }
    }

    fn close(self) {
        self.fs.close().unwrap();
        let image = image_with_file(&["-t", "ext2", "-b", "1024"], "8M");
        judge(&self.device.memory, &image, "a full volume");
    }
}

const KINDS: [&[&str]; 4] = [
    &["-t", "ext4", "-b", "1024", "-m", "0"],
    &["-t", "ext3", "-b", "1024", "-m", "0"],
    &["-t", "ext2", "-b", "1024", "-m", "0"],
    &["-t", "ext4", "-b", "4096", "-m", "0"],
];

/// A write ends at its first block without space: everything before is written, nothing after it, even blocks that are
/// mapped.
#[test]
fn a_write_ends_at_the_first_block_without_space() {
    for (kind, mount) in KINDS
        .iter()
        .flat_map(|kind| [(kind, ""), (kind, "nodelalloc")])
    {
        let world = Full::new(kind, mount);
        let block = world.fs.geo().block_size.bytes();
        let file = world.make(b"f");
        let mut model = vec![1; 5 * block + 1];
        assert_eq!(world.write(&file, 0, &model), Ok(model.len()));
        // A hole of two blocks, followed by data.
        let far = 8 * block as u64;
        assert_eq!(world.write(&file, far, &[2; 100]), Ok(100));
        world.fill(1);
        model.resize(far as usize, 0);
        model.resize(far as usize + 100, 2);
        let data = vec![3; 8 * block];
        let fits = 7 * block - 10;
        assert_eq!(world.write(&file, 10, &data), Ok(fits), "{kind:?} {mount}");
        model[10..10 + fits].fill(3);
        assert!(world.read(&file) == model, "{kind:?} {mount}");
        // Not one byte more; but existing data can be overwritten any number of times.
        let at = 7 * block as u64;
        assert_eq!(world.write(&file, at, &data), Err(FsError::NoSpace));
        for round in 4..8 {
            assert_eq!(
                world.write(&file, 3, &vec![round; 2 * block]),
                Ok(2 * block)
            );
            model[3..3 + 2 * block].fill(round);
        }
        assert!(world.read(&file) == model);
        world.fs.fsync_inode(&world.cx, &file, false).unwrap();
        assert!(world.read(&file) == model);
        drop(file);
        world.close();
    }
}

/// Acknowledged data survives a failed write on a full volume, and reaches the device when that works again.
#[test]
fn a_broken_device_costs_a_full_volume_nothing() {
    for kind in KINDS {
        let world = Full::new(kind, "");
        let block = world.fs.geo().block_size.bytes();
        let file = world.make(b"f");
        let mut model = vec![1; 3 * block];
        assert_eq!(world.write(&file, 0, &model), Ok(model.len()));
        world.fill(1);
        assert_eq!(world.write(&file, 5, &[2; 20]), Ok(20));
        model[5..25].fill(2);
        world.device.fail_writes(true);
        // Mapped blocks are written to the cache; a new block cannot be written, and nothing of it stays.
        let fits = 3 * block - 100;
        assert_eq!(world.write(&file, 100, &vec![3; 3 * block]), Ok(fits));
        model[100..].fill(3);
        let new = world.write(&file, 3 * block as u64, &[4; 50]);
        assert!(matches!(new, Err(FsError::Io(_))), "{new:?}");
        assert!(world.read(&file) == model);
        assert_eq!((file.size(), world.free()), (model.len() as u64, 1));
        let written = world.fs.write_out(
            &file,
            steadfs_cache::WritebackReason::Sync,
            IoTag::default(),
        );
        assert!(matches!(written, Err(FsError::Io(_))), "{written:?}");
        assert!(
            world.read(&file) == model,
            "the failed write stays in the cache"
        );
        world.device.fail_writes(false);
        assert_eq!(world.write(&file, 3 * block as u64, &[5; 50]), Ok(50));
        model.extend([5; 50]);
        // The failure has not been reported yet.
        let fsync = || world.fs.fsync_inode(&world.cx, &file, false);
        assert!(matches!(fsync(), Err(FsError::Io(_))));
        fsync().unwrap();
        assert!(file.pages.is_empty() && world.read(&file) == model);
        drop(file);
        world.close();
    }
}

/// Blocks allocated by fallocate can be written, whatever the form of their map and however full the volume.
#[test]
fn fallocated_blocks_can_be_written() {
    let world = Full::new(&["-t", "ext4", "-b", "1024", "-m", "0"], "");
    let file = world.make(b"f");
    let allocate = FallocMode::Allocate { keep_size: false };
    let blocks = 600;
    world
        .fs
        .fallocate_file(&world.cx, &file, allocate, 0, blocks << 10)
        .unwrap();
    world.fill(0);
    let mut model = vec![0; (blocks as usize) << 10];
    // Every second block: each splits an extent, until the leaf is full.
    for at in (0..blocks).step_by(2).map(|block| (block as usize) << 10) {
        let fill = (at >> 10) as u8 | 1;
        assert_eq!(world.write(&file, at as u64, &[fill; 1000]), Ok(1000));
        model[at..at + 1000].fill(fill);
    }
    assert!(world.read(&file) == model);
    // Zeroing and punching in the middle of runs take map blocks too.
    let zero = FallocMode::ZeroRange { keep_size: false };
    for (mode, at) in [(zero, 301), (FallocMode::PunchHole, 405)] {
        world
            .fs
            .fallocate_file(&world.cx, &file, mode, at << 10, 2048)
            .unwrap();
        model[(at as usize) << 10..][..2048].fill(0);
    }
    assert!(world.read(&file) == model);
    world.fs.fsync_inode(&world.cx, &file, false).unwrap();
    drop(file);
    world.close();
}

/// The same beyond the end of the file, where only unwritten blocks may be.
#[test]
fn fallocated_blocks_beyond_the_end_can_be_written() {
    let world = Full::new(&["-t", "ext4", "-b", "1024", "-m", "0"], "");
    let file = world.make(b"f");
    let mut model = vec![1; 5000];
    assert_eq!(world.write(&file, 0, &model), Ok(5000));
    let allocate = FallocMode::Allocate { keep_size: true };
    let blocks = 600;
    world
        .fs
        .fallocate_file(&world.cx, &file, allocate, 5000, blocks << 10)
        .unwrap();
    world.fill(0);
    for odd in [0, 1] {
        for block in (10..blocks).filter(|block| block / 3 % 2 == odd) {
            let (at, fill) = ((block as usize) << 10, block as u8 | 1);
            let written = world.write(&file, at as u64, &[fill; 1000]);
            assert_eq!(written, Ok(1000), "block {block}");
            model.resize(model.len().max(at + 1000), 0);
            model[at..at + 1000].fill(fill);
        }
        assert!(world.read(&file) == model);
    }
    world.fs.fsync_inode(&world.cx, &file, false).unwrap();
    assert!(world.read(&file) == model);
    drop(file);
    world.close();
}

/// The same with a map that has no room for more extents, for the first, the last and a middle block of an extent.
#[test]
fn every_block_of_a_run_can_be_written() {
    let world = Full::new(&["-t", "ext4", "-b", "1024", "-m", "0"], "");
    let file = world.make(b"f");
    let allocate = FallocMode::Allocate { keep_size: false };
    // As many extents as fit the inode.
    for run in 0..4 {
        world
            .fs
            .fallocate_file(&world.cx, &file, allocate, run << 14, 8 << 10)
            .unwrap();
    }
    world.fill(0);
    let mut model = vec![0; file.size() as usize];
    assert_eq!(model.len(), 56 << 10);
    for (fill, block) in (1..).zip([7, 16, 35, 54]) {
        let (at, bytes) = (block << 10, if block == 54 { 2048 } else { 1000 });
        let written = world.write(&file, at as u64, &vec![fill; bytes]);
        assert_eq!(written, Ok(bytes), "block {block}");
        model[at..at + bytes].fill(fill);
        assert!(world.read(&file) == model, "block {block}");
    }
    world.fs.fsync_inode(&world.cx, &file, false).unwrap();
    assert!(world.read(&file) == model);
    drop(file);
    world.close();
}

/// A failure is reported once; a later fsync that writes everything succeeds, however many background writes have
/// failed in between.
#[test]
fn a_failure_is_reported_once_after_the_device_works_again() {
    for kind in [["-t", "ext4"], ["-t", "ext2"]] {
        let world = Full::new(&kind, "");
        let file = world.make(b"f");
        assert_eq!(world.write(&file, 0, &[1; 5000]), Ok(5000));
        let fsync = || world.fs.fsync_inode(&world.cx, &file, false);
        fsync().unwrap();
        let fails = |fails| world.device.fail_writes(fails);
        let in_background = || {
            let why = steadfs_cache::WritebackReason::Background;
            world.fs.write_out(&file, why, IoTag::background())
        };
        for _ in 0..2 {
            assert_eq!(world.write(&file, 0, &[2; 5000]), Ok(5000));
            fails(true);
            in_background().unwrap_err();
            assert!(matches!(fsync(), Err(FsError::Io(_))));
            in_background().unwrap_err();
            fails(false);
            fsync().unwrap();
        }
        // Failed and then written in the background: only the next fsync reports it.
        assert_eq!(world.write(&file, 0, &[3; 5000]), Ok(5000));
        fails(true);
        in_background().unwrap_err();
        fails(false);
        in_background().unwrap();
        assert!(matches!(fsync(), Err(FsError::Io(_))));
        fsync().unwrap();
        drop(file);
        world.close();
    }
}

/// Data below the new size must be written first. If that fails the file is unchanged, in memory and finally on the
/// device.
#[test]
fn a_truncate_that_cannot_write_cuts_nothing() {
    for kind in [["-t", "ext4"], ["-t", "ext2"]] {
        let world = Full::new(&kind, "");
        let file = world.make(b"f");
        assert_eq!(world.write(&file, 0, &[1]), Ok(1));
        assert_eq!(world.write(&file, 14_140, &[2; 2207]), Ok(2207));
        let content = world.read(&file);
        world.device.fail_writes(true);
        let cut = world.fs.truncate(&world.cx, &file, 10_053);
        assert!(matches!(cut, Err(FsError::Io(_))), "{cut:?}");
        assert!(world.read(&file) == content);
        world.device.fail_writes(false);
        // The failure may be reported once more.
        let _ = world.fs.fsync_inode(&world.cx, &file, false);
        world.fs.fsync_inode(&world.cx, &file, false).unwrap();
        let ino = file.ino();
        drop(file);
        let device = Arc::clone(&world.device.memory);
        world.close();
        let again = Ext4::open(device, MountOptions::default(), CacheSizes::of(4 << 20));
        let (fs, _) = again.unwrap();
        let file = fs.inode(ino, IoTag::default()).unwrap();
        let found = fs.read_file(&Cx::default(), &file, 0, 20_000).unwrap();
        assert!(found.to_vec() == content);
        drop(file);
        fs.close().unwrap();
    }
}

impl Full {
    /// Maps `len` blocks of a file from `at` on in a transaction that is locked for its commit.
    fn map_while_closing(&self, file: &Inode, at: u64, len: u32) -> Result<(), FsError> {
        let fs = &self.fs;
        let goal = fs.alloc.goal_for(fs.geo(), file.ino());
        let run = fs.alloc.allocate(fs, goal, len).unwrap();
        assert_eq!(run.len, len);
        let credits = fs.map_credits(&file.core.read(), len) + 1;
        let mut handle = fs.txns.begin(credits).unwrap();
        let (closing, tid) = (Arc::clone(fs), handle.tid());
        let commit = spawn("commit", move || closing.txns.commit(tid, IoTag::default()));
        sleep(Duration::from_millis(50));
        assert!(!handle.extend(credits + 1), "it is locked");
        let mut core = file.core.write();
        let mapped = fs.map_allocation(
            &mut handle,
            file.ino(),
            &mut core,
            FileBlock(at),
            run,
            false,
        );
        fs.store_inode(&mut handle, file, &core).unwrap();
        handle.consistent();
        drop((core, handle));
        commit.join().unwrap();
        if let Err(error) = &mapped {
            fs.release_unmapped(run, error);
        }
        mapped
    }
}

/// A mapping that finds no space for map blocks is undone also while the transaction is locked for its commit and gives
/// no further credits. (Otherwise the blocks stay marked used, and their next allocation fails as corrupt.)
#[test]
fn a_failed_mapping_is_undone_in_a_locked_transaction() {
    // A leaf with room for one more extent; the end of the blocks that the inode itself maps.
    let spread: Vec<u64> = (0..100).map(|i| 4 * i).collect();
    let cases = [
        (KINDS[0], spread, vec![(2, 1), (6, 1)]),
        (KINDS[1], (0..10).collect(), vec![(10, 4)]),
    ];
    for (kind, blocks, more) in cases {
        sim::run(sim::Config::new(1), move || {
            let world = Full::new(kind, "");
            let file = world.make(b"f");
            for block in blocks {
                assert_eq!(world.write(&file, block << 10, &[1; 1000]), Ok(1000));
            }
            world.fs.fsync_inode(&world.cx, &file, false).unwrap();
            world.fill(more.iter().map(|(_, len)| u64::from(*len)).sum());
            let (last, fit) = more.split_last().unwrap();
            for (at, len) in fit {
                assert_eq!(world.map_while_closing(&file, *at, *len), Ok(()));
            }
            let counted = file.core.read().blocks;
            for _ in 0..3 {
                let mapped = world.map_while_closing(&file, last.0, last.1);
                assert_eq!(mapped, Err(FsError::NoSpace));
                assert_eq!(file.core.read().blocks, counted);
            }
            drop(file);
            world.close();
        });
    }
}
