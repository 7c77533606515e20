//! A trace of one fsync through the crates: its locks, its waits and its I/O, in virtual time.
//!
//! The volume, its queue and its cache are those of an experiment, without other load. The trace is a function of the
//! file system, the device and the seed.

mod block_names;
mod show;

use std::cell::RefCell;
use std::sync::Arc;

use steadfs_base::{GroupId, IoPrio};
use steadfs_block::{Bio, Queue, QueueSettings};
use steadfs_rt::{Instant, now, sim, sleep, task_name};
use steadfs_vfs::{Cx, FsError};

use crate::experiment::{
    Attempt, CacheSizes, Mount, Testbed, World, content, make_file, prepare, process, run_on,
};
use crate::flash::{Parameters, RequestEvent, Store};
use block_names::BlockNames;

/// The file system whose fsync is traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// ext4's.
    Ext4,
    /// f2fs's.
    F2fs,
}

impl Kind {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::F2fs => "f2fs",
        }
    }
}

/// The object of the fsync.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FsyncTarget {
    /// A file after an append of 8 KiB.
    Append,
    /// A file after an overwrite of 8 KiB.
    Overwrite,
    /// A directory after a file was created in it.
    Directory,
}

impl FsyncTarget {
    const fn about(self) -> &'static str {
        match self {
            Self::Append => "a file after an append of 8 KiB",
            Self::Overwrite => "a file after an overwrite of 8 KiB",
            Self::Directory => "a directory after a file was created in it",
        }
    }
}

/// An event of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
enum TraceEvent {
    /// A task's event.
    Task(sim::TaskStep),
    /// A request began: its number and description.
    Starts(u64, String),
    /// A request ended.
    Ends(u64),
    /// The fsync call begins or returns.
    Call(String),
}

/// A line of the trace: time, task, event.
#[derive(Clone, PartialEq, Eq, Debug)]
struct TraceLine {
    at: Instant,
    task: String,
    step: TraceEvent,
}

thread_local! {
    /// The recorded events. Thread-local: a simulation runs on one thread, and an observer of its locks must not take
    /// one.
    static SEEN: RefCell<Vec<TraceLine>> = const { RefCell::new(Vec::new()) };
}

fn note(at: Instant, task: String, step: TraceEvent) {
    SEEN.with_borrow_mut(|seen| seen.push(TraceLine { at, task, step }));
}

/// Large enough for blocks of 4 KiB.
const VOLUME: u64 = 1 << 30;
/// Size of the file, and bytes written to it.
const SIZE: u64 = 64 << 10;
const BYTES: u64 = 8192;
/// The calling task: a simulation's main task.
const CALLER: &str = "main";

/// Traces one fsync, line by line.
///
/// # Errors
/// The call that failed.
pub fn fsync(
    kind: Kind,
    what: FsyncTarget,
    device: &Parameters,
    seed: u64,
) -> Result<String, String> {
    let mount = match kind {
        Kind::Ext4 => Mount::ext4("")?,
        Kind::F2fs => Mount::f2fs("")?,
    };
    let volume = volume(kind, &mount)?;
    let places = BlockNames::of(kind, &volume)?;
    let world = World {
        attempt: Attempt::simulated(seed),
        device: device.clone(),
        mount,
        queue: QueueSettings::default(),
        groups: Vec::new(),
        memory: CacheSizes::of(64 << 20),
    };
    let outcome = run_on(world, &volume, move |testbed| {
        watched(testbed, what, places)
    })?;
    let head = format!(
        "fsync of {} on {}, alone; device {} (modelled), seed {seed}.\nVirtual time: what takes time are the device, \
         and {} us for each wake-up; code takes none.\n",
        what.about(),
        kind.name(),
        device.name,
        device.host.wake.as_micros()
    );
    Ok(show::text(&head, kind, &outcome.value))
}

/// A volume with a directory `dir` that holds a file of 64 KiB.
fn volume(kind: Kind, mount: &Mount) -> Result<Store, String> {
    let format = move |queue: &Queue| match kind {
        Kind::Ext4 => {
            let options = steadfs_ext4::format::FormatOptions {
                uuid: Some([0x7A; 16]),
                hash_seed: Some([0x7B; 16]),
                time: Some(Default::default()),
                ..Default::default()
            };
            let made = steadfs_ext4::format::format(queue, VOLUME, &options);
            made.map(|_| ()).map_err(|error| error.to_string())
        }
        Kind::F2fs => {
            let options = steadfs_f2fs::format::FormatOptions {
                uuid: Some([0x7C; 16]),
                checkpoint_version: Some(1),
                time: Some(1_700_000_000),
                ..Default::default()
            };
            let made = steadfs_f2fs::format::format(queue, VOLUME, &options);
            made.map(|_| ()).map_err(|error| error.to_string())
        }
    };
    prepare(VOLUME, mount, format, |testbed| {
        make_file(&*testbed.fs, b"file", SIZE)?;
        testbed
            .fs
            .mkdir(&Cx::default(), testbed.fs.root(), b"dir")?;
        testbed.fs.sync_all(&Cx::default())
    })
}

/// Makes the preparations, and records the fsync.
fn watched(
    testbed: &Testbed,
    what: FsyncTarget,
    places: BlockNames,
) -> Result<Vec<TraceLine>, FsError> {
    let (fs, cx) = (&*testbed.fs, process(GroupId(0), IoPrio::default(), 1));
    let file = fs.lookup(&cx, fs.root(), b"file")?;
    let dir = fs.lookup(&cx, fs.root(), b"dir")?;
    // The first fsync after a mount may do more.
    fs.write(&cx, file, 0, &content(0, BYTES))?;
    fs.fsync(&cx, file)?;
    sleep(std::time::Duration::from_millis(10));
    let of = match what {
        FsyncTarget::Append => {
            fs.write(&cx, file, SIZE, &content(SIZE, BYTES))?;
            file
        }
        FsyncTarget::Overwrite => {
            fs.write(&cx, file, BYTES, &content(BYTES, BYTES))?;
            file
        }
        FsyncTarget::Directory => {
            fs.make(&cx, dir, b"made")?;
            dir
        }
    };
    SEEN.take();
    testbed
        .device
        .watch(Some(Arc::new(move |number, bio: &Bio, moment| {
            let step = match moment {
                RequestEvent::Started => TraceEvent::Starts(number, places.label(bio)),
                RequestEvent::Ended => TraceEvent::Ends(number),
            };
            note(now(), task_name(), step);
        })));
    sim::observe(|seen| note(seen.at, seen.task, TraceEvent::Task(seen.step)));
    note(
        now(),
        task_name(),
        TraceEvent::Call(format!("fsync(inode {})", of.0)),
    );
    let done = fs.fsync(&cx, of);
    note(now(), task_name(), TraceEvent::Call("returns".to_owned()));
    sim::stop_observing();
    testbed.device.watch(None);
    done.map(|()| SEEN.take())
}

#[cfg(test)]
mod tests;
