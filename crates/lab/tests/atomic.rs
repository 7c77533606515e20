//! Power cuts around atomic writes of f2fs: after a mount each file has all of a transaction or nothing of it, and each
//! commit that was acknowledged.
//!
//! A run has tasks that write a file each in transactions, of which some are aborted or left, beside tasks that fsync the
//! same files, write and fsync others, make everything durable, and ask for GC. Then the power fails at every request of the device, and any
//! subset of the writes that were not flushed survives. What a mount finds is compared with the transactions, and the
//! volume is checked.
//!
//! `ATOMIC_SEED`, `ATOMIC_RUNS` and `ATOMIC_IMAGES` choose other or more runs, and more images of each run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_conformance::{Kind, judge, kind};
use steadfs_f2fs::check::{Options as CheckOptions, check};
use steadfs_lab::device::{Image, Log, Model, SimDevice};
use steadfs_rt::{JoinHandle, Random, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, SetAttr};

const CACHE: u64 = 8 << 20;
const START: u32 = 0xf501;
const COMMIT: u32 = 0xf502;
const ABORT: u32 = 0xf505;
const REPLACE: u32 = 0xf519;
const GARBAGE_COLLECT: u32 = 0x4004_f506;

/// Files that are written in transactions.
const FILES: [&[u8]; 2] = [b"first", b"second"];
const TRANSACTIONS: usize = 5;
/// Largest size of a file: more than its inode maps.
const SIZE_MAX: usize = 4_300_000;

fn model() -> Model {
    Model {
        // f2fs relies on atomic blocks.
        atomic_unit: 4096,
        ..Model::solid_state()
    }
}

/// Runs `work` in a simulation; returns its result.
fn simulated<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let config = sim::Config {
        allow_daemons: true,
        ..sim::Config::new(seed)
    };
    sim::run(config, work).value
}

/// The contents that a file may have after a crash: before the first transaction, and after each.
type Contents = Vec<Vec<u8>>;

/// What one task writes in transactions.
struct Writer {
    fs: Arc<dyn FileSystem>,
    device: SimDevice,
    number: usize,
    file: InodeNo,
    random: Random,
    contents: Contents,
}

/// A mark in the log: transaction `n` of a file is about to be committed, or is.
fn mark(file: usize, n: usize, done: bool) -> u64 {
    ((n * 2 + usize::from(done)) * FILES.len() + file) as u64
}

impl Writer {
    fn call(&self, number: u32) {
        let answer = self.fs.ioctl(&Cx::default(), self.file, number, &[]);
        answer.unwrap().unwrap();
    }

    fn write(&mut self, content: &mut Vec<u8>, within: usize) {
        let (cx, at) = (Cx::default(), self.random.below(within));
        let len = 1 + self.random.below(20_000);
        let byte = 1 + self.random.below(255) as u8;
        let end = at + len;
        content.resize(content.len().max(end), 0);
        content[at..end].fill(byte);
        let data = &content[at..end];
        let written = self.fs.write(&cx, self.file, at as u64, data, false);
        assert_eq!(written, Ok(len));
    }

    fn truncate(&mut self, content: &mut Vec<u8>) {
        let size = self.random.below(content.len() + 10_000);
        content.resize(size, 0);
        let set = SetAttr {
            size: Some(size as u64),
            ..SetAttr::default()
        };
        self.fs.setattr(&Cx::default(), self.file, &set).unwrap();
    }

    fn transaction(&mut self, n: usize) {
        let replaces = self.random.below(4) == 0;
        let mut content = match replaces {
            true => Vec::new(),
            false => self.contents[n - 1].clone(),
        };
        self.call(if replaces { REPLACE } else { START });
        let large = self.random.below(8) == 0;
        let within = if large { SIZE_MAX } else { 100_000 };
        for _ in 0..self.random.below(6) {
            match self.random.below(6) {
                0 => self.truncate(&mut content),
                1 => sleep(Duration::from_micros(self.random.below(3000) as u64)),
                _ => self.write(&mut content, within),
            }
        }
        if self.random.below(4) == 0 {
            self.call(ABORT);
            content.clone_from(&self.contents[n - 1]);
        }
        self.device.mark(mark(self.number, n, false));
        self.call(COMMIT);
        self.device.mark(mark(self.number, n, true));
        self.contents.push(content);
    }

    fn run(mut self) -> Contents {
        for n in 1..=TRANSACTIONS {
            self.transaction(n);
        }
        // The last one is never committed.
        self.call(START);
        let mut content = self.contents[TRANSACTIONS].clone();
        self.write(&mut content, 50_000);
        self.contents
    }
}

/// A task that works beside the transactions until they have ended.
fn beside(fs: &Arc<dyn FileSystem>, ended: &Arc<AtomicBool>, seed: u64) -> JoinHandle<()> {
    let (fs, ended) = (Arc::clone(fs), Arc::clone(ended));
    spawn("beside", move || {
        let (cx, mut random) = (Cx::default(), Random::new(seed));
        let admin = Cx {
            admin: true,
            ..Cx::default()
        };
        let file = fs.mknod(&cx, fs.root(), b"beside", 0o100_644, 0).unwrap();
        let mut n = 0_u64;
        while !ended.load(Ordering::Relaxed) {
            n += 1;
            let at = random.below(300_000) as u64;
            fs.write(&cx, file.ino, at, &[n as u8; 5000], false)
                .unwrap();
            match random.below(8) {
                0 => fs.sync_all(&cx).unwrap(),
                1 => {
                    let cleaned = fs.ioctl(&admin, file.ino, GARBAGE_COLLECT, &[1, 0, 0, 0]);
                    assert!(!matches!(cleaned, Err(FsError::NotPermitted)));
                }
                _ => fs.fsync(&cx, file.ino, false).unwrap(),
            }
            sleep(Duration::from_micros(random.below(2000) as u64));
        }
    })
}

/// A task that fsyncs a file that another task writes in transactions: that commits nothing.
fn syncs(
    fs: &Arc<dyn FileSystem>,
    file: InodeNo,
    ended: &Arc<AtomicBool>,
    seed: u64,
) -> JoinHandle<()> {
    let (fs, ended) = (Arc::clone(fs), Arc::clone(ended));
    spawn("syncs", move || {
        let mut random = Random::new(seed);
        while !ended.load(Ordering::Relaxed) {
            fs.fsync(&Cx::default(), file, random.below(2) == 0)
                .unwrap();
            sleep(Duration::from_micros(1 + random.below(300) as u64));
        }
    })
}

/// A run: the log of its device, and the contents of each file.
fn run(kind: &'static Kind, seed: u64) -> (Log, Vec<Contents>) {
    let image = Image::from_bytes(&kind.make(kind.usual_mib(), &[]).to_bytes());
    simulated(seed, move || {
        let device = SimDevice::new(&image, model());
        let fs = kind
            .mount(Arc::new(device.clone()), "atomic_write", CACHE)
            .unwrap();
        let writers = (0..FILES.len()).map(|number| {
            let (cx, mut random) = (Cx::default(), Random::new(seed + 1000 * number as u64));
            let made = fs.mknod(&cx, fs.root(), FILES[number], 0o100_644, 0);
            let file = made.unwrap().ino;
            let first = vec![0xA5; random.below(60_000)];
            fs.write(&cx, file, 0, &first, false).unwrap();
            Writer {
                fs: Arc::clone(&fs),
                device: device.clone(),
                number,
                file,
                random,
                contents: vec![first],
            }
        });
        let writers: Vec<_> = writers.collect();
        fs.sync_all(&Cx::default()).unwrap();
        for number in 0..FILES.len() {
            device.mark(mark(number, 0, true));
        }
        let ended = Arc::new(AtomicBool::new(false));
        let syncing = writers.iter().map(|writer| {
            let seed = seed + 77 + writer.number as u64;
            syncs(&fs, writer.file, &ended, seed)
        });
        let mut others: Vec<_> = syncing.collect();
        others.push(beside(&fs, &ended, seed));
        let tasks = writers
            .into_iter()
            .map(|writer| spawn("writer", || writer.run()));
        let tasks: Vec<_> = tasks.collect();
        let contents = tasks.into_iter().map(JoinHandle::join).collect();
        ended.store(true, Ordering::Relaxed);
        others.into_iter().for_each(JoinHandle::join);
        (device.log(), contents)
    })
}

/// The numbers of the contents that a file may have after a crash with these marks; `None`: it may have any.
fn allowed(marks: &[u64], file: usize, contents: &Contents) -> Option<Range<usize>> {
    let all = (0..contents.len()).rev();
    let mut states = all.flat_map(|n| [(n, true), (n, false)]);
    let (n, done) = states.find(|&(n, done)| marks.contains(&mark(file, n, done)))?;
    Some(if done { n..n + 1 } else { n - 1..n + 1 })
}

/// Mounts an image and returns the content of each file; judges the volume afterwards, also `by_tools`.
fn found(kind: &'static Kind, image: &Image, by_tools: bool) -> Vec<Option<Vec<u8>>> {
    let device = SimDevice::new(image, model());
    let (contents, after) = simulated(1, move || {
        let fs = kind
            .mount(Arc::new(device.clone()), "atomic_write", CACHE)
            .unwrap();
        let cx = Cx::default();
        let read = |name: &&[u8]| {
            let file = fs.lookup(&cx, fs.root(), name).ok()?;
            let read = fs.read(&cx, file.ino, 0, 2 * SIZE_MAX).unwrap();
            assert_eq!(file.size, read.len() as u64);
            Some(read.to_vec())
        };
        let contents = FILES.iter().map(read).collect();
        fs.unmount().unwrap();
        (contents, device.content())
    });
    let report = check(&after, &CheckOptions::default());
    assert!(report.is_clean(), "{:?}", report.issues);
    if by_tools {
        judge(kind, &MemDevice::from_bytes(&after.to_bytes()));
    }
    contents
}

fn asked(name: &str, or: u64) -> u64 {
    let asked = std::env::var(name).ok();
    asked.map_or(or, |n| n.parse().expect("a number"))
}

/// Checks up to `most` images of a run; returns their number, and how many have a commit that was not acknowledged.
fn explore(kind: &'static Kind, seed: u64, most: usize) -> (usize, usize) {
    let (log, contents) = run(kind, seed);
    let mut cuts: Vec<usize> = log.cut_points().collect();
    let mut random = Random::new(seed);
    for n in (1..cuts.len()).rev() {
        cuts.swap(n, random.below(n + 1));
    }
    let (mut images, mut early) = (0, 0);
    for cut in cuts {
        let at = log.at(cut);
        let marks: Vec<u64> = log.marks(cut).collect();
        for survivors in at.choices(4, cut as u64) {
            if images == most {
                return (images, early);
            }
            let found = found(kind, &at.image(&survivors), images % 64 == 0);
            images += 1;
            for (number, content) in found.iter().enumerate() {
                let Some(allowed) = allowed(&marks, number, &contents[number]) else {
                    continue;
                };
                let is = |n: &usize| content.as_ref() == Some(&contents[number][*n]);
                let state = allowed.clone().find(is);
                assert!(
                    state.is_some(),
                    "{}, seed {seed}: file {number} has none of {allowed:?}, cut {cut} of {}: {}",
                    kind.name,
                    log.len(),
                    at.describe(&survivors)
                );
                early += usize::from(allowed.len() == 2 && state == Some(allowed.end - 1));
            }
        }
    }
    (images, early)
}

#[test]
fn a_crash_leaves_all_of_a_transaction_or_nothing() {
    let (seed, runs) = (asked("ATOMIC_SEED", 1), asked("ATOMIC_RUNS", 1));
    let most = asked("ATOMIC_IMAGES", 60) as usize;
    let (mut images, mut early) = (0, 0);
    for name in ["f2fs", "f2fs_all", "f2fs_two_logs", "f2fs_lfs"] {
        for seed in seed..seed + runs {
            let seen = explore(kind(name), seed, most);
            images += seen.0;
            early += seen.1;
        }
    }
    println!("{images} images, {early} of them with a commit that was not acknowledged");
    assert!(images >= 100 && early > 0);
}
