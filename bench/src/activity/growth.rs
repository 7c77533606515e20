//! What a file costs when there are many: in one directory, and over the volume.

use std::path::{Path, PathBuf};

use super::names::{create, name};
use crate::Result;
use crate::measure::seconds;
use crate::stage::Stage;
use crate::subject::Subject;

/// A number of files, and the rows for making the last half of them and for finding some, cold.
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

/// fuse2fs searches directories from end to end: more would take hours.
const PATIENCE: u32 = 10_000;
/// Each inode of f2fs takes a block of 4 KiB: a million do not fit the image.
const INODE_BLOCKS: u32 = 100_000;

/// All files in one directory.
pub fn in_one(stage: &mut Stage) -> Result<()> {
    grow(stage, &IN_ONE, u32::MAX)
}

/// A thousand files in each directory.
pub fn spread(stage: &mut Stage) -> Result<()> {
    grow(stage, &SPREAD, 1000)
}

fn grow(stage: &mut Stage, steps: &[Step], in_each: u32) -> Result<()> {
    let most = match stage.subject() {
        Subject::Fuse2fs => PATIENCE,
        Subject::SteadfsF2fs => stage.size().growth.min(INODE_BLOCKS),
        _ => stage.size().growth,
    };
    let place = Place {
        root: stage.root(),
        in_each,
    };
    let mut made = 0;
    for step in steps.iter().filter(|step| step.files <= most) {
        let half = step.files / 2;
        place.fill(made, half)?;
        let ((), filled) = seconds(|| place.fill(half, step.files))?;
        stage.record(step.create, micros(filled, step.files - half));
        made = step.files;
        stage.cold()?;
        let ((), found) = seconds(|| place.look_up(LOOKUPS, made))?;
        stage.record(step.lookup, micros(found, LOOKUPS));
    }
    Ok(())
}

/// Files that are looked up.
const LOOKUPS: u32 = 500;

fn micros(seconds: f64, files: u32) -> f64 {
    seconds * 1e6 / f64::from(files)
}

/// Where files with numbers lie.
struct Place {
    root: PathBuf,
    in_each: u32,
}

impl Place {
    fn dir(&self, number: u32) -> PathBuf {
        self.root.join(format!("d{}", number / self.in_each))
    }

    /// Makes the files from `first` to before `end`, and their directories.
    fn fill(&self, mut first: u32, end: u32) -> Result<()> {
        while first < end {
            let dir = self.dir(first);
            make_dir(&dir)?;
            let whole = (first / self.in_each + 1).saturating_mul(self.in_each);
            create(&dir, first..whole.min(end))?;
            first = whole.min(end);
        }
        Ok(())
    }

    /// Asks for the attributes of `count` of `files`, in no order.
    fn look_up(&self, count: u32, files: u32) -> Result<()> {
        // A step without a common factor meets different files all over the range.
        const STRIDE: u64 = 618_033_989;
        for turn in 0..u64::from(count) {
            let number = (turn * STRIDE % u64::from(files)) as u32;
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
