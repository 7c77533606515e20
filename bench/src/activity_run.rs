//! One run of an activity: a freshly formatted and mounted volume, and its samples.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use steadfs_suite::Scratch;

use crate::Result;
use crate::command::{output, program, quietly};
use crate::dirty_bound::DirtyBound;
use crate::measure::{Usage, drop_caches, machine_cpu, seconds};
use crate::subject::{CACHE_SIZE, Medium, Mounted, Subject};

/// The amount of work.
#[derive(Clone, Copy)]
pub struct Size {
    /// Bytes of an image.
    pub image: u64,
    /// Files that each of fs_mark's threads makes: without sync, and with a sync of each file.
    pub marks: [u32; 2],
    /// MiB of a stream.
    pub stream: u32,
    /// Seconds of a timed job.
    pub seconds: u32,
    /// Files of the largest step of the growth rows.
    pub growth: u32,
}

impl Size {
    /// For a quick check.
    pub const QUICK: Self = Self {
        image: 2 << 30,
        marks: [5000, 500],
        stream: 1024,
        seconds: 3,
        growth: 100_000,
    };
    /// For published results.
    pub const FULL: Self = Self {
        image: 4 << 30,
        marks: [20_000, 2000],
        stream: 2048,
        seconds: 10,
        growth: 1_000_000,
    };
}

/// Shared by all runs.
pub struct Bench {
    size: Size,
    steadfs: PathBuf,
    images: PathBuf,
    scratch: Scratch,
    tree: PackedTree,
}

/// A tree of files in an archive.
pub struct PackedTree {
    /// The archive, made by tar.
    pub archive: PathBuf,
    /// Files and directories in it.
    pub entries: usize,
}

impl Bench {
    /// Packs `tree` and makes an image for each subject.
    pub fn prepare(
        size: Size,
        steadfs: &Path,
        images: Option<&Path>,
        tree: &Path,
        subjects: &[Subject],
    ) -> Result<Self> {
        let scratch = Scratch::new();
        let images = images.unwrap_or(scratch.path()).to_owned();
        fs::create_dir_all(&images)?;
        let bench = Self {
            size,
            steadfs: steadfs.to_owned(),
            images,
            tree: pack(tree, &scratch.join("tree.tar"))?,
            scratch,
        };
        for &subject in subjects.iter().filter(|subject| subject.has_device()) {
            fill(&bench.image(subject), size.image)?;
        }
        Ok(bench)
    }

    fn image(&self, subject: Subject) -> PathBuf {
        self.images.join(format!("{subject}.img"))
    }

    /// Checks the volume: a result counts only if it is clean.
    pub fn judge(&self, subject: Subject) -> Result<()> {
        if !subject.has_device() {
            return Ok(());
        }
        let mut checker = match subject.is_f2fs() {
            true => program("fsck.f2fs"),
            false => program("e2fsck"),
        };
        let only_look = if subject.is_f2fs() {
            "--dry-run"
        } else {
            "-fn"
        };
        checker.arg(only_look).arg(self.image(subject));
        match output(&mut checker) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the volume is not clean: {error}").into()),
        }
    }
}

fn pack(tree: &Path, archive: &Path) -> Result<PackedTree> {
    let mut tar = program("tar");
    quietly(tar.arg("-cf").arg(archive).arg("-C").arg(tree).arg("."))?;
    let list = output(program("tar").arg("-tf").arg(archive))?;
    Ok(PackedTree {
        archive: archive.to_owned(),
        entries: list.lines().count(),
    })
}

/// Writes every block of the image; otherwise the host's allocation would be measured.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    let there = fs::metadata(path).is_ok_and(|m| m.len() == bytes && m.blocks() * 512 >= bytes);
    if there {
        return Ok(());
    }
    eprintln!("writing {} ({} MiB)", path.display(), bytes >> 20);
    let piece = vec![0; 1 << 20];
    let mut file = File::create(path)?;
    for _ in 0..bytes >> 20 {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(())
}

/// The result of one run of an activity.
#[derive(Default)]
pub struct RunResult {
    /// Samples, by row.
    pub values: Vec<(&'static str, f64)>,
    /// Resources that the server used.
    pub server: Usage,
    /// CPU time of the whole machine.
    pub machine: Duration,
}

/// One run of an activity on a subject.
pub struct ActivityRun<'a> {
    bench: &'a Bench,
    subject: Subject,
    // Unmounted before the medium is detached.
    mounted: Option<Mounted>,
    medium: Medium,
    result: RunResult,
}

impl<'a> ActivityRun<'a> {
    /// For `subject`, with a block device on request.
    pub fn new(bench: &'a Bench, subject: Subject, block_device: bool) -> Self {
        let image = bench.image(subject);
        Self {
            bench,
            subject,
            mounted: None,
            medium: Medium::attach(subject, &image, block_device),
            result: RunResult::default(),
        }
    }

    /// Runs `activity` on a volume formatted with further arguments for mke2fs, and freshly mounted.
    pub fn execute(
        mut self,
        format: &[&str],
        activity: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<RunResult> {
        self.format(format)?;
        self.mount()?;
        let before = machine_cpu()?;
        activity(&mut self)?;
        self.unmount()?;
        self.result.machine = machine_cpu()?.saturating_sub(before);
        Ok(self.result)
    }

    /// Without lazy initialization, and without discarding blocks of the image on the host.
    fn format(&self, more: &[&str]) -> Result<()> {
        if !self.subject.has_device() {
            return Ok(());
        }
        if self.subject.is_f2fs() {
            let mut mkfs = program("mkfs.f2fs");
            mkfs.args(["-q", "-f", "-t", "0"]);
            return quietly(mkfs.arg(self.medium.path()));
        }
        let mut mke2fs = program("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-E"]);
        mke2fs.arg("nodiscard,lazy_itable_init=0,lazy_journal_init=0");
        mke2fs.args(more);
        quietly(mke2fs.arg(self.medium.path()))
    }

    fn mount(&mut self) -> Result<()> {
        drop_caches()?;
        let root = self.bench.scratch.folder("mnt");
        self.mounted = Some(self.medium.mount(&root, &self.bench.steadfs)?);
        Ok(())
    }

    /// Unmounts; returns the duration in seconds.
    fn unmount(&mut self) -> Result<f64> {
        let mounted = self.mounted.take().ok_or("nothing is mounted")?;
        let ended = mounted.unmount()?;
        self.result.server = self.result.server.then(ended.usage);
        Ok(ended.seconds)
    }

    /// Unmounts, drops all caches, and mounts; returns the duration of the unmount in seconds. A subject without a
    /// device stays mounted; only the kernel's caches are dropped.
    pub fn cold(&mut self) -> Result<f64> {
        if !self.subject.has_device() {
            let ((), seconds) = seconds(drop_caches)?;
            return Ok(seconds);
        }
        let seconds = self.unmount()?;
        self.mount()?;
        Ok(seconds)
    }

    /// Changes options of the running steadfs mount.
    pub fn remount(&self, list: &str) -> Result<()> {
        let mut steadfs = Command::new(&self.bench.steadfs);
        steadfs.arg("remount").arg(self.root());
        quietly(steadfs.args(["-o", list]))
    }

    /// Limits the kernel's dirty data of its volume to that of steadfs, until the result is dropped. The default limit
    /// is a share of the machine's memory: a shorter stream would not be written back at all.
    pub fn bound_dirty(&self) -> Result<Option<DirtyBound>> {
        let Some(device) = self.medium.kernels_device() else {
            return Ok(None);
        };
        DirtyBound::set(device, CACHE_SIZE / 2)
    }

    /// The mount point.
    pub fn root(&self) -> PathBuf {
        self.bench.scratch.join("mnt")
    }

    /// The subject of this run.
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// The amount of work.
    pub fn size(&self) -> Size {
        self.bench.size
    }

    /// The tree to work with.
    pub fn tree(&self) -> &'a PackedTree {
        &self.bench.tree
    }

    /// Records a sample of the row `key`.
    pub fn record(&mut self, key: &'static str, value: f64) {
        if key.starts_with("unmount") && !self.subject.has_device() {
            return;
        }
        self.result.values.push((key, value));
    }
}
