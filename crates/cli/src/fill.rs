//! Fills a new volume from a directory, and computes the time stamp of reproducible volumes.

use std::path::Path;

use steadfs::{Fill, FillError};
use steadfs_base::Timestamp;

use crate::args;
use crate::copy::{counts, failure};
use crate::failure::Failure;
use crate::progress::Line;
use crate::sandbox;
use crate::stop::Stop;
use crate::volume::Access;
use crate::worker::{self, Task};

/// The time in SOURCE_DATE_EPOCH, if it is set.
pub fn epoch() -> Result<Option<Timestamp>, Failure> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    let Some(text) = std::env::var_os(NAME).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let secs = text.to_str().and_then(|text| text.parse::<u32>().ok());
    secs.map(|secs| Some(at(secs.into()))).ok_or_else(|| {
        let shown = text.to_string_lossy();
        Failure::plain(format!(
            "{NAME}={shown}: needs seconds since 1970, at most {}",
            u32::MAX
        ))
    })
}

/// A time in whole seconds.
pub fn at(secs: i64) -> Timestamp {
    Timestamp { secs, nanos: 0 }
}

/// Refuses an unusable source, or a device that cannot be filled from it, before a volume is formatted.
pub fn check_source(dir: &Path, volume: &Path, is_reproducible: bool) -> Result<(), Failure> {
    if is_reproducible && steadfs::is_uri(volume) {
        let why = "a reproducible volume (SOURCE_DATE_EPOCH) is made in a file; nbdcopy(1) copies it to a server";
        return Err(Failure::plain(format!("{}: {why}", volume.display())));
    }
    let fail = |why: String| Failure::plain(format!("{}: {why}", dir.display()));
    let found = std::fs::metadata(dir).map_err(|error| fail(error.to_string()))?;
    if !found.is_dir() {
        return Err(fail("is not a directory; -d takes one".to_owned()));
    }
    Ok(())
}

/// Copies a directory's content to the new volume, in the sandbox by another process.
pub fn fill(
    path: &Path,
    dir: &Path,
    how: &Fill,
    sandbox: Option<args::Sandbox>,
) -> Result<(), Failure> {
    // A link on the command line is followed, links below it are not.
    let real = dir.canonicalize();
    let real = real.map_err(|error| Failure::plain(format!("{}: {error}", dir.display())))?;
    let stop = Stop::on_signals()?;
    let mut line = Line::of_copy(stop.clone(), false);
    let failed = |error| match error {
        FillError::Copy(error) => failure(&error, &stop),
        error => Failure::plain(error),
    };
    let filled = if sandbox::is_on(sandbox)? {
        let task = how
            .origin
            .map_or(Task::Serve(Access::Write), Task::Reproduce);
        let list = format!("offset={}", how.offset);
        let filled = worker::with_volume(path, task, &list, |fs| {
            steadfs::fill_open(fs, path, &real, how, &mut line).map_err(failed)
        });
        line.done();
        filled
    } else {
        let (line, filled) = steadfs::fill(path, &real, how, line);
        if let Some(line) = line {
            line.done();
        }
        filled.map_err(failed)
    };
    let report = filled?;
    match report.is_complete() {
        true => Ok(()),
        false => Err(Failure::plain(format!(
            "{}: the volume is made, but incomplete: {}",
            path.display(),
            counts(report)
        ))),
    }
}
