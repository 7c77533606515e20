//! Making a file with all that it has by one call.
//!
//! **Problem.** A copy into a volume makes four to six calls for each file, and where the volume is open in another
//! process each of them is a round trip. **Rule.** [`FileSystem::make`] is all of them. A transport may answer it before
//! it is done, so that many are on their way at once.

use std::borrow::Cow;

use steadfs_base::InodeNo;

use crate::{Attr, Cx, FileKind, FileSystem, FsError, Result, SetAttr, SetXattr};

/// A file to make that is not a directory.
#[derive(Clone, Copy, Debug)]
pub struct NewFile<'a> {
    /// Its type.
    pub kind: FileKind,
    /// For devices: their numbers, in the volume's encoding.
    pub rdev: u32,
    /// For symbolic links: the target.
    pub target: &'a [u8],
    /// The runs of data of a regular file by their offsets, ascending.
    pub runs: &'a [(u64, Cow<'a, [u8]>)],
    /// The size of a regular file, at least to the end of the last run.
    pub size: u64,
    /// What it gets afterwards.
    pub given: &'a Given,
}

/// The attributes that a copy gets, in this order: each changes those after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Owner and permissions.
    pub owner: SetAttr,
    /// Extended attributes.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Times.
    pub times: Option<SetAttr>,
}

/// An attribute that could not be set, and why.
pub type NotGiven = (GivenPart, FsError);

/// A part of [`Given`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenPart {
    /// Owner and permissions.
    Owner,
    /// The extended attribute at this place of the list.
    Xattr(u32),
    /// Times.
    Times,
}

/// Makes a file by single calls, and forgets it. It inherits no access list: what it is to have is in [`Given`]. One whose content cannot be written is removed again. Returns the
/// attributes that it did not get.
///
/// # Errors
/// Those of `mknod`, `symlink` and `write`, among them [`FsError::Exists`].
pub fn make_file<F: FileSystem + ?Sized>(
    fs: &F,
    cx: &Cx,
    dir: InodeNo,
    name: &[u8],
    new: &NewFile<'_>,
) -> Result<Vec<NotGiven>> {
    let owner = &new.given.owner;
    let cx = &Cx {
        new_owner: owner.uid.zip(owner.gid),
        umask: 0,
        no_default_acl: true,
        ..cx.clone()
    };
    let attr = match new.kind {
        FileKind::Symlink => fs.symlink(cx, dir, name, new.target),
        kind => {
            let mode = kind.mode_bits() | owner.perm.unwrap_or(0o600);
            fs.mknod(cx, dir, name, mode, new.rdev)
        }
    }?;
    let written = write_content(fs, cx, attr.ino, new);
    let done = match written {
        Ok(()) => Ok(give_to(
            fs,
            cx,
            attr.ino,
            new.given,
            has_owner(&attr, owner),
        )),
        Err(error) => {
            // The error of the content is the one to report.
            let _ = fs.unlink(cx, dir, name);
            Err(error)
        }
    };
    fs.forget(attr.ino, 1);
    done
}

/// Whether a new file has the owner and permissions already; a directory can give it others.
fn has_owner(attr: &Attr, wanted: &SetAttr) -> bool {
    let has = |wanted: Option<u32>, is| wanted.is_none_or(|wanted| wanted == is);
    has(wanted.uid, attr.uid) && has(wanted.gid, attr.gid) && has(wanted.perm, attr.perm)
}

fn write_content<F: FileSystem + ?Sized>(
    fs: &F,
    cx: &Cx,
    ino: InodeNo,
    new: &NewFile<'_>,
) -> Result<()> {
    if new.kind != FileKind::Regular {
        return Ok(());
    }
    let mut end = 0;
    for (start, bytes) in new.runs {
        write_all(fs, cx, ino, *start, bytes)?;
        end = start.saturating_add(bytes.len() as u64);
    }
    if end < new.size {
        let set = SetAttr {
            size: Some(new.size),
            ..SetAttr::default()
        };
        fs.setattr(cx, ino, &set)?;
    }
    Ok(())
}

/// Writes all of `bytes`. A short write (a full volume, the largest file size) is continued, and the next call fails.
///
/// # Errors
/// Those of `write`.
pub fn write_all<F: FileSystem + ?Sized>(
    fs: &F,
    cx: &Cx,
    ino: InodeNo,
    at: u64,
    bytes: &[u8],
) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let offset = at.saturating_add(done as u64);
        done += match fs.write(cx, ino, offset, &bytes[done..], false)? {
            0 => return Err(FsError::NoSpace),
            written => written,
        };
    }
    Ok(())
}

/// Sets attributes by single calls. Returns those that could not be set.
pub fn give_attributes<F: FileSystem + ?Sized>(
    fs: &F,
    cx: &Cx,
    ino: InodeNo,
    given: &Given,
) -> Vec<NotGiven> {
    give_to(fs, cx, ino, given, false)
}

fn give_to<F: FileSystem + ?Sized>(
    fs: &F,
    cx: &Cx,
    ino: InodeNo,
    given: &Given,
    has_owner: bool,
) -> Vec<NotGiven> {
    let mut missing = Vec::new();
    let mut check = |part, done: Result<()>| missing.extend(done.err().map(|error| (part, error)));
    if !has_owner {
        let set = fs.setattr(cx, ino, &given.owner);
        check(GivenPart::Owner, set.map(drop));
    }
    for (place, (name, value)) in (0..).zip(&given.xattrs) {
        let set = fs.setxattr(cx, ino, name, value, SetXattr::Any);
        check(GivenPart::Xattr(place), set);
    }
    if let Some(times) = &given.times {
        check(GivenPart::Times, fs.setattr(cx, ino, times).map(drop));
    }
    missing
}
