//! A file that is made beside its target under another name, and gets the target's name when it is complete. So whatever
//! happens before, the target is the old file or none.

use std::ffi::{CStr, CString, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use steadfs::ImageClaim;

use crate::failure::Failure;
use crate::stderr::say;

/// Linux's limit for the names of a file's attributes, and for the value of each, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// A file that has not its name yet. It is removed when dropped.
pub struct NewFile {
    pub path: PathBuf,
    is_kept: bool,
}

impl NewFile {
    /// An empty file in the target's directory.
    pub fn of(target: &Path) -> Result<Self, Failure> {
        let mut number = 0;
        loop {
            let mut name = OsString::from(".");
            name.push(target.file_name().unwrap_or_default());
            name.push(format!(".{}-{number}", std::process::id()));
            let path = target.with_file_name(name);
            // It gets the rights of the old file at the end, and no other user may read it before.
            let mode = match target.symlink_metadata() {
                Ok(_) => 0o600,
                Err(_) => 0o666,
            };
            let mut options = OpenOptions::new();
            let open = options.write(true).create_new(true).mode(mode).open(&path);
            match open {
                Ok(_) => {
                    return Ok(Self {
                        path,
                        is_kept: false,
                    });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
                Err(error) => return Err(wrong(&path, &error)),
            }
        }
    }

    /// Removes what it holds, and frees the space of it.
    pub fn empty(&self) -> Result<(), Failure> {
        let emptied = File::create(&self.path);
        emptied.map(drop).map_err(|error| wrong(&self.path, &error))
    }

    /// Makes the file durable, and gives it the target's name and, if there was one, the owner, permissions and extended
    /// attributes of the file that had it, which was claimed before it was read or examined. Refused if the name has another
    /// file by now.
    pub fn replace(mut self, target: &Path, old: Option<&ImageClaim>) -> Result<(), Failure> {
        let fail = |error| wrong(target, &error);
        let old = old.map(ImageClaim::file).transpose().map_err(fail)?;
        let had = old.as_ref().map(File::metadata).transpose();
        let had = had.map_err(fail)?;
        let id = |found: &Metadata| (found.dev(), found.ino());
        let is_there = match target.metadata() {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        if is_there.as_ref().map(id) != had.as_ref().map(id) {
            let why = "another program has replaced it meanwhile; it stays as it is";
            return Err(fail(io::Error::other(why)));
        }
        let new = File::open(&self.path).map_err(fail)?;
        if let (Some(old), Some(had)) = (&old, &had) {
            attributes(old, had, &new).map_err(fail)?;
        }
        new.sync_all().map_err(fail)?;
        // It need not be readable.
        let folder = File::open(target.parent().unwrap_or(Path::new("/")));
        std::fs::rename(&self.path, target).map_err(fail)?;
        self.is_kept = true;
        match folder.map(|folder| folder.sync_all()) {
            // Some file systems sync no folders.
            Ok(Err(error)) if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) => {
                let why = format!("is replaced, but a power cut may undo that: {error}");
                Err(fail(io::Error::other(why)))
            }
            _ => Ok(()),
        }
    }
}

/// Gives `new` what `old`, whose metadata is `had`, has beside its content. What clears other attributes comes first.
fn attributes(old: &File, had: &Metadata, new: &File) -> io::Result<()> {
    let is = new.metadata()?;
    if (had.uid(), had.gid()) != (is.uid(), is.gid()) {
        std::os::unix::fs::fchown(new, Some(had.uid()), Some(had.gid()))?;
    }
    let fail = |name: &CStr, errno: Errno| {
        let error = io::Error::from(errno);
        let shown = String::from_utf8_lossy(name.to_bytes());
        io::Error::new(error.kind(), format!("attribute {shown}: {error}"))
    };
    let (wanted, inherited) = (names(old)?, names(new)?);
    for name in wanted.iter().filter(|name| !is_of_content(name)) {
        let value = match value(old, name) {
            Err(Errno::NODATA) => continue,
            value => value.map_err(|errno| fail(name, errno))?,
        };
        if inherited.contains(name) && self::value(new, name).ok().as_ref() == Some(&value) {
            continue;
        }
        match rustix::fs::fsetxattr(new, name, &value, XattrFlags::empty()) {
            // As cp -a does: labels that this process may not set, and what only the host sets.
            Err(errno) if !is_of_user(name) => {
                say(format_args!("steadfs: {}: not kept", fail(name, errno)));
            }
            set => set.map_err(|errno| fail(name, errno))?,
        }
    }
    // An access list of the directory would admit others.
    for name in inherited.iter().filter(|name| !wanted.contains(name)) {
        if name.to_bytes() == b"system.posix_acl_access" {
            rustix::fs::fremovexattr(new, name).map_err(|errno| fail(name, errno))?;
        }
    }
    new.set_permissions(had.permissions())
}

/// Whether an attribute is computed from the file itself.
fn is_of_content(name: &CStr) -> bool {
    [&b"security.ima"[..], b"security.evm"].contains(&name.to_bytes())
}

/// Whether an attribute is one that users set.
fn is_of_user(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl_")
}

/// The names of a file's extended attributes; none where the host keeps none.
fn names(file: &File) -> io::Result<Vec<CString>> {
    let mut bytes = vec![0; XATTR_BYTES_MAX];
    let len = match rustix::fs::flistxattr(file, &mut bytes[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        len => len?,
    };
    let names = bytes[..len].split_inclusive(|byte| *byte == 0);
    let names = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
    Ok(names.map(CStr::to_owned).collect())
}

fn value(file: &File, name: &CStr) -> rustix::io::Result<Vec<u8>> {
    let mut bytes = vec![0; XATTR_BYTES_MAX];
    let len = rustix::fs::fgetxattr(file, name, &mut bytes[..])?;
    bytes.truncate(len);
    Ok(bytes)
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // The failure that led here is the one to report.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub fn wrong(path: &Path, error: &io::Error) -> Failure {
    Failure::plain(format!("{}: {error}", path.display()))
}
