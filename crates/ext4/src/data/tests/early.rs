//! Overwrites before an fsync that is expected.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Device, FaultDevice, MemDevice, Op};
use steadfs_rt::{sim, sleep};
use steadfs_vfs::{Cx, FsError};

use super::{FILE, image_with_file, judge};
use crate::disk::test_images::Image;
use crate::inode::Inode;
use crate::{CacheSizes, Ext4, MountOptions};

const BLOCK: u64 = 4096;
/// Of which every second one is written over.
const BLOCKS: u64 = 64;

struct World {
    image: Image,
    device: Arc<FaultDevice>,
    fs: Arc<Ext4>,
    cx: Cx,
}

impl World {
    /// A volume with a file of [`BLOCKS`] ones.
    fn new() -> Self {
        let image = image_with_file(&["-t", "ext4", "-b", "4096"], "16M");
        let device = FaultDevice::new(image.device());
        let shared = Arc::clone(&device) as Arc<dyn Device>;
        let options = MountOptions::parse("").unwrap();
        let (fs, _) = Ext4::open(shared, options, CacheSizes::of(4 << 20)).unwrap();
        let cx = Cx::default();
        let world = Self {
            image,
            device,
            fs,
            cx,
        };
        let inode = world.inode();
        let ones = vec![1; (BLOCKS * BLOCK) as usize];
        world
            .fs
            .write_file(&world.cx, &inode, 0, &ones, false)
            .unwrap();
        world.fs.fsync_inode(&world.cx, &inode, false).unwrap();
        world
    }

    fn inode(&self) -> Arc<Inode> {
        self.fs.inode(FILE, IoTag::default()).unwrap()
    }

    fn writes(&self) -> u64 {
        let stats = self.fs.queue().stats();
        let writes = stats.ops.iter().filter(|o| o.op == Op::Write);
        writes.map(|o| o.count).sum()
    }

    /// Writes half of the blocks over, with time for others in between; how many requests that made.
    fn overwrite(&self, byte: u8) -> u64 {
        let before = self.writes();
        let inode = self.inode();
        for block in (0..BLOCKS).step_by(2) {
            let data = [byte; BLOCK as usize];
            self.fs
                .write_file(&self.cx, &inode, block * BLOCK, &data, false)
                .unwrap();
            sleep(Duration::from_micros(10));
        }
        self.writes() - before
    }

    fn fsync(&self) -> Result<(), FsError> {
        self.fs.fsync_inode(&self.cx, &self.inode(), false)
    }

    /// Two fsyncs from which it is known what the third is for.
    fn learn(&self) {
        for byte in [2, 3] {
            assert_eq!(self.overwrite(byte), 0, "nothing is known yet");
            self.fsync().unwrap();
        }
    }

    /// What a power cut would leave now has this byte in every second block, and ones in the others.
    fn check(&self, byte: u8) {
        let device = Arc::new(self.device.memory.copy());
        judged(&device, &self.image, byte);
    }
}

fn judged(device: &Arc<MemDevice>, image: &Image, byte: u8) {
    let shared = Arc::clone(device) as Arc<dyn Device>;
    let options = MountOptions::parse("").unwrap();
    let (fs, _) = Ext4::open(shared, options, CacheSizes::of(4 << 20)).unwrap();
    let inode = fs.inode(FILE, IoTag::default()).unwrap();
    for block in 0..BLOCKS {
        let wanted = if block % 2 == 0 { byte } else { 1 };
        let data = fs.read_file(&Cx::default(), &inode, block * BLOCK, BLOCK as usize);
        let data = data.unwrap().to_vec();
        assert!(data.iter().all(|&b| b == wanted), "block {block}");
    }
    drop(inode);
    fs.close().unwrap();
    judge(device, image, "after a power cut");
}

#[test]
fn a_file_synced_again_and_again_is_written_meanwhile() {
    sim::run(sim::Config::new(1), || {
        let world = World::new();
        world.learn();
        for byte in 4..8 {
            // All groups but the one that is the fsync's own, of which the flusher may have found the first.
            let early = world.overwrite(byte);
            assert!((BLOCKS / 2 - 8..BLOCKS / 2).contains(&early), "{early}");
            let before = world.writes();
            world.fsync().unwrap();
            assert!(world.writes() - before >= BLOCKS / 2 - early);
            world.check(byte);
        }
        world.fs.close().unwrap();
    });
}

#[test]
fn what_fails_early_is_told_by_the_fsync_and_written_by_the_next() {
    sim::run(sim::Config::new(1), || {
        let world = World::new();
        world.learn();
        world.device.fail_writes(true);
        assert!(world.overwrite(4) > 0);
        world.device.fail_writes(false);
        assert!(matches!(world.fsync(), Err(FsError::Io(_))));
        world.fsync().unwrap();
        world.check(4);
        world.fs.close().unwrap();
    });
}

#[test]
fn what_is_written_again_goes_once() {
    sim::run(sim::Config::new(1), || {
        let world = World::new();
        for byte in 2..6 {
            assert_eq!(world.overwrite(0), 0);
            assert_eq!(world.overwrite(byte), 0);
            world.fsync().unwrap();
            world.check(byte);
        }
        world.fs.close().unwrap();
    });
}
