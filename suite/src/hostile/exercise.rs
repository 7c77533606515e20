//! Every operation of the library on a volume that may be corrupt.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{InodeNo, IoTag};
use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_ext4::check::{self, BlockSource, Issue};
use steadfs_ext4::{CacheSizes, Ext4, MountOptions, replayed_view};
use steadfs_lab::device::Image;
use steadfs_rt::sim;
use steadfs_vfs::{
    Cx, FallocMode, FileKind, FileSystem, FsError, RenameFlags, Result, Seek, SetAttr, SetXattr,
};

use super::device::ImageDevice;
use super::{encrypted, meter};

/// Caches of a volume under test, in bytes.
pub(crate) const CACHE: u64 = 4 << 20;
/// Limits of the directories and files visited, and of the entries of one directory.
const MAX_DIRS: usize = 60;
const MAX_FILES: usize = 400;
const MAX_ENTRIES: usize = 2000;
/// Longest CPU time of a call; they take microseconds to milliseconds.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(2);

/// The options of a program that only reads.
fn reading() -> MountOptions {
    let mut options = read_only();
    options.common.salvage = true;
    options
}

fn read_only() -> MountOptions {
    let mut options = MountOptions::default();
    options.common.read_only = true;
    options
}

/// The result of a case.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Violations of the rules; the case passes if there are none.
    pub violations: Vec<String>,
    /// Whether the volume could be mounted read-only, and read-write.
    pub mounted: [bool; 2],
    /// Whether the checker found corruption.
    pub corrupt: bool,
    /// Whether synced data was lost or changed on a volume known to be corrupt.
    pub lost: bool,
    /// Whether a call reported corruption.
    pub reported: bool,
    /// Largest growth of memory, in bytes.
    pub peak: usize,
}

/// Tries every operation on `image`.
pub fn exercise(image: &Image) -> Outcome {
    run_trial(image, Trial::run)
}

/// Runs `work` on `image`, in simulation.
pub(super) fn run_trial(image: &Image, work: fn(&mut Trial)) -> Outcome {
    run_trial_in(sim::Config::new(1), image, work)
}

/// Runs `work` on `image`, in this simulation.
pub(crate) fn run_trial_in(
    config: sim::Config,
    image: &Image,
    work: impl FnOnce(&mut Trial) + 'static,
) -> Outcome {
    let image = image.clone();
    let config = sim::Config {
        max_time: Duration::from_secs(4 * 3600),
        ..config
    };
    let (result, peak) = meter::peak_of(|| {
        sim::try_run(config, move || {
            let mut trial = Trial::new(image);
            work(&mut trial);
            trial.outcome
        })
    });
    match result {
        Ok(report) => Outcome {
            peak,
            ..report.value
        },
        Err(failure) => Outcome {
            violations: vec![failure.to_string()],
            peak,
            ..Outcome::default()
        },
    }
}

/// CPU time of this thread: other programs do not count.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("CPU times are positive")
}

fn is_past_the_end(error: &FsError) -> bool {
    error.to_string().ends_with("past the end of the device")
}

/// A case under way.
pub(crate) struct Trial {
    pub(crate) image: Image,
    cx: Cx,
    pub(crate) outcome: Outcome,
    /// The first corruption that a call reported.
    pub(crate) reported: Option<String>,
    /// Files whose content a sync has acknowledged.
    synced_files: Vec<(Vec<u8>, Vec<u8>)>,
    /// The volume may have more blocks than its device, and is read all the same.
    pub(crate) may_be_longer: bool,
    /// CPU time of this thread when the last call ended.
    charged: Duration,
    /// Prints errors: the environment has `FUZZ_TRACE`.
    pub(crate) trace: bool,
}

impl Trial {
    fn new(image: Image) -> Self {
        Self {
            image,
            cx: Cx::default(),
            outcome: Outcome::default(),
            reported: None,
            synced_files: Vec::new(),
            may_be_longer: false,
            charged: cpu_time(),
            trace: std::env::var_os("FUZZ_TRACE").is_some(),
        }
    }

    fn run(&mut self) {
        let before = self.check(&self.image.clone());
        self.outcome.corrupt = before.as_ref().is_none_or(|issues| !issues.is_empty());
        // Blocks with two owners, or marked free while in use, can be overwritten without any error.
        let shared = before.iter().flatten().any(|issue| match issue {
            Issue::BlockUsedTwice { .. } => true,
            Issue::BlockBitmapDiffers { used_but_free, .. } => *used_but_free > 0,
            _ => false,
        });
        self.read_all();
        let before = self.inspect(&self.image.clone());
        let after = self.change();
        if let Some(after) = after {
            self.check_synced_files(&after);
            if self.inspect(&after) > before {
                self.reported
                    .get_or_insert("the superblock records an error".to_owned());
            }
            if !self.outcome.corrupt {
                self.check_still_clean(&after);
            }
        }
        self.outcome.reported = self.reported.is_some();
        if self.outcome.lost && !self.outcome.reported && !shared {
            self.violation("synced data is lost, and no error was reported".to_owned());
        }
        if !self.outcome.corrupt
            && let Some(reported) = self.reported.take()
        {
            self.violation(format!("the checker finds nothing, but: {reported}"));
        }
    }

    pub(crate) fn violation(&mut self, what: String) {
        self.outcome.violations.push(what);
    }

    /// Checks the CPU time since the last call ended.
    pub(crate) fn charge(&mut self, call: &str) {
        let now = cpu_time();
        let took = now - std::mem::replace(&mut self.charged, now);
        if took > CALL_LIMIT {
            self.violation(format!("{call} took {took:?}"));
        }
    }

    /// Records a file in the root directory whose content a sync has acknowledged.
    pub(crate) fn add_synced(&mut self, name: Vec<u8>, bytes: Vec<u8>) {
        self.synced_files.push((name, bytes));
    }

    /// The files whose content a sync has acknowledged.
    pub(crate) fn take_synced(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::mem::take(&mut self.synced_files)
    }

    /// A call's value; checks its time, and that its error is a plausible one.
    pub(crate) fn check_error<T>(&mut self, call: &str, result: Result<T>) -> Option<T> {
        self.charge(call);
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if self.trace {
                    eprintln!("  {call}: {error}");
                }
                match &error {
                    FsError::Io(_) if self.may_be_longer && is_past_the_end(&error) => {
                        self.reported.get_or_insert(format!("{call}: {error}"));
                    }
                    // The device does not fail: only an access outside of it returns this error.
                    FsError::Io(_) => self.violation(format!("{call}: {error}")),
                    FsError::Corrupt(_) => {
                        self.reported.get_or_insert(format!("{call}: {error}"));
                    }
                    _ => {}
                }
                None
            }
        }
    }

    pub(crate) fn check_strays(&mut self, when: &str, device: &ImageDevice) {
        if let Some(stray) = device.strays().first() {
            self.violation(format!("{when}: {stray}"));
        }
    }

    /// Inspects the volume; returns the error count in its superblock.
    fn inspect(&mut self, image: &Image) -> u32 {
        let device = Arc::new(ImageDevice::new(image.clone()));
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        self.may_be_longer = true;
        let seen = self.check_error(
            "inspect",
            steadfs_ext4::inspect::inspect(&queue, &reading().superblock_choice()),
        );
        self.may_be_longer = false;
        let mut errors = 0;
        if let Some(seen) = seen {
            if format!("{seen}").is_empty() {
                self.violation("inspect prints nothing".to_owned());
            }
            errors = seen.state.error_count;
        }
        self.check_strays("inspect", &device);
        errors
    }

    /// The checker's findings; `None` if it refuses the volume.
    fn check(&mut self, image: &Image) -> Option<Vec<Issue>> {
        let device = Arc::new(ImageDevice::new(image.clone()));
        let view = replayed_view(Arc::clone(&device) as Arc<dyn Device>, &reading());
        self.may_be_longer = true;
        let view = self.check_error("replay for the checker", view);
        self.may_be_longer = false;
        let view = view?;
        let options = check::Options {
            after_crash: view.report.has_replayed(),
            super_at: view.super_at,
            unreplayed: view.unreplayed.map(|error| error.to_string()),
            mended: view.mended,
            memory_limit: 32 << 20,
            ..check::Options::default()
        };
        let report = check::check(&QueueSource(view.queue), &options);
        if device.writes() > 0 {
            self.violation("the checker writes".to_owned());
        }
        self.check_strays("check", &device);
        report.refused.is_none().then_some(report.issues)
    }

    /// Mounts read-only and reads everything: with the defaults, and with `salvage`.
    fn read_all(&mut self) {
        self.read_all_with(read_only());
        self.read_all_with(reading());
    }

    fn read_all_with(&mut self, options: MountOptions) {
        let device = Arc::new(ImageDevice::new(self.image.clone()));
        let is_mount = !options.common.salvage;
        self.may_be_longer = options.common.salvage;
        let opened = open(&device, options);
        if let Some(fs) = self.check_error("mount ro", opened) {
            self.outcome.mounted[0] |= is_mount;
            self.walk(&*fs);
            let closed = fs.unmount();
            self.check_error("unmount ro", closed);
        }
        self.may_be_longer = false;
        self.check_strays("reading", &device);
    }

    pub(crate) fn walk(&mut self, fs: &dyn FileSystem) {
        let cx = self.cx.clone();
        let mut dirs = vec![fs.root()];
        let mut seen = BTreeSet::from([fs.root()]);
        let mut files = 0;
        let mut at = 0;
        while at < dirs.len() && at < MAX_DIRS {
            let dir = dirs[at];
            at += 1;
            for (name, ino) in self.list(fs, dir) {
                self.check_error("statfs", fs.statfs(&cx));
                let Some(attr) = self.check_error("lookup", fs.lookup(&cx, dir, &name)) else {
                    continue;
                };
                if attr.ino == ino && seen.insert(ino) && files < MAX_FILES {
                    files += 1;
                    self.visit(fs, ino, attr.kind, attr.size);
                    if attr.kind == FileKind::Directory {
                        dirs.push(ino);
                        continue;
                    }
                }
                fs.forget(attr.ino, 1);
            }
            self.check_error(
                "lookup of nothing",
                fs.lookup(&cx, dir, b"no such name").map(drop),
            );
        }
        for dir in dirs {
            fs.forget(dir, 1);
        }
    }

    fn list(&mut self, fs: &dyn FileSystem, dir: InodeNo) -> Vec<(Vec<u8>, InodeNo)> {
        let mut all: Vec<(Vec<u8>, InodeNo)> = Vec::new();
        let mut cookie = 0;
        loop {
            let (from, before) = (cookie, all.len());
            let result = fs.readdir(&self.cx, dir, from, &mut |entry| {
                cookie = entry.next;
                if entry.name != b"." && entry.name != b".." {
                    all.push((entry.name.to_vec(), entry.ino));
                }
                all.len() - before < 100
            });
            self.check_error("readdir", result);
            if cookie == from || all.len() >= MAX_ENTRIES {
                return all;
            }
        }
    }

    fn visit(&mut self, fs: &dyn FileSystem, ino: InodeNo, kind: FileKind, size: u64) {
        let cx = self.cx.clone();
        self.check_error("getattr", fs.getattr(&cx, ino));
        self.check_error("flags", fs.flags(&cx, ino));
        self.check_error("generation", fs.generation(&cx, ino));
        let names = self.check_error("listxattr", fs.listxattr(&cx, ino));
        for name in names.unwrap_or_default() {
            self.check_error("getxattr", fs.getxattr(&cx, ino, &name));
        }
        self.check_error("getxattr", fs.getxattr(&cx, ino, b"user.none").map(drop));
        match kind {
            FileKind::Symlink => {
                self.check_error("readlink", fs.readlink(&cx, ino));
            }
            FileKind::Regular => {
                for at in [0, size / 2, size.saturating_sub(100)] {
                    if let Some(data) = self.check_error("read", fs.read(&cx, ino, at, 128 << 10)) {
                        let wanted = size.saturating_sub(at).min(128 << 10);
                        if data.len() as u64 != wanted {
                            self.violation(format!("read of {wanted} bytes gives {}", data.len()));
                        }
                    }
                }
                for what in [Seek::Data, Seek::Hole] {
                    self.check_error("seek", fs.seek(&cx, ino, 0, what));
                    self.check_error("seek", fs.seek(&cx, ino, size / 2, what));
                }
            }
            _ => {}
        }
    }

    /// Mounts read-write and changes the volume; returns the image afterwards.
    fn change(&mut self) -> Option<Image> {
        let device = Arc::new(ImageDevice::new(self.image.clone()));
        let opened = open(&device, MountOptions::default());
        let fs = self.check_error("mount rw", opened);
        if let Some(fs) = fs {
            self.outcome.mounted[1] = true;
            self.change_existing_files(&*fs);
            self.make_files(&*fs);
            let synced = fs.sync_all(&self.cx);
            self.check_error("sync", synced);
            let closed = fs.unmount();
            self.check_error("unmount", closed);
        }
        self.check_strays("writing", &device);
        self.outcome.mounted[1].then(|| device.content())
    }

    fn find(&mut self, fs: &dyn FileSystem, path: &[&[u8]]) -> Option<InodeNo> {
        let mut at = fs.root();
        for name in path {
            at = self
                .check_error("lookup", fs.lookup(&self.cx, at, name))?
                .ino;
        }
        Some(at)
    }

    fn change_existing_files(&mut self, fs: &dyn FileSystem) {
        let cx = self.cx.clone();
        let root = fs.root();
        if let Some(ino) = self.find(fs, &[b"large"]) {
            self.check_error("write", fs.write(&cx, ino, 100_000, &[1; 30_000], false));
            self.check_error("fsync", fs.fsync(&cx, ino, false));
            let punch = FallocMode::PunchHole;
            self.check_error("punch", fs.fallocate(&cx, ino, punch, 50_000, 60_000));
            self.resize(fs, ino, 1000);
            self.resize(fs, ino, 500_000);
            self.check_error("removexattr", fs.removexattr(&cx, ino, b"user.large"));
        }
        if let Some(ino) = self.find(fs, &[b"scattered"]) {
            for n in 0..8 {
                self.check_error(
                    "write",
                    fs.write(&cx, ino, n * 70_000 + 5, &[2; 9000], false),
                );
            }
            let zero = FallocMode::ZeroRange { keep_size: true };
            self.check_error("zero", fs.fallocate(&cx, ino, zero, 140_000, 300_000));
            self.resize(fs, ino, 200_000);
        }
        if let Some(ino) = self.find(fs, &[b"empty"]) {
            let value = &[b'w'; 400];
            for name in [&b"user.large"[..], b"user.other"] {
                self.check_error(
                    "setxattr",
                    fs.setxattr(&cx, ino, name, value, SetXattr::Any),
                );
            }
            self.check_error("link", fs.link(&cx, ino, root, b"linked").map(drop));
        }
        for dir in [&b"many"[..], b"indexed"] {
            let Some(many) = self.find(fs, &[dir]) else {
                continue;
            };
            for n in (0..100).step_by(3) {
                let name = format!("another name of some length, {n}");
                self.check_error("unlink", fs.unlink(&cx, many, name.as_bytes()));
            }
            for n in 0..150 {
                let name = format!("later name of some length, {n}");
                let made = fs.mknod(&cx, many, name.as_bytes(), 0o100_600, 0);
                if self.check_error("mknod", made).is_none() {
                    break;
                }
            }
        }
        self.rename(fs, b"small", b"many/../renamed", RenameFlags::default());
        self.rename(fs, b"small", b"renamed", RenameFlags::default());
        let exchange = RenameFlags {
            exchange: true,
            ..RenameFlags::default()
        };
        self.rename(fs, b"a", b"many", exchange);
        for name in [&b"link 900"[..], b"scattered", b"new 1"] {
            self.check_error("unlink", fs.unlink(&cx, root, name));
        }
        self.check_error("rmdir", fs.rmdir(&cx, root, b"many"));
    }

    fn resize(&mut self, fs: &dyn FileSystem, ino: InodeNo, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.check_error("truncate", fs.setattr(&self.cx, ino, &set));
    }

    fn rename(&mut self, fs: &dyn FileSystem, from: &[u8], to: &[u8], flags: RenameFlags) {
        let root = fs.root();
        let done = fs.rename(&self.cx, (root, from), (root, to), flags);
        self.check_error("rename", done);
    }

    /// Creates, writes and syncs new files.
    fn make_files(&mut self, fs: &dyn FileSystem) {
        let cx = self.cx.clone();
        let root = fs.root();
        let dir = self.check_error("mkdir", fs.mkdir(&cx, root, b"ours", 0o755));
        let dir = dir.map_or(root, |attr| attr.ino);
        for n in 0..12_u8 {
            let name = format!("ours {n}").into_bytes();
            let made = fs.mknod(&cx, dir, &name, 0o100_644, 0);
            let Some(attr) = self.check_error("mknod", made) else {
                continue;
            };
            let len = 700 * (1 + usize::from(n) * usize::from(n));
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ n).collect();
            if n % 4 == 1 {
                let mode = FallocMode::Allocate { keep_size: true };
                self.check_error("fallocate", fs.fallocate(&cx, attr.ino, mode, 0, 40_000));
            }
            let written = self.check_error("write", fs.write(&cx, attr.ino, 0, &bytes, false));
            if written != Some(bytes.len()) {
                continue;
            }
            if self
                .check_error("fsync", fs.fsync(&cx, attr.ino, n % 2 == 0))
                .is_none()
            {
                continue;
            }
            self.synced_files.push((name, bytes));
            if n % 3 == 0 {
                fs.forget(attr.ino, 1);
            }
        }
        self.check_error("symlink", fs.symlink(&cx, dir, b"link", &[b'l'; 300]));
        if let Some(attr) = self.check_error("tmpfile", fs.tmpfile(&cx, dir, 0o600)) {
            self.check_error("write", fs.write(&cx, attr.ino, 0, &[3; 5000], false));
            fs.forget(attr.ino, 1);
        }
        self.check_error("fsync", fs.fsync(&cx, dir, false));
    }

    /// Checks that synced files are intact, or that an error was reported.
    fn check_synced_files(&mut self, image: &Image) {
        let device = Arc::new(ImageDevice::new(image.clone()));
        let Some(fs) = self.check_error("mount again", open(&device, read_only())) else {
            return;
        };
        let synced_files = std::mem::take(&mut self.synced_files);
        for (name, bytes) in &synced_files {
            if let Some(what) = self.differs(&*fs, name, bytes) {
                self.outcome.lost = true;
                if !self.outcome.corrupt {
                    let name = String::from_utf8_lossy(name);
                    self.violation(format!("{name}, which was synced: {what}"));
                }
            }
        }
        let closed = fs.unmount();
        self.check_error("unmount ro", closed);
        self.check_strays("reading again", &device);
    }

    fn differs(&mut self, fs: &dyn FileSystem, name: &[u8], bytes: &[u8]) -> Option<String> {
        let cx = self.cx.clone();
        let dir = match fs.lookup(&cx, fs.root(), b"ours") {
            Ok(attr) => attr.ino,
            Err(FsError::NotFound) => fs.root(),
            Err(error) => return self.check_error("lookup", Err(error)),
        };
        let ino = match fs.lookup(&cx, dir, name) {
            Ok(attr) => attr.ino,
            Err(FsError::NotFound) => return Some("no such name".to_owned()),
            Err(error) => return self.check_error("lookup", Err(error)),
        };
        let data = self.check_error("read", fs.read(&cx, ino, 0, bytes.len() + 1))?;
        (data.to_vec() != bytes).then(|| "other content".to_owned())
    }

    /// Checks that a volume that was clean is still clean.
    fn check_still_clean(&mut self, image: &Image) {
        let issues = self.check(image);
        if let Some(issue) = issues.as_ref().and_then(|issues| issues.first()) {
            self.violation(format!("clean before our changes, afterwards: {issue}"));
        }
    }
}

fn open(device: &Arc<ImageDevice>, options: MountOptions) -> Result<Arc<Ext4>> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    let (fs, _) = Ext4::open(device, options, CacheSizes::of(CACHE))?;
    encrypted::open_up(&*fs);
    Ok(fs)
}

pub(crate) struct QueueSource(pub(crate) Arc<Queue>);

impl BlockSource for QueueSource {
    fn size_bytes(&self) -> u64 {
        self.0.geometry().size
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let unit = u64::from(self.0.geometry().logical_block);
        let start = offset / unit * unit;
        let within = (offset - start) as usize;
        let len = (within + buf.len()).next_multiple_of(unit as usize);
        let data = self.0.read(start, len, IoTag::default());
        let data = data.map_err(io::Error::other)?;
        buf.copy_from_slice(&data[within..within + buf.len()]);
        Ok(())
    }
}
