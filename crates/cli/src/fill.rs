//! Fills a new volume from a directory or a tar archive, and computes the time stamp of reproducible volumes.

use std::fmt::Display;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::OFlags;
use steadfs::tools::{Progress, Report};
use steadfs::{Fill, FillError, FillSource, Filled, TarTree};
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

/// What a new volume is filled with, found before the volume is made.
pub struct Filling {
    pub source: Arc<FillSource>,
    pub stop: Stop,
    /// What could not be taken of an archive.
    pub before: Report,
}

/// Looks at the source of a volume in `volume`, and refuses an unusable one, or a device that cannot be filled from it. An archive is read to its end, so that a
/// broken one costs no volume.
pub fn prepare(from: &Path, volume: &Path, is_reproducible: bool) -> Result<Filling, Failure> {
    if is_reproducible && steadfs::is_uri(volume) {
        let why = "a reproducible volume (SOURCE_DATE_EPOCH) is made in a file; nbdcopy(1) copies it to a server";
        return Err(Failure::plain(format!("{}: {why}", volume.display())));
    }
    let fail = |why: &dyn Display| Failure::plain(format!("{}: {why}", from.display()));
    let stop = Stop::on_signals()?;
    let mut before = Report::default();
    let is_stream = from == Path::new("-");
    let source = if !is_stream && from.metadata().map_err(|error| fail(&error))?.is_dir() {
        // A link on the command line is followed, links below it are not.
        FillSource::Directory(from.canonicalize().map_err(|error| fail(&error))?)
    } else {
        let file = match is_stream {
            true => io::stdin().as_fd().try_clone_to_owned().map(File::from),
            false => open_archive(from),
        };
        let file = file.map_err(|error| fail(&error))?;
        let id = |found: Metadata| (found.dev(), found.ino());
        let own = file.metadata().map_err(|error| fail(&error))?;
        if volume.metadata().is_ok_and(|image| id(image) == id(own)) {
            return Err(fail(&"is the file that the volume is made in"));
        }
        let mut line = Line::of_copy(stop.clone(), false);
        let read = TarTree::read(file, from, &mut line, &|| stop.is_asked());
        line.done();
        let (tree, report) = read.map_err(|error| match stop.is_asked() {
            true => stop.failure(""),
            false => fail(&error),
        })?;
        before = report;
        FillSource::Archive(tree)
    };
    Ok(Filling {
        source: Arc::new(source),
        stop,
        before,
    })
}

/// Opens an archive. A pipe is not waited for here, where a signal would not end the wait.
fn open_archive(path: &Path) -> io::Result<File> {
    if !path.metadata()?.file_type().is_fifo() {
        return File::open(path);
    }
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Fills the new volume, in the sandbox by another process.
pub fn fill(
    path: &Path,
    from: &Filling,
    how: &Fill,
    sandbox: Option<args::Sandbox>,
) -> Result<(), Failure> {
    let mut line = Line::of_copy(from.stop.clone(), false);
    line.ends_after(|| from.source.amount());
    let (line, filled) = filled(path, from, how, sandbox, line)?;
    if let Some(line) = line {
        line.done();
    }
    let mut report = filled?.report;
    report.add(from.before);
    match report.is_complete() {
        true => Ok(()),
        false => Err(Failure::plain(format!(
            "{}: the volume is made, but incomplete: {}",
            path.display(),
            counts(report)
        ))),
    }
}

/// Fills the new volume under the eyes of `progress`, which comes back unless the work broke.
pub fn filled<P: Progress + 'static>(
    path: &Path,
    from: &Filling,
    how: &Fill,
    sandbox: Option<args::Sandbox>,
    mut progress: P,
) -> Result<(Option<P>, Result<Filled, Failure>), Failure> {
    let failed = |error| match error {
        FillError::Copy(error) => failure(&error, &from.stop),
        error => Failure::plain(error),
    };
    if !sandbox::is_on(sandbox)? {
        let (progress, filled) = steadfs::fill(path, &from.source, how, progress);
        return Ok((progress, filled.map_err(failed)));
    }
    let task = how
        .origin
        .map_or(Task::Serve(Access::Write), Task::Reproduce);
    let list = format!("offset={}", how.offset);
    let filled = worker::with_volume(path, task, &list, |fs| {
        steadfs::fill_open(fs, path, &from.source, how, &mut progress).map_err(failed)
    });
    Ok((Some(progress), filled))
}
