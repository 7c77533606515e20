//! `cp` and `extract`: copies into volumes, out of them, and between them.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use steadfs::tools::{
    self, CopyIn, CopyOut, Report, ToolError, copy_between, copy_in, copy_out, owner_cx, printable,
};
use steadfs_vfs::{FileKind, FileSystem, FsError};

use crate::args;
use crate::failure::Failure;
use crate::place::{OnVolume, Place, on_volume, parse};
use crate::progress::Line;
use crate::stop::Stop;
use crate::volume::with_volume;

pub fn cp(args: &args::Cp) -> Result<(), Failure> {
    let Some((last, sources)) = args.places.split_last() else {
        return Err(Failure::plain("nothing to copy"));
    };
    let sources: Vec<Place> = sources.iter().map(|s| parse(s)).collect();
    let stop = Stop::on_signals()?;
    match parse(last) {
        Place::Volume(to) => into_volume(args, &sources, &to, &stop),
        Place::Host(to) => out_of_volumes(args, &sources, &to, &stop),
    }
}

pub fn extract(args: &args::Extract) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let place = on_volume(&args.place);
    out(
        &place,
        &args.directory,
        (true, args.force),
        &args.open,
        &stop,
    )
}

fn into_volume(
    args: &args::Cp,
    sources: &[Place],
    to: &OnVolume,
    stop: &Stop,
) -> Result<(), Failure> {
    with_volume(&to.image, &args.open, true, |fs| {
        let into = tools::resolve(fs, &owner_cx(), &to.path, true)
            .is_ok_and(|file| file.attr().kind == FileKind::Directory);
        if sources.len() > 1 && !into {
            let shown = printable(&to.path);
            return Err(Failure::plain(format!(
                "{shown}: is no directory on the volume"
            )));
        }
        copy_all(stop, |line| {
            let mut total = Report::default();
            for source in sources {
                let mut target = to.path.clone();
                if let Some(name) = name_of(source).filter(|_| into) {
                    if !target.ends_with(b"/") {
                        target.push(b'/');
                    }
                    target.extend(name);
                }
                let done = one_into(args, source, (fs, to), &target, line, stop)?;
                total.warnings.extend(done.warnings);
            }
            fs.sync_all(&owner_cx()).map_err(Failure::plain)?;
            Ok(total)
        })
    })
}

/// Copies one file or tree to `target` on the volume `fs`, which is the image of `to`.
fn one_into(
    args: &args::Cp,
    source: &Place,
    (fs, to): (&dyn FileSystem, &OnVolume),
    target: &[u8],
    line: &mut Line,
    stop: &Stop,
) -> Result<Report, Failure> {
    let how = CopyIn {
        owners: true,
        overwrite: args.force,
        latest: None,
    };
    let place = match source {
        Place::Host(path) => {
            let is_dir = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
            refuse_dir(args, is_dir, || path.display().to_string())?;
            return copy_in(fs, &owner_cx(), path, target, how, line)
                .map_err(|error| failure(&error, stop));
        }
        Place::Volume(place) => place,
    };
    let mut copy = |from: &dyn FileSystem| {
        let (cx, path) = (owner_cx(), &place.path);
        let is_dir = tools::resolve(from, &cx, path, false)
            .is_ok_and(|file| file.attr().kind == FileKind::Directory);
        refuse_dir(args, is_dir, || show(place))?;
        copy_between((from, path), (fs, target), &cx, how, line)
            .map_err(|error| failure(&error, stop))
    };
    if same_image(&place.image, &to.image) {
        return copy(fs);
    }
    with_volume(&place.image, &args.open, false, copy)
}

/// Whether two paths lead to one image, which can be open only once.
fn same_image(a: &Path, b: &Path) -> bool {
    match (a.metadata(), b.metadata()) {
        (Ok(a), Ok(b)) if a.rdev() != 0 => a.rdev() == b.rdev(),
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

fn refuse_dir(args: &args::Cp, is_dir: bool, show: impl Fn() -> String) -> Result<(), Failure> {
    if is_dir && !args.recursive && !args.archive {
        let why = "is a directory; -r copies it with all that is in it";
        return Err(Failure::plain(format!("{}: {why}", show())));
    }
    Ok(())
}

fn out_of_volumes(
    args: &args::Cp,
    sources: &[Place],
    to: &Path,
    stop: &Stop,
) -> Result<(), Failure> {
    let into = to.is_dir();
    if sources.len() > 1 && !into {
        return Err(Failure::plain(format!("{}: is no directory", to.display())));
    }
    for source in sources {
        let Place::Volume(place) = source else {
            return Err(Failure::plain(
                "neither side is on a volume: write IMAGE:/PATH for the side that is",
            ));
        };
        let target = match name_of(source).filter(|_| into) {
            Some(name) => to.join(OsStr::from_bytes(name)),
            None => to.to_owned(),
        };
        let how = (args.recursive || args.archive, args.force);
        out(place, &target, how, &args.open, stop)?;
    }
    Ok(())
}

fn out(
    place: &OnVolume,
    to: &Path,
    (recursive, force): (bool, bool),
    open: &args::Open,
    stop: &Stop,
) -> Result<(), Failure> {
    let how = CopyOut {
        owners: rustix::process::geteuid().is_root(),
        overwrite: force,
        follow: false,
        image: place
            .image
            .metadata()
            .ok()
            .map(|image| (image.dev(), image.ino())),
    };
    with_volume(&place.image, open, false, |fs| {
        let found = tools::resolve(fs, &owner_cx(), &place.path, false);
        if !recursive && found.is_ok_and(|file| file.attr().kind == FileKind::Directory) {
            let why = "is a directory; -r copies it with all that is in it";
            return Err(Failure::plain(format!("{}: {why}", show(place))));
        }
        copy_all(stop, |line| {
            copy_out(fs, &owner_cx(), &place.path, to, how, line)
                .map_err(|error| failure(&error, stop))
        })
    })
}

/// Copies under a progress line, then says what could not be kept; that is a failure, too.
fn copy_all(
    stop: &Stop,
    work: impl FnOnce(&mut Line) -> Result<Report, Failure>,
) -> Result<(), Failure> {
    let mut line = Line::of_copy(stop.clone());
    let done = work(&mut line);
    line.done();
    let report = done?;
    for warning in &report.warnings {
        eprintln!("steadfs: {warning}");
    }
    match report.warnings.len() {
        0 => Ok(()),
        n => Err(Failure::plain(format!(
            "copied, but {n} things were not kept"
        ))),
    }
}

/// An error of a copy, with the way out.
fn failure(error: &ToolError, stop: &Stop) -> Failure {
    match error {
        ToolError::Stopped => stop.failure(error),
        ToolError::Volume {
            source: FsError::Exists,
            ..
        } => Failure::plain(format!("{error}; -f replaces files that are there")),
        ToolError::Host { source, .. } if source.kind() == ErrorKind::AlreadyExists => {
            Failure::plain(format!("{error}; -f replaces files that are there"))
        }
        error => Failure::plain(error),
    }
}

fn show(place: &OnVolume) -> String {
    format!("{}:{}", place.image.display(), printable(&place.path))
}

/// The name that a copy into a folder gets; none for a source that is a folder's content (`x/.`) or
/// a root.
fn name_of(place: &Place) -> Option<&[u8]> {
    let path = match place {
        Place::Host(path) => path.as_os_str().as_bytes(),
        Place::Volume(place) => &place.path,
    };
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
