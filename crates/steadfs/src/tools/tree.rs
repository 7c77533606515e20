//! `tree`: a tree's files, each directory's sorted by name.
//!
//! **Rule.** A directory's entries are in memory only while it is visited, with those of the directories around it. Links
//! are not followed, but one that leads to a directory counts as one, as in tree(1).

use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError};

use super::walk::{Entry, resolve};
use super::walker::{Unreadable, Visited, Visitor, visit};
use super::{At, Progress, Result, ToolError, join};

/// What is shown.
#[derive(Clone, Copy, Debug)]
pub struct TreeOptions {
    /// Also names that begin with a dot.
    pub all: bool,
    /// Only directories, and links to them.
    pub directories: bool,
    /// Deepest level.
    pub max_depth: usize,
}

/// A file of a tree.
pub struct Branch<'b> {
    /// Its attributes, or why they cannot be read, which was reported.
    pub attr: Result<&'b Attr, String>,
    /// Its path on the volume.
    pub path: &'b [u8],
    /// Its name; of the top, its path.
    pub name: &'b [u8],
    /// Where a link leads.
    pub target: Option<&'b [u8]>,
    /// For each level from the first below the top to this file: whether the file there is the last of its directory.
    pub lasts: &'b [bool],
}

/// Shows the files of a tree.
pub trait Branches {
    /// A file, a directory before its entries.
    ///
    /// # Errors
    /// End the walk.
    fn begin(&mut self, branch: &Branch<'_>) -> Result<()>;
    /// A file, a directory after its entries.
    ///
    /// # Errors
    /// End the walk.
    fn end(&mut self) -> Result<()>;
}

/// How many files were shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCount {
    /// Directories, and links to them. The top counts if anything in it is shown.
    pub directories: u64,
    /// Other files.
    pub files: u64,
    /// Files that could not be read.
    pub failures: u64,
}

/// Shows the tree at `path`; a link there is followed.
///
/// # Errors
/// There is no such directory; those of `branches`; a signal.
pub fn tree(
    fs: &dyn FileSystem,
    cx: &Cx,
    path: &[u8],
    options: TreeOptions,
    branches: &mut dyn Branches,
    progress: &mut dyn Progress,
) -> Result<TreeCount> {
    let top = resolve(fs, cx, path, true).on_volume(path)?;
    if top.attr().kind != FileKind::Directory {
        return Err(FsError::NotDir).on_volume(path);
    }
    let mut planter = Planter {
        fs,
        cx,
        options,
        branches,
        progress,
        lasts: Vec::new(),
        count: TreeCount::default(),
        is_top_counted: false,
    };
    visit(fs, cx, (top, path), true, &mut planter)?;
    Ok(planter.count)
}

struct Planter<'p> {
    fs: &'p dyn FileSystem,
    cx: &'p Cx,
    options: TreeOptions,
    branches: &'p mut dyn Branches,
    progress: &'p mut dyn Progress,
    lasts: Vec<bool>,
    count: TreeCount,
    is_top_counted: bool,
}

impl Planter<'_> {
    fn leads_to_dir(&self, path: &[u8]) -> bool {
        resolve(self.fs, self.cx, path, true)
            .is_ok_and(|found| found.attr().kind == FileKind::Directory)
    }

    /// Takes a file at this depth into account.
    fn add(&mut self, depth: usize, is_last: bool, is_dir: bool) {
        let Some(below_top) = depth.checked_sub(1) else {
            return;
        };
        self.lasts.truncate(below_top);
        self.lasts.push(is_last);
        if !self.is_top_counted {
            self.is_top_counted = true;
            self.count.directories += 1;
        }
        match is_dir {
            true => self.count.directories += 1,
            false => self.count.files += 1,
        }
    }
}

impl Visitor for Planter<'_> {
    fn is_wanted(&mut self, dir: &[u8], entry: &Entry) -> bool {
        if !self.options.all && entry.name.starts_with(b".") {
            return false;
        }
        !self.options.directories
            || match entry.kind {
                Some(FileKind::Directory) => true,
                Some(FileKind::Symlink) | None => self.leads_to_dir(&join(dir, &entry.name)),
                Some(_) => false,
            }
    }

    fn enter(&mut self, file: Visited<'_>) -> Result<bool> {
        if self.progress.stopped() {
            return Err(ToolError::Stopped);
        }
        let kind = file.attr.kind;
        let mut target = None;
        let mut is_dir = kind == FileKind::Directory;
        if kind == FileKind::Symlink {
            is_dir = self.leads_to_dir(file.path);
            let read = self.fs.readlink(self.cx, file.attr.ino);
            match read.on_volume(file.path) {
                Ok(text) => target = Some(text),
                Err(error) => self.problem(error)?,
            }
        }
        self.add(file.depth, file.is_last, is_dir);
        self.branches.begin(&Branch {
            attr: Ok(file.attr),
            path: file.path,
            name: file.name,
            target: target.as_deref(),
            lasts: &self.lasts,
        })?;
        if kind != FileKind::Directory {
            self.branches.end()?;
        }
        Ok(file.depth < self.options.max_depth)
    }

    fn leave(&mut self, _: Visited<'_>) -> Result<()> {
        self.branches.end()
    }

    fn problem(&mut self, error: ToolError) -> Result<()> {
        self.count.failures += 1;
        self.progress.problem(&error);
        Ok(())
    }

    fn unreadable(&mut self, file: Unreadable<'_>) -> Result<()> {
        let why = match &file.error {
            ToolError::Volume { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        self.problem(file.error)?;
        self.add(file.depth, file.is_last, false);
        self.branches.begin(&Branch {
            attr: Err(why),
            path: file.path,
            name: file.name,
            target: None,
            lasts: &self.lasts,
        })?;
        self.branches.end()
    }
}
