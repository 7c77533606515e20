//! Power cuts in the middle of un-synced changes, after which the recorded state of all changes is restored.
//!
//! A run makes a volume, changes it at random, makes that durable, and changes it further while it keeps the record that
//! a server keeps. Then the power fails, in the middle of a call, and any subset of the writes that were not flushed
//! survives. After a mount and a restoration the volume must be in the recorded state, and clean for its judges. Cuts in
//! the middle of the restoration follow: a mount without the record must find a consistent volume, and a second
//! restoration must end in the same state.
//!
//! `RESTORE_SEED` and `RESTORE_RUNS` choose other or more runs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "restore/actor.rs"]
mod actor;
#[path = "restore/ioctls.rs"]
mod ioctls;
#[path = "restore/model.rs"]
mod model;
#[path = "restore/renames.rs"]
mod renames;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_conformance::{KINDS, Kind, judge, kind};
use steadfs_lab::device::{Image, Log, Model as DeviceModel, SimDevice, Survivors};
use steadfs_rt::{JoinHandle, Mutex, Random, Rank, sim, sleep, spawn};
use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags, RecordedState, test_support};

use actor::Actor;
use model::Model;

const CACHE: u64 = 16 << 20;

fn runs(kind: &Kind) -> std::ops::Range<u64> {
    let asked = |name, or| {
        let asked = std::env::var(name).ok();
        asked.map_or(or, |n| n.parse().expect("a number"))
    };
    let first = asked("RESTORE_SEED", kind.seed(0));
    first..first + asked("RESTORE_RUNS", 3)
}

/// Runs `work` in a simulation; returns its result.
fn simulated<T: Send + 'static>(seed: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    run(sim::Config::new(seed), work)
}

fn run<T: Send + 'static>(config: sim::Config, work: impl FnOnce() -> T + Send + 'static) -> T {
    let result = Arc::new(Mutex::new(Rank::Leaf, None));
    let there = Arc::clone(&result);
    let config = sim::Config {
        allow_daemons: true,
        ..config
    };
    sim::run(config, move || {
        let value = work();
        *there.lock() = Some(value);
    });
    let value = result.lock().take();
    value.unwrap()
}

fn device(image: &Image) -> SimDevice {
    SimDevice::new(image, DeviceModel::default())
}

/// What the calls until the power cut have left.
struct Before {
    model: Model,
    log: Log,
    /// The log before and after the unfinished call.
    cuts: (usize, usize),
}

fn before(kind: &'static Kind, seed: u64) -> Before {
    let bytes = kind.make(kind.usual_mib(), &[]).to_bytes();
    let image = Image::from_bytes(&bytes);
    simulated(seed, move || {
        let device = device(&image);
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE).unwrap();
        let mut actor = Actor::new(Arc::clone(&fs), kind, seed);
        for _ in 0..actor.random.below(60) {
            actor.step();
        }
        fs.sync_all(&Cx::default()).unwrap();
        actor.model.durable();
        for _ in 0..1 + actor.random.below(60) {
            actor.step();
        }
        actor.attach_all();
        let first = device.log().len();
        let model = actor.model.clone();
        // A call that is not acknowledged, but may be durable.
        actor.unfinished();
        let mut acknowledged = actor.model.clone();
        acknowledged.take_back(model);
        if actor.random.chance(512) {
            let _ = fs.sync_all(&Cx::default());
        }
        let log = device.log();
        let cuts = (first, log.len());
        Before {
            model: acknowledged,
            log,
            cuts,
        }
    })
}

/// A task that makes each step of a restoration durable, so that the power may fail between any two.
struct Syncs {
    task: JoinHandle<()>,
    ended: Arc<AtomicBool>,
}

impl Syncs {
    fn start(fs: &Arc<dyn FileSystem>) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (fs, stop) = (Arc::clone(fs), Arc::clone(&ended));
        let task = spawn("syncs", move || {
            while !stop.load(Ordering::Relaxed) {
                fs.sync_all(&Cx::default()).unwrap();
                sleep(Duration::from_micros(1));
            }
        });
        Self { task, ended }
    }

    fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        self.task.join();
    }
}

/// Restores the state on an image, calls `look` on the mounted volume; returns the log of its device.
fn restored(kind: &'static Kind, seed: u64, image: Image, model: &Model, what: String) -> Log {
    let model = model.clone();
    // [`Syncs`] may run between any two steps.
    let config = sim::Config {
        preempt: 1024,
        ..sim::Config::new(seed)
    };
    let (log, last) = run(config, move || {
        let device = device(&image);
        let state = model.state();
        let mut counts = model.lookups();
        state.hold(&mut counts);
        // The last thing that the killed server did may have been such a remount.
        let (off, on) = match seed % 2 {
            0 => ("", ""),
            _ => ("nouser_xattr", "user_xattr"),
        };
        let fs = kind.mount_handed_over(Arc::new(device.clone()), off, CACHE, &counts);
        let fs = fs.unwrap_or_else(|error| panic!("{what}: mount: {error}"));
        let syncs = Syncs::start(&fs);
        let result = fs.restore(&state);
        syncs.end();
        result.unwrap_or_else(|error| panic!("{what}: restore: {error}"));
        fs.remount(&Cx::default(), on).unwrap();
        let log = device.log();
        model.check(&*fs, &what);
        // It is durable.
        let durable = match kind.name {
            "ext4_orphan_file" => log.image(log.len(), &Survivors::All),
            _ => log.image(log.len(), &Survivors::None),
        };
        link_unnamed(&*fs, &model, &what);
        for (ino, file) in &model.files {
            fs.forget(*ino, file.lookups);
            if file.attr.nlink == 0 {
                assert_eq!(
                    fs.getattr(&Cx::default(), *ino),
                    Err(FsError::Stale),
                    "{what}: inode {ino} is not freed"
                );
            }
        }
        fs.unmount().unwrap();
        (log, (device.content(), durable, model, what))
    });
    let (content, durable, model, what) = last;
    judged(kind, &content);
    again(kind, seed, durable, &model, format!("{what}, cut after it"));
    log
}

/// Files that were made without a name may get one from the successor, too.
fn link_unnamed(fs: &dyn FileSystem, model: &Model, what: &str) {
    const FIXED: u32 = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0;
    let (cx, name, dir) = (Cx::default(), &b"linked later"[..], fs.root());
    let linkable = model.files.iter().filter(|(_, file)| file.linkable);
    for (&ino, _) in linkable {
        for ino in [dir, ino] {
            let flags = fs.flags(&cx, ino).unwrap().flags.0 & !FIXED;
            fs.set_flags(&cx, ino, InodeFlags(flags)).unwrap();
        }
        let linked = fs.link(&cx, ino, dir, name);
        linked.unwrap_or_else(|error| panic!("{what}: link of {ino}: {error}"));
        fs.forget(ino, 1);
        fs.unlink(&cx, dir, name).unwrap();
    }
}

fn judged(kind: &Kind, image: &Image) {
    judge(kind, &MemDevice::from_bytes(&image.to_bytes()));
}

/// Mounts the volume without the record; all that has a name must be there.
fn again(kind: &'static Kind, seed: u64, image: Image, model: &Model, what: String) {
    let mut model = model.clone();
    model.files.retain(|_, file| file.attr.nlink > 0);
    let content = simulated(seed, move || {
        let device = device(&image);
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE);
        let fs = fs.unwrap_or_else(|error| panic!("{what}: mount: {error}"));
        model.check(&*fs, &what);
        fs.unmount().unwrap();
        device.content()
    });
    judged(kind, &content);
}

/// Mounts the volume without the record; it must be consistent. Returns the numbers and generations of all inodes that
/// have a name.
fn named(kind: &'static Kind, seed: u64, image: Image, what: String) -> BTreeSet<(InodeNo, u32)> {
    let (content, named) = simulated(seed, move || {
        let device = device(&image);
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE);
        let fs = fs.unwrap_or_else(|error| panic!("{what}: mount: {error}"));
        let tree = test_support::tree(&*fs, &Cx::default());
        let named = tree
            .values()
            .map(|seen| (seen.attr.ino, seen.attr.generation));
        let named = named.collect();
        fs.unmount().unwrap();
        (device.content(), named)
    });
    judged(kind, &content);
    named
}

fn some_cut(kind: &Kind, log: &Log, random: &mut Random, (first, last): (usize, usize)) -> Image {
    let cut = first + random.below(last - first + 1);
    let survivors = match random.below(8) {
        // Without barriers every completed write must survive.
        _ if kind.name == "ext4_orphan_file" => Survivors::All,
        0 => Survivors::None,
        1 => Survivors::All,
        _ => Survivors::Seeded(random.next_u64()),
    };
    log.image(cut, &survivors)
}

fn recorded_state_is_restored(kind: &'static Kind) {
    for seed in runs(kind) {
        let what = format!("{kind} {seed}");
        let run = before(kind, seed);
        let mut random = Random::new(seed);
        for n in 0..3 {
            let what = format!("{what}, cut {n}");
            let image = some_cut(kind, &run.log, &mut random, run.cuts);
            let mut kept = named(kind, seed, image.clone(), what.clone());
            kept.retain(|inode| run.model.has_name(*inode));
            let log = restored(kind, seed, image, &run.model, what.clone());
            let whole = (0, log.len());
            let image = some_cut(kind, &log, &mut random, whole);
            let after = named(kind, seed, image.clone(), format!("{what}, interrupted"));
            let lost: Vec<_> = kept.difference(&after).collect();
            assert!(lost.is_empty(), "{what}, interrupted: {lost:?} are lost");
            restored(kind, seed, image, &run.model, format!("{what}, repeated"));
        }
    }
}

fn refused(kind: &'static Kind) {
    simulated(1, move || {
        let fs = kind
            .mount(kind.make(kind.usual_mib(), &[]), "", CACHE)
            .unwrap();
        let refused = fs.restore(&RecordedState::default());
        assert!(
            matches!(refused, Err(FsError::NotSupported(_))),
            "{refused:?}"
        );
        fs.unmount().unwrap();
    });
}

macro_rules! kinds {
    ($($kind:ident)+) => {
        $(#[test]
        fn $kind() {
            recorded_state_is_restored(kind(stringify!($kind)));
        })+
    };
}

kinds!(
    ext3 ext4_1k ext4_4k ext4_indirect ext4_unindexed ext4_orphan_file ext4_small_inodes ext4_large_inodes
    f2fs f2fs_all f2fs_two_logs f2fs_four_logs f2fs_not_inline f2fs_xattr_nodes f2fs_small_xattrs f2fs_lfs
);

#[test]
fn volumes_without_a_journal_are_refused() {
    for kind in KINDS
        .iter()
        .filter(|kind| kind.is_ext() && !kind.has_journal())
    {
        refused(kind);
    }
}
