//! Filling a new volume from a directory.

use std::path::Path;

use steadfs::tools::{CopyIn, copy_in, owner_cx};
use steadfs::{Options, Volume};

use crate::failure::Failure;
use crate::progress::Line;
use crate::stop::Stop;

/// Refuses what no volume can be filled from, before one is made.
pub fn check_source(dir: &Path) -> Result<(), Failure> {
    let fail = |why: String| Failure::plain(format!("{}: {why}", dir.display()));
    let found = std::fs::metadata(dir).map_err(|error| fail(error.to_string()))?;
    if !found.is_dir() {
        return Err(fail("is not a directory; -d takes one".to_owned()));
    }
    Ok(())
}

/// Copies a directory's content into the new volume, which begins at `offset`.
pub fn fill(path: &Path, offset: u64, dir: &Path) -> Result<(), Failure> {
    // A link to a directory is followed here, and none below it.
    let real = dir.canonicalize();
    let real = real.map_err(|error| Failure::plain(format!("{}: {error}", dir.display())))?;
    let mut options = Options::default();
    options.offset = offset;
    let volume = Volume::open(path, &options).map_err(Failure::plain)?;
    let how = CopyIn {
        owners: true,
        overwrite: true,
    };
    let stop = Stop::on_signals()?;
    let mut line = Line::of_copy(stop.clone());
    let copied = copy_in(&*volume.fs(), &owner_cx(), &real, b"/", how, &mut line);
    line.done();
    let closed = volume.close().map_err(Failure::plain);
    let warnings = copied.map_err(|error| stop.failure(error))?.warnings;
    for warning in &warnings {
        eprintln!("steadfs: {warning}");
    }
    closed?;
    match warnings.len() {
        0 => Ok(()),
        n => Err(Failure::plain(format!(
            "{}: the volume is made, but incomplete: {n} things of {} were not kept",
            path.display(),
            dir.display()
        ))),
    }
}
