//! The attributes of a file that a command compares with or copies.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;

use steadfs::tools::edit::Owners;
use steadfs::tools::find::FileTimes;
use steadfs::tools::{owner_cx, printable, resolve};
use steadfs_base::Timestamp;
use steadfs_vfs::{FileKind, FileSystem};

use crate::args::offline::Open;
use crate::failure::Failure;
use crate::place::{Place, parse};
use crate::volume::{Access, with_volume};

/// Permission bits of a mode.
const PERMISSIONS: u32 = 0o7777;

/// Attributes of a file on a volume or on the host.
pub struct Reference {
    pub times: FileTimes,
    pub perm: u32,
    pub owners: Owners,
    /// The size in bytes of a regular file.
    pub size: Option<u64>,
}

/// The attributes of a file on an open volume, or of what it leads to if `follow`.
///
/// # Errors
/// The path, and why there are none.
pub fn found_on(fs: &dyn FileSystem, path: &[u8], follow: bool) -> Result<Reference, String> {
    let found = resolve(fs, &owner_cx(), path, follow);
    let found = found.map_err(|error| format!("{}: {error}", printable(path)))?;
    let attr = found.attr();
    Ok(Reference {
        times: FileTimes {
            access: attr.atime,
            modification: attr.mtime,
            change: attr.ctime,
            birth: attr.btime,
        },
        perm: attr.perm,
        owners: Owners {
            uid: Some(attr.uid),
            gid: Some(attr.gid),
        },
        size: (attr.kind == FileKind::Regular).then_some(attr.size),
    })
}

/// The attributes of a file on a volume or on the host, or of what it leads to if `follow`.
pub fn found(reference: &OsStr, open: &Open, follow: bool) -> Result<Reference, Failure> {
    match parse(reference) {
        Place::Volume(place) => with_volume(&place.image, open, Access::Read, |fs| {
            found_on(fs, &place.path, follow).map_err(|error| {
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
            Ok(Reference {
                times: FileTimes {
                    access: time(found.atime(), found.atime_nsec()),
                    modification: time(found.mtime(), found.mtime_nsec()),
                    change: time(found.ctime(), found.ctime_nsec()),
                    birth: None,
                },
                perm: found.mode() & PERMISSIONS,
                owners: Owners {
                    uid: Some(found.uid()),
                    gid: Some(found.gid()),
                },
                size: found.is_file().then_some(found.len()),
            })
        }
        Place::Stream => Err(Failure::plain("standard input has no attributes to copy")),
    }
}
