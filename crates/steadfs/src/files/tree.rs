//! Trees of files.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use steadfs_base::{Corruption, InodeNo};
use steadfs_vfs::{FileKind, FsError};

use super::error::error_at;
use super::{Calls, DirEntry, Metadata, ReadDir, bytes};
use crate::os_names::os_path;
use crate::tools::edit::{Editor, RmOptions};
use crate::tools::{DEPTH_MAX, Progress, ToolError};

/// The files below a directory, each directory before what is in it. Links are not followed. On a corrupt volume a
/// directory that lies in itself is an error, and the walk goes on.
pub struct Walk {
    /// The directories from the first to the current one.
    open: Vec<ReadDir>,
    /// All directories that were visited.
    seen: BTreeSet<InodeNo>,
}

/// A file of a walk.
pub struct WalkEntry {
    entry: DirEntry,
    depth: usize,
    kind: FileKind,
}

impl WalkEntry {
    /// The path, which begins as that of the walk.
    pub fn path(&self) -> PathBuf {
        self.entry.path()
    }

    /// Inode number.
    pub const fn ino(&self) -> InodeNo {
        self.entry.ino()
    }

    /// The type.
    pub const fn file_type(&self) -> FileKind {
        self.kind
    }

    /// The directories between it and that of the walk: 0 for what is in the latter.
    pub const fn depth(&self) -> usize {
        self.depth
    }

    /// The attributes of the file; of a link its own.
    ///
    /// # Errors
    /// As [`DirEntry::metadata`].
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.entry.metadata()
    }
}

impl Walk {
    pub(super) fn below(dir: ReadDir) -> io::Result<Self> {
        let seen = BTreeSet::from([dir.ino()]);
        Ok(Self {
            open: vec![dir],
            seen,
        })
    }

    /// Skips the rest of the directory that the last file is in; after a directory this is what is in it.
    pub fn skip_dir(&mut self) {
        self.open.pop();
    }

    fn enter(&mut self, entry: &DirEntry) -> io::Result<()> {
        let path = entry.path();
        if self.open.len() >= DEPTH_MAX {
            let why = "too many directories lie in one another";
            return Err(error_at(&path, FsError::Invalid(why)));
        }
        if !self.seen.insert(entry.ino()) {
            let twice = Corruption::new("a directory has two names").in_inode(entry.ino());
            return Err(error_at(&path, twice.into()));
        }
        self.open.push(entry.read_dir()?);
        Ok(())
    }
}

impl Iterator for Walk {
    type Item = io::Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let depth = self.open.len().checked_sub(1)?;
            let Some(entry) = self.open[depth].next() else {
                self.open.pop();
                continue;
            };
            let found = entry.and_then(|entry| {
                let kind = entry.file_type()?;
                if kind == FileKind::Directory {
                    self.enter(&entry)?;
                }
                Ok(WalkEntry { entry, depth, kind })
            });
            return Some(found);
        }
    }
}

/// Keeps the first problem.
#[derive(Default)]
pub(crate) struct FirstProblem(Option<io::Error>);

impl FirstProblem {
    pub(crate) fn into_result(self) -> io::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

impl Progress for FirstProblem {
    fn file(&mut self, _: &[u8], _: &[u8]) {}

    fn bytes(&mut self, _: u64) {}

    fn problem(&mut self, error: &ToolError) {
        let kind = error.io_kind();
        self.0
            .get_or_insert_with(|| io::Error::new(kind, error.to_string()));
    }
}

impl From<ToolError> for io::Error {
    fn from(error: ToolError) -> Self {
        match error {
            ToolError::Host { source, .. } => source,
            ToolError::Volume { path, source } | ToolError::Change { path, source, .. } => {
                error_at(&os_path(path), source)
            }
            other => Self::new(other.io_kind(), other),
        }
    }
}

/// Removes a tree.
pub(super) fn remove(calls: &Calls, path: &Path) -> io::Result<()> {
    let mut problems = FirstProblem::default();
    let options = RmOptions {
        recursive: true,
        ..RmOptions::default()
    };
    let removed = Editor::new(&*calls.fs, &calls.cx, &mut problems).rm(bytes(path), options);
    problems.into_result()?;
    Ok(removed?)
}
