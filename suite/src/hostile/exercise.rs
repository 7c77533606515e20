//! Everything that the library can do with a volume, on one that may be damaged.

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
use super::meter;

/// Caches of a volume under test, in bytes.
pub(super) const CACHE: u64 = 4 << 20;
/// Directories and files looked at, and entries of one directory.
const MAX_DIRS: usize = 60;
const MAX_FILES: usize = 400;
const MAX_ENTRIES: usize = 2000;

/// As programs that only read open a volume.
fn reading() -> MountOptions {
    MountOptions {
        read_only: true,
        salvage: true,
        ..MountOptions::default()
    }
}

/// What came of a case.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What must not be. Empty: the volume was borne.
    pub wrong: Vec<String>,
    /// Whether the volume could be mounted for reading, and for writing.
    pub mounted: [bool; 2],
    /// Whether the checker found damage.
    pub damaged: bool,
    /// Whether data that a sync had acknowledged was gone or changed on a volume known as damaged.
    pub lost: bool,
    /// Whether a call told of damage.
    pub told: bool,
    /// By how many bytes memory grew at most.
    pub peak: usize,
}

/// Tries everything on `image`.
pub fn exercise(image: &Image) -> Outcome {
    try_with(image, Trial::run)
}

/// Lets `work` try what it knows on `image`, in simulation.
pub(super) fn try_with(image: &Image, work: fn(&mut Trial)) -> Outcome {
    let image = image.clone();
    let config = sim::Config {
        max_time: Duration::from_secs(4 * 3600),
        ..sim::Config::new(1)
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
            wrong: vec![failure.to_string()],
            peak,
            ..Outcome::default()
        },
    }
}

fn is_past_the_end(error: &FsError) -> bool {
    error.to_string().ends_with("past the end of the device")
}

/// A case under way.
pub(super) struct Trial {
    pub(super) image: Image,
    cx: Cx,
    pub(super) outcome: Outcome,
    /// What a call told of damage, the first time.
    pub(super) told: Option<String>,
    /// Files whose content a sync has acknowledged.
    kept: Vec<(Vec<u8>, Vec<u8>)>,
    /// The volume may claim more blocks than its device has, and is read all the same.
    pub(super) may_be_longer: bool,
}

impl Trial {
    fn new(image: Image) -> Self {
        Self {
            image,
            cx: Cx::default(),
            outcome: Outcome::default(),
            told: None,
            kept: Vec::new(),
            may_be_longer: false,
        }
    }

    fn run(&mut self) {
        let before = self.check(&self.image.clone());
        self.outcome.damaged = before.as_ref().is_none_or(|issues| !issues.is_empty());
        // Blocks that two own, or that look free, are lost to one of them without a trace.
        let shared = before.iter().flatten().any(|issue| match issue {
            Issue::BlockUsedTwice { .. } => true,
            Issue::BlockBitmapDiffers { used_but_free, .. } => *used_but_free > 0,
            _ => false,
        });
        self.look();
        let before = self.inspect(&self.image.clone());
        let after = self.change();
        if let Some(after) = after {
            self.find_kept(&after);
            if self.inspect(&after) > before {
                self.told.get_or_insert("an error is noted".to_owned());
            }
            if !self.outcome.damaged {
                self.still_clean(&after);
            }
        }
        self.outcome.told = self.told.is_some();
        if self.outcome.lost && !self.outcome.told && !shared {
            self.wrong("data that was synced is lost, and nobody was told".to_owned());
        }
        if !self.outcome.damaged
            && let Some(told) = self.told.take()
        {
            self.wrong(format!("the checker finds nothing, but: {told}"));
        }
    }

    pub(super) fn wrong(&mut self, what: String) {
        self.outcome.wrong.push(what);
    }

    /// A call's value; its error is one that makes sense.
    pub(super) fn note<T>(&mut self, call: &str, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                match &error {
                    FsError::Io(_) if self.may_be_longer && is_past_the_end(&error) => {
                        self.told.get_or_insert(format!("{call}: {error}"));
                    }
                    // The device is in order: only an access outside it fails.
                    FsError::Io(_) => self.wrong(format!("{call}: {error}")),
                    FsError::Corrupt(_) => {
                        self.told.get_or_insert(format!("{call}: {error}"));
                    }
                    _ => {}
                }
                None
            }
        }
    }

    pub(super) fn no_strays(&mut self, when: &str, device: &ImageDevice) {
        if let Some(stray) = device.strays().first() {
            self.wrong(format!("{when}: {stray}"));
        }
    }

    /// Shows the volume's facts; how many errors are noted there.
    fn inspect(&mut self, image: &Image) -> u32 {
        let device = Arc::new(ImageDevice::new(image.clone()));
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        self.may_be_longer = true;
        let seen = self.note(
            "inspect",
            steadfs_ext4::inspect::inspect(&queue, &reading().superblock_choice()),
        );
        self.may_be_longer = false;
        let mut errors = 0;
        if let Some(seen) = seen {
            if format!("{seen}").is_empty() {
                self.wrong("an inspection says nothing".to_owned());
            }
            errors = seen.state.error_count;
        }
        self.no_strays("inspect", &device);
        errors
    }

    /// The checker's findings; nothing if the volume cannot even be looked at.
    fn check(&mut self, image: &Image) -> Option<Vec<Issue>> {
        let device = Arc::new(ImageDevice::new(image.clone()));
        let view = replayed_view(Arc::clone(&device) as Arc<dyn Device>, &reading());
        self.may_be_longer = true;
        let view = self.note("replay for the checker", view);
        self.may_be_longer = false;
        let view = view?;
        let options = check::Options {
            after_crash: view.report.replayed_transactions > 0,
            super_at: view.super_at,
            unreplayed: view.unreplayed.map(|error| error.to_string()),
            mended: view.mended,
            memory_limit: 32 << 20,
            ..check::Options::default()
        };
        let report = check::check(&QueueSource(view.queue), &options);
        if device.writes() > 0 {
            self.wrong("the checker writes".to_owned());
        }
        self.no_strays("check", &device);
        report.refused.is_none().then_some(report.issues)
    }

    /// Opens for reading and looks at everything: as a mount does, and as programs that pass damage over.
    fn look(&mut self) {
        self.look_with(MountOptions {
            read_only: true,
            ..MountOptions::default()
        });
        self.look_with(reading());
    }

    fn look_with(&mut self, options: MountOptions) {
        let device = Arc::new(ImageDevice::new(self.image.clone()));
        let is_mount = !options.salvage;
        self.may_be_longer = options.salvage;
        let opened = open(&device, options);
        if let Some(fs) = self.note("mount ro", opened) {
            self.outcome.mounted[0] |= is_mount;
            self.walk(&*fs);
            let closed = fs.unmount();
            self.note("unmount ro", closed);
        }
        self.may_be_longer = false;
        self.no_strays("reading", &device);
    }

    pub(super) fn walk(&mut self, fs: &dyn FileSystem) {
        let cx = self.cx.clone();
        let mut dirs = vec![fs.root()];
        let mut seen = BTreeSet::from([fs.root()]);
        let mut files = 0;
        let mut at = 0;
        while at < dirs.len() && at < MAX_DIRS {
            let dir = dirs[at];
            at += 1;
            for (name, ino) in self.list(fs, dir) {
                self.note("statfs", fs.statfs(&cx));
                let Some(attr) = self.note("lookup", fs.lookup(&cx, dir, &name)) else {
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
            self.note(
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
            self.note("readdir", result);
            if cookie == from || all.len() >= MAX_ENTRIES {
                return all;
            }
        }
    }

    fn visit(&mut self, fs: &dyn FileSystem, ino: InodeNo, kind: FileKind, size: u64) {
        let cx = self.cx.clone();
        self.note("getattr", fs.getattr(&cx, ino));
        self.note("flags", fs.flags(&cx, ino));
        self.note("generation", fs.generation(&cx, ino));
        let names = self.note("listxattr", fs.listxattr(&cx, ino));
        for name in names.unwrap_or_default() {
            self.note("getxattr", fs.getxattr(&cx, ino, &name));
        }
        self.note("getxattr", fs.getxattr(&cx, ino, b"user.none").map(drop));
        match kind {
            FileKind::Symlink => {
                self.note("readlink", fs.readlink(&cx, ino));
            }
            FileKind::Regular => {
                for at in [0, size / 2, size.saturating_sub(100)] {
                    if let Some(data) = self.note("read", fs.read(&cx, ino, at, 128 << 10)) {
                        let wanted = size.saturating_sub(at).min(128 << 10);
                        if data.len() as u64 != wanted {
                            self.wrong(format!("read of {wanted} bytes gives {}", data.len()));
                        }
                    }
                }
                for what in [Seek::Data, Seek::Hole] {
                    self.note("seek", fs.seek(&cx, ino, 0, what));
                    self.note("seek", fs.seek(&cx, ino, size / 2, what));
                }
            }
            _ => {}
        }
    }

    /// Mounts for writing and changes what there is; the image afterwards.
    fn change(&mut self) -> Option<Image> {
        let device = Arc::new(ImageDevice::new(self.image.clone()));
        let opened = open(&device, MountOptions::default());
        let fs = self.note("mount rw", opened);
        if let Some(fs) = fs {
            self.outcome.mounted[1] = true;
            self.old_files(&*fs);
            self.new_files(&*fs);
            let synced = fs.sync_all(&self.cx);
            self.note("sync", synced);
            let closed = fs.unmount();
            self.note("unmount", closed);
        }
        self.no_strays("writing", &device);
        self.outcome.mounted[1].then(|| device.content())
    }

    fn find(&mut self, fs: &dyn FileSystem, path: &[&[u8]]) -> Option<InodeNo> {
        let mut at = fs.root();
        for name in path {
            at = self.note("lookup", fs.lookup(&self.cx, at, name))?.ino;
        }
        Some(at)
    }

    fn old_files(&mut self, fs: &dyn FileSystem) {
        let cx = self.cx.clone();
        let root = fs.root();
        if let Some(ino) = self.find(fs, &[b"large"]) {
            self.note("write", fs.write(&cx, ino, 100_000, &[1; 30_000], false));
            self.note("fsync", fs.fsync(&cx, ino, false));
            let punch = FallocMode::PunchHole;
            self.note("punch", fs.fallocate(&cx, ino, punch, 50_000, 60_000));
            self.resize(fs, ino, 1000);
            self.resize(fs, ino, 500_000);
            self.note("removexattr", fs.removexattr(&cx, ino, b"user.large"));
        }
        if let Some(ino) = self.find(fs, &[b"scattered"]) {
            for n in 0..8 {
                self.note(
                    "write",
                    fs.write(&cx, ino, n * 70_000 + 5, &[2; 9000], false),
                );
            }
            let zero = FallocMode::ZeroRange { keep_size: true };
            self.note("zero", fs.fallocate(&cx, ino, zero, 140_000, 300_000));
            self.resize(fs, ino, 200_000);
        }
        if let Some(ino) = self.find(fs, &[b"empty"]) {
            let value = &[b'w'; 400];
            for name in [&b"user.large"[..], b"user.other"] {
                self.note(
                    "setxattr",
                    fs.setxattr(&cx, ino, name, value, SetXattr::Any),
                );
            }
            self.note("link", fs.link(&cx, ino, root, b"linked").map(drop));
        }
        for dir in [&b"many"[..], b"indexed"] {
            let Some(many) = self.find(fs, &[dir]) else {
                continue;
            };
            for n in (0..100).step_by(3) {
                let name = format!("another name of some length, {n}");
                self.note("unlink", fs.unlink(&cx, many, name.as_bytes()));
            }
            for n in 0..150 {
                let name = format!("later name of some length, {n}");
                let made = fs.mknod(&cx, many, name.as_bytes(), 0o100_600, 0);
                if self.note("mknod", made).is_none() {
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
            self.note("unlink", fs.unlink(&cx, root, name));
        }
        self.note("rmdir", fs.rmdir(&cx, root, b"many"));
    }

    fn resize(&mut self, fs: &dyn FileSystem, ino: InodeNo, size: u64) {
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        self.note("truncate", fs.setattr(&self.cx, ino, &set));
    }

    fn rename(&mut self, fs: &dyn FileSystem, from: &[u8], to: &[u8], flags: RenameFlags) {
        let root = fs.root();
        let done = fs.rename(&self.cx, (root, from), (root, to), flags);
        self.note("rename", done);
    }

    /// Files that are ours alone, and what becomes of them.
    fn new_files(&mut self, fs: &dyn FileSystem) {
        let cx = self.cx.clone();
        let root = fs.root();
        let dir = self.note("mkdir", fs.mkdir(&cx, root, b"ours", 0o755));
        let dir = dir.map_or(root, |attr| attr.ino);
        for n in 0..12_u8 {
            let name = format!("ours {n}").into_bytes();
            let made = fs.mknod(&cx, dir, &name, 0o100_644, 0);
            let Some(attr) = self.note("mknod", made) else {
                continue;
            };
            let len = 700 * (1 + usize::from(n) * usize::from(n));
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ n).collect();
            if n % 4 == 1 {
                let mode = FallocMode::Allocate { keep_size: true };
                self.note("fallocate", fs.fallocate(&cx, attr.ino, mode, 0, 40_000));
            }
            let written = self.note("write", fs.write(&cx, attr.ino, 0, &bytes, false));
            if written != Some(bytes.len()) {
                continue;
            }
            if self
                .note("fsync", fs.fsync(&cx, attr.ino, n % 2 == 0))
                .is_none()
            {
                continue;
            }
            self.kept.push((name, bytes));
            if n % 3 == 0 {
                fs.forget(attr.ino, 1);
            }
        }
        self.note("symlink", fs.symlink(&cx, dir, b"link", &[b'l'; 300]));
        if let Some(attr) = self.note("tmpfile", fs.tmpfile(&cx, dir, 0o600)) {
            self.note("write", fs.write(&cx, attr.ino, 0, &[3; 5000], false));
            fs.forget(attr.ino, 1);
        }
        self.note("fsync", fs.fsync(&cx, dir, false));
    }

    /// What was acknowledged is there, or the volume says why not.
    fn find_kept(&mut self, image: &Image) {
        let device = Arc::new(ImageDevice::new(image.clone()));
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        let Some(fs) = self.note("mount again", open(&device, options)) else {
            return;
        };
        let kept = std::mem::take(&mut self.kept);
        for (name, bytes) in &kept {
            if let Some(what) = self.differs(&*fs, name, bytes) {
                self.outcome.lost = true;
                if !self.outcome.damaged {
                    let name = String::from_utf8_lossy(name);
                    self.wrong(format!("{name}, which was synced: {what}"));
                }
            }
        }
        let closed = fs.unmount();
        self.note("unmount ro", closed);
        self.no_strays("reading again", &device);
    }

    fn differs(&mut self, fs: &dyn FileSystem, name: &[u8], bytes: &[u8]) -> Option<String> {
        let cx = self.cx.clone();
        let dir = match fs.lookup(&cx, fs.root(), b"ours") {
            Ok(attr) => attr.ino,
            Err(FsError::NotFound) => fs.root(),
            Err(error) => return self.note("lookup", Err(error)),
        };
        let ino = match fs.lookup(&cx, dir, name) {
            Ok(attr) => attr.ino,
            Err(FsError::NotFound) => return Some("no such name".to_owned()),
            Err(error) => return self.note("lookup", Err(error)),
        };
        let data = self.note("read", fs.read(&cx, ino, 0, bytes.len() + 1))?;
        (data.to_vec() != bytes).then(|| "other content".to_owned())
    }

    /// A volume that was in order is so afterwards.
    fn still_clean(&mut self, image: &Image) {
        let issues = self.check(image);
        if let Some(issue) = issues.as_ref().and_then(|issues| issues.first()) {
            self.wrong(format!("clean before our changes, then: {issue}"));
        }
    }
}

fn open(device: &Arc<ImageDevice>, options: MountOptions) -> Result<Arc<Ext4>> {
    let device = Arc::clone(device) as Arc<dyn Device>;
    Ext4::open(device, options, CacheSizes::of(CACHE)).map(|(fs, _)| fs)
}

pub(super) struct QueueSource(pub(super) Arc<Queue>);

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
