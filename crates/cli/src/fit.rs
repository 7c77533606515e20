//! `steadfs format --fit`: an image as small as its content needs.
//!
//! **Rule.** The image is made beside its target under another name, which is replaced by the target's when the image is
//! complete. So whatever happens (a signal, a full host, a file that cannot be read), the target is the old file or none.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use steadfs::tools::{Progress, ToolError};
use steadfs::{
    FREE_PERCENT_MAX, Fill, FillSource, Filled, Fit, FitFree, FitKind, FitPass, FitPlan, ImageClaim,
};
use steadfs_vfs::FsError;

use crate::args;
use crate::beside::NewFile;
use crate::copy::counts;
use crate::failure::Failure;
use crate::fill::{self, Filling};
use crate::progress::Line;
use crate::size;

/// An image to be made.
pub struct Job<'a> {
    target: &'a Path,
    from: &'a Filling,
    kind: FitKind,
    free: FitFree,
    sandbox: Option<args::Sandbox>,
}

impl<'a> Job<'a> {
    pub fn new(
        target: &'a Path,
        from: &'a Filling,
        (kind, free): (FitKind, FitFree),
        sandbox: Option<args::Sandbox>,
    ) -> Self {
        Self {
            target,
            from,
            kind,
            free,
            sandbox,
        }
    }
}

/// What the options say that `--fit` cannot be combined with.
pub struct Beside<'a> {
    pub size: Option<&'a str>,
    pub from: Option<&'a Path>,
    /// Whether the volume is a part of its file.
    pub is_part: bool,
    pub dry_run: bool,
}

/// The free space that `--fit` asks for, if it is given. `unit`: bytes per unit of a bare number.
pub fn free(
    text: Option<&str>,
    target: &Path,
    beside: &Beside<'_>,
    unit: u64,
) -> Result<Option<FitFree>, Failure> {
    let Some(text) = text else {
        return Ok(None);
    };
    let fail = |why: &str| Err(Failure::plain(format!("--fit: {why}")));
    if beside.from.is_none() {
        return fail("is about the content of -d, which is not given");
    }
    if beside.size.is_some() {
        return fail("finds the size: give none");
    }
    if beside.dry_run {
        return fail("the size is known when the volume is filled: not with -n");
    }
    if beside.is_part || steadfs::is_uri(target) {
        return fail("makes an image file, not a volume in a part of a disk or on a server");
    }
    if let Ok(found) = target.metadata()
        && !found.is_file()
    {
        let kind = found.file_type();
        let is_device = kind.is_block_device() || kind.is_char_device();
        let what = if is_device { "device" } else { "regular file" };
        let shown = target.display();
        return Err(Failure::plain(match is_device {
            true => format!("--fit: makes an image file, and {shown} is a {what}"),
            false => format!("--fit: makes an image file, and {shown} is no {what}"),
        }));
    }
    if let Some(percent) = text.strip_suffix('%') {
        let percent = percent.parse().ok();
        let percent = percent.filter(|percent| (0.0..=FREE_PERCENT_MAX).contains(percent));
        return match percent {
            Some(percent) => Ok(Some(FitFree::Percent(percent))),
            None => fail(&format!(
                "{text} is not a percentage from 0 to {FREE_PERCENT_MAX}"
            )),
        };
    }
    match text {
        "" | "0" => Ok(Some(FitFree::Bytes(0))),
        text => Ok(Some(FitFree::Bytes(size::parse(text, unit)?))),
    }
}

/// Makes the image. `make` formats a file of the planned size, and returns its report and how it is filled.
pub fn run<R>(
    job: Job<'_>,
    make: impl Fn(&Path, &FitPlan) -> Result<(R, Fill), Failure>,
) -> Result<R, Failure> {
    let (target, old) = &target_of(&job)?;
    let fail = |why: &dyn std::fmt::Display| {
        Failure::plain(format!("{}: {why}; nothing was made", target.display()))
    };
    if !job.from.before.is_complete() {
        return Err(fail(&counts(job.from.before)));
    }
    let stopped = || job.from.stop.failure("stopped; nothing was made");
    let mut search = Fit::new(job.kind, job.free, &job.from.source).map_err(|why| fail(&why))?;
    let image = NewFile::of(target)?;
    loop {
        if job.from.stop.is_asked() {
            return Err(stopped());
        }
        image.empty()?;
        let (report, how) = make(&image.path, &search.plan())?;
        let how = Fill {
            measure: true,
            ..how
        };
        let mut line = Line::of_copy(job.from.stop.clone(), false);
        line.ends_after(|| job.from.source.amount());
        let watch = Watch { line, full: None };
        let (watch, filled) = fill::filled(&image.path, job.from, &how, job.sandbox, watch)?;
        let full = watch.and_then(|watch| {
            watch.line.done();
            watch.full
        });
        let filled = match filled {
            Err(_) if job.from.stop.is_asked() => return Err(stopped()),
            filled => filled?,
        };
        let pass = pass(&filled, full.is_some()).map_err(|why| fail(&why))?;
        let is_done = search.record(&pass).map_err(|why| match &full {
            Some(first) => fail(&format!("{first} ({why})")),
            None => fail(&why),
        })?;
        if is_done {
            image.replace(target, old.as_ref())?;
            return Ok(report);
        }
    }
}

/// The result of a copy that met a full volume or not.
fn pass(filled: &Filled, is_full: bool) -> Result<FitPass, String> {
    let Some(space) = filled.space.clone() else {
        return Err("its usage is not known".to_owned());
    };
    match (filled.report.is_complete(), is_full) {
        (true, _) => Ok(FitPass::Filled(space)),
        (false, true) => Ok(FitPass::Full(space)),
        (false, false) => Err(counts(filled.report)),
    }
}

/// The file to be made, which a link may lead to, and the claim of the one that it replaces; refused if it would be a part of
/// its own content, or is in use.
fn target_of(job: &Job<'_>) -> Result<(PathBuf, Option<ImageClaim>), Failure> {
    let fail =
        |why: &dyn std::fmt::Display| Failure::plain(format!("{}: {why}", job.target.display()));
    let target = match job.target.canonicalize() {
        Ok(target) => target,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::path::absolute(job.target).map_err(|error| fail(&error))?
        }
        Err(error) => return Err(fail(&error)),
    };
    let folder = target.parent().map(Path::canonicalize);
    let folder = folder.transpose().map_err(|error| fail(&error))?;
    if let (FillSource::Directory(top), Some(folder)) = (&*job.from.source, folder)
        && folder.starts_with(top)
    {
        let why = format!("would be in {}, which it is made of", top.display());
        return Err(fail(&why));
    }
    let old = match target.exists() {
        true => Some(ImageClaim::of(&target).map_err(Failure::plain)?),
        false => None,
    };
    Ok((target, old))
}

/// The progress of a copy to a volume that may be too small: that it is full is no problem yet.
struct Watch {
    line: Line,
    /// The first file that found it full.
    full: Option<String>,
}

impl Progress for Watch {
    fn file(&mut self, source: &[u8], target: &[u8]) {
        self.line.file(source, target);
    }

    fn bytes(&mut self, count: u64) {
        self.line.bytes(count);
    }

    fn problem(&mut self, error: &ToolError) {
        let is_full = match error {
            ToolError::Volume { source, .. } => *source == FsError::NoSpace,
            ToolError::NotKept { why, .. } => *why == FsError::NoSpace.to_string(),
            _ => false,
        };
        match is_full {
            true => drop(self.full.get_or_insert_with(|| error.to_string())),
            false => self.line.problem(error),
        }
    }

    fn stopped(&self) -> bool {
        self.line.stopped()
    }
}
