//! Files that are read as streams, with read-ahead, while they are changed and while freed blocks are reused: no reader
//! sees old content.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_lab::crash::{Subject, ext4, f2fs};
use steadfs_lab::device::{Model, SimDevice};
use steadfs_rt::{JoinHandle, Mutex, Random, Rank, sim, sleep, spawn};
use steadfs_vfs::{Cx, FallocMode, FileSystem, FsError, Result, SetAttr};

/// Bytes per read of a stream.
const PIECE: usize = 128 << 10;
/// Pieces per file.
const PIECES: usize = 8;
const STEPS: usize = 150;

/// Two files of a volume and their content.
struct World {
    fs: Arc<dyn FileSystem>,
    device: SimDevice,
    random: Random,
    files: [(InodeNo, Vec<u8>); 2],
    /// Blocks read ahead.
    ahead: u64,
}

impl World {
    fn open(subject: &Subject, seed: u64) -> Self {
        let model = Model {
            log: false,
            seed,
            ..Model::solid_state()
        };
        let device = SimDevice::new(&subject.image, model);
        let fs = (subject.open)(Arc::new(device.clone())).unwrap();
        let make = |name: &[u8]| {
            let attr = fs.mknod(&Cx::default(), fs.root(), name, 0o100_644, 0);
            (attr.unwrap().ino, Vec::new())
        };
        Self {
            files: [make(b"one"), make(b"other")],
            fs,
            device,
            random: Random::new(seed),
            ahead: 0,
        }
    }

    /// A random range within the largest size: first byte and length.
    fn range(&mut self) -> (usize, usize) {
        let from = self.random.below(PIECES * PIECE);
        let most = if self.random.chance(300) {
            600_000
        } else {
            9000
        };
        let len = 1 + self.random.below(most);
        (from, len.min(PIECES * PIECE - from))
    }

    fn write(&mut self, which: usize) -> Result<()> {
        let (from, len) = self.range();
        let seed = self.random.next_u64();
        let data: Vec<u8> = (0..len).map(|i| (seed >> (i % 57)) as u8 | 1).collect();
        let (ino, content) = &mut self.files[which];
        let written = self
            .fs
            .write(&Cx::default(), *ino, from as u64, &data, false)?;
        content.resize(content.len().max(from + written), 0);
        content[from..from + written].copy_from_slice(&data[..written]);
        Ok(())
    }

    fn cut(&mut self, which: usize) -> Result<()> {
        let (to, _) = self.range();
        let (ino, content) = &mut self.files[which];
        let set = SetAttr {
            size: Some(to as u64),
            ..SetAttr::default()
        };
        self.fs.setattr(&Cx::default(), *ino, &set)?;
        content.resize(to, 0);
        Ok(())
    }

    fn zero(&mut self, which: usize, mode: FallocMode) -> Result<()> {
        let (from, len) = self.range();
        let (ino, content) = &mut self.files[which];
        self.fs
            .fallocate(&Cx::default(), *ino, mode, from as u64, len as u64)?;
        let end = content.len().min(from + len);
        content[from.min(end)..end].fill(0);
        Ok(())
    }

    /// Reads a stream from a piece on, and checks the content.
    fn stream(&mut self, which: usize) {
        let (ino, content) = &self.files[which];
        let before = self.device.counts().reads;
        let (first, count) = (self.random.below(PIECES), 2 + self.random.below(8));
        // In order, or by two tasks of which the second sometimes overtakes the first.
        let mut pieces: Vec<usize> = (first..first + count).collect();
        if self.random.chance(300) {
            pieces.chunks_mut(2).for_each(|pair| pair.reverse());
        }
        for piece in pieces {
            let from = piece * PIECE;
            let read = self.fs.read(&Cx::default(), *ino, from as u64, PIECE);
            let expected = content.get(from..).unwrap_or_default();
            let expected = &expected[..expected.len().min(PIECE)];
            let read = read.unwrap().to_vec();
            assert_eq!(read.len(), expected.len(), "piece {piece} of file {which}");
            let differs = read.iter().zip(expected).position(|(a, b)| a != b);
            assert_eq!(differs, None, "byte of piece {piece} of file {which}");
            if self.random.chance(200) {
                sleep(Duration::from_micros(self.random.below(3000) as u64));
            }
        }
        let asked = count as u64;
        self.ahead += (self.device.counts().reads - before).saturating_sub(asked);
    }

    fn step(&mut self) -> Result<()> {
        let which = self.random.below(2);
        match self.random.below(14) {
            0..=4 => {
                self.stream(which);
                Ok(())
            }
            5..=7 => self.write(which),
            8 => self.cut(which),
            9 => self.zero(which, FallocMode::PunchHole),
            10 => self.zero(which, FallocMode::ZeroRange { keep_size: true }),
            11 => {
                // Written back and evicted: read from the device from now on.
                sleep(Duration::from_secs(40));
                Ok(())
            }
            12 => self.fs.sync_all(&Cx::default()),
            _ => self.fs.fsync(&Cx::default(), self.files[which].0, false),
        }
    }
}

/// The number of reads ahead in one history.
fn history(subject: Subject, seed: u64) -> u64 {
    let run = move || {
        let mut world = World::open(&subject, seed);
        for _ in 0..STEPS {
            match world.step() {
                Ok(()) | Err(FsError::NotSupported(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        for which in 0..2 {
            world.stream(which);
            world.fs.forget(world.files[which].0, 1);
        }
        world.fs.unmount().unwrap();
        let findings = subject.check.as_ref().unwrap()(&world.device.content());
        assert!(findings.is_empty(), "{findings}");
        let ahead = world.ahead;
        drop(world);
        sleep(Duration::from_millis(1));
        ahead
    };
    sim::run(sim::Config::new(seed), run).value
}

fn histories(subjects: Vec<Subject>) {
    let asked = std::env::var("STREAM_SEEDS").ok();
    let seeds = asked.and_then(|n| n.parse().ok()).unwrap_or(6);
    for subject in subjects.into_iter().filter(|subject| !subject.small) {
        let name = subject.name.clone();
        let ahead: u64 = (0..seeds).map(|seed| history(subject.clone(), seed)).sum();
        assert!(ahead > 0, "{name}: something was read ahead");
    }
}

#[test]
fn streams_on_ext_volumes_read_current_content() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("streams");
    histories(ext4::subjects(&scratch).unwrap());
}

#[test]
fn streams_on_f2fs_volumes_read_current_content() {
    histories(f2fs::subjects().unwrap());
}

/// Bytes per block.
const BLOCK: usize = 4096;
const BLOCKS: usize = PIECES * PIECE / BLOCK;
/// As many as fit into the smallest volume: a write that lacks space is short.
const FILES: usize = 2;

/// The state of each block of a file that several tasks read and change.
#[derive(Clone)]
struct Known {
    /// Number of the last completed change.
    answered: Vec<u64>,
    /// Number of the last change that was begun and left zeros.
    zeroed: Vec<u64>,
}

/// Files that are changed by some tasks and read by others.
struct Shared {
    fs: Arc<dyn FileSystem>,
    files: Vec<(InodeNo, Mutex<Known>)>,
    changes: AtomicU64,
}

impl Shared {
    fn block(file: usize, block: usize, change: u64) -> Vec<u8> {
        let word = (file as u64 + 1) << 56 | (block as u64) << 40 | change;
        word.to_le_bytes().repeat(BLOCK / 8)
    }

    /// One task changes each file.
    fn change(&self, file: usize, random: &mut Random) -> Result<()> {
        let cx = Cx::default();
        let (ino, known) = &self.files[file];
        let from = random.below(BLOCKS);
        let to = BLOCKS.min(from + 1 + random.below(80));
        let (at, len) = ((from * BLOCK) as u64, ((to - from) * BLOCK) as u64);
        let number = self.changes.fetch_add(1, Ordering::Relaxed) + 1;
        let zeros = |blocks: std::ops::Range<usize>| known.lock().zeroed[blocks].fill(number);
        let mut changed = from..to;
        match random.below(10) {
            0 => {
                zeros(from..to);
                let mode = FallocMode::PunchHole;
                self.fs.fallocate(&cx, *ino, mode, at, len)?;
            }
            1 => {
                changed = from..BLOCKS;
                zeros(changed.clone());
                let size = |size: usize| SetAttr {
                    size: Some(size as u64),
                    ..SetAttr::default()
                };
                self.fs.setattr(&cx, *ino, &size(from * BLOCK))?;
                self.fs.setattr(&cx, *ino, &size(BLOCKS * BLOCK))?;
            }
            2 => return self.fs.fsync(&cx, *ino, false),
            3 => {
                sleep(Duration::from_secs(35));
                return Ok(());
            }
            _ => {
                let content = changed.clone().flat_map(|n| Self::block(file, n, number));
                let content: Vec<u8> = content.collect();
                let written = self.fs.write(&cx, *ino, at, &content, false)?;
                assert_eq!(written, content.len(), "a short write");
            }
        }
        known.lock().answered[changed].fill(number);
        Ok(())
    }

    /// Reads a piece; each block's content is the one at the start of the read, or a later one.
    fn look(&self, file: usize, piece: usize) {
        let (ino, known) = &self.files[file];
        let before = known.lock().answered.clone();
        let from = (piece * PIECE) as u64;
        let read = self.fs.read(&Cx::default(), *ino, from, PIECE).unwrap();
        let read = read.to_vec();
        let zeroed = known.lock().zeroed.clone();
        for (n, content) in read.chunks_exact(BLOCK).enumerate() {
            let n = piece * PIECE / BLOCK + n;
            let word = u64::from_le_bytes(content[..8].try_into().unwrap());
            let change = word & 0xff_ffff_ffff;
            let what = format!("block {n} of file {file}: {word:#x}, after {}", before[n]);
            if word == 0 {
                assert!(content.iter().all(|byte| *byte == 0), "{what}");
                assert!(zeroed[n] >= before[n], "{what}: old zeros");
            } else {
                assert_eq!(content, Self::block(file, n, change), "{what}");
                assert!(change >= before[n], "{what}: old content");
            }
        }
    }
}

fn beside_each_other(subject: Subject, seed: u64) {
    let run = move || {
        let mut world = World::open(&subject, seed);
        let make = |n: usize| {
            let name = format!("shared{n}");
            let cx = Cx::default();
            let root = world.fs.root();
            let attr = world.fs.mknod(&cx, root, name.as_bytes(), 0o100_644, 0);
            let known = Known {
                answered: vec![0; BLOCKS],
                zeroed: vec![0; BLOCKS],
            };
            (attr.unwrap().ino, Mutex::new(Rank::Leaf, known))
        };
        let shared = Arc::new(Shared {
            fs: Arc::clone(&world.fs),
            files: (0..FILES).map(make).collect(),
            changes: AtomicU64::new(0),
        });
        let mut tasks = Vec::new();
        for task in 0..2 * FILES {
            let mut random = Random::new(world.random.next_u64());
            let shared = Arc::clone(&shared);
            let file = task / 2;
            tasks.push(spawn("task", move || {
                for _ in 0..60 {
                    if task % 2 == 0 {
                        match shared.change(file, &mut random) {
                            Ok(()) | Err(FsError::NotSupported(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                        continue;
                    }
                    let first = random.below(PIECES);
                    (first..PIECES).for_each(|piece| shared.look(file, piece));
                    sleep(Duration::from_millis(random.below(8000) as u64));
                }
            }));
        }
        tasks.into_iter().for_each(JoinHandle::join);
        for (ino, _) in &shared.files {
            shared.fs.forget(*ino, 1);
        }
        drop(shared);
        for (ino, _) in &world.files {
            world.fs.forget(*ino, 1);
        }
        world.fs.unmount().unwrap();
        let findings = subject.check.as_ref().unwrap()(&world.device.content());
        assert!(findings.is_empty(), "{findings}");
        drop(world);
        sleep(Duration::from_millis(1));
    };
    sim::run(sim::Config::new(seed), run);
}

fn all_beside_each_other(subjects: Vec<Subject>) {
    let asked = std::env::var("STREAM_SEEDS").ok();
    let seeds = asked.and_then(|n| n.parse().ok()).unwrap_or(2);
    for subject in subjects.into_iter().filter(|subject| !subject.small) {
        (0..seeds).for_each(|seed| beside_each_other(subject.clone(), seed));
    }
}

#[test]
fn readers_on_ext_volumes_see_concurrent_writes() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("streams-beside");
    all_beside_each_other(ext4::subjects(&scratch).unwrap());
}

#[test]
fn readers_on_f2fs_volumes_see_concurrent_writes() {
    all_beside_each_other(f2fs::subjects().unwrap());
}
