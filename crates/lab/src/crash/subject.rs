//! What is explored: formatted volumes and how they are opened and judged.

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use steadfs_block::Device;
use steadfs_vfs::{FileSystem, Result};
use steadfs_workload::Format;

use super::Problem;
use crate::device::{Fault, Image, Model, RequestFilter, SimDevice};

/// Opens the file system on a device, recovering it if need be.
pub type Open = Arc<dyn Fn(Arc<dyn Device>) -> Result<Arc<dyn FileSystem>> + Send + Sync>;
/// Checks an unmounted volume: what is wrong with it, line by line; empty if nothing is.
pub type Check = Arc<dyn Fn(&Image) -> String + Send + Sync>;

/// Counts of what a volume did of its own accord, by what it is.
pub type Work = fn(&dyn FileSystem) -> Vec<(&'static str, u64)>;

/// A kind of volume under test.
#[derive(Clone)]
pub struct Subject {
    /// Its name, for reports.
    pub name: String,
    /// The freshly formatted volume.
    pub image: Image,
    /// What it can do.
    pub format: Format,
    /// How it is opened.
    pub open: Open,
    /// Our checker, asked about every recovered image.
    pub check: Option<Check>,
    /// The format's own tool, asked about a sample and every failure.
    pub tool: Option<Tool>,
    /// Bytes that the device writes whole or not at all: less than the format needs would show what no
    /// file system on it survives.
    pub atomic_unit: u32,
    /// Whether there is so little room that it is one for [`Trial::Space`](super::Trial::Space), and for
    /// no other trial.
    pub small: bool,
    /// How it is asked what it did: cleaning and the like, which no program can ask for.
    pub work: Option<Work>,
    /// Whether only so many inodes can be made, whatever room there is.
    pub fixed_inodes: bool,
}

/// A checker that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Of e2fsprogs.
    E2fsck,
    /// Of f2fs-tools.
    FsckF2fs,
}

/// The name of our judge in reports.
pub(super) const CHECKER: &str = "the checker";

impl Subject {
    /// Opens the volume of `image` on a device of its own, in the simulation that the caller runs in: a device as
    /// `model` says, with the atomic unit that this volume needs, and with what happens to its requests.
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
        let opened = (self.open)(Arc::new(device.clone()));
        (device, opened)
    }

    /// Whether the format's own tool can be asked.
    ///
    /// # Errors
    /// If it cannot be run, with its name.
    pub(super) fn has_tool(&self) -> io::Result<()> {
        let Some(tool) = self.tool else {
            return Ok(());
        };
        // What it answers to this does not matter.
        match Command::new(tool.name()).arg("-V").output() {
            Ok(_) => Ok(()),
            Err(error) => {
                let said = format!("{} is needed and cannot be run: {error}", tool.name());
                Err(io::Error::new(error.kind(), said))
            }
        }
    }

    /// Has an unmounted volume judged: by the checker, and by the format's tool if `second` or if the
    /// checker finds anything. Whether the tool was asked comes back too.
    ///
    /// # Errors
    /// If the tool cannot be run or the directory not be written; inside: what is wrong, or which judge
    /// is alone in saying so.
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

    /// What it finds wrong with an image, which it does not change; empty if nothing is.
    ///
    /// # Errors
    /// If it cannot be run, or the directory not be written.
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
