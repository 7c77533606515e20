//! One input against an image: edits, mount, operations, unmount, and what must hold.
//!
//! An input is one byte for the base, one for the mount options and one for the schedule, then the edits, then the
//! operations. What must hold, besides the rules of [`Trial`]:
//!
//! * A volume that the checker calls clean can be mounted, no call on it reports corruption, and after its unmount the
//!   checker calls it clean.
//! * Files that were synced on it have their content after the unmount.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use steadfs_block::{Device, Queue, QueueOptions};
use steadfs_ext4::{Ext4, replayed_view};
use steadfs_f2fs::F2fs;
use steadfs_lab::device::Image;
use steadfs_rt::sim;
use steadfs_vfs::{FileSystem, FsError, Result};

use super::edit::{Editable, Only, edited};
use super::fuse::Connection;
use super::input::Input;
use super::ops::Session;
use super::{f2fs_bases, fast_commit, text};
use crate::hostile::exercise::{CACHE, Outcome, QueueSource, Trial, run_trial_in};
use crate::hostile::f2fs::{F2fsBase, Part as F2fsPart};
use crate::hostile::{Base, ImageDevice, Part as Ext4Part, encrypted};

const EXT4_OPTIONS: [&str; 14] = [
    "",
    "",
    "errors=continue",
    "errors=remount-ro",
    "ro",
    "ro,noload",
    "ro,salvage",
    "nodelalloc",
    "discard,commit=1",
    "noasync_checkpoint",
    "sync",
    "data=writeback,noauto_da_alloc",
    "nobarrier,nojournal_checksum",
    "dirsync,stripe=8,async_checkpoint=99",
];

const F2FS_OPTIONS: [&str; 14] = [
    "",
    "",
    "errors=continue",
    "errors=remount-ro",
    "ro",
    "ro,norecovery",
    "ro,salvage",
    "mode=lfs,discard",
    "fastboot,background_gc=sync",
    "noinline_data,noinline_dentry,noinline_xattr",
    "checkpoint=disable",
    "fsync_mode=strict,nocheckpoint_merge,alloc_mode=reuse",
    "active_logs=2,nogc_merge,discard_unit=section",
    "sync,atgc,data_flush,gc_policy=2013",
];

/// A kind of volume.
trait Format: Copy + 'static {
    /// The option lists that an input chooses from.
    const OPTIONS: &'static [&'static str];
    /// Whether the checker ignores what recovery applies.
    const CHECKS_BEFORE_RECOVERY: bool;

    fn open(self, device: &Arc<ImageDevice>, options: &str) -> Result<Arc<dyn FileSystem>>;
    /// The checker's findings; `None` if it refuses the volume.
    fn check(self, device: &Arc<ImageDevice>) -> Result<Option<Vec<String>>>;
}

#[derive(Clone, Copy)]
struct OfExt4;

#[derive(Clone, Copy)]
struct OfF2fs;

fn caches() -> steadfs_ext4::CacheSizes {
    steadfs_ext4::CacheSizes::of(CACHE)
}

/// The options in `list`; the item `salvage` is what programs that only read set.
fn split(list: &str) -> (String, bool) {
    let items: Vec<_> = list.split(',').filter(|item| *item != "salvage").collect();
    (items.join(","), list.contains("salvage"))
}

impl Format for OfExt4 {
    const OPTIONS: &'static [&'static str] = &EXT4_OPTIONS;
    const CHECKS_BEFORE_RECOVERY: bool = false;

    fn open(self, device: &Arc<ImageDevice>, options: &str) -> Result<Arc<dyn FileSystem>> {
        let (list, salvage) = split(options);
        let mut options = steadfs_ext4::MountOptions::parse(&list)?;
        options.common.salvage = salvage;
        let (fs, _) = Ext4::open(Arc::clone(device) as _, options, caches())?;
        encrypted::open_up(&*fs);
        Ok(fs)
    }

    fn check(self, device: &Arc<ImageDevice>) -> Result<Option<Vec<String>>> {
        let mut options = steadfs_ext4::MountOptions::default();
        options.common.read_only = true;
        options.common.salvage = true;
        let view = replayed_view(Arc::clone(device) as Arc<dyn Device>, &options)?;
        let options = steadfs_ext4::check::Options {
            after_crash: view.report.has_replayed(),
            super_at: view.super_at,
            unreplayed: view.unreplayed.map(|error| error.to_string()),
            mended: view.mended,
            memory_limit: 32 << 20,
            ..steadfs_ext4::check::Options::default()
        };
        let report = steadfs_ext4::check::check(&QueueSource(view.queue), &options);
        let issues = report.issues.iter().map(ToString::to_string).collect();
        Ok(report.refused.is_none().then_some(issues))
    }
}

impl Format for OfF2fs {
    const OPTIONS: &'static [&'static str] = &F2FS_OPTIONS;
    const CHECKS_BEFORE_RECOVERY: bool = true;

    fn open(self, device: &Arc<ImageDevice>, options: &str) -> Result<Arc<dyn FileSystem>> {
        let (list, salvage) = split(options);
        let mut options = steadfs_f2fs::MountOptions::parse(&list)?;
        options.common.salvage = salvage;
        let (fs, _) = F2fs::open(Arc::clone(device) as _, options, caches())?;
        encrypted::open_up(&*fs);
        Ok(fs)
    }

    fn check(self, device: &Arc<ImageDevice>) -> Result<Option<Vec<String>>> {
        let queue = Queue::new(Arc::clone(device) as _, QueueOptions::default());
        let options = steadfs_f2fs::check::Options {
            memory_limit: 32 << 20,
            ..steadfs_f2fs::check::Options::default()
        };
        let report = steadfs_f2fs::check::check(&QueueSource(Arc::new(queue)), &options);
        let issues = report.issues.iter().map(ToString::to_string).collect();
        Ok(report.refused.is_none().then_some(issues))
    }
}

/// The volumes that are edited. Made once for the process, since that takes seconds.
fn ext4_volumes() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| in_scratch(Base::all))
}

fn f2fs_volumes() -> &'static [F2fsBase] {
    static BASES: OnceLock<Vec<F2fsBase>> = OnceLock::new();
    BASES.get_or_init(|| in_scratch(f2fs_bases::make))
}

/// The ext4 volumes whose log is replayed, the last one with room for fast commits.
fn journal_volumes() -> &'static [Base] {
    static BASES: OnceLock<Vec<Base>> = OnceLock::new();
    BASES.get_or_init(|| {
        let mut bases = in_scratch(Base::all);
        bases.retain(Base::is_dirty);
        bases.push(in_scratch(Base::with_fast_commits));
        bases
    })
}

fn in_scratch<T>(make: fn(&Path) -> T) -> T {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    make(scratch.path())
}

/// Edits, mount, operations, unmount of an ext2, ext3 or ext4 volume.
pub fn ext4(bytes: &[u8]) -> Outcome {
    let mut input = Input::new(bytes);
    let bases = ext4_volumes();
    let base = &bases[input.below(bases.len())];
    Case::edited(OfExt4, base, &mut input).run(&mut input)
}

/// Edits, mount, operations, unmount of an f2fs volume.
pub fn f2fs(bytes: &[u8]) -> Outcome {
    let mut input = Input::new(bytes);
    let bases = f2fs_volumes();
    let base = &bases[input.below(bases.len())];
    Case::edited(OfF2fs, base, &mut input).run(&mut input)
}

/// Replay of edited logs and of any fast commits, then operations.
pub fn journal(bytes: &[u8]) -> Outcome {
    const EDITED: &[Ext4Part] = &[
        Ext4Part::JournalSuper,
        Ext4Part::Log,
        Ext4Part::Orphans,
        Ext4Part::Super,
    ];
    let mut input = Input::new(bytes);
    let bases = journal_volumes();
    let base = &bases[input.below(bases.len())];
    let only = Only::new(base, &base.survey.parts, EDITED);
    let mut case = Case::edited(OfExt4, &only, &mut input);
    if std::ptr::eq(base, bases.last().expect("there are some")) {
        fast_commit::append(base, &mut case.image, &mut input);
    }
    case.run(&mut input)
}

/// Roll-forward recovery of edited node chains, then operations.
pub fn roll_forward(bytes: &[u8]) -> Outcome {
    const EDITED: &[F2fsPart] = &[F2fsPart::Chain];
    let mut input = Input::new(bytes);
    let bases = f2fs_volumes();
    let dirty: Vec<_> = bases.iter().filter(|base| base.is_dirty()).collect();
    let base = dirty[input.below(dirty.len())];
    let only = Only::new(base, &base.parts, EDITED);
    Case::edited(OfF2fs, &only, &mut input).run(&mut input)
}

/// FUSE requests to a mounted volume.
pub fn fuse(bytes: &[u8]) -> Outcome {
    use_clean(bytes, |fs, trial, input| {
        Connection::new(fs, trial).run(input)
    })
}

/// Writes to the control files of a mounted volume.
pub fn control(bytes: &[u8]) -> Outcome {
    use_clean(bytes, |fs, trial, input| {
        text::write_control_files(Arc::clone(&fs), trial, input);
        let closed = fs.unmount();
        trial.check_error("unmount", closed).is_some()
    })
}

/// Mounts a clean volume, ext4 or f2fs by the first byte, and uses it; the checker must find nothing if `work` returns
/// true.
fn use_clean(
    bytes: &[u8],
    work: impl Fn(Arc<dyn FileSystem>, &mut Trial, &mut Input<'_>) -> bool + 'static,
) -> Outcome {
    let mut input = Input::new(bytes);
    if input.byte() & 1 == 0 {
        let mut bases = ext4_volumes().iter();
        let base = bases.find(|base| base.name == "ext4-1k");
        let image = &base.expect("it is in the list").image;
        use_clean_volume(OfExt4, image, &mut input, work)
    } else {
        use_clean_volume(OfF2fs, &f2fs_volumes()[0].image, &mut input, work)
    }
}

fn use_clean_volume<F: Format>(
    format: F,
    image: &Image,
    input: &mut Input<'_>,
    work: impl Fn(Arc<dyn FileSystem>, &mut Trial, &mut Input<'_>) -> bool + 'static,
) -> Outcome {
    let config = sim::Config {
        seed: input.byte().into(),
        ..sim::Config::default()
    };
    let rest = input.bytes(usize::MAX).to_vec();
    run_trial_in(config, image, move |trial| {
        let device = Arc::new(ImageDevice::new(trial.image.clone()));
        let fs = format.open(&device, "").expect("a clean volume");
        let closed = work(fs, trial, &mut Input::new(&rest));
        trial.check_strays("using", &device);
        if let Some(reported) = trial.reported.take() {
            trial.violation(format!("clean, but: {reported}"));
        }
        if closed {
            let issues = check(trial, format, &device.content());
            for issue in issues.into_iter().flatten().take(1) {
                trial.violation(format!("clean before, afterwards: {issue}"));
            }
        }
    })
}

/// An image and how it is used.
struct Case<F> {
    format: F,
    options: &'static str,
    config: sim::Config,
    image: Image,
    /// What recovery will apply was edited, which a checker of the last checkpoint does not see.
    unchecked: bool,
    /// The log of the base has to be replayed.
    replays: bool,
}

impl<F: Format> Case<F> {
    fn edited(format: F, base: &dyn Editable, input: &mut Input<'_>) -> Self {
        let options = input.pick(F::OPTIONS);
        let config = sim::Config {
            seed: input.byte().into(),
            ..sim::Config::default()
        };
        let (image, edits) = edited(base, input);
        Self {
            format,
            options,
            config,
            image,
            unchecked: edits > 0 && F::CHECKS_BEFORE_RECOVERY,
            replays: base.is_dirty(),
        }
    }

    fn run(self, input: &mut Input<'_>) -> Outcome {
        let ops = input.bytes(usize::MAX).to_vec();
        let (image, config) = (self.image.clone(), self.config.clone());
        run_trial_in(config, &image, move |trial| self.attempt(trial, &ops))
    }

    fn attempt(&self, trial: &mut Trial, ops: &[u8]) {
        let before = check(trial, self.format, &self.image);
        trial.outcome.corrupt = before.as_ref().is_none_or(|issues| !issues.is_empty());
        // Without a replay the volume is as the power cut left it.
        let torn = self.replays && self.options.contains("noload");
        let trusted = !trial.outcome.corrupt && !self.unchecked && !torn;
        let after = change(
            trial,
            self.format,
            self.options,
            trusted,
            &mut Input::new(ops),
        );
        trial.outcome.reported = trial.reported.is_some();
        if !trusted {
            return;
        }
        if let Some(reported) = trial.reported.take() {
            trial.violation(format!("the checker finds nothing, but: {reported}"));
        }
        for issue in check(trial, self.format, &after)
            .into_iter()
            .flatten()
            .take(1)
        {
            trial.violation(format!("clean before our changes, afterwards: {issue}"));
        }
        if self.options != "checkpoint=disable" {
            compare_synced(trial, self.format, &after);
        }
    }
}

fn check<F: Format>(trial: &mut Trial, format: F, image: &Image) -> Option<Vec<String>> {
    let device = Arc::new(ImageDevice::new(image.clone()));
    trial.may_be_longer = true;
    let checked = format.check(&device);
    let issues = trial.check_error("check", checked).flatten();
    trial.may_be_longer = false;
    if device.writes() > 0 {
        trial.violation("the checker writes".to_owned());
    }
    trial.check_strays("check", &device);
    issues
}

/// Mounts, runs the operations and unmounts; returns the content afterwards.
fn change<F: Format>(
    trial: &mut Trial,
    format: F,
    options: &str,
    trusted: bool,
    ops: &mut Input<'_>,
) -> Image {
    let device = Arc::new(ImageDevice::new(trial.image.clone()));
    trial.may_be_longer = options.contains("ro");
    if trial.trace {
        eprintln!("mount with {options:?}, trusted: {trusted}");
    }
    let opened = format.open(&device, options);
    if let Err(error) = &opened
        && trusted
        && !is_refusal(error)
    {
        trial.violation(format!("clean, but cannot be mounted: {error}"));
    }
    if let Some(fs) = trial.check_error("mount", opened) {
        let write = !options.starts_with("ro");
        trial.outcome.mounted[usize::from(write)] = true;
        Session::new(&*fs, trial).run(ops);
        let closed = fs.unmount();
        trial.check_error("unmount", closed);
    }
    trial.check_strays("changing", &device);
    trial.may_be_longer = false;
    device.content()
}

/// Whether a clean volume may be refused with this error.
fn is_refusal(error: &FsError) -> bool {
    matches!(
        error,
        FsError::OnlyReadable(_) | FsError::NotSupported(_) | FsError::BadOption(_)
    )
}

/// Checks that synced files have their content.
fn compare_synced<F: Format>(trial: &mut Trial, format: F, image: &Image) {
    let synced = trial.take_synced();
    if synced.is_empty() {
        return;
    }
    let device = Arc::new(ImageDevice::new(image.clone()));
    let opened = format.open(&device, "ro");
    let Some(fs) = trial.check_error("mount again", opened) else {
        return;
    };
    for (name, bytes) in &synced {
        let cx = steadfs_vfs::Cx::default();
        let found = fs.lookup(&cx, fs.root(), name);
        let read = found.and_then(|attr| fs.read(&cx, attr.ino, 0, bytes.len() + 1));
        let name = String::from_utf8_lossy(name);
        match read {
            Ok(data) if data.to_vec() == *bytes => {}
            Ok(_) => trial.violation(format!("{name}, which was synced: other content")),
            Err(error) => trial.violation(format!("{name}, which was synced: {error}")),
        }
    }
    let closed = fs.unmount();
    trial.check_error("unmount again", closed);
}
