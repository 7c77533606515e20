//! A file that is made beside its target under another name, and gets the target's name when it is complete. So whatever
//! happens before, the target is the old file or none.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use steadfs::ImageClaim;

use crate::failure::Failure;

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
            let open = OpenOptions::new().write(true).create_new(true).open(&path);
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

    /// Gives the file the target's name and, if there was one, the permissions of the file that had it, which was claimed
    /// before it was read or examined. Refused if the name has another file by now.
    pub fn replace(mut self, target: &Path, old: Option<&ImageClaim>) -> Result<(), Failure> {
        let fail = |error| wrong(target, &error);
        let old = old.map(ImageClaim::file).transpose().map_err(fail)?;
        let old = old.map(|old| old.metadata()).transpose().map_err(fail)?;
        let id = |found: &Metadata| (found.dev(), found.ino());
        let is_there = match target.metadata() {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(fail(error)),
        };
        if is_there.as_ref().map(id) != old.as_ref().map(id) {
            let why = "another program has replaced it meanwhile; it stays as it is";
            return Err(fail(std::io::Error::other(why)));
        }
        if let Some(old) = old {
            std::fs::set_permissions(&self.path, old.permissions()).map_err(fail)?;
        }
        std::fs::rename(&self.path, target).map_err(fail)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.is_kept {
            // The failure that led here is the one to report.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub fn wrong(path: &Path, error: &std::io::Error) -> Failure {
    Failure::plain(format!("{}: {error}", path.display()))
}
