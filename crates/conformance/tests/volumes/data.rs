//! Random operations on one file against a vector of bytes, and full volumes. The kinds have every form of map.

use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_conformance::{Kind, Setup, World};
use steadfs_rt::{Random, sim, sleep};
use steadfs_vfs::{Cx, FallocMode, FsError, Seek};

on_every!(
    a_file_matches_a_model,
    a_full_volume_keeps_acknowledged_data,
);

/// Ranges begin and end before this offset.
const LARGEST: u64 = 600_000;
/// F2FS_IOC_DEFRAGMENT: moves blocks as GC does.
const DEFRAGMENT: u32 = 0xc010_f508;

struct Model {
    bytes: Vec<u8>,
    /// Added to every offset, so that the file uses deeper maps.
    base: u64,
    random: Random,
    steps: usize,
}

impl Model {
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

    fn step(&mut self, world: &World, file: InodeNo) {
        self.steps += 1;
        let (fs, cx) = (&world.fs, &world.cx);
        let (start, len) = self.range();
        let (end, at) = (start + len, self.base + start);
        match self.below(15) {
            // Without unwritten blocks there is no preallocation.
            9..11 if !world.kind.has_fallocate() => self.write(world, file, start, len),
            0..4 => self.write(world, file, start, len),
            4 => {
                world.resize(file, at).unwrap();
                self.bytes.resize(start as usize, 0);
            }
            5 => fs.fsync(cx, file, self.steps.is_multiple_of(2)).unwrap(),
            6 => self.check(world, file, start, len),
            7 => {
                fs.fallocate(cx, file, FallocMode::PunchHole, at, len)
                    .unwrap();
                self.zero(start, end);
            }
            8 => self.seek(world, file, start),
            9 => {
                let keep_size = self.below(2) == 0;
                let mode = FallocMode::Allocate { keep_size };
                fs.fallocate(cx, file, mode, at, len).unwrap();
                if !keep_size {
                    self.grow(end);
                }
            }
            10 => {
                let keep_size = self.below(2) == 0;
                let mode = FallocMode::ZeroRange { keep_size };
                fs.fallocate(cx, file, mode, at, len).unwrap();
                if !keep_size {
                    self.grow(end);
                }
                self.zero(start, end);
            }
            11 => move_blocks(world, file, at, len),
            12 => world.checkpoint(),
            // The flusher writes in the background, by age.
            _ => sleep(Duration::from_secs(40)),
        }
        let size = self.base * u64::from(!self.bytes.is_empty()) + self.bytes.len() as u64;
        if self.base == 0 || !self.bytes.is_empty() {
            assert_eq!(world.attr(file).size, size, "step {}", self.steps);
        }
    }

    fn write(&mut self, world: &World, file: InodeNo, start: u64, len: u64) {
        let fill = self.below(256) as u8;
        let data: Vec<u8> = (0..len).map(|i| fill.wrapping_add(i as u8)).collect();
        let written = world.write(file, self.base + start, &data);
        assert_eq!(written, Ok(len as usize));
        self.grow(start + len);
        self.bytes[start as usize..(start + len) as usize].copy_from_slice(&data);
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

    fn check(&self, world: &World, file: InodeNo, start: u64, len: u64) {
        let data = world.read(file, self.base + start, len as usize);
        let from = (start as usize).min(self.bytes.len());
        let to = ((start + len) as usize).min(self.bytes.len());
        let differs = |(a, b): (&u8, &u8)| a != b;
        if let Some(at) = data.iter().zip(&self.bytes[from..to]).position(differs) {
            let (is, should) = (data[at], self.bytes[from + at]);
            let (step, at) = (self.steps, from + at);
            panic!("step {step}: byte {at} is {is}, not {should}");
        }
        assert_eq!(data.len(), to - from, "step {}", self.steps);
    }

    fn seek(&self, world: &World, file: InodeNo, start: u64) {
        let found = world
            .fs
            .seek(&world.cx, file, self.base + start, Seek::Data);
        match found {
            Ok(at) => {
                let gap = &self.bytes[start as usize..(at - self.base) as usize];
                assert!(gap.iter().all(|&b| b == 0), "data in a hole");
            }
            Err(FsError::NoSuchOffset) => {
                let from = (start as usize).min(self.bytes.len());
                let rest = &self.bytes[from..];
                assert!(rest.iter().all(|&b| b == 0), "data beyond the last");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Makes a range contiguous, where the format has a call for it.
fn move_blocks(world: &World, file: InodeNo, at: u64, len: u64) {
    if world.kind.is_ext() {
        return world.sync();
    }
    let range = [at / 4096 * 4096, len.next_multiple_of(4096)];
    let range = range.map(u64::to_ne_bytes).concat();
    let moved = world.fs.ioctl(&world.cx, file, DEFRAGMENT, &range);
    moved.unwrap().expect("an ioctl of f2fs");
}

fn a_file_matches_a_model(kind: &'static Kind) {
    // For f2fs: in the inode and direct nodes; through an indirect one; through the double indirect one.
    let bases = match kind.is_ext() {
        true => [0, 0, 0, 8_500_000_000],
        false => [0, 3_700_000, 11_900_000, 8_500_000_000],
    };
    for (n, base) in (1..).zip(bases) {
        let seed = kind.seed(n);
        // In simulated time, for the flusher.
        sim::run(sim::Config::new(seed), move || rounds(kind, base, seed));
    }
}

/// Rounds of random steps, each ended by an unmount.
fn rounds(kind: &'static Kind, base: u64, seed: u64) {
    let setup = Setup {
        mib: if kind.is_ext() && kind.block <= 4096 {
            16
        } else {
            64
        },
        cache: 4 << 20,
        ..Setup::default()
    };
    let mut world = World::with(kind, &setup);
    let mut model = Model {
        bytes: Vec::new(),
        base,
        random: Random::new(seed),
        steps: 0,
    };
    let file = world.file(world.root, b"file").unwrap().ino;
    for _ in 0..4 {
        model.check(&world, file, 0, LARGEST);
        for _ in 0..65 {
            model.step(&world, file);
        }
        model.check(&world, file, 0, LARGEST);
        world = World::open(kind, world.close(), &setup);
    }
    model.check(&world, file, 0, LARGEST);
    world.close();
}

fn a_full_volume_keeps_acknowledged_data(kind: &'static Kind) {
    let (mib, piece) = match (kind.is_ext(), kind.block) {
        (true, 0..=2048) => (8, 3000),
        (true, 4096) => (16, 3000),
        _ => (64, 30_000),
    };
    let setup = Setup {
        mib,
        cache: 4 << 20,
        ..Setup::default()
    };
    let world = World::with(kind, &setup);
    let cx = Cx {
        uid: 1000,
        ..Cx::default()
    };
    let file = world.file(world.root, b"file").unwrap().ino;
    let mut end = 0;
    let full = loop {
        let data = vec![(end / piece) as u8; piece as usize];
        match world.fs.write(&cx, file, end, &data, false) {
            Ok(n) => end += n as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(full, FsError::NoSpace);
    assert!(end > 2 << 20, "only {end} bytes fitted");
    if !kind.is_ext() {
        let left = world.free().0;
        assert!(left < 10, "{left} blocks left");
    }
    // Existing data can be overwritten, and all of it reaches the device.
    let again = vec![255; 3 * piece as usize];
    world.fs.write(&cx, file, 0, &again, false).unwrap();
    world.fsync(file).unwrap();
    let setup = Setup {
        mount: "ro",
        ..setup
    };
    let world = World::open(kind, world.close(), &setup);
    assert_eq!(world.attr(file).size, end);
    assert_eq!(world.read(file, 0, again.len()), again);
    let mut at = 3 * piece;
    while at < end {
        let data = world.read(file, at, piece as usize);
        assert!(data.iter().all(|&b| b == (at / piece) as u8), "byte {at}");
        at += piece;
    }
    world.close();
}
