//! `steadfs verity`: making verity files, and their digests.

use std::ffi::OsStr;
use std::path::Path;

use steadfs::tools::{owner_cx, resolve};
use steadfs::{FileSystem, MountHandle};
use steadfs_base::InodeNo;

use crate::args::Verity;
use crate::args::offline::Open;
use crate::args::verity::{Enable, VerityAction};
use crate::failure::{Failure, code};
use crate::output::print;
use crate::place::{Place, parse};
use crate::umount::at;
use crate::volume::{Access, with_volume};

const EEXIST: i32 = 17;
/// Of a file without a hash tree.
const ENODATA: i32 = 61;

pub fn run(args: &Verity) -> Result<(), Failure> {
    match &args.action {
        VerityAction::Enable(args) => enable(args),
        VerityAction::Measure { places, open } => {
            places.iter().try_for_each(|place| measure(place, open))
        }
    }
}

fn enable(args: &Enable) -> Result<(), Failure> {
    let Place::Volume(place) = parse(&args.place) else {
        let volume = rustix::fs::statvfs(&args.place).map_err(|error| {
            let path = Path::new(&args.place);
            at(path, &error.into())
        })?;
        let options = args.options(volume.f_frsize);
        return on_mount(&args.place, &options.to_line()).map(drop);
    };
    with_volume(&place.image, &args.open, Access::Write, |fs| {
        let volume = fs.statfs(&owner_cx()).map_err(Failure::plain)?;
        let options = args.options(volume.block_size.into());
        with_file(fs, &args.place, &place.path, |ino| {
            fs.enable_verity(&owner_cx(), ino, &options)
        })
    })
}

fn measure(place: &OsStr, open: &Open) -> Result<(), Failure> {
    let digest = match parse(place) {
        Place::Volume(on_volume) => with_volume(&on_volume.image, open, Access::Read, |fs| {
            let measured = with_file(fs, place, &on_volume.path, |ino| {
                fs.verity_digest(&owner_cx(), ino)
            })?;
            Ok(measured.to_string())
        })?,
        Place::Host(_) | Place::Stream => on_mount(place, "")?,
    };
    print(|out| writeln!(out, "{digest} {}", place.display()))
}

/// What the server of a mounted file answers.
fn on_mount(file: &OsStr, line: &str) -> Result<String, Failure> {
    let answered = MountHandle::verity(Path::new(file), line);
    answered.map_err(|error| Failure::new(code::MOUNT, error.to_string()))
}

fn with_file<T>(
    fs: &dyn FileSystem,
    place: &OsStr,
    path: &[u8],
    work: impl FnOnce(InodeNo) -> steadfs_vfs::Result<T>,
) -> Result<T, Failure> {
    let shown =
        |error: &dyn std::fmt::Display| Failure::plain(format!("{}: {error}", place.display()));
    let file = resolve(fs, &owner_cx(), path, true).map_err(|error| shown(&error))?;
    work(file.ino()).map_err(|error| match error.errno() {
        EEXIST => shown(&"is a verity file already"),
        ENODATA => shown(&"is not a verity file"),
        _ => shown(&error),
    })
}
