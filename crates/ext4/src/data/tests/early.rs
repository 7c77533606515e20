//! Early write-back before an expected fsync.

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
/// Number of blocks, of which every second one is overwritten.
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

    /// Overwrites half of the blocks, with pauses for other tasks; returns the number of requests.
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

    /// Two fsyncs, from which the third is predicted.
    fn learn(&self) {
        for byte in [2, 3] {
            assert_eq!(self.overwrite(byte), 0, "nothing is known yet");
            self.fsync().unwrap();
        }
    }

    /// After a power cut now, every second block has this byte, and the others have ones.
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
fn a_file_synced_repeatedly_is_written_early() {
    sim::run(sim::Config::new(1), || {
        let world = World::new();
        world.learn();
        for byte in 4..8 {
            // All groups but the last, which the fsync writes itself, and perhaps the first, which the flusher may have
            // found.
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
fn an_early_failure_is_reported_by_the_fsync_and_written_by_the_next() {
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
fn a_block_written_again_is_submitted_once() {
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
