//! Full volumes that are overwritten at random, for `STEADFS_GC_ROUNDS` rounds. In simulated time: the results of
//! background GC would otherwise depend on the machine's load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, DeviceModel, FaultDevice, MemDevice, ModelDevice, Op};
use steadfs_cache::WritebackReason;
use steadfs_rt::sim::{Config, run};
use steadfs_rt::{Random, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, SetAttr};

use crate::checkpoint::Reason;
use crate::disk::BLOCK_SIZE;
use crate::gc::stats::Stats;
use crate::inode::Inode;
use crate::test_world::fsck;
use crate::victim::age::AGE_THRESHOLD;
use crate::{CacheSizes, F2fs, MountOptions};
use steadfs_f2fs_format::test_support::Image;

const FILES: usize = 12;

/// A volume with a directory of empty files.
fn volume(args: &[&str], mib: u64) -> Arc<MemDevice> {
    let dir = tempfile::tempdir().unwrap();
    let many = dir.path().join("dir");
    std::fs::create_dir(&many).unwrap();
    for n in 0..400 {
        let name = format!("{n:03}-{}", "n".repeat(120));
        std::fs::write(many.join(name), b"").unwrap();
    }
    for n in 0..FILES {
        std::fs::write(dir.path().join(format!("file{n}")), b"").unwrap();
    }
    let image = Image::make(args, mib);
    image.load(dir.path(), &[]);
    image.device()
}

fn open(device: Arc<dyn Device>, options: &str, write: bool) -> Arc<F2fs> {
    let mut options = MountOptions::parse(options).unwrap();
    options.common.read_only = !write;
    let opened = F2fs::open(device, options, CacheSizes::of(8 << 20));
    opened.unwrap().0
}

fn tag() -> IoTag {
    IoTag::default()
}

impl Drop for Full {
    fn drop(&mut self) {
        let closed = self.fs.close();
        if !std::thread::panicking() {
            closed.unwrap();
            fsck(&self.device);
        }
    }
}

/// Files whose blocks each begin with a number that the model knows.
struct Full {
    device: Arc<MemDevice>,
    faults: Arc<FaultDevice>,
    fs: Arc<F2fs>,
    files: Vec<(Arc<Inode>, Vec<u64>)>,
    random: Random,
    stamp: u64,
    /// Time between rewritten blocks.
    pause: Duration,
}

impl Full {
    fn new(device: Arc<MemDevice>, options: &str, seed: u64) -> Self {
        let faults = FaultDevice::new(Arc::clone(&device));
        let fs = open(Arc::clone(&faults) as _, options, true);
        let files = (0..FILES).map(|n| {
            let name = format!("file{n}");
            let cx = Cx::default();
            let attr = fs.lookup(&cx, fs.root(), name.as_bytes()).unwrap();
            (fs.by_number(attr.ino, tag()).unwrap(), Vec::new())
        });
        let files = files.collect();
        Self {
            device,
            faults,
            fs,
            files,
            random: Random::new(seed),
            stamp: 0,
            pause: Duration::ZERO,
        }
    }

    fn write(&mut self, file: usize, block: usize) -> Result<(), FsError> {
        self.stamp += 1;
        let mut data = vec![self.stamp as u8; BLOCK_SIZE];
        data[..8].copy_from_slice(&self.stamp.to_le_bytes());
        let (inode, blocks) = &mut self.files[file];
        let at = (block * BLOCK_SIZE) as u64;
        let n = self
            .fs
            .write_file(&Cx::default(), inode, at, &data, false)?;
        assert_eq!(n, BLOCK_SIZE);
        if block == blocks.len() {
            blocks.push(0);
        }
        blocks[block] = self.stamp;
        Ok(())
    }

    /// Writes until the volume is full.
    fn fill(&mut self) {
        for n in 0.. {
            let file = n % FILES;
            let block = self.files[file].1.len();
            match self.write(file, block) {
                Ok(()) => {}
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        self.sync();
        let counts = self.fs.space.counts();
        let left = counts.user_blocks - counts.valid_blocks;
        assert!(left < 16, "{left} blocks are left");
    }

    fn sync(&self) {
        for (inode, _) in &self.files {
            self.fs
                .write_out(inode, WritebackReason::Sync, tag())
                .unwrap();
        }
        self.fs.checkpoint(Reason::Sync, tag()).unwrap();
        self.fs.segments().check();
    }

    fn rewrite(&mut self, times: usize) {
        for _ in 0..times {
            let file = self.random.below(FILES);
            let block = self.random.below(self.files[file].1.len());
            self.write(file, block).unwrap();
            if !self.pause.is_zero() {
                sleep(self.pause);
            }
            match self.random.below(200) {
                0 => self.sync(),
                1..20 => {
                    let (inode, _) = &self.files[file];
                    self.fs.fsync_inode(&Cx::default(), inode, true).unwrap();
                }
                20..30 => {
                    let (inode, _) = &self.files[file];
                    self.fs
                        .write_out(inode, WritebackReason::Background, tag())
                        .unwrap();
                }
                _ => {}
            }
        }
    }

    /// Each block has the content that the model expects, here and after a mount.
    fn verify(&self) {
        self.sync();
        // On a copy: GC continues on this volume, and its old places are discarded.
        let copy = Arc::new(self.device.copy());
        fsck(&copy);
        let again = open(copy, "", false);
        for fs in [&self.fs, &again] {
            for (inode, blocks) in &self.files {
                let inode = fs.inode(inode.nid(), tag()).unwrap();
                for (n, stamp) in blocks.iter().enumerate() {
                    let at = (n * BLOCK_SIZE) as u64;
                    let read = fs.read_file(&Cx::default(), &inode, at, 8).unwrap();
                    let found = read.to_vec();
                    let found = u64::from_le_bytes(found[..8].try_into().unwrap());
                    assert_eq!(found, *stamp, "inode {} block {n}", inode.nid());
                }
            }
        }
    }
}

fn rounds() -> usize {
    let rounds = std::env::var("STEADFS_GC_ROUNDS").ok();
    rounds.and_then(|n| n.parse().ok()).unwrap_or(900)
}

fn simulated(seed: u64, test: impl FnOnce() + 'static) {
    run(Config::new(seed), test);
}

fn full_and_rewritten(args: &'static [&str], mib: u64, options: &'static str) {
    simulated(mib, move || rewrite_all(args, mib, options));
}

fn rewrite_all(args: &[&str], mib: u64, options: &str) {
    let mut full = Full::new(volume(args, mib), options, mib);
    full.fill();
    full.verify();
    for _ in 0..3 {
        full.rewrite(rounds());
        full.verify();
    }
    let stats = full.fs.gc.stats();
    let usage = full.fs.segments().usage();
    println!("{mib} MiB {options}: {stats:?} {usage:?}");
}

#[test]
fn a_full_volume_is_overwritten_by_lfs() {
    full_and_rewritten(&[], 64, "mode=lfs");
    full_and_rewritten(&[], 128, "mode=lfs");
}

#[test]
fn large_sections_are_cleaned() {
    full_and_rewritten(&["-s", "4"], 512, "mode=lfs");
}

/// As in Linux: what GC cannot move stays where it is, and only those who read it get the error.
#[test]
fn blocks_that_cannot_be_read_stay_and_others_are_cleaned() {
    simulated(21, || {
        let mut full = Full::new(volume(&[], 64), "mode=lfs", 21);
        full.fill();
        // The first block of some sections, of some blocks of the SSA, and of some nodes.
        let layout = &full.fs.layout;
        let (main, ssa) = (layout.main_start, layout.ssa_start);
        let bad: Vec<u32> = (0..layout.main_segments)
            .flat_map(|n| {
                [
                    (n % 3 == 0).then_some(main + n * 512),
                    (n % 7 == 1).then_some(ssa + n),
                ]
            })
            .flatten()
            .collect();
        let is_bad = bad.clone();
        full.faults.fail(move |bio| {
            let blocks = (bio.offset >> 12) as u32..((bio.offset + bio.len) >> 12) as u32;
            bio.op == Op::Read && is_bad.iter().any(|at| blocks.contains(at))
        });
        full.fs.forget_clean();
        full.rewrite(rounds());
        full.sync();
        let failures = full.faults.failures();
        let stats = full.fs.gc.stats();
        println!("{failures} failures, {stats:?}");
        assert!(failures > 0 && stats.victims > 0, "{failures}");
        assert!(
            failures <= 2 * stats.in_vain,
            "a section ends with its first failure"
        );
        full.faults.fail(|_| false);
        full.verify();
    });
}

/// With SSR, not IPU: checkpoints make invalid blocks of dirty segments usable.
#[test]
fn a_full_volume_is_overwritten_by_ssr() {
    simulated(7, rewrite_by_ssr);
}

fn rewrite_by_ssr() {
    let mut full = Full::new(volume(&[], 128), "", 7);
    full.fs.set_gc("ipu_policy", "0").unwrap();
    full.fill();
    full.verify();
    for _ in 0..2 {
        full.rewrite(rounds());
        full.verify();
    }
    let usage = full.fs.segments().usage();
    assert!(usage.ssr_blocks > 0, "{usage:?}");
    // GC without pauses.
    full.fs.set_gc("gc_urgent", "1").unwrap();
    let before = full.fs.gc.stats().calls[1];
    full.pause = Duration::from_millis(5);
    full.rewrite(rounds());
    full.verify();
    let stats = full.fs.gc.stats();
    assert!(stats.calls[1] > before, "{stats:?}");
    assert!(full.fs.status().contains("SSR: "));
}

/// By the rules of Linux 3.11: SSR below the overprovisioned sections, never for fsync's nodes, for which GC has to
/// free sections.
#[test]
fn a_full_volume_is_overwritten_by_the_rules_of_linux_3_11() {
    simulated(13, rewrite_by_linux_3_11);
}

fn rewrite_by_linux_3_11() {
    let options = "gc_policy=2013,noinline_data,background_gc=off";
    let mut full = Full::new(volume(&[], 256), options, 13);
    full.fs.set_gc("max_victim_search", "20").unwrap();
    full.fill();
    full.verify();
    for _ in 0..2 {
        full.rewrite(rounds() * 3);
        full.verify();
    }
    let (stats, usage) = (full.fs.gc.stats(), full.fs.segments().usage());
    println!("{stats:?} {usage:?}");
    assert!(stats.victims > 0 && usage.ssr_blocks > 0, "{usage:?}");
}

/// More inodes become dirty than there are free blocks for their nodes: by changes, and by reads.
#[test]
fn many_dirty_inodes_are_written_on_a_full_volume() {
    simulated(1, change_many_inodes);
}

fn change_many_inodes() {
    for options in ["", "gc_policy=2013"] {
        let device = volume(&[], 128);
        let fs = open(Arc::clone(&device) as _, options, true);
        let cx = Cx::default();
        let dir = fs.mkdir(&cx, fs.root(), b"full", 0o755).unwrap().ino;
        let mut inodes = Vec::new();
        loop {
            let name = format!("f{:05}", inodes.len());
            match fs.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0) {
                Ok(made) => inodes.push(made.ino),
                Err(FsError::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
        fs.sync_all(&cx).unwrap();
        let free = fs.segments().counts().free_sections;
        assert!(inodes.len() > 512 * free as usize, "{free} free sections");
        for ino in &inodes {
            let set = SetAttr {
                perm: Some(0o600),
                ..SetAttr::default()
            };
            fs.setattr(&cx, *ino, &set).unwrap();
        }
        fs.sync_all(&cx).unwrap();
        for ino in &inodes {
            fs.read(&cx, *ino, 0, 1).unwrap();
        }
        fs.close().unwrap();
        fsck(&device);
    }
}

/// A volume that was mounted for a week is cleaned by age, and moved blocks keep their age.
#[test]
fn atgc_cleans_old_sections() {
    let device = volume(&[], 64);
    let week = Duration::from_secs(AGE_THRESHOLD);
    let config = Config {
        max_time: week * 3,
        stall_bound: week,
        ..Config::default()
    };
    run(config, move || {
        let young = Full::new(Arc::clone(&device), "atgc", 3);
        assert!(young.fs.set_gc("gc_idle", "3").is_err());
        sleep(week + Duration::from_secs(100));
        drop(young);
        let mut full = Full::new(device, "atgc", 3);
        full.fs.set_gc("ipu_policy", "0").unwrap();
        full.fs.set_gc("gc_idle", "3").unwrap();
        for n in 0..FILES * 200 {
            full.write(n % FILES, n / FILES).unwrap();
        }
        full.sync();
        full.fs.set_gc("atgc_age_threshold", "100").unwrap();
        sleep(week / 1000);
        // When the background task finds the volume idle depends on the schedule.
        let moved = |full: &Full| full.fs.gc.stats().data_blocks[1];
        for _ in 0..10 {
            full.rewrite(500);
            full.verify();
            sleep(week / 1000);
            if moved(&full) > 0 {
                break;
            }
        }
        assert!(moved(&full) > 0, "{:?}", full.fs.gc.stats());
        assert!(full.fs.status().contains("Idle AT : "));
        full.rewrite(500);
        full.verify();
    });
}

#[test]
fn fitrim_discards_free_blocks_only() {
    simulated(9, trim);
}

fn trim() {
    let mut full = Full::new(volume(&[], 64), "mode=lfs", 9);
    for n in 0..600 {
        full.write(n % FILES, n / FILES).unwrap();
    }
    full.sync();
    let free = |full: &Full| full.fs.trim_range(&Cx::default(), 0, u64::MAX, 0).unwrap();
    let first = free(&full);
    let unused = full.fs.segments().counts().free;
    assert!(first >= u64::from(unused) * 512 * BLOCK_SIZE as u64);
    full.rewrite(500);
    full.sync();
    assert!(free(&full) > 0);
    full.verify();
    let some = full.fs.trim_range(&Cx::default(), 0, 1 << 20, 0).unwrap();
    assert_eq!(some, 0, "no block of the main area lies there");
    assert!(full.fs.trim_range(&Cx::default(), u64::MAX, 1, 0).is_err());
}

/// Background GC on a volume of which a third is invalid: calls in the foreground and in the background, data blocks
/// moved in all and in the background, checkpoints for space, free sections gained.
fn left_alone(options: &'static str) -> ([u64; 2], [u64; 2], u64, i64) {
    let work = move || {
        let mut full = Full::new(volume(&[], 128), options, 11);
        full.fs.set_gc("ipu_policy", "0").unwrap();
        // No other checkpoint is written.
        full.fs
            .checkpoints
            .set_interval(Duration::from_secs(86_400));
        full.fs.set_gc("gc_min_sleep_time", "1000").unwrap();
        for n in 0..FILES * 150 {
            full.write(n % FILES, n / FILES).unwrap();
        }
        full.sync();
        full.rewrite(400);
        full.sync();
        let free = |full: &Full| i64::from(full.fs.segments().free_sections());
        let before = (full.fs.gc.stats(), free(&full));
        sleep(Duration::from_secs(600));
        let after = (full.fs.gc.stats(), free(&full));
        full.verify();
        let of = |count: fn(&Stats) -> [u64; 2]| {
            let (now, then) = (count(&after.0), count(&before.0));
            [now[0] - then[0], now[1] - then[1]]
        };
        let checkpoints = after.0.checkpoints - before.0.checkpoints;
        let calls = of(|stats| stats.calls);
        let moved = of(|stats| stats.data_blocks);
        (calls, moved, checkpoints, after.1 - before.1)
    };
    run(Config::new(11), work).value
}

#[test]
fn background_gc_off_on_and_sync() {
    assert_eq!(left_alone("background_gc=off"), ([0, 0], [0, 0], 0, 0));
    let (calls, moved, checkpoints, _) = left_alone("background_gc=on");
    assert!(calls[1] > 0 && moved[1] > 0, "{calls:?} {moved:?}");
    assert_eq!((calls[0], moved[0], checkpoints), (0, moved[1], 0));
    let (calls, moved, checkpoints, gained) = left_alone("background_gc=sync");
    assert!(calls[0] > 0 && moved[0] > 0, "{calls:?} {moved:?}");
    assert_eq!((calls[1], moved[1]), (0, 0));
    assert!(checkpoints > 0 && gained > 0, "{checkpoints} {gained}");
}

#[test]
fn gc_merge_cleans_in_the_task() {
    simulated(12, || {
        for (options, merged) in [("mode=lfs,nogc_merge", false), ("mode=lfs,gc_merge", true)] {
            let options = format!("{options},background_gc=off");
            let mut full = Full::new(volume(&[], 64), &options, 12);
            full.fill();
            full.rewrite(300);
            full.verify();
            assert_eq!(full.fs.gc.task.served() > 0, merged, "{options}");
            assert!(full.fs.gc.stats().calls[0] > 0);
        }
    });
}

/// Sections of four segments, some with many invalid blocks, and greedy background GC.
fn large_sections_with_garbage(granularity: Option<&str>) -> Full {
    let mut full = Full::new(volume(&["-s", "4"], 512), "", 21);
    let settings = [
        ("ipu_policy", "0"),
        ("gc_idle", "2"),
        ("gc_idle_interval", "0"),
        ("gc_no_gc_sleep_time", "86400000"),
        ("gc_max_sleep_time", "86400000"),
        ("gc_min_sleep_time", "86400000"),
    ];
    let granularity = granularity.map(|value| ("migration_granularity", value));
    for (name, value) in settings.into_iter().chain(granularity) {
        full.fs.set_gc(name, value).unwrap();
        assert_eq!(full.fs.show_gc(name).unwrap(), value);
    }
    let never = Duration::from_secs(86_400);
    full.fs.checkpoints.set_interval(never);
    for n in 0..FILES * 1000 {
        full.write(n % FILES, n / FILES).unwrap();
    }
    full.sync();
    full.rewrite(2000);
    full.sync();
    full
}

/// A background round, followed by a long sleep: segments cleaned, victims chosen.
fn one_round(full: &Full) -> (u64, u64) {
    let seen = || {
        // Between two rounds.
        let _one = full.fs.gc.gc_lock.lock();
        let stats = full.fs.gc.stats();
        assert_eq!(stats.in_vain, 0, "{stats:?}");
        let segments = stats.data_segments[1] + stats.node_segments[1];
        (stats.calls[1], segments, stats.victims)
    };
    let before = seen();
    full.fs.gc.task.wake();
    loop {
        sleep(Duration::from_millis(10));
        let after = seen();
        if after.0 > before.0 {
            assert_eq!(after.0, before.0 + 1);
            return (after.1 - before.1, after.2 - before.2);
        }
    }
}

#[test]
fn a_round_empties_at_most_migration_granularity_segments() {
    simulated(21, || {
        for (granularity, most) in [(None, 4), (Some("3"), 3), (Some("1"), 1)] {
            let full = large_sections_with_garbage(granularity);
            for wrong in ["0", "5", "-1", "all"] {
                assert!(full.fs.set_gc("migration_granularity", wrong).is_err());
            }
            let shown = full.fs.show_gc("migration_granularity").unwrap();
            assert_eq!(shown, most.to_string());
            let free = full.fs.segments().free_sections();
            let rounds: Vec<_> = (0..16).map(|_| one_round(&full)).collect();
            let segments = rounds.iter().map(|(segments, _)| *segments);
            assert_eq!(segments.max(), Some(most), "{rounds:?}");
            let continues = |(segments, sections): &(u64, u64)| *segments > 0 && *sections == 0;
            let is_split = rounds.iter().any(continues);
            assert_eq!(is_split, most < 4, "{rounds:?}");
            // Whole sections become free with any granularity.
            full.verify();
            assert!(full.fs.segments().free_sections() > free, "{rounds:?}");
        }
    });
}

/// Whether background GC cleans, and how often it does not because of I/O, beside reads or writes without a pause.
fn cleans_beside(op: Op, aware: &str) -> (bool, u64) {
    let device = volume(&[], 64);
    let mut full = Full::new(Arc::clone(&device), "", 22);
    full.fs.set_gc("ipu_policy", "0").unwrap();
    for n in 0..FILES * 100 {
        full.write(n % FILES, n / FILES).unwrap();
    }
    full.sync();
    full.rewrite(400);
    drop(full);
    let model = DeviceModel {
        bytes_per_second: 100 << 20,
        latency: Duration::from_millis(7),
        flush: Duration::from_millis(1),
        depth: 8,
    };
    let slow = Arc::new(ModelDevice::new(device, model));
    let opened = F2fs::open(
        slow,
        MountOptions::parse("").unwrap(),
        CacheSizes::of(8 << 20),
    );
    let fs = opened.unwrap().0;
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..3)
        .map(|n| {
            let (queue, stop) = (Arc::clone(fs.queue()), Arc::clone(&stop));
            spawn("beside", move || {
                sleep(Duration::from_millis(2 * n));
                // A sector of the second superblock, with its content.
                let at = BLOCK_SIZE as u64 + 512 * n;
                let buf = queue.read(at, 512, tag()).unwrap();
                while !stop.load(Ordering::Acquire) {
                    let bio = match op {
                        Op::Write => Bio::write(at, vec![buf.clone()]),
                        _ => Bio::read(at, 512),
                    };
                    queue.submit(bio, tag()).wait().unwrap();
                }
            })
        })
        .collect();
    sleep(Duration::from_millis(100));
    for (name, value) in [
        ("bggc_io_aware", aware),
        ("gc_idle", "2"),
        ("gc_idle_interval", "0"),
        ("gc_max_sleep_time", "1000"),
        ("gc_min_sleep_time", "1000"),
    ] {
        fs.set_gc(name, value).unwrap();
    }
    sleep(Duration::from_secs(30));
    let stats = fs.gc.stats();
    stop.store(true, Ordering::Release);
    tasks.into_iter().for_each(|task| task.join());
    fs.close().unwrap();
    (stats.calls[1] > 0, stats.skipped_in_use)
}

#[test]
fn bggc_io_aware_selects_the_io_that_stops_gc() {
    simulated(22, || {
        for (op, aware, cleans) in [
            (Op::Read, "0", false),
            (Op::Read, "1", false),
            (Op::Read, "2", true),
            (Op::Write, "0", false),
            (Op::Write, "1", true),
            (Op::Write, "2", true),
        ] {
            let (cleaned, skipped) = cleans_beside(op, aware);
            assert_eq!(cleaned, cleans, "{op:?} {aware}");
            assert!(cleans || skipped >= 29, "{op:?} {aware}: {skipped}");
        }
    });
}
