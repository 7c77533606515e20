//! The names in a directory.

use std::ffi::OsString;
use std::io;
use std::mem;
use std::path::{Path, PathBuf};

use steadfs_base::InodeNo;
use steadfs_vfs::{FileKind, FsError};

use super::error::{At, error_at};
use super::{Calls, Metadata};
use crate::os_names::{join, os_string};
use crate::tools::{Entries, Held};

/// The names in a directory, as [`std::fs::ReadDir`]. They are read in batches, so memory does not grow with the
/// directory; names may be added and removed meanwhile.
pub struct ReadDir {
    pub(super) calls: Calls,
    entries: Entries,
    dir: InodeNo,
    path: PathBuf,
}

impl Drop for ReadDir {
    fn drop(&mut self) {
        self.calls.fs.forget(self.dir, 1);
    }
}

impl ReadDir {
    pub(super) fn open(calls: Calls, path: &Path) -> io::Result<Self> {
        let found = calls.find(path, true).at(path)?;
        // The root comes without a lookup count.
        Self::of(calls.clone(), found.ino(), path)
    }

    fn of(calls: Calls, dir: InodeNo, path: &Path) -> io::Result<Self> {
        let open = calls.in_use.check();
        let attr = open
            .and_then(|()| calls.fs.attach(&calls.cx, dir))
            .at(path)?;
        let kind = attr.kind;
        let opened = Self {
            calls,
            entries: Entries::of(dir),
            dir,
            path: path.to_owned(),
        };
        match kind {
            FileKind::Directory => Ok(opened),
            _ => Err(error_at(path, FsError::NotDir)),
        }
    }

    /// The inode number of the directory.
    pub(super) const fn ino(&self) -> InodeNo {
        self.dir
    }
}

impl Iterator for ReadDir {
    type Item = io::Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.calls.in_use.check() {
            let ended = mem::replace(&mut self.entries, Entries::none(self.dir));
            return (!ended.is_done()).then(|| Err(error_at(&self.path, error)));
        }
        let (fs, cx) = (&self.calls.fs, &self.calls.cx);
        let entry = match self.entries.next(&**fs, cx)? {
            Ok(entry) => entry,
            Err(error) => return Some(Err(error_at(&self.path, error))),
        };
        let name = os_string(entry.name);
        Some(Ok(DirEntry {
            calls: self.calls.clone(),
            dir: self.path.clone(),
            name,
            ino: entry.ino,
            kind: entry.kind,
        }))
    }
}

/// A name in a directory.
pub struct DirEntry {
    calls: Calls,
    dir: PathBuf,
    name: OsString,
    ino: InodeNo,
    kind: Option<FileKind>,
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> &std::ffi::OsStr {
        &self.name
    }

    /// The path, which begins as the directory's does.
    pub fn path(&self) -> PathBuf {
        join(&self.dir, Path::new(&self.name))
    }

    /// Inode number.
    pub const fn ino(&self) -> InodeNo {
        self.ino
    }

    /// The type; most directories have it, so that it costs nothing.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`].
    pub fn file_type(&self) -> io::Result<FileKind> {
        match self.kind {
            Some(kind) => Ok(kind),
            None => self.metadata().map(|found| found.file_type()),
        }
    }

    /// The names in it, if it is a directory.
    ///
    /// # Errors
    /// It is none; the device failed.
    pub fn read_dir(&self) -> io::Result<ReadDir> {
        ReadDir::of(self.calls.clone(), self.ino, &self.path())
    }

    /// The attributes of the file; of a link its own.
    ///
    /// # Errors
    /// It does not exist any more; the device failed.
    pub fn metadata(&self) -> io::Result<Metadata> {
        let open = self.calls.in_use.check();
        let found = open.and_then(|()| self.calls.fs.attach(&self.calls.cx, self.ino));
        let found = found.map(|attr| Held::counted(&*self.calls.fs, attr));
        found
            .map(|held| Metadata::of(held.attr().clone()))
            .at(&self.path())
    }
}
