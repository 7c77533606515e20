//! Random operations on one file against a vector of bytes, on every kind of map and block size; the
//! image is judged by e2fsck.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Device, MemDevice};
use steadfs_rt::Random;
use steadfs_vfs::{Cx, FallocMode, FsError, Seek};

use crate::disk::Ino;
use crate::disk::test_images::Image;
use crate::{CacheSizes, Ext4, MountOptions};

mod batches;
mod cluster;
mod early;
mod errors;
mod full;
mod growing;
mod numbers;
mod reservations;
mod stopping;
mod throttled;

/// The first inode that `mke2fs -d` gives to a file when the directory has one.
const FILE: Ino = Ino(12);
const LARGEST: u64 = 600_000;

fn image_with_file(options: &[&str], size: &str) -> Image {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let mut all = options.to_vec();
    all.extend(["-d", dir.path().to_str().unwrap()]);
    Image::make(&all, size)
}

fn open(device: &Arc<MemDevice>, options: &str) -> Arc<Ext4> {
    let options = MountOptions::parse(options).unwrap();
    let device = Arc::clone(device) as Arc<dyn Device>;
    Ext4::open(device, options, CacheSizes::of(4 << 20))
        .unwrap()
        .0
}

fn judge(device: &MemDevice, image: &Image, what: &str) {
    device.save(&image.path()).unwrap();
    let output = crate::disk::test_images::judge("e2fsck")
        .args(["-fn"])
        .arg(image.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{what}: {text}");
}

struct Model {
    bytes: Vec<u8>,
    random: Random,
    steps: usize,
}

impl Model {
    fn below(&mut self, n: u64) -> u64 {
        self.random.below(n as usize) as u64
    }

    fn range(&mut self) -> (u64, u64) {
        let start = self.below(LARGEST);
        let len = if self.below(2) == 0 {
            self.below(5000)
        } else {
            self.below(100_000)
        };
        (start, len.max(1).min(LARGEST - start))
    }

    fn step(&mut self, fs: &Ext4, extents: bool) {
        self.steps += 1;
        let cx = Cx::default();
        let inode = fs.inode(FILE, IoTag::default()).unwrap();
        let (start, len) = self.range();
        let end = start + len;
        let op = self.below(if extents { 12 } else { 9 });
        match op {
            0..4 => {
                let fill = self.below(256) as u8;
                let data: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
                let n = fs.write_file(&cx, &inode, start, &data, false).unwrap();
                assert_eq!(n as u64, len);
                if self.bytes.len() < end as usize {
                    self.bytes.resize(end as usize, 0);
                }
                self.bytes[start as usize..end as usize].copy_from_slice(&data);
            }
            4 => {
                let _alone = inode.lock.write();
                fs.truncate(&cx, &inode, start).unwrap();
                self.bytes.resize(start as usize, 0);
            }
            5 => fs.fsync_inode(&cx, &inode, false).unwrap(),
            6 => self.check(fs, start, len),
            7 => {
                fs.fallocate_file(&cx, &inode, FallocMode::PunchHole, start, len)
                    .unwrap();
                self.zero(start, end);
            }
            8 => self.seek(fs, start),
            9 => {
                let keep_size = self.below(2) == 0;
                let mode = FallocMode::Allocate { keep_size };
                fs.fallocate_file(&cx, &inode, mode, start, len).unwrap();
                if !keep_size {
                    self.grow(end);
                }
            }
            10 => {
                let keep_size = self.below(2) == 0;
                let mode = FallocMode::ZeroRange { keep_size };
                fs.fallocate_file(&cx, &inode, mode, start, len).unwrap();
                if !keep_size {
                    self.grow(end);
                }
                self.zero(start, end);
            }
            _ => fs
                .write_out(&inode, steadfs_cache::WritebackReason::Background, cx.tag)
                .unwrap(),
        }
        assert_eq!(inode.size(), self.bytes.len() as u64, "step {}", self.steps);
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

    fn check(&self, fs: &Ext4, start: u64, len: u64) {
        let inode = fs.inode(FILE, IoTag::default()).unwrap();
        let data = fs
            .read_file(&Cx::default(), &inode, start, len as usize)
            .unwrap()
            .to_vec();
        let from = (start as usize).min(self.bytes.len());
        let to = ((start + len) as usize).min(self.bytes.len());
        if let Some(at) = data
            .iter()
            .zip(&self.bytes[from..to])
            .position(|(a, b)| a != b)
        {
            panic!(
                "step {}: byte {} is {}, not {}",
                self.steps,
                from + at,
                data[at],
                self.bytes[from + at]
            );
        }
        assert_eq!(data.len(), to - from, "step {}", self.steps);
    }

    fn seek(&self, fs: &Ext4, start: u64) {
        let inode = fs.inode(FILE, IoTag::default()).unwrap();
        match fs.seek_file(&Cx::default(), &inode, start, Seek::Data) {
            Ok(at) => {
                let gap = &self.bytes[start as usize..at as usize];
                assert!(gap.iter().all(|&b| b == 0), "data in a hole");
            }
            Err(FsError::NoSuchOffset) => {
                let from = (start as usize).min(self.bytes.len());
                assert!(
                    self.bytes[from..].iter().all(|&b| b == 0),
                    "data beyond the last"
                );
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn torture(options: &[&str], mount: &str, seed: u64) {
    let what = format!("{options:?} seed {seed}");
    let image = image_with_file(options, "16M");
    let extents = !options.contains(&"ext2")
        && !options.contains(&"ext3")
        && !options.contains(&"^extents,^64bit");
    let device = image.device();
    let mut model = Model {
        bytes: Vec::new(),
        random: Random::new(seed),
        steps: 0,
    };
    for round in 0..4 {
        let fs = open(&device, mount);
        model.check(&fs, 0, LARGEST);
        for _ in 0..60 {
            model.step(&fs, extents);
        }
        model.check(&fs, 0, LARGEST);
        fs.close().unwrap();
        drop(fs);
        judge(&device, &image, &format!("{what} round {round}"));
    }
}

#[test]
fn files_mapped_by_extents() {
    for seed in 0..6 {
        torture(&["-t", "ext4", "-b", "1024"], "", seed);
        torture(&["-t", "ext4", "-b", "4096"], "", 100 + seed);
    }
    torture(&["-t", "ext4", "-b", "65536"], "", 7);
    torture(&["-t", "ext4", "-b", "1024", "-O", "^has_journal"], "", 8);
    torture(
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-O",
            "^metadata_csum,^64bit,^flex_bg",
        ],
        "",
        9,
    );
    torture(
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"],
        "nobarrier",
        10,
    );
}

#[test]
fn files_mapped_by_indirect_blocks() {
    for seed in 0..4 {
        torture(&["-t", "ext2", "-b", "1024"], "", seed);
        torture(&["-t", "ext3", "-b", "1024"], "", 20 + seed);
    }
    torture(&["-t", "ext3", "-b", "4096"], "", 30);
    torture(
        &["-t", "ext4", "-O", "^extents,^64bit", "-b", "1024"],
        "",
        31,
    );
}

#[test]
fn a_full_volume_keeps_acknowledged_data() {
    for options in [
        ["-t", "ext4", "-b", "1024"],
        ["-t", "ext2", "-b", "1024"],
        ["-t", "ext4", "-b", "4096"],
    ] {
        let image = image_with_file(&options, "8M");
        let device = image.device();
        let cx = Cx {
            uid: 1000,
            ..Cx::default()
        };
        let mut end = 0;
        {
            let fs = open(&device, "");
            let inode = fs.inode(FILE, IoTag::default()).unwrap();
            let full = loop {
                let data = vec![(end / 3000) as u8; 3000];
                match fs.write_file(&cx, &inode, end, &data, false) {
                    Ok(n) => end += n as u64,
                    Err(error) => break error,
                }
            };
            assert_eq!(full, FsError::NoSpace);
            assert!(end > 2 << 20, "only {end} bytes fitted");
            // Existing data can be overwritten, and all of it reaches the device.
            fs.write_file(&cx, &inode, 0, &[255; 9000], false).unwrap();
            fs.fsync_inode(&cx, &inode, false).unwrap();
            fs.close().unwrap();
        }
        judge(&device, &image, "full");
        let fs = open(&device, "ro");
        let inode = fs.inode(FILE, IoTag::default()).unwrap();
        assert_eq!(inode.size(), end);
        let mut at = 9000;
        while at < end {
            let data = fs.read_file(&cx, &inode, at, 3000).unwrap().to_vec();
            assert!(data.iter().all(|&b| b == (at / 3000) as u8), "byte {at}");
            at += 3000;
        }
    }
}
