//! `IMAGE@PARTITION` arguments, and `-o partition=`.
//!
//! **Problem.** The partition table of a disk is trusted as little as a volume, but all ways to open a volume need the
//! place of the partition.
//!
//! **Rule.** A process without rights reads the table first, and answers with two numbers; they are `offset=` and
//! `sizelimit=` in the list of options from then on. A partition that is no window of the file (in an Android sparse or
//! super image) stays `partition=`: the process that opens the volume finds it again after it has given up its rights. A
//! file whose name has an `@` is that file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use steadfs::image::Window;

use crate::args;
use crate::failure::Failure;
use crate::place::uri_path;
use crate::worker;

/// A disk and the name of a partition of it: `IMAGE@PARTITION`, if there is no file of that name. A partition that is a disk
/// itself has partitions, too: `IMAGE@PARTITION@PARTITION`.
pub fn split(image: &Path) -> Option<(&Path, &str)> {
    let bytes = image.as_os_str().as_bytes();
    let is_uri = steadfs::is_uri(image);
    if !is_uri && image.symlink_metadata().is_ok() {
        return None;
    }
    let places = (0..bytes.len()).rev().filter(|at| bytes[*at] == b'@');
    let parts = places.map(|at| (Path::new(OsStr::from_bytes(&bytes[..at])), at));
    let (disk, at) = match is_uri {
        // The first one in its path: other ones of names are written as %40.
        true => parts.take_while(|(_, at)| *at >= uri_path(bytes)).last()?,
        false => {
            let is_disk = |disk: &Path| disk.metadata().is_ok_and(|found| !found.is_dir());
            parts.into_iter().find(|(disk, _)| is_disk(disk))?
        }
    };
    let which = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    (!which.is_empty()).then_some((disk, which))
}

/// The file that an image is in.
pub fn file_of(image: &Path) -> &Path {
    split(image).map_or(image, |(disk, _)| disk)
}

/// Where a volume is in the file of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is all of it.
    Whole,
    /// A part of it.
    Window(Window),
    /// A partition in a layer, by its name.
    Layer(String),
}

impl Place {
    /// The part of the file that is to be written anew.
    pub fn to_format(&self) -> Result<Option<Window>, Failure> {
        match self {
            Self::Whole => Ok(None),
            Self::Window(window) => Ok(Some(*window)),
            Self::Layer(which) => Err(Failure::plain(format!(
                "partition {which}: a partition of an Android sparse or super image cannot be formatted"
            ))),
        }
    }
}

fn place(disk: &Path, which: &str, sandbox: Option<args::Sandbox>) -> Result<Place, Failure> {
    Ok(match worker::partition(disk, which, sandbox)? {
        Some(window) => Place::Window(window),
        None if which.contains(',') => {
            return Err(Failure::plain(format!(
                "partition {which}: give its number, because a comma ends an option"
            )));
        }
        None => Place::Layer(which.to_owned()),
    })
}

/// The file of an image, and the place of the partition that `image` names.
pub fn window(image: &Path, sandbox: Option<args::Sandbox>) -> Result<(PathBuf, Place), Failure> {
    match split(image) {
        None => Ok((image.to_owned(), Place::Whole)),
        Some((disk, which)) => Ok((disk.to_owned(), place(disk, which, sandbox)?)),
    }
}

/// The file of an image, and the list of options with the place of the partition that `image` or the list names.
pub fn resolve(
    image: &Path,
    list: &str,
    sandbox: Option<args::Sandbox>,
) -> Result<(PathBuf, String), Failure> {
    let (mut named, mut has_place, mut rest) = (None, false, Vec::new());
    for item in list.split(',') {
        match item.trim().split_once('=') {
            Some(("partition", which)) if named.is_none() => named = Some(which),
            Some(("partition", _)) => return Err(twice("another partition is named, too")),
            place => {
                has_place |= place.is_some_and(|(name, value)| {
                    ["offset", "sizelimit"].contains(&name) && value.trim() != "0"
                });
                rest.push(with_absolute_path(item)?);
            }
        }
    }
    let in_image = split(image).is_some();
    if in_image && named.is_some() {
        return Err(twice("another partition is named, too"));
    }
    if has_place && (in_image || named.is_some()) {
        return Err(twice("offset= and sizelimit= contradict a partition"));
    }
    let (disk, found) = match named {
        Some(which) => (image.to_owned(), place(image, which, sandbox)?),
        None => window(image, sandbox)?,
    };
    let place = match found {
        Place::Whole => return Ok((disk, rest.join(","))),
        Place::Window(Window { start, bytes }) => format!("offset={start},sizelimit={bytes}"),
        Place::Layer(which) => format!("partition={which}"),
    };
    rest.retain(|item| !item.trim().is_empty());
    rest.push(place);
    Ok((disk, rest.join(",")))
}

/// The item, with the path of `overlay=`, `journal_path=` or `device=` made absolute: the server of a mount has another working
/// directory.
fn with_absolute_path(item: &str) -> Result<String, Failure> {
    match item.trim().split_once('=') {
        Some((name @ ("overlay" | "journal_path" | "device"), file))
            if !file.is_empty() && (name, file) != ("overlay", "memory") =>
        {
            let path = std::path::absolute(file).map_err(Failure::plain)?;
            Ok(format!("{name}={}", path.display()))
        }
        _ => Ok(item.to_owned()),
    }
}

fn twice(why: &str) -> Failure {
    Failure::plain(format!("option partition: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_that_name_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, exact) = (dir.path().join("disk.img"), dir.path().join("disk.img@2"));
        std::fs::write(&disk, b"").unwrap();
        assert_eq!(split(&exact), Some((&*disk, "2")));
        assert_eq!(file_of(&exact), disk);
        let named = dir.path().join("disk.img@a b");
        assert_eq!(split(&named), Some((&*disk, "a b")));
        let inner = dir.path().join("disk.img@super@a");
        assert_eq!(split(&inner), Some((&*disk, "super@a")));
        for none in ["disk.img", "disk.img@", "no.img@2", "@2"] {
            assert_eq!(split(&dir.path().join(none)), None, "{none}");
        }
        // A directory is no disk.
        assert_eq!(
            split(Path::new(&format!("{}@2", dir.path().display()))),
            None
        );
        let uri = Path::new("nbd://h/disk@a");
        assert_eq!(split(uri), Some((Path::new("nbd://h/disk"), "a")));
        assert_eq!(split(Path::new("nbd://u@h/disk")), None);
        let inner = Path::new("nbd://u@h/disk@super@a");
        assert_eq!(split(inner), Some((Path::new("nbd://u@h/disk"), "super@a")));
        std::fs::write(&exact, b"").unwrap();
        assert_eq!(split(&exact), None);
        assert_eq!(file_of(&exact), exact);
    }

    #[test]
    fn lists_without_a_partition_stay() {
        let image = Path::new("no.img");
        for list in ["", "ro", "ro,offset=1M, noload", ",ro,"] {
            let found = resolve(image, list, None).unwrap();
            assert_eq!(found, (image.to_owned(), list.to_owned()));
        }
    }

    #[test]
    fn places_that_contradict_are_refused() {
        for (list, why) in [
            ("partition=1,offset=1M", "contradict"),
            ("sizelimit=1M,ro,partition=1", "contradict"),
            ("partition=1,partition=2", "another"),
        ] {
            let error = resolve(Path::new("no.img"), list, None).unwrap_err();
            assert!(error.message.contains(why), "{list}: {}", error.message);
        }
    }
}
