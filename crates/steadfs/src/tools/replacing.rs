//! Files that are made in the place of others.
//!
//! **Rule.** As in coreutils, what replaces a file is made under a name that is not in use, in the same directory, and moved
//! over the old one. So a failure (a full volume, a file with the most links that the format allows, a text that is too long)
//! leaves the old file.

use steadfs_base::InodeNo;
use steadfs_vfs::{Attr, Cx, FileSystem, FsError, RenameFlags, Result};

/// Names that are tried. All that are in use are left behind by killed commands.
pub(super) const TRIES_MAX: u32 = 1000;

/// An unused name is found by trying these in order.
pub(super) fn temporary_name(number: u32) -> Vec<u8> {
    format!(".steadfs-{}-{number}", std::process::id()).into_bytes()
}

/// Makes a file by `make` under a name that is not in use, and gives it the name of another one, which exists, in the directory
/// `dir`. The lookup that `make` has counted stays counted.
pub(super) fn make_over(
    fs: &dyn FileSystem,
    cx: &Cx,
    (dir, name): (InodeNo, &[u8]),
    make: impl Fn(&[u8]) -> Result<Attr>,
) -> Result<Attr> {
    let mut number = 0;
    let (made, other) = loop {
        let other = temporary_name(number);
        number += 1;
        match make(&other) {
            Err(FsError::Exists) if number < TRIES_MAX => {}
            made => break (made?, other),
        }
    };
    let moved = fs.rename(cx, (dir, &other), (dir, name), RenameFlags::default());
    if let Err(error) = moved {
        // That it could not be moved is the error to report.
        let _ = fs.unlink(cx, dir, &other);
        fs.forget(made.ino, 1);
        return Err(error);
    }
    Ok(made)
}
