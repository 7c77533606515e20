//! A file that is made beside its target under another name, and gets the target's name when it is complete. So whatever
//! happens before, the target is the old file or none.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

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

    /// Gives the file the target's name and, if there was one, the permissions of the file that had it.
    pub fn replace(mut self, target: &Path) -> Result<(), Failure> {
        let fail = |error| wrong(target, &error);
        if let Ok(found) = target.metadata() {
            let perm: Permissions = found.permissions();
            std::fs::set_permissions(&self.path, perm).map_err(fail)?;
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
