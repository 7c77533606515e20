//! The times of a file that a command compares with or copies.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;

use steadfs::tools::find::FileTimes;
use steadfs::tools::{owner_cx, printable, resolve};
use steadfs_base::Timestamp;
use steadfs_vfs::FileSystem;

use crate::args::offline::Open;
use crate::failure::Failure;
use crate::place::{Place, parse};
use crate::volume::{Access, with_volume};

/// The times of a file on an open volume, or of what it leads to if `follow`.
///
/// # Errors
/// The path, and why there are none.
pub fn times_on(fs: &dyn FileSystem, path: &[u8], follow: bool) -> Result<FileTimes, String> {
    let found = resolve(fs, &owner_cx(), path, follow);
    let found = found.map_err(|error| format!("{}: {error}", printable(path)))?;
    let attr = found.attr();
    Ok(FileTimes {
        access: attr.atime,
        modification: attr.mtime,
        change: attr.ctime,
        birth: attr.btime,
    })
}

/// The times of a file on a volume or on the host, or of what it leads to if `follow`.
pub fn times_of(reference: &OsStr, open: &Open, follow: bool) -> Result<FileTimes, Failure> {
    match parse(reference) {
        Place::Volume(place) => with_volume(&place.image, open, Access::Read, |fs| {
            times_on(fs, &place.path, follow).map_err(|error| {
                let image = place.image.display();
                Failure::plain(format!("{image}:{error}"))
            })
        }),
        Place::Host(path) => {
            let found = match follow {
                false => path.symlink_metadata(),
                true => path.metadata(),
            };
            let fail = |error| Failure::plain(format!("{}: {error}", path.display()));
            let found = found.map_err(fail)?;
            let time = |secs, nanos: i64| Timestamp {
                secs,
                nanos: u32::try_from(nanos).unwrap_or_default(),
            };
            Ok(FileTimes {
                access: time(found.atime(), found.atime_nsec()),
                modification: time(found.mtime(), found.mtime_nsec()),
                change: time(found.ctime(), found.ctime_nsec()),
                birth: None,
            })
        }
        Place::Stream => Err(Failure::plain("standard input has no times")),
    }
}
