//! Random operations on one file, compared with a vector of bytes: IPU and OPU, inline and in nodes of every level.
//! fsck.f2fs checks the volume.

mod growing;
mod largest;
mod numbers;

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Device, MemDevice};
use steadfs_cache::WritebackReason;
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FallocMode, FileSystem, FsError, Seek};

use crate::inode::Inode;
use crate::test_world::fsck;
use crate::{CacheSizes, F2fs, MountOptions};
use steadfs_f2fs_format::test_support::{Image, LOAD_FEATURES};

/// Ranges begin and end before this offset.
const LARGEST: u64 = 600_000;

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

struct Model {
    bytes: Vec<u8>,
    /// Added to every offset, so that the file uses deeper nodes.
    base: u64,
    random: Random,
    steps: usize,
}

impl Model {
    fn new(base: u64, seed: u64) -> Self {
        Self {
            bytes: Vec::new(),
            base,
            random: Random::new(seed),
            steps: 0,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n as usize) as u64
    }

    fn range(&mut self) -> (u64, u64) {
        let start = match self.below(8) {
            0 => self.below(3000),
            _ => self.below(LARGEST),
        };
        let len = match self.below(2) {
            0 => self.below(5000),
            _ => self.below(100_000),
        };
        (start, len.max(1).min(LARGEST - start))
    }

    fn step(&mut self, fs: &F2fs, inode: &Inode) {
        self.steps += 1;
        let cx = Cx::default();
        let (start, len) = self.range();
        let (end, at) = (start + len, self.base + start);
        match self.below(13) {
            0..4 => {
                let fill = self.below(256) as u8;
                let data: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
                let n = fs.write_file(&cx, inode, at, &data, false).unwrap();
                assert_eq!(n as u64, len);
                self.grow(end);
                self.bytes[start as usize..end as usize].copy_from_slice(&data);
            }
            4 => {
                let _exclusive = inode.lock.write();
                fs.truncate(&cx, inode, at).unwrap();
                self.bytes.resize(start as usize, 0);
            }
            5 => fs
                .fsync_inode(&cx, inode, self.steps.is_multiple_of(2))
                .unwrap(),
            6 => self.check(fs, inode, start, len),
            7 => {
                let mode = FallocMode::PunchHole;
                fs.fallocate_file(&cx, inode, mode, at, len).unwrap();
                self.zero(start, end);
            }
            8 => self.seek(fs, inode, start),
            9 => {
                let keep_size = self.below(2) == 0;
                let mode = FallocMode::Allocate { keep_size };
                fs.fallocate_file(&cx, inode, mode, at, len).unwrap();
                if !keep_size {
                    self.grow(end);
                }
            }
            10 => {
                let keep_size = self.below(2) == 0;
                let mode = FallocMode::ZeroRange { keep_size };
                fs.fallocate_file(&cx, inode, mode, at, len).unwrap();
                if !keep_size {
                    self.grow(end);
                }
                self.zero(start, end);
            }
            11 => self.relocate(fs, inode, at),
            _ => fs
                .write_out(inode, WritebackReason::Background, cx.tag)
                .unwrap(),
        }
        let size = self.base * u64::from(!self.bytes.is_empty()) + self.bytes.len() as u64;
        if self.base == 0 || !self.bytes.is_empty() {
            assert_eq!(inode.size(), size, "step {}", self.steps);
        }
    }

    /// Moves blocks as GC does.
    fn relocate(&mut self, fs: &F2fs, inode: &Inode, at: u64) {
        let first = at / super::BLOCK;
        let tag = IoTag::default();
        let blocks: Vec<_> = (first..first + 20)
            .map(|block| (block, fs.slot(inode, block, tag).unwrap()))
            .filter(|(_, addr)| addr.is_block())
            .collect();
        if inode.has_inline_data() {
            return;
        }
        let by_age = first.is_multiple_of(2);
        let moved = fs.relocate_blocks(inode, &blocks, by_age, tag).unwrap();
        assert_eq!(moved, blocks.len() as u64);
        for (block, old) in blocks {
            assert_ne!(fs.slot(inode, block, tag).unwrap(), old);
        }
    }

    fn grow(&mut self, end: u64) {
        if self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
        }
    }

    fn zero(&mut self, start: u64, end: u64) {
        let n = self.bytes.len();
        self.bytes[(start as usize).min(n)..(end as usize).min(n)].fill(0);
    }

    fn check(&self, fs: &F2fs, inode: &Inode, start: u64, len: u64) {
        let cx = Cx::default();
        let read = fs.read_file(&cx, inode, self.base + start, len as usize);
        let data = read.unwrap().to_vec();
        let from = (start as usize).min(self.bytes.len());
        let to = ((start + len) as usize).min(self.bytes.len());
        let differs = |(a, b): (&u8, &u8)| a != b;
        if let Some(at) = data.iter().zip(&self.bytes[from..to]).position(differs) {
            let (is, should) = (data[at], self.bytes[from + at]);
            panic!(
                "step {}: byte {} is {is}, not {should}",
                self.steps,
                from + at
            );
        }
        assert_eq!(data.len(), to - from, "step {}", self.steps);
    }

    fn seek(&self, fs: &F2fs, inode: &Inode, start: u64) {
        match fs.seek_file(&Cx::default(), inode, self.base + start, Seek::Data) {
            Ok(at) => {
                let gap = &self.bytes[start as usize..(at - self.base) as usize];
                assert!(gap.iter().all(|&b| b == 0), "data in a hole");
            }
            Err(FsError::NoSuchOffset) => {
                let from = (start as usize).min(self.bytes.len());
                assert!(
                    self.bytes[from..].iter().all(|&b| b == 0),
                    "data behind the last"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Rounds of random steps, each ended by an unmount or, with recovery, by a power cut.
fn torture(features: &str, mount: &str, base: u64, seed: u64) {
    let device = volume_with_file(features, 64);
    let mut model = Model::new(base, seed);
    for _ in 0..4 {
        let fs = open(&device, mount);
        let inode = file(&fs);
        model.check(&fs, &inode, 0, LARGEST);
        for _ in 0..60 {
            model.step(&fs, &inode);
        }
        model.check(&fs, &inode, 0, LARGEST);
        drop(inode);
        fs.segments().check();
        fs.sync_volume(&Cx::default()).unwrap();
        fs.checkpoint(crate::checkpoint::Reason::Unmount, IoTag::default())
            .unwrap();
        drop(fs);
        fsck(&device);
    }
}

#[test]
fn files_of_all_depths() {
    // In the inode and direct nodes; through an indirect one; through the double indirect one.
    for (base, seed) in [(0, 1), (0, 2), (11_900_000, 3), (8_500_000_000, 4)] {
        torture("extra_attr", "", base, seed);
    }
}

#[test]
fn files_with_all_fields_and_opu() {
    for seed in 10..12 {
        torture(LOAD_FEATURES, "mode=lfs", 0, seed);
        torture(LOAD_FEATURES, "", 3_700_000, 100 + seed);
    }
}

#[test]
fn a_full_volume_keeps_acknowledged_data() {
    let device = volume_with_file("extra_attr", 64);
    let cx = Cx {
        uid: 1000,
        ..Cx::default()
    };
    let mut end = 0;
    {
        let fs = open(&device, "");
        let inode = file(&fs);
        let full = loop {
            let data = vec![(end / 30_000) as u8; 30_000];
            match fs.write_file(&cx, &inode, end, &data, false) {
                Ok(n) => end += n as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(full, FsError::NoSpace);
        let counts = fs.space.counts();
        let left = counts.user_blocks - counts.valid_blocks - counts.reserved;
        assert!(
            left < 10,
            "{counts:?} {:?} {:?}",
            fs.segments().counts(),
            fs.segments().policy()
        );
        // Existing blocks can be overwritten, and all data reaches the device.
        fs.write_file(&cx, &inode, 0, &[255; 90_000], false)
            .unwrap();
        fs.fsync_inode(&cx, &inode, false).unwrap();
        fs.sync_volume(&Cx::default()).unwrap();
        fs.checkpoint(crate::checkpoint::Reason::Unmount, IoTag::default())
            .unwrap();
    }
    fsck(&device);
    let fs = open(&device, "ro");
    let inode = file(&fs);
    assert_eq!(inode.size(), end);
    let mut at = 90_000;
    while at < end {
        let data = fs.read_file(&cx, &inode, at, 30_000).unwrap().to_vec();
        assert!(data.iter().all(|&b| b == (at / 30_000) as u8), "byte {at}");
        at += 30_000;
    }
}
