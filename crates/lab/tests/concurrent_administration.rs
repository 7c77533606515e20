//! Concurrent administration: volumes are frozen, remounted, thawed and finally unmounted while tasks change them.
//!
//! No call hangs, and each returns. A frozen device receives no writes, and a copy of it is consistent. Whatever an
//! fsync acknowledged is on the device at that moment; with checkpoint merging, by a checkpoint that began after the
//! request. The same holds on devices that fail at one of the requests, except that calls report the error.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;
use steadfs_base::InodeNo;
use steadfs_lab::crash::{Subject, ext4, f2fs};
use steadfs_lab::device::{Event, Fault, Image, Log, Model, RequestFilter, SimDevice, Survivors};
use steadfs_rt::{Mutex, Random, Rank, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, Result};

const CLIENTS: u64 = 4;
/// Maximum number of files and directories per task: all fit on the smallest volume.
const MADE: u64 = 36;
const STEPS: u64 = 12;
/// Number of crash images examined per trial.
const CUTS: usize = 12;

/// A file or directory that is durable from its mark in the device's log on.
#[derive(Clone)]
struct Acknowledged {
    name: String,
    /// Size of a file; `None` for a directory.
    size: Option<usize>,
    mark: u64,
    /// The mark from which on it may be removed.
    until: Option<u64>,
}

/// A volume and the state shared by its tasks.
struct World {
    subject: Subject,
    device: SimDevice,
    fs: Arc<dyn FileSystem>,
    /// The control file that freezes it.
    freeze: &'static str,
    acknowledged: Mutex<Vec<Acknowledged>>,
    marks: AtomicU64,
    over: AtomicBool,
    /// Whether the device fails.
    failing: bool,
}

impl World {
    fn open(subject: Subject, seed: u64, fault: Option<(RequestFilter, Fault)>) -> Arc<Self> {
        let model = Model {
            discard_granularity: (seed.is_multiple_of(2)).then_some(4096),
            seed,
            ..Model::solid_state()
        };
        let failing = fault.is_some();
        let (device, fs) = subject.open_on(&subject.image, model, fault);
        let fs = fs.unwrap();
        let paths = fs.control().unwrap().entries();
        let freeze = paths.iter().find(|entry| entry.path.ends_with("/freeze"));
        Arc::new(Self {
            freeze: freeze.unwrap().path,
            acknowledged: Mutex::new(Rank::Leaf, Vec::new()),
            marks: AtomicU64::new(0),
            over: AtomicBool::new(false),
            failing,
            subject,
            device,
            fs,
        })
    }

    fn mark(&self) -> u64 {
        let mark = self.marks.fetch_add(1, Ordering::AcqRel) + 1;
        self.device.mark(mark);
        mark
    }

    fn control(&self, path: &str, value: &str) -> Result<()> {
        self.fs.control().unwrap().write(path, value.as_bytes())
    }

    /// Whether a call succeeded. It may fail only because of the device.
    fn done<T>(&self, result: Result<T>) -> bool {
        match result {
            Ok(_) => true,
            Err(error) => {
                assert!(self.failing && is_device(&error), "{error}");
                false
            }
        }
    }

    /// Number of requests that changed the device.
    fn changes(&self) -> u64 {
        let counts = self.device.counts();
        counts.writes + counts.discards + counts.zeroings
    }

    /// Mounts a copy of the device: it holds all of `acknowledged`, and is consistent.
    fn judge(&self, image: &Image, acknowledged: &[Acknowledged], what: &str) {
        let quiet = Model {
            log: false,
            ..Model::default()
        };
        let (device, fs) = self.subject.open_on(image, quiet, None);
        let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
        for expected in acknowledged {
            let found = look(fs.as_ref(), expected);
            found.unwrap_or_else(|error| panic!("{what}: {}: {error}", expected.name));
        }
        fs.unmount().unwrap();
        self.check(&device.content(), what);
    }

    fn check(&self, image: &Image, what: &str) {
        let findings = self.subject.check.as_ref().unwrap()(image);
        assert!(findings.is_empty(), "{what}: {findings}");
    }
}

/// Checks an acknowledged file or directory.
fn look(fs: &dyn FileSystem, expected: &Acknowledged) -> Result<()> {
    let cx = Cx::default();
    let attr = fs.lookup(&cx, fs.root(), expected.name.as_bytes())?;
    if let Some(size) = expected.size {
        assert_eq!(attr.size, size as u64, "{}", expected.name);
        let data = fs.read(&cx, attr.ino, 0, size)?.to_vec();
        assert!(
            data == content(&expected.name, size),
            "content of {}",
            expected.name
        );
    }
    fs.forget(attr.ino, 1);
    Ok(())
}

fn content(name: &str, size: usize) -> Vec<u8> {
    name.bytes().cycle().take(size).collect()
}

/// Whether a call may fail with this error during freezes, remounts and unmounts.
fn is_refusal(error: &FsError) -> bool {
    match error {
        FsError::Busy | FsError::ReadOnly => true,
        FsError::Stopped(why) => why == "unmounted",
        _ => false,
    }
}

/// Whether a call may fail with this error if the device fails.
fn is_device(error: &FsError) -> bool {
    matches!(error, FsError::Io(_) | FsError::ReadOnly) || error.is_stop()
}

/// Creates and syncs files and directories, removes some, and later drops its lookup counts.
fn client(world: &World, seed: u64, number: u64) {
    let fs = world.fs.as_ref();
    let mut random = Random::new(seed * 1000 + number);
    let (mut made, mut known, mut round) = (0, Vec::new(), 0);
    while made < MADE && !world.over.load(Ordering::Acquire) {
        round += 1;
        let pause = if random.chance(512) { 100 } else { 60_000 };
        sleep(Duration::from_micros(random.below(pause) as u64));
        let done = match random.below(5) {
            0 => remove(world, &format!("{number}-"), &mut random),
            kind => {
                let name = format!("{number}-{round}");
                make(world, &name, kind == 1, &mut random, &mut known)
            }
        };
        match done {
            Ok(()) => made += 1,
            Err(error) => {
                let excused = is_refusal(&error) || world.failing && is_device(&error);
                assert!(excused, "{error}");
            }
        }
        if known.len() > random.below(6) {
            fs.forget(known.remove(0), 1);
        }
    }
    for ino in known {
        fs.forget(ino, 1);
    }
}

fn make(
    world: &World,
    name: &str,
    directory: bool,
    random: &mut Random,
    known: &mut Vec<InodeNo>,
) -> Result<()> {
    let (fs, cx) = (world.fs.as_ref(), Cx::default());
    let (ino, size) = match directory {
        true => (fs.mkdir(&cx, fs.root(), name.as_bytes(), 0o755)?.ino, None),
        false => {
            let attr = fs.mknod(&cx, fs.root(), name.as_bytes(), 0o100_644, 0)?;
            (attr.ino, Some(random.below(6000)))
        }
    };
    known.push(ino);
    if let Some(size) = size {
        fs.write(&cx, ino, 0, &content(name, size), false)?;
    }
    fs.fsync(&cx, ino, false)?;
    let mark = world.mark();
    world.acknowledged.lock().push(Acknowledged {
        name: name.to_owned(),
        size,
        mark,
        until: None,
    });
    Ok(())
}

/// Removes one of the caller's own files.
fn remove(world: &World, prefix: &str, random: &mut Random) -> Result<()> {
    let (fs, cx) = (world.fs.as_ref(), Cx::default());
    let mark = world.mark();
    let chosen = {
        let mut acknowledged = world.acknowledged.lock();
        let mut own: Vec<&mut Acknowledged> = acknowledged
            .iter_mut()
            .filter(|p| p.name.starts_with(prefix) && p.until.is_none())
            .collect();
        if own.is_empty() {
            return Ok(());
        }
        let at = random.below(own.len());
        own[at].until = Some(mark);
        own[at].clone()
    };
    match chosen.size {
        Some(_) => fs.unlink(&cx, fs.root(), chosen.name.as_bytes()),
        None => fs.rmdir(&cx, fs.root(), chosen.name.as_bytes()),
    }
}

/// Freezes the volume for a while. Its device receives no writes, and a copy has everything acknowledged.
fn freeze(world: &World, random: &mut Random) {
    if !world.done(world.control(world.freeze, "1")) {
        return;
    }
    let before = world.changes();
    let copy = world.device.content();
    let mut acknowledged = world.acknowledged.lock().clone();
    acknowledged.retain(|expected| expected.until.is_none());
    world.judge(&copy, &acknowledged, "the copy of a frozen volume");
    let refused = world.fs.remount(&Cx::default(), "noatime");
    let excused = matches!(&refused, Err(error) if world.failing && is_device(error));
    // A volume that an error left read-only has nothing to freeze.
    let unfrozen = world.failing && refused.is_ok();
    let busy = refused == Err(FsError::Busy);
    assert!(excused || unfrozen || busy, "{refused:?}");
    // Longer than the interval of any background work.
    sleep(Duration::from_millis(random.below(70_000) as u64));
    assert_eq!(world.changes(), before, "a frozen volume was written");
    world.done(world.control(world.freeze, "0"));
}

/// Remounts read-only and back; refused while unlinked files are open.
fn read_only_and_back(world: &World, random: &mut Random) {
    match world.fs.remount(&Cx::default(), "ro") {
        Ok(()) => {
            let before = world.changes();
            sleep(Duration::from_millis(random.below(300) as u64));
            assert_eq!(world.changes(), before, "a read-only volume was written");
            world.done(world.fs.remount(&Cx::default(), "rw"));
        }
        Err(FsError::Busy) => {}
        Err(error) => assert!(world.failing && is_device(&error), "{error}"),
    }
}

/// Crash images: each has everything that was acknowledged until then.
fn cut_power(world: &World, log: &Log, random: &mut Random) {
    let acknowledged = world.acknowledged.lock().clone();
    let cuts = if acknowledged.is_empty() { 0 } else { CUTS };
    for _ in 0..cuts {
        let expected = &acknowledged[random.below(acknowledged.len())];
        let is_it = |event: &Event| matches!(event, Event::Mark(mark) if *mark == expected.mark);
        let at = log.events().iter().position(is_it).unwrap() + 1;
        let cut = at + random.below((log.len() - at).min(40) + 1);
        let last = log.marks(cut).max().unwrap();
        let mut due = acknowledged.clone();
        due.retain(|due| due.mark <= last && due.until.is_none_or(|until| until > last));
        let survivors = match random.below(3) {
            0 => Survivors::None,
            1 => Survivors::All,
            _ => Survivors::Seeded(random.next_u64()),
        };
        let what = format!("power cut at {cut} with {survivors:?}");
        world.judge(&log.image(cut, &survivors), &due, &what);
    }
}

/// One administrative action.
fn administer(world: &World, options: &[&str], random: &mut Random) {
    let cx = Cx::default();
    match random.below(6) {
        0 | 1 => freeze(world, random),
        2 => read_only_and_back(world, random),
        3 => drop(world.done(world.fs.sync_all(&cx))),
        4 => match world.fs.trim(&cx, 0, u64::MAX, 0) {
            // Every other device does not support discard.
            Err(FsError::NotSupported(_)) => {}
            trimmed => drop(world.done(trimmed)),
        },
        _ => {
            let list = options[random.below(options.len())];
            world.done(world.fs.remount(&cx, list));
        }
    }
}

/// Ends the tasks, unmounts, and judges the volume.
fn end(world: &World, at_rest: bool, clients: Vec<steadfs_rt::JoinHandle<()>>) {
    let whole = if at_rest {
        world.over.store(true, Ordering::Release);
        clients.into_iter().for_each(|client| client.join());
        // Unlinked files whose last reference was dropped are freed, also those dropped while frozen.
        world.done(world.fs.remount(&Cx::default(), "ro"));
        world.done(world.fs.unmount())
    } else {
        // While the clients run.
        let unmounted = world.done(world.fs.unmount());
        world.over.store(true, Ordering::Release);
        clients.into_iter().for_each(|client| client.join());
        unmounted
    };
    let left = world.device.content();
    if whole {
        world.check(&left, "after the unmount");
    }
    let mut acknowledged = world.acknowledged.lock().clone();
    acknowledged.retain(|expected| expected.until.is_none());
    world.judge(&left, &acknowledged, "what is left");
}

/// The result of a trial.
struct Trial {
    /// The volume's statistics as JSON.
    stats: Value,
    /// Number of device requests until the mount, and in total.
    requests: (u64, u64),
    /// The same of requests that flush.
    flushes: (u64, u64),
    /// Whether the device failed.
    met: bool,
}

fn trial(
    subject: Subject,
    seed: u64,
    options: &'static [&'static str],
    stats: &'static str,
    fault: Option<(RequestFilter, Fault)>,
) -> Trial {
    let run = move || {
        let world = World::open(subject, seed, fault);
        let requests = || world.device.counts().total();
        let flushes = || world.device.log().flushes().count() as u64;
        let opened = (requests(), flushes());
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let world = Arc::clone(&world);
                spawn("client", move || client(&world, seed, number))
            })
            .collect();
        let mut random = Random::new(seed ^ 0x3EDD1E);
        for _ in 0..STEPS {
            sleep(Duration::from_micros(random.below(120_000) as u64));
            administer(&world, options, &mut random);
        }
        let stats = world.fs.control().unwrap().read(stats).unwrap();
        end(&world, seed.is_multiple_of(2), clients);
        let log = world.device.log();
        cut_power(&world, &log, &mut random);
        let stats = serde_json::from_slice(&stats).unwrap();
        let done = Trial {
            stats,
            requests: (opened.0, requests()),
            flushes: (opened.1, flushes()),
            met: world.device.first_failure().is_some(),
        };
        // The last tasks of the volume end.
        drop(world);
        sleep(Duration::from_secs(60));
        done
    };
    sim::run(sim::Config::new(seed), run).value
}

/// Faults of a trial like this one, each at a random request.
fn faults_of(quiet: &Trial, random: &mut Random) -> Vec<(RequestFilter, Fault)> {
    let mut within = |(from, to): (u64, u64)| from + random.next_u64() % (to - from);
    vec![
        (RequestFilter::Nth(within(quiet.requests)), Fault::Fail),
        (RequestFilter::From(within(quiet.requests)), Fault::Fail),
        (RequestFilter::Nth(within(quiet.requests)), Fault::Misreport),
        (
            RequestFilter::NthFlushing(within(quiet.flushes)),
            Fault::LoseCache,
        ),
    ]
}

const EXT4_OPTIONS: &[&str] = &[
    "noasync_checkpoint",
    "async_checkpoint=99",
    "async_checkpoint=40,commit=1",
    "async_checkpoint=75,commit=5,discard",
    "nodiscard",
];
const F2FS_OPTIONS: &[&str] = &[
    "nocheckpoint_merge",
    "checkpoint_merge",
    "checkpoint_merge,noatime",
    "background_gc=off",
    "background_gc=on",
    "nodiscard",
    "discard",
];
/// The control files with the volumes' statistics.
const JOURNAL: &str = "jbd2/stats.json";
const F2FS: &str = "f2fs/stats.json";

fn number(stats: &Value, path: &str) -> u64 {
    let number = stats.pointer(path).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{path} is not in {stats}"))
}

fn seeds() -> std::ops::Range<u64> {
    let asked = std::env::var("ADMINISTRATION_SEEDS").ok();
    0..asked.and_then(|n| n.parse().ok()).unwrap_or(4)
}

#[test]
fn ext4_withstands_concurrent_administration() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("concurrent-administration");
    let mut reclaimed = 0;
    for subject in ext4::subjects(&scratch).unwrap() {
        if subject.small {
            continue;
        }
        for seed in seeds() {
            let stats = trial(subject.clone(), seed, EXT4_OPTIONS, JOURNAL, None).stats;
            reclaimed += number(&stats, "/reclaim/freed_in_background");
        }
    }
    assert!(reclaimed > 0, "the background had something to do");
}

#[test]
fn f2fs_withstands_concurrent_administration() {
    let mut shared = 0;
    for subject in f2fs::subjects().unwrap() {
        if subject.small {
            continue;
        }
        for seed in seeds() {
            let stats = trial(subject.clone(), seed, F2FS_OPTIONS, F2FS, None).stats;
            let merge = "/checkpoint/merge";
            let [total, issued] =
                ["total", "issued"].map(|name| number(&stats, &format!("{merge}/{name}")));
            shared += total - issued;
        }
    }
    assert!(shared > 0, "some requests were answered together");
}

/// Each kind of volume on failing devices: as many trials as `ADMINISTRATION_SEEDS` gives, or one.
fn on_failing_devices(
    subjects: Vec<Subject>,
    options: &'static [&'static str],
    stats: &'static str,
) {
    let asked = std::env::var("ADMINISTRATION_SEEDS").ok();
    let seeds = asked.and_then(|n| n.parse().ok()).unwrap_or(1);
    let (mut tried, mut met) = (0, 0);
    for (number, subject) in (0..).zip(subjects.into_iter().filter(|subject| !subject.small)) {
        for seed in 0..seeds {
            // Some at rest, some while clients run.
            let seed = 0xFA11_0000 + seed + number;
            let quiet = trial(subject.clone(), seed, options, stats, None);
            for fault in faults_of(&quiet, &mut Random::new(seed)) {
                println!("{}, seed {seed:#x}, {fault:?}", subject.name);
                let with_faults = trial(subject.clone(), seed, options, stats, Some(fault));
                tried += 1;
                met += u64::from(with_faults.met);
            }
        }
    }
    assert!(met * 4 > tried * 3, "{met} of {tried} devices failed");
}

#[test]
fn ext4_withstands_concurrent_administration_on_failing_devices() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("concurrent-administration-faults");
    on_failing_devices(ext4::subjects(&scratch).unwrap(), EXT4_OPTIONS, JOURNAL);
}

#[test]
fn f2fs_withstands_concurrent_administration_on_failing_devices() {
    on_failing_devices(f2fs::subjects().unwrap(), F2FS_OPTIONS, F2FS);
}
