//! Subjects: formatted volumes, how they are mounted and how they are judged.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use steadfs_block::Device;
use steadfs_stack::JoinedDevice;
use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags, Result};
use steadfs_workload::{Format, TOP};

use super::free_space::on_volume;
use super::{Problem, ext4};
use crate::device::{Fault, Image, Model, RequestFilter, SimDevice, SimPart};
use crate::encrypted;

/// Mounts the file system on a device, with recovery if it is needed.
pub type Open = Arc<dyn Fn(Arc<dyn Device>) -> Result<Arc<dyn FileSystem>> + Send + Sync>;
/// Checks an unmounted volume: one line per finding; empty if it is clean.
pub type Check = Arc<dyn Fn(&Image) -> String + Send + Sync>;

/// Counts of a volume's background work, by name.
pub type Work = fn(&dyn FileSystem) -> Vec<(&'static str, u64)>;

/// A kind of volume under test.
#[derive(Clone)]
pub struct Subject {
    /// Its name, for reports.
    pub name: String,
    /// The freshly formatted volume.
    pub image: Image,
    /// Its capabilities.
    pub format: Format,
    /// Mounts it.
    pub open: Open,
    /// Our checker, which judges every recovered image.
    pub check: Option<Check>,
    /// The format's own tool, which judges a sample and every failure.
    pub tool: Option<Tool>,
    /// Bytes that the device writes atomically. A smaller unit than the format requires would show crashes that no file
    /// system on it survives.
    pub atomic_unit: u32,
    /// Where the devices of the volume begin, if it is on several, each with a cache of its own.
    pub parts: &'static [u64],
    /// Whether the volume is small, for [`Trial::Space`](super::Trial::Space) and no other trial.
    pub small: bool,
    /// What the tool replays after a crash by rules of its own, which must lead to the same files.
    pub tool_replays: ToolReplay,
    /// Reads counts of background work, such as GC, which no program can request.
    pub work: Option<Work>,
    /// Whether the number of inodes is fixed, whatever space is free.
    pub fixed_inodes: bool,
}

/// Logs that a tool replays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolReplay {
    /// None.
    Nothing,
    /// Those of transactions.
    Transactions,
    /// Those with fast commits behind the transactions, too.
    FastCommits,
}

impl ToolReplay {
    /// How often the tool replays an image, if `usual` is how often it replays logs of transactions: the rules of fast
    /// commits are the finer ones.
    pub(super) const fn share(self, usual: u16) -> u16 {
        match self {
            Self::Nothing => 0,
            Self::Transactions => usual,
            Self::FastCommits => usual.saturating_mul(4),
        }
    }
}

/// A checker of another project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Of e2fsprogs.
    E2fsck,
    /// Of f2fs-tools.
    FsckF2fs,
}

/// What a tool left of an image that it was to repair.
#[derive(Debug)]
pub struct Repair {
    /// The image; as it was, if the tool failed.
    pub image: Image,
    /// How the tool ended.
    pub status: ExitStatus,
    /// What it printed.
    pub said: String,
}

impl Repair {
    /// Whether the tool ran to its end: 0 is a volume without errors, 1 one whose errors it has corrected.
    pub fn is_done(&self) -> bool {
        matches!(self.status.code(), Some(0 | 1))
    }
}

/// The error of a program that is needed.
pub(super) fn cannot_run(program: &str, error: &io::Error) -> io::Error {
    let said = format!("{program} is needed and cannot be run: {error}");
    io::Error::new(error.kind(), said)
}

/// The name of our checker in reports.
pub(super) const CHECKER: &str = "the checker";

impl Subject {
    /// Mounts the volume of `image` on a device of its own, in the caller's simulation: a device of `model`, with the
    /// atomic unit that this volume needs, and with these faults.
    pub fn open_on(
        &self,
        image: &Image,
        model: Model,
        fault: Option<(RequestFilter, Fault)>,
    ) -> (SimDevice, Result<Arc<dyn FileSystem>>) {
        let model = Model {
            atomic_unit: self.atomic_unit,
            ..model
        };
        let device = SimDevice::new(image, model);
        if let Some((which, fault)) = fault {
            device.inject(which, fault);
        }
        let opened = self.open_all(&device);
        (device, opened)
    }

    /// Mounts the volume on a device, or on the devices that are its parts.
    pub(super) fn open_all(&self, device: &SimDevice) -> Result<Arc<dyn FileSystem>> {
        let ends = self.parts.iter().skip(1).copied();
        let ends = ends.chain([device.geometry().size]);
        let parts = self.parts.iter().zip(ends).map(|(at, end)| {
            let part: Arc<dyn Device> = Arc::new(SimPart::new(device, *at..end));
            (part, end - at)
        });
        let parts: Vec<_> = parts.collect();
        if parts.is_empty() {
            return (self.open)(Arc::new(device.clone()));
        }
        let joined = JoinedDevice::of_several(parts);
        let joined = joined.map_err(|(_, why)| FsError::BadOption(why))?;
        (self.open)(Arc::new(joined))
    }

    /// Gives the root flags that what is made below it inherits. In directories with [`InodeFlags::CASEFOLD`] programs
    /// spell names in another way each time.
    ///
    /// # Errors
    /// The volume cannot be mounted, or has more names than `lost+found`.
    pub(super) fn with_flags_of_root(mut self, flags: InodeFlags) -> io::Result<Self> {
        const LOST: &[u8] = b"lost+found";
        let given = on_volume(&self, &self.image, move |fs, _| {
            let (cx, root) = (Cx::default(), fs.root());
            // Only an empty directory takes the flag.
            let lost = fs.lookup(&cx, root, LOST).ok();
            if let Some(lost) = &lost {
                fs.forget(lost.ino, 1);
                fs.rmdir(&cx, root, LOST).map_err(Problem::Sync)?;
            }
            let had = fs.flags(&cx, root).map_err(Problem::Sync)?.flags;
            fs.set_flags(&cx, root, had.union(flags))
                .map_err(Problem::Sync)?;
            if let Some(lost) = lost {
                let made = fs.mkdir(&cx, root, LOST, lost.perm);
                fs.forget(made.map_err(Problem::Sync)?.ino, 1);
            }
            Ok(())
        });
        let wrong = |problem| io::Error::other(format!("{}: {problem}", self.name));
        self.image = given.map_err(wrong)?.1;
        Ok(self)
    }

    /// Has programs run in an encrypted directory, whose key each mount has; `folds`: it is case-insensitive, too.
    ///
    /// # Errors
    /// The volume cannot be mounted, or cannot have such a directory.
    pub(super) fn encrypted(mut self, folds: bool) -> io::Result<Self> {
        let open = Arc::clone(&self.open);
        self.open = Arc::new(move |device| {
            let fs = open(device)?;
            encrypted::add_key(&*fs)?;
            Ok(fs)
        });
        let made = on_volume(&self, &self.image, move |fs, _| {
            let top = encrypted::make_dir(fs, &Cx::default(), TOP, folds);
            fs.forget(top.map_err(Problem::Sync)?, 1);
            Ok(())
        });
        let wrong = |problem| io::Error::other(format!("{}: {problem}", self.name));
        self.image = made.map_err(wrong)?.1;
        Ok(self)
    }

    /// Checks that the format's own tool can be run.
    ///
    /// # Errors
    /// The error, with the tool's name.
    pub(super) fn has_tool(&self) -> io::Result<()> {
        self.tool.map_or(Ok(()), Tool::exists)
    }

    /// Judges an unmounted volume with the checker, and with the format's tool if `second` or if the checker finds
    /// anything. Returns whether the tool ran, too.
    ///
    /// # Errors
    /// If the tool cannot be run or the directory cannot be written; inside: the findings, or a disagreement of the
    /// two.
    pub fn judge(
        &self,
        image: &Image,
        second: bool,
        scratch: &Path,
    ) -> io::Result<(bool, std::result::Result<(), Problem>)> {
        let ours = self.check.as_ref().map(|check| check(image));
        let found = ours.as_deref().is_some_and(|findings| !findings.is_empty());
        let tool = self.tool.filter(|_| second || found);
        let asked = tool.is_some();
        let theirs = match tool {
            Some(tool) => Some((tool.name(), tool.check(image, scratch)?)),
            None => None,
        };
        let (content, judge, findings) = match (ours, theirs) {
            (None, None) => return Ok((asked, Ok(()))),
            (Some(ours), None) => (None, CHECKER, ours),
            (None, Some((tool, theirs))) => (None, tool, theirs),
            (Some(ours), Some((tool, theirs))) => match (ours.is_empty(), theirs.is_empty()) {
                (true, _) => (Some(CHECKER), tool, theirs),
                (_, true) => (Some(tool), CHECKER, ours),
                (false, false) => (None, "both judges", format!("{ours}\n{theirs}")),
            },
        };
        let verdict = match (findings.is_empty(), content) {
            (true, _) => Ok(()),
            (false, None) => Err(Problem::Damaged { judge, findings }),
            (false, Some(content)) => Err(Problem::Disagreement {
                content,
                judge,
                findings,
            }),
        };
        Ok((asked, verdict))
    }
}

impl Tool {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::E2fsck => "e2fsck",
            Self::FsckF2fs => "fsck.f2fs",
        }
    }

    /// Checks that it can be run.
    ///
    /// # Errors
    /// The error, with its name.
    pub(crate) fn exists(self) -> io::Result<()> {
        // The output of -V does not matter.
        let ran = Command::new(self.name()).arg("-V").output();
        ran.map(drop)
            .map_err(|error| cannot_run(self.name(), &error))
    }

    /// Whether its findings are about what this volume's file system should have done. A volume that is marked as having
    /// errors keeps its orphans recorded; e2fsck ignores that record and reports each of them.
    pub(super) fn judges(self, image: &Image) -> bool {
        match self {
            Self::E2fsck => !ext4::has_errors(image),
            Self::FsckF2fs => true,
        }
    }

    /// Has the tool repair an image after a crash. Whether it did is the caller's to judge ([`Repair::status`]).
    ///
    /// # Errors
    /// As [`Tool::check`].
    pub fn repair(self, image: &Image, scratch: &Path) -> io::Result<Repair> {
        let path = scratch.join("repaired.img");
        image.save(&path)?;
        let output = Command::new(self.name()).arg("-fy").arg(&path).output()?;
        let repaired = Image::load(&path)?;
        std::fs::remove_file(&path)?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(Repair {
            image: repaired,
            status: output.status,
            said,
        })
    }

    /// The tool's findings in an image, which it does not change; empty if there are none.
    ///
    /// # Errors
    /// If it cannot be run, or the directory cannot be written.
    pub fn check(self, image: &Image, scratch: &Path) -> io::Result<String> {
        let path = scratch.join("judged.img");
        image.save(&path)?;
        let options = match self {
            Self::E2fsck => "-fn",
            Self::FsckF2fs => "--dry-run",
        };
        let mut tool = Command::new(self.name());
        let output = tool.arg(options).arg(&path).output()?;
        std::fs::remove_file(&path)?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        Ok(match output.status.success() {
            true => String::new(),
            false => said,
        })
    }
}
