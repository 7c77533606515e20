//! Read errors in the middle of a call.
//!
//! **Problem.** If a call reads a block after it has changed another one, and that read fails, the volume is half
//! changed; committed, that is corruption without an error mark.
//!
//! **Rule.** For every kind of call, with all clean metadata evicted from the cache, the first, second, … read from the
//! device fails, until the call meets no failure. Afterwards every inode is stored once more and the volume is
//! unmounted. It is then consistent, or it stopped and is marked for its checker.
//!
//! Each failed read is tested in two ways: it fails once, or every read of the same block fails until the call ends (a
//! bad sector: read-ahead tries twice).

mod cases;
mod volumes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::{fmt, io};

use steadfs_base::InodeNo;
use steadfs_block::{FaultDevice, Op};
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem, SetAttr, SetTime};

use crate::crash::Tool;

pub use cases::{CASES, Case};
pub use volumes::{Volume, volumes};

/// How often a read fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadFailures {
    /// Once.
    Once,
    /// Whenever the same block is read during the call.
    BadSector,
}

/// The results of one kind of call.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Calls in which a read failed.
    pub faults: u32,
    /// Calls that succeeded nevertheless.
    pub succeeded: u32,
    /// Volumes that stopped and were marked.
    pub stopped: u32,
    /// Failures: a corrupt volume that is not marked.
    pub bad: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.faults += other.faults;
        self.succeeded += other.succeeded;
        self.stopped += other.stopped;
        self.bad.extend(other.bad);
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            faults,
            succeeded,
            stopped,
            bad,
        } = self;
        let bad = bad.len();
        write!(
            f,
            "{faults} faults, {succeeded} calls succeeded, {stopped} volumes stopped, {bad} failures"
        )
    }
}

/// More reads than any call does.
const MOST_READS: u64 = 400;

/// A mounted volume during a case.
pub struct Mounted<'a> {
    /// The volume.
    pub fs: &'a dyn FileSystem,
    /// The caller: root.
    pub cx: Cx,
    /// The inodes of its files, by name.
    pub inos: &'a BTreeMap<&'static str, InodeNo>,
}

impl Mounted<'_> {
    /// The inode that was created under this name.
    pub fn ino(&self, name: &str) -> InodeNo {
        self.inos[name]
    }
}

/// Runs every case in both ways on every volume of a file system with `name` in its own, and writes the results.
/// Returns the number of failures; `None` if there is no such volume.
///
/// # Errors
/// If `out` cannot be written, or a program is missing that makes or judges volumes.
pub fn faults(fs: Option<&str>, name: &str, out: &mut dyn io::Write) -> io::Result<Option<usize>> {
    let of_kind = |volume: &str| fs.is_none_or(|fs| volume.starts_with("f2fs") == (fs == "f2fs"));
    let chosen = |volume: &str| of_kind(volume) && volume.contains(name);
    if !volumes::names().any(chosen) {
        return Ok(None);
    }
    writeln!(
        out,
        "reads: EIO of each read in each call, once and as a bad sector"
    )?;
    let mut wrong = 0;
    for (n, volume) in volumes::names().enumerate() {
        if !chosen(volume) {
            continue;
        }
        let tool = match volume.starts_with("f2fs") {
            true => Tool::FsckF2fs,
            false => Tool::E2fsck,
        };
        tool.exists()?;
        let tally = sim::run(sim::Config::new(1), move || every_case(&volumes::make(n))).value;
        writeln!(out, "  {volume}: {tally}")?;
        for bad in &tally.bad {
            writeln!(out, "  BAD: {bad}")?;
        }
        wrong += tally.bad.len();
    }
    Ok(Some(wrong))
}

fn every_case(volume: &Volume) -> Tally {
    let mut all = Tally::default();
    let cases = CASES.iter().filter(|case| volume.extents || !case.extents);
    for case in cases {
        for fails in [ReadFailures::Once, ReadFailures::BadSector] {
            all.add(sweep(volume, case, fails, |n| n == 0));
        }
    }
    all
}

/// Fails each read of `case` on `volume` in turn. `second`: whether the format's own checker judges the n-th fault,
/// too.
pub fn sweep(
    volume: &Volume,
    case: &Case,
    fails: ReadFailures,
    second: impl Fn(u64) -> bool,
) -> Tally {
    let mut tally = Tally::default();
    for n in 0..MOST_READS {
        let device = FaultDevice::new(Arc::new(volume.copy()));
        let fs = match volume.open(Arc::clone(&device) as _) {
            Ok(fs) => fs,
            Err(error) => {
                tally.bad.push(format!("the mount: {error}"));
                return tally;
            }
        };
        let mounted = Mounted {
            fs: fs.fs(),
            cx: volumes::root(),
            inos: &volume.inos,
        };
        let made = (case.setup)(&mounted);
        fs.evict_clean();
        fail_read(&device, n, fails);
        let result = (case.call)(&mounted, made);
        let met = device.failures() > 0;
        device.fail(|_| false);
        let mut note = |what: &str| {
            let place = format!("{} {}, read {n}, {fails:?}", volume.name, case.name);
            tally
                .bad
                .push(format!("{place}: {what} (call: {result:?})"));
        };
        if !met && let Err(error) = &result {
            note(&format!("fails without a fault: {error}"));
        }
        store_all(&mounted);
        let sizes = sizes(&mounted);
        let why_stopped = stopped(fs.fs());
        let closed = fs.fs().unmount();
        drop(fs);
        match why_stopped.is_some() {
            true => {
                if let Err(what) = volume.judge_stopped(&device.memory) {
                    note(&format!("stopped ({why_stopped:?}): {what}"));
                }
            }
            false => {
                if let Err(error) = closed {
                    note(&format!("unmount: {error}"));
                }
                let judged = volume.judge(&device.memory, second(n));
                judged.unwrap_or_else(|what| note(&what));
                let seen = result.as_ref().err().map(|_| sizes);
                check_sizes(volume, &device, seen).unwrap_or_else(|what| note(&what));
            }
        }
        if !met {
            return tally;
        }
        tally.faults += 1;
        tally.succeeded += u32::from(result.is_ok());
        tally.stopped += u32::from(why_stopped.is_some());
    }
    tally.bad.push(format!("{}: reads without end", case.name));
    tally
}

/// The sizes that callers see.
fn sizes(mounted: &Mounted<'_>) -> BTreeMap<&'static str, Option<u64>> {
    let size = |ino: InodeNo| mounted.fs.getattr(&mounted.cx, ino).ok();
    let inos = mounted.inos.iter();
    inos.map(|(name, ino)| (*name, size(*ino).map(|attr| attr.size)))
        .collect()
}

/// Whether the files have on the device the sizes that callers saw after a call that failed, if it did.
fn check_sizes(
    volume: &Volume,
    device: &Arc<FaultDevice>,
    seen: Option<BTreeMap<&'static str, Option<u64>>>,
) -> Result<(), String> {
    let Some(seen) = seen else { return Ok(()) };
    let fs = volume.open(Arc::clone(device) as _);
    let fs = fs.map_err(|error| format!("the next mount: {error}"))?;
    let stored = sizes(&Mounted {
        fs: fs.fs(),
        cx: volumes::root(),
        inos: &volume.inos,
    });
    let closed = fs.fs().unmount();
    closed.map_err(|error| format!("the next unmount: {error}"))?;
    match stored.iter().find(|(name, size)| seen[**name] != **size) {
        Some((name, size)) => Err(format!(
            "{name} had {:?} bytes, and has {size:?} when it is read again",
            seen[*name]
        )),
        None => Ok(()),
    }
}

/// Lets the n-th read from now on fail.
fn fail_read(device: &FaultDevice, n: u64, fails: ReadFailures) {
    let (mut seen, mut bad) = (0, None);
    device.fail(move |bio| {
        if bio.op != Op::Read {
            return false;
        }
        let range = bio.offset..bio.offset + bio.len;
        if seen == n && bad.is_none() {
            bad = Some(range);
            return true;
        }
        seen += 1;
        match &bad {
            Some(bad) => {
                fails == ReadFailures::BadSector && range.start < bad.end && bad.start < range.end
            }
            None => false,
        }
    });
}

/// Stores every inode, so that its in-memory state reaches the device.
fn store_all(mounted: &Mounted<'_>) {
    let touch = SetAttr {
        mtime: Some(SetTime::Now),
        ..SetAttr::default()
    };
    for &ino in mounted.inos.values() {
        // The inode may be removed, or the volume stopped.
        let _ = mounted.fs.setattr(&mounted.cx, ino, &touch);
    }
}

/// The reason why the volume has stopped, if it has.
fn stopped(fs: &dyn FileSystem) -> Option<String> {
    let errors = fs.control()?.read("errors").ok()?;
    let errors = String::from_utf8_lossy(&errors);
    let line = errors
        .lines()
        .find_map(|line| line.strip_prefix("stopped: "));
    line.map(str::to_owned)
}

#[cfg(test)]
mod tests;
