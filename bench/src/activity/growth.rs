//! The cost of a file among many: in one directory, and on the volume.

use std::path::{Path, PathBuf};

use super::names::{create, name};
use crate::Result;
use crate::activity_run::ActivityRun;
use crate::measure::seconds;
use crate::subject::Subject;

/// A number of files, and the rows for creating the last half of them and for cold look-ups.
struct Step {
    files: u32,
    create: &'static str,
    lookup: &'static str,
}

const fn step(files: u32, create: &'static str, lookup: &'static str) -> Step {
    Step {
        files,
        create,
        lookup,
    }
}

const IN_ONE: [Step; 4] = [
    step(
        1_000,
        "create, 1 000 in a directory",
        "lookup, cold, 1 000 in a directory",
    ),
    step(
        10_000,
        "create, 10 000 in a directory",
        "lookup, cold, 10 000 in a directory",
    ),
    step(
        100_000,
        "create, 100 000 in a directory",
        "lookup, cold, 100 000 in a directory",
    ),
    step(
        1_000_000,
        "create, 1 000 000 in a directory",
        "lookup, cold, 1 000 000 in a directory",
    ),
];
const SPREAD: [Step; 4] = [
    step(
        1_000,
        "create, 1 000 on the volume",
        "lookup, cold, 1 000 on the volume",
    ),
    step(
        10_000,
        "create, 10 000 on the volume",
        "lookup, cold, 10 000 on the volume",
    ),
    step(
        100_000,
        "create, 100 000 on the volume",
        "lookup, cold, 100 000 on the volume",
    ),
    step(
        1_000_000,
        "create, 1 000 000 on the volume",
        "lookup, cold, 1 000 000 on the volume",
    ),
];

/// fuse2fs searches directories linearly: more would take hours.
const FUSE2FS_FILES_MAX: u32 = 10_000;
/// Each inode of f2fs takes a block of 4 KiB: a million do not fit the image.
const INODE_BLOCKS: u32 = 100_000;

/// All files in one directory.
pub fn in_one(run: &mut ActivityRun) -> Result<()> {
    grow(run, &IN_ONE, u32::MAX)
}

/// 1000 files in each directory.
pub fn spread(run: &mut ActivityRun) -> Result<()> {
    grow(run, &SPREAD, 1000)
}

fn grow(run: &mut ActivityRun, steps: &[Step], files_per_directory: u32) -> Result<()> {
    let files_max = match run.subject() {
        Subject::Fuse2fs => FUSE2FS_FILES_MAX,
        Subject::SteadfsF2fs => run.size().growth.min(INODE_BLOCKS),
        _ => run.size().growth,
    };
    let tree = FileTree {
        root: run.root(),
        files_per_directory,
    };
    let mut made = 0;
    for step in steps.iter().filter(|step| step.files <= files_max) {
        let half = step.files / 2;
        tree.fill(made, half)?;
        let ((), filled) = seconds(|| tree.fill(half, step.files))?;
        run.record(step.create, micros(filled, step.files - half));
        made = step.files;
        run.cold()?;
        let ((), result) = seconds(|| tree.look_up(LOOKUPS, made))?;
        run.record(step.lookup, micros(result, LOOKUPS));
    }
    Ok(())
}

/// Number of look-ups.
const LOOKUPS: u32 = 500;

fn micros(seconds: f64, files: u32) -> f64 {
    seconds * 1e6 / f64::from(files)
}

/// Numbered files in numbered directories.
struct FileTree {
    root: PathBuf,
    files_per_directory: u32,
}

impl FileTree {
    fn dir(&self, number: u32) -> PathBuf {
        self.root
            .join(format!("d{}", number / self.files_per_directory))
    }

    /// Creates the files from `first` to before `end`, and their directories.
    fn fill(&self, mut first: u32, end: u32) -> Result<()> {
        while first < end {
            let dir = self.dir(first);
            make_dir(&dir)?;
            let whole =
                (first / self.files_per_directory + 1).saturating_mul(self.files_per_directory);
            create(&dir, first..whole.min(end))?;
            first = whole.min(end);
        }
        Ok(())
    }

    /// Looks up `count` of `files`, in scattered order.
    fn look_up(&self, count: u32, files: u32) -> Result<()> {
        // A stride without a common factor reaches files all over the range.
        const STRIDE: u64 = 618_033_989;
        for n in 0..u64::from(count) {
            let number = (n * STRIDE % u64::from(files)) as u32;
            std::fs::symlink_metadata(self.dir(number).join(name(number)))?;
        }
        Ok(())
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        done => Ok(done?),
    }
}
