//! `cp` and `extract`: copies into volumes, out of them, and between them.

mod into;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use steadfs::Options;
use steadfs::tools::{
    self, CopyOptions, Existing, FirstCopiesOut, Follow, HostFile, Report, Selection, ToolError,
    amount_on_host, amount_on_volume, copy_out, copy_out_linked, owner_cx, printable,
};
use steadfs_base::InodeNo;
use steadfs_vfs::{FileKind, FileSystem, FsError};

use crate::args;
use crate::failure::Failure;
use crate::files;
use crate::partition;
use crate::place::{Group, OnVolume, Place, expand, grouped, on_volume, parse};
use crate::progress::Line;
use crate::stop::Stop;
use crate::volume::{Access, with_volume};
use crate::worker::{self, Content};

/// Permissions of a file that standard input is copied to, before the umask.
const NEW_FILE: u32 = 0o666;
/// Most data that is copied to the host, in sizes of the image. f2fs's default clusters compress up to four times.
pub const DATA_PER_SIZE: u64 = 16;

pub fn cp(args: &args::Cp) -> Result<(), Failure> {
    let (last, sources) = match (&args.target_directory, args.places.split_last()) {
        (Some(directory), _) => (directory, &args.places[..]),
        (None, Some((last, sources))) if !sources.is_empty() => (last, sources),
        _ => return Err(Failure::plain("cp needs a source and a target")),
    };
    let sources = expanded(sources, &args.open)?;
    let to = destination(last, &sources, &args.open)?;
    let is_to_host = matches!(to, Place::Host(_));
    if !is_to_host && (args.to_host.no_privileges || args.to_host.unlimited) {
        let why = "--no-privileges and --unlimited are for copies to files of the host";
        return Err(Failure::plain(why));
    }
    if args.interactive && sources.contains(&Place::Stream) {
        let why = "-i reads answers from standard input, which cannot be copied then";
        return Err(Failure::plain(why));
    }
    let mut job = Job::new(args, Stop::on_signals()?, "");
    let done = match &to {
        Place::Volume(to) => job.copy_into_volume(&sources, to),
        Place::Host(to) => job.out_of_volumes(&sources, to),
        Place::Stream => job.write_standard_output(&sources),
    };
    job.finish(done)
}

pub fn extract(args: &args::Extract) -> Result<(), Failure> {
    let selection = selection(&args.select)?;
    let stop = Stop::on_signals()?;
    let place = on_volume(&args.place);
    let options = CopyOptions {
        existing: match args.force {
            true => Existing::Replace,
            false => Existing::Refuse,
        },
        // A link in place of the directory would lead to the host's files.
        follow: Follow::Named,
        ..CopyOptions::default()
    };
    let to = match args.directory.is_dir() {
        true => args.directory.join("."),
        false => args.directory.clone(),
    };
    let mut line = Line::of_copy(stop.clone(), false);
    let done = with_volume(&place.image, &args.open, Access::Read, |fs| {
        let options = options_to_host(options, &place, args.to_host);
        let (cx, from) = (owner_cx(), &place.path);
        if args.select.is_all() {
            line.ends_after(|| amount_on_volume(fs, &cx, from, true));
        }
        copy_out(fs, &cx, from, &to, options, selection, &mut line)
            .map_err(|error| failure(&error, &stop))
    });
    line.done();
    end(done?)
}

/// The files that patterns select.
pub fn selection(args: &args::Select) -> Result<Selection, Failure> {
    let bytes = |words: &[OsString]| -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    };
    Selection::new(&bytes(&args.include), &bytes(&args.exclude)).map_err(Failure::plain)
}

/// The copy options of cp(1)'s options.
fn options(args: &args::Cp) -> CopyOptions {
    let recursive = args.recursive || args.archive;
    CopyOptions {
        recursive,
        follow: match () {
            () if args.dereference => Follow::Always,
            () if args.dereference_named => Follow::Named,
            () if args.no_dereference || args.links || recursive => Follow::Never,
            () => Follow::Named,
        },
        existing: match () {
            () if args.no_clobber => Existing::Skip,
            () if args.remove_destination => Existing::Replace,
            () if args.force => Existing::Force,
            () => Existing::Overwrite,
        },
        ask: args.interactive,
        preserve: args.archive || args.preserve,
        owners: true,
        ..CopyOptions::default()
    }
}

/// The options of a copy from the volume in an image to the host.
fn options_to_host(
    options: CopyOptions,
    place: &OnVolume,
    to_host: args::offline::ToHost,
) -> CopyOptions {
    let size = size_of(&place.image).filter(|_| !to_host.unlimited);
    CopyOptions {
        privileges: !to_host.no_privileges,
        data_max: size.map(|size| size.saturating_mul(DATA_PER_SIZE)),
        owners: rustix::process::geteuid().is_root(),
        image: file_of(&place.image),
        ..options
    }
}

/// The size of an image file or block device in bytes, if it is known.
pub fn size_of(image: &Path) -> Option<u64> {
    let file = partition::file_of(image);
    if steadfs::is_uri(file) {
        return steadfs::size_on_server(file);
    }
    File::open(file).ok()?.seek(SeekFrom::End(0)).ok()
}

pub fn file_of(image: &Path) -> Option<HostFile> {
    let found = partition::file_of(image).metadata().ok()?;
    Some((found.dev(), found.ino()))
}

/// The target of a copy. Files are not copied within the host, so an image without a path means the volume's root
/// there.
fn destination(
    last: &OsStr,
    sources: &[Place],
    open: &args::offline::Open,
) -> Result<Place, Failure> {
    let to = parse(last);
    let is_volume = |place: &Place| matches!(place, Place::Volume(_));
    if is_volume(&to) || sources.iter().all(is_volume) {
        return Ok(to);
    }
    if let Place::Host(path) = &to
        && !sources.iter().any(is_volume)
        && volume_in(path, open)?.is_some()
    {
        return Ok(Place::Volume(on_volume(last)));
    }
    let why = "neither side is on a volume: write IMAGE:/PATH for the side that is";
    Err(Failure::plain(why))
}

/// The kind of the volume in a file or block device, if there is one.
fn volume_in(path: &Path, open: &args::offline::Open) -> Result<Option<String>, Failure> {
    let file = partition::file_of(path);
    let kind = file.metadata().map(|found| found.file_type());
    if !kind.is_ok_and(|kind| kind.is_file() || kind.is_block_device()) {
        return Ok(None);
    }
    let (file, list) = partition::resolve(path, &open.options.join(","), open.sandbox)?;
    Options::parse_to_read(&list).map_err(Failure::plain)?;
    match worker::content(&file, &list, open.sandbox)? {
        Content::Volume(kind) => Ok(Some(kind)),
        Content::Failed(why) => Err(Failure::plain(why)),
        Content::Known(_) | Content::Unknown => Ok(None),
    }
}

/// An operand that is a file, in one spelling. The name is missing if the path ends in none, as in `DIR/.`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    /// The directory around the file, or the file if it has no name.
    Host(HostFile, Option<Vec<u8>>),
    Volume {
        /// The file of the image.
        file: PathBuf,
        /// The last name of the image, which has the partition's.
        image: Option<OsString>,
        /// The names of the path.
        path: Vec<Vec<u8>>,
        name: Option<Vec<u8>>,
    },
}

impl Source {
    /// `None` of standard input, and of what is not there.
    fn of(operand: &Place) -> Option<Self> {
        let name = name_of(operand).map(<[u8]>::to_vec);
        match operand {
            Place::Stream => None,
            Place::Host(path) => {
                let around: &Path = match (&name, path.parent()) {
                    (None, _) => path,
                    (Some(_), None) => return None,
                    (Some(_), Some(parent)) if parent.as_os_str().is_empty() => Path::new("."),
                    (Some(_), Some(parent)) => parent,
                };
                let around = around.metadata().ok()?;
                Some(Self::Host((around.dev(), around.ino()), name))
            }
            Place::Volume(OnVolume { image, path }) => {
                let file = partition::file_of(image);
                let names = path.split(|byte| *byte == b'/');
                let names = names.filter(|name| !matches!(*name, b"" | b"."));
                Some(Self::Volume {
                    file: file.canonicalize().unwrap_or_else(|_| file.to_owned()),
                    image: image.file_name().map(OsStr::to_owned),
                    path: names.map(<[u8]>::to_vec).collect(),
                    name,
                })
            }
        }
    }
}

/// One call of cp.
struct Job<'a> {
    args: &'a args::Cp,
    options: CopyOptions,
    stop: Stop,
    line: Line,
    /// Names created in the target directory: a second source of the same name must not destroy the first, or be
    /// written through a link that was just copied.
    made: BTreeSet<Vec<u8>>,
    /// Files created in it, if it ignores case.
    made_folded: BTreeSet<InodeNo>,
    /// Operands that were copied.
    sources: BTreeSet<Source>,
    total: Report,
    to_directory: bool,
}

/// Copies to the open volume `fs`, which is the image of `to`. Errors begin with `place`, and are reported as they occur.
pub fn into_open(
    args: &args::Cp,
    sources: &[Place],
    to: (&dyn FileSystem, &OnVolume),
    stop: &Stop,
    place: &str,
) -> Result<(), Failure> {
    let mut job = Job::new(args, stop.clone(), place);
    let done = job.all_into(sources, to);
    job.finish(done)
}

impl<'a> Job<'a> {
    fn new(args: &'a args::Cp, stop: Stop, place: &str) -> Self {
        Self {
            args,
            options: options(args),
            line: Line::of_copy(stop.clone(), args.verbose).at(place),
            stop,
            made: BTreeSet::new(),
            made_folded: BTreeSet::new(),
            sources: BTreeSet::new(),
            total: Report::default(),
            to_directory: args.target_directory.is_some(),
        }
    }
}

impl Job<'_> {
    /// The result of all, after the operands.
    fn finish(mut self, done: Result<(), Failure>) -> Result<(), Failure> {
        let unwritten = self.line.take_unwritten();
        self.line.done();
        done.and_then(|()| end(self.total))?;
        unwritten.map_or(Ok(()), Err)
    }

    /// Adds the counts of one source's copy. A failed source does not end the others.
    fn count(&mut self, done: Result<Report, Failure>) -> Result<(), Failure> {
        match done {
            Ok(report) => self.total.add(report),
            Err(failure) if failure.is_signal() || self.stop.is_asked() => return Err(failure),
            Err(failure) => {
                self.total.failed += 1;
                self.line.say(&failure.message);
            }
        }
        Ok(())
    }

    /// Whether the source is copied into the target, which `is_dir` says is a directory.
    fn goes_into(&self, is_dir: bool, sources: usize, shown: &str) -> Result<bool, Failure> {
        let into = is_dir && !self.args.no_target_directory;
        match into || (sources == 1 && !self.to_directory) {
            true => Ok(into),
            false => Err(Failure::plain(format!("{shown}: is no directory"))),
        }
    }

    /// Copies an operand by `copy`, unless it was copied before. As by cp(1) that is a warning.
    fn once(
        &mut self,
        operand: &Place,
        copy: impl FnOnce(&mut Self) -> Result<Report, Failure>,
    ) -> Result<Report, Failure> {
        let source = Source::of(operand);
        if source.as_ref().is_some_and(|it| self.sources.contains(it)) {
            let shown = match operand {
                Place::Volume(place) => {
                    format!("{}:{}", shown(&place.image), printable(&place.path))
                }
                Place::Host(path) => shown(path),
                Place::Stream => "-".to_owned(),
            };
            let why = "is specified more than once";
            self.line.say(&format!("warning: source {shown} {why}"));
            return Ok(Report::default());
        }
        let report = copy(self)?;
        self.sources.extend(source);
        Ok(report)
    }

    /// Refuses a name in the target directory that was taken before. It is to be taken when the copy is made.
    fn check_name(&self, target: &[u8], is_dir: bool) -> Result<(), Failure> {
        match is_dir || !self.made.contains(target) {
            true => Ok(()),
            false => Err(made_already(target)),
        }
    }

    fn out_of_volumes(&mut self, sources: &[Place], to: &Path) -> Result<(), Failure> {
        let into = self.goes_into(to.is_dir(), sources.len(), &shown(to))?;
        let on_volumes = sources.iter().filter_map(|source| match source {
            Place::Volume(place) => Some(place.clone()),
            _ => None, // `destination` refused it.
        });
        let is_only = sources.len() == 1;
        for Group { image, paths } in grouped(on_volumes.collect()) {
            let done = with_volume(&image, &self.args.open, Access::Read, |fs| {
                let mut firsts = FirstCopiesOut::default();
                for path in paths {
                    let image = image.clone();
                    let place = OnVolume { image, path };
                    let operand = Place::Volume(place.clone());
                    let done = self.once(&operand, |job| {
                        job.one_out(fs, &place, to, (into, is_only), &mut firsts)
                    });
                    self.count(done)?;
                }
                Ok(Report::default())
            });
            self.count(done)?;
        }
        Ok(())
    }

    /// Copies one file or tree of the open volume `fs`, which is the image of `place`.
    fn one_out(
        &mut self,
        fs: &dyn FileSystem,
        place: &OnVolume,
        to: &Path,
        (into, is_only): (bool, bool),
        firsts: &mut FirstCopiesOut,
    ) -> Result<Report, Failure> {
        let target = match last_name(&place.path) {
            Some(name) if into => to.join(OsStr::from_bytes(name)),
            None if into => to.join("."),
            _ => to.to_owned(),
        };
        self.spare_volume(&target)?;
        let is_dir = is_dir(fs, place, self.options.follow);
        self.check_name(target.as_os_str().as_bytes(), is_dir)?;
        let mut own = FirstCopiesOut::default();
        let firsts = match is_dir {
            true => &mut own,
            false => firsts,
        };
        let options = options_to_host(self.options, place, self.args.to_host);
        let (cx, from) = (owner_cx(), &place.path);
        if is_only {
            let follow = options.follow != Follow::Never;
            self.line
                .ends_after(|| amount_on_volume(fs, &cx, from, follow));
        }
        let (all, line) = (Selection::default(), &mut self.line);
        let done = copy_out_linked(fs, &cx, from, &target, (options, firsts), all, line);
        let report = done.map_err(|error| failure(&error, &self.stop))?;
        self.made.insert(target.into_os_string().into_vec());
        Ok(report)
    }

    /// A volume is not overwritten by a file that the user may have meant to copy into it.
    fn spare_volume(&self, target: &Path) -> Result<(), Failure> {
        if matches!(self.options.existing, Existing::Force | Existing::Skip) {
            return Ok(());
        }
        match volume_in(target, &self.args.open)? {
            None => Ok(()),
            Some(kind) => Err(Failure::plain(format!(
                "{0}: holds an {kind} volume; write {0}:/ to copy into the volume, or -f to overwrite it",
                shown(target)
            ))),
        }
    }

    fn write_standard_output(&mut self, sources: &[Place]) -> Result<(), Failure> {
        let [Place::Volume(place)] = sources else {
            return Err(Failure::plain("standard output takes one file"));
        };
        with_volume(&place.image, &self.args.open, Access::Read, |fs| {
            files::to_output(fs, place, Some(&self.stop))
        })
    }
}

fn made_already(target: &[u8]) -> Failure {
    let shown = printable(target);
    let why = "was made by this copy already: not overwritten by another file of its name";
    Failure::plain(format!("{shown}: {why}"))
}

/// About how many bytes sources on the host have.
fn amount_of(sources: &[Place]) -> Option<u64> {
    let amounts = sources.iter().map(|source| match source {
        Place::Host(path) => amount_on_host(path),
        Place::Volume(_) | Place::Stream => None,
    });
    amounts.sum()
}

fn is_dir(fs: &dyn FileSystem, place: &OnVolume, follow: Follow) -> bool {
    tools::resolve(fs, &owner_cx(), &place.path, follow != Follow::Never)
        .is_ok_and(|file| file.attr().kind == FileKind::Directory)
}

/// The sources of a copy.
fn expanded(sources: &[OsString], open: &args::offline::Open) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for source in sources {
        match parse(source) {
            Place::Volume(place) => {
                places.extend(expand(place, open)?.into_iter().map(Place::Volume))
            }
            place => places.push(place),
        }
    }
    Ok(places)
}

/// The permission bits that this process's umask removes from new files.
pub fn umask() -> u32 {
    // It can be read only by setting it.
    let mask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(mask);
    mask.as_raw_mode()
}

/// The result of a copy. Its errors were reported as they occurred; if there are several, their number is reported.
pub fn end(report: Report) -> Result<(), Failure> {
    match report {
        report if report.is_complete() => Ok(()),
        report if report.failed + report.not_kept == 1 => Err(Failure::plain("")),
        report => Err(Failure::plain(counts(report))),
    }
}

/// The numbers of files that could not be copied.
pub fn counts(report: Report) -> String {
    let Report {
        failed, not_kept, ..
    } = report;
    let files = format!("{failed} files or directories could not be copied");
    let attributes = format!("{not_kept} attributes were not kept");
    match (failed, not_kept) {
        (_, 0) => files,
        (0, _) => attributes,
        _ => format!("{files}, {attributes}"),
    }
}

/// An error of a copy, with a hint.
pub fn failure(error: &ToolError, stop: &Stop) -> Failure {
    match error {
        ToolError::Stopped => stop.failure(error),
        error => Failure::plain(words(error)),
    }
}

/// An error of a copy, with a hint.
pub fn words(error: &ToolError) -> String {
    let exists = match error {
        ToolError::Volume { source, .. } => *source == FsError::Exists,
        ToolError::Host { source, .. } => source.kind() == ErrorKind::AlreadyExists,
        _ => false,
    };
    match exists {
        true => format!("{error}; -f replaces files that are there"),
        false => error.to_string(),
    }
}

fn shown(path: &Path) -> String {
    printable(path.as_os_str().as_bytes())
}

/// The name of a copy in a directory; `None` for a source that is a directory's content (`x/.`) or a root.
fn name_of(place: &Place) -> Option<&[u8]> {
    let path = match place {
        Place::Host(path) => path.as_os_str().as_bytes(),
        Place::Volume(place) => &place.path,
        Place::Stream => return None,
    };
    last_name(path)
}

fn last_name(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|&b| b != b'/')?;
    let name = path[..=end].rsplit(|&b| b == b'/').next()?;
    (name != b"." && name != b"..").then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_into_folders_keep_their_name() {
        let name = |path: &str| {
            let name = name_of(&Place::Host(path.into()))?.to_vec();
            Some(String::from_utf8(name).unwrap())
        };
        assert_eq!(name("/a/b//").as_deref(), Some("b"));
        assert_eq!(name("b").as_deref(), Some("b"));
        for none in ["/", ".", "..", "a/.", "a/./", "a/.."] {
            assert_eq!(name(none), None, "{none}");
        }
    }
}
