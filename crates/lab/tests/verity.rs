//! Power cuts while files become verity files: after a mount each is the plain file, with its content and no other block,
//! or the verity file; and it is the latter once that was acknowledged.
//!
//! A run has a task for each file that makes it a verity file, beside tasks that fsync the same files, write and fsync
//! others, and make everything durable. Then the power fails at every request of the device, and any subset of the writes
//! that were not flushed survives.
//!
//! `VERITY_SEED`, `VERITY_RUNS` and `VERITY_IMAGES` choose other or more runs, and more images of each run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_conformance::{Kind, Setup, judge, kind, verity_world};
use steadfs_lab::device::{Image, Log, Model, SimDevice};
use steadfs_rt::{JoinHandle, Random, sim, sleep, spawn};
use steadfs_vfs::verity::VerityOptions;
use steadfs_vfs::{Cx, FileSystem, FsError};

/// So small that trees are written while they are built.
const CACHE: u64 = 4 << 20;
/// The files, and their sizes: with trees of one block, of a few, and of more than an inode maps.
const FILES: [(&[u8], usize); 3] = [
    (b"first", 5000),
    (b"second", 300_001),
    (b"third", 5_000_000),
];

fn model(kind: &Kind) -> Model {
    Model {
        // f2fs relies on atomic blocks.
        atomic_unit: if kind.is_ext() { 512 } else { 4096 },
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

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 4099) as u8 | 1).collect()
}

/// How a file is hashed; each in another way.
fn options(number: usize) -> VerityOptions {
    VerityOptions {
        block_size: 1024,
        salt: vec![number as u8; number * 5],
        ..VerityOptions::default()
    }
}

/// What a run leaves: the log of the device, and of each file its space when it was plain, and its digest.
struct Ran {
    log: Log,
    plain_blocks: Vec<u64>,
    digests: Vec<Vec<u8>>,
}

/// Works on the volume until `ended`.
fn beside(
    fs: &Arc<dyn FileSystem>,
    files: Vec<InodeNo>,
    ended: &Arc<AtomicBool>,
    seed: u64,
) -> JoinHandle<()> {
    let (fs, ended) = (Arc::clone(fs), Arc::clone(ended));
    spawn("beside", move || {
        let (cx, mut random) = (Cx::default(), Random::new(seed));
        let other = fs.mknod(&cx, fs.root(), b"beside", 0o100_644, 0).unwrap();
        while !ended.load(Ordering::Relaxed) {
            let at = random.below(300_000) as u64;
            fs.write(&cx, other.ino, at, &[7; 5000], false).unwrap();
            match random.below(6) {
                0 => fs.sync_all(&cx).unwrap(),
                1 => fs.fsync(&cx, other.ino, false).unwrap(),
                _ => {
                    let file = files[random.below(files.len())];
                    fs.fsync(&cx, file, random.below(2) == 0).unwrap();
                    // The byte that is there.
                    let refused = fs.write(&cx, file, 0, &content(1), false);
                    assert!(matches!(
                        refused,
                        Err(FsError::TextBusy | FsError::NotPermitted) | Ok(1)
                    ));
                }
            }
            sleep(Duration::from_micros(random.below(1000) as u64));
        }
    })
}

fn run(kind: &'static Kind, base: &Image, seed: u64) -> Ran {
    let base = base.clone();
    simulated(seed, move || {
        let device = SimDevice::new(&base, model(kind));
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE).unwrap();
        let cx = Cx::default();
        let make = |&(name, size): &(&[u8], usize)| {
            let file = fs.mknod(&cx, fs.root(), name, 0o100_644, 0).unwrap().ino;
            fs.write(&cx, file, 0, &content(size), false).unwrap();
            file
        };
        let files: Vec<InodeNo> = FILES.iter().map(make).collect();
        fs.sync_all(&cx).unwrap();
        let blocks = |&file: &InodeNo| fs.getattr(&cx, file).unwrap().blocks;
        let plain_blocks = files.iter().map(blocks).collect();
        device.mark(u64::MAX);
        let sealing = files.iter().copied().enumerate().map(|(number, file)| {
            let (fs, device) = (Arc::clone(&fs), device.clone());
            spawn("sealing", move || {
                let mut random = Random::new(seed + number as u64);
                sleep(Duration::from_micros(random.below(2000) as u64));
                fs.enable_verity(&Cx::default(), file, &options(number))
                    .unwrap();
                device.mark(number as u64);
            })
        });
        let sealing: Vec<_> = sealing.collect();
        let ended = Arc::new(AtomicBool::new(false));
        let other = beside(&fs, files.clone(), &ended, seed);
        sealing.into_iter().for_each(JoinHandle::join);
        ended.store(true, Ordering::Relaxed);
        other.join();
        let digest = |&file: &InodeNo| fs.verity_digest(&cx, file).unwrap().bytes;
        Ran {
            digests: files.iter().map(digest).collect(),
            plain_blocks,
            log: device.log(),
        }
    })
}

/// What is wrong with the files of an image, and the number of verity files. The volume is judged afterwards.
fn look(
    kind: &'static Kind,
    image: &Image,
    ran: &Ran,
    marks: &[u64],
    by_tools: bool,
) -> (String, usize) {
    let device = SimDevice::new(image, model(kind));
    let (digests, plain) = (ran.digests.clone(), ran.plain_blocks.clone());
    let marks = marks.to_vec();
    let (mut wrong, sealed, after) = simulated(1, move || {
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE).unwrap();
        let cx = Cx::default();
        let (mut wrong, mut sealed) = (String::new(), 0);
        for (number, (name, size)) in FILES.iter().enumerate() {
            let mut says = |what: &str| wrong += &format!("file {number} {what}; ");
            let file = fs.lookup(&cx, fs.root(), name).unwrap();
            match fs.verity_digest(&cx, file.ino) {
                Ok(digest) if digest.bytes == digests[number] => sealed += 1,
                Ok(_) => says("has another digest"),
                Err(FsError::NoData) => {
                    if marks.contains(&(number as u64)) {
                        says("is plain although it was acknowledged");
                    }
                    // A truncation of ext4 leaves a block of the extent tree.
                    let map = if kind.is_ext() { kind.block / 512 } else { 0 };
                    if !(plain[number]..=plain[number] + map).contains(&file.blocks) {
                        says(&format!(
                            "has {} and not {} units",
                            file.blocks, plain[number]
                        ));
                    }
                }
                Err(error) => says(&format!("cannot be measured: {error}")),
            }
            let read = fs
                .read(&cx, file.ino, 0, size + 1)
                .map(|data| data.to_vec());
            if read.as_ref() != Ok(&content(*size)) {
                says("has another content");
            }
        }
        fs.unmount().unwrap();
        (wrong, sealed, device.content())
    });
    // Blocks beyond the end of a plain file are an issue.
    let issues = match kind.is_ext() {
        true => format!(
            "{:?}",
            steadfs_ext4::check::check(&after, &Default::default()).issues
        ),
        false => format!(
            "{:?}",
            steadfs_f2fs::check::check(&after, &Default::default()).issues
        ),
    };
    if issues != "[]" {
        wrong += &issues;
    }
    if by_tools {
        judge(kind, &MemDevice::from_bytes(&after.to_bytes()));
    }
    (wrong, sealed)
}

fn asked(name: &str, or: u64) -> u64 {
    let asked = std::env::var(name).ok();
    asked.map_or(or, |n| n.parse().expect("a number"))
}

/// Looks at up to `most` images of a run; returns their number, and how many have some but not all verity files.
fn explore(kind: &'static Kind, base: &Image, seed: u64, most: usize) -> (usize, usize) {
    let ran = run(kind, base, seed);
    let mut cuts: Vec<usize> = ran.log.cut_points().collect();
    let mut random = Random::new(seed);
    for n in (1..cuts.len()).rev() {
        cuts.swap(n, random.below(n + 1));
    }
    let (mut images, mut some) = (0, 0);
    for cut in cuts {
        let at = ran.log.at(cut);
        let marks: Vec<u64> = ran.log.marks(cut).collect();
        if !marks.contains(&u64::MAX) {
            continue;
        }
        for survivors in at.choices(4, cut as u64) {
            if images == most {
                return (images, some);
            }
            let by_tools = images.is_multiple_of(32);
            let image = at.image(&survivors);
            let (wrong, sealed) = look(kind, &image, &ran, &marks, by_tools);
            assert!(
                wrong.is_empty(),
                "{}, seed {seed}: {wrong}cut {cut} of {}: {}",
                kind.name,
                ran.log.len(),
                at.describe(&survivors)
            );
            images += 1;
            some += usize::from((1..FILES.len()).contains(&sealed));
        }
    }
    (images, some)
}

#[test]
fn a_crash_leaves_plain_files_or_verity_files() {
    let (seed, runs) = (asked("VERITY_SEED", 1), asked("VERITY_RUNS", 1));
    let most = asked("VERITY_IMAGES", 12) as usize;
    let (mut images, mut some) = (0, 0);
    for name in [
        "ext4_1k",
        "ext4_4k",
        "ext4_large_inodes",
        "f2fs_all",
        "f2fs_four_logs",
        "f2fs_lfs",
    ] {
        let kind = kind(name);
        let base = verity_world(kind, &Setup::default()).close();
        let base = Image::from_bytes(&base.to_bytes());
        for seed in seed..seed + runs {
            let seen = explore(kind, &base, seed, most);
            images += seen.0;
            some += seen.1;
        }
    }
    println!("{images} images, {some} of them with some of the files as verity files");
    assert!(images >= 60 && some > 0);
}
