//! Visits a tree, in bounded memory.
//!
//! **Problem.** A directory may have millions of entries, and a tree may be deep or, on a corrupt volume, circular.
//!
//! **Rule.** Entries are read in batches of [`BATCH`] per level, by the cookie of the last one, so entries may be removed
//! meanwhile. Symbolic links are not followed. A directory that is visited twice is reported as corrupt.

use std::collections::VecDeque;

use steadfs_base::{Corruption, InodeNo};
use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, check_name};

use super::copying::Follow;
use super::walk::{Entry, Held, VisitedDirs, check_depth, child, entries};
use super::{At, Result, ToolError, push};

/// Entries of a directory that are in memory at a time.
const BATCH: usize = 4096;

/// The entries of a directory, in its order.
pub(crate) struct Entries {
    dir: InodeNo,
    ready: VecDeque<Entry>,
    /// The cookie that continues; `None` at the end.
    next: Option<u64>,
    /// Reported after the entries that were read before it.
    error: Option<FsError>,
}

impl Entries {
    pub fn of(dir: InodeNo) -> Self {
        Self {
            dir,
            ready: VecDeque::new(),
            next: Some(0),
            error: None,
        }
    }

    /// No entries of a directory.
    pub fn none(dir: InodeNo) -> Self {
        Self {
            next: None,
            ..Self::of(dir)
        }
    }

    /// Whether [`Entries::next`] returns nothing more.
    pub fn is_done(&self) -> bool {
        self.ready.is_empty() && self.next.is_none() && self.error.is_none()
    }

    /// The next entry.
    ///
    /// # Errors
    /// Those of `readdir`, after the entries that could be read; [`FsError::Corrupt`] for names that cannot be.
    pub fn next(&mut self, fs: &dyn FileSystem, cx: &Cx) -> Option<Result<Entry, FsError>> {
        if self.ready.is_empty()
            && let Some(cookie) = self.next
        {
            self.read(fs, cx, cookie);
        }
        match self.ready.pop_front() {
            Some(entry) => Some(Ok(entry)),
            None => self.error.take().map(Err),
        }
    }

    fn read(&mut self, fs: &dyn FileSystem, cx: &Cx, cookie: u64) {
        let Self {
            dir, ready, next, ..
        } = self;
        let mut bad = None;
        *next = None;
        let read = fs.readdir(cx, *dir, cookie, &mut |entry| {
            if ready.len() >= BATCH {
                return false;
            }
            *next = Some(entry.next);
            if check_name(entry.name).is_err() {
                bad = Some(Corruption::new("a directory entry has an impossible name"));
            } else if entry.name != b"." && entry.name != b".." {
                ready.push_back(Entry {
                    ino: entry.ino,
                    kind: entry.kind,
                    name: entry.name.to_vec(),
                });
            }
            true
        });
        if ready.len() < BATCH {
            *next = None;
        }
        let bad = bad.map(|bad| bad.in_inode(*dir).into());
        self.error = read.err().or(bad).or(self.error.take());
    }

    /// Those that are wanted, sorted by name.
    fn sorted(
        (fs, cx): (&dyn FileSystem, &Cx),
        dir: InodeNo,
        wanted: impl FnMut(&Entry) -> bool,
    ) -> Self {
        let (mut all, error) = entries(fs, cx, dir);
        all.retain(wanted);
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            dir,
            ready: all.into(),
            next: None,
            error,
        }
    }
}

/// A file that is visited.
#[derive(Clone, Copy)]
pub struct Visited<'v> {
    /// Its attributes at that time.
    pub attr: &'v Attr,
    /// Its path, which begins with the path of the top.
    pub path: &'v [u8],
    /// Its name in its directory; of the top, its path.
    pub name: &'v [u8],
    /// 0 for the top.
    pub depth: usize,
    /// No other entry of its directory follows. Known only in sorted walks.
    pub is_last: bool,
}

/// An entry of which the file cannot be read.
pub struct Unreadable<'v> {
    /// Its path.
    pub path: &'v [u8],
    /// Its name.
    pub name: &'v [u8],
    /// As of [`Visited`].
    pub depth: usize,
    /// As of [`Visited`].
    pub is_last: bool,
    /// The reason.
    pub error: ToolError,
}

/// Is called for each file of a tree.
pub trait Visitor {
    /// Whether an entry of the directory at this path is visited; asked in sorted walks only.
    fn is_wanted(&mut self, _dir: &[u8], _entry: &Entry) -> bool {
        true
    }
    /// A file, a directory before its entries. Returns whether the entries of a directory are visited.
    ///
    /// # Errors
    /// End the walk.
    fn enter(&mut self, file: Visited<'_>) -> Result<bool>;
    /// A directory that was entered, after its entries.
    ///
    /// # Errors
    /// End the walk.
    fn leave(&mut self, _dir: Visited<'_>) -> Result<()> {
        Ok(())
    }
    /// Something could not be read; the walk continues.
    ///
    /// # Errors
    /// End the walk.
    fn problem(&mut self, error: ToolError) -> Result<()>;
    /// A file could not be read.
    ///
    /// # Errors
    /// End the walk.
    fn unreadable(&mut self, file: Unreadable<'_>) -> Result<()> {
        self.problem(file.error)
    }
}

struct Level<'a> {
    held: Held<'a>,
    entries: Entries,
    /// Length of the directory's path.
    path: usize,
    /// Where its name begins.
    name: usize,
    is_last: bool,
}

/// Visits `top`, which is at `path`, and everything below it; in the order of the directories, or sorted by name.
///
/// # Errors
/// Those of the visitor.
pub fn visit<'a>(
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    (top, path): (Held<'a>, &[u8]),
    sorted: bool,
    visitor: &mut dyn Visitor,
) -> Result<()> {
    let mut walk = Walk {
        fs,
        cx,
        path: path.to_vec(),
        levels: Vec::new(),
        visited: VisitedDirs::new(Follow::Never),
        sorted,
        visitor,
    };
    walk.enter(top, 0, true)?;
    walk.run()
}

struct Walk<'a, 'v> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    path: Vec<u8>,
    levels: Vec<Level<'a>>,
    visited: VisitedDirs,
    sorted: bool,
    visitor: &'v mut dyn Visitor,
}

impl<'a> Walk<'a, '_> {
    /// Visits the file at the current path.
    fn enter(&mut self, held: Held<'a>, name: usize, is_last: bool) -> Result<()> {
        let descends = self.visitor.enter(Visited {
            attr: held.attr(),
            path: &self.path,
            name: &self.path[name..],
            depth: self.levels.len(),
            is_last,
        })?;
        if held.attr().kind != FileKind::Directory {
            return Ok(());
        }
        let checked = check_depth(self.levels.len(), &self.path)
            .and_then(|()| self.visited.add(held.ino()).on_volume(&self.path));
        let entries = match checked {
            Ok(()) if descends && self.sorted => {
                let (visitor, path) = (&mut *self.visitor, &self.path[..]);
                let wanted = |entry: &Entry| visitor.is_wanted(path, entry);
                Entries::sorted((self.fs, self.cx), held.ino(), wanted)
            }
            Ok(()) if descends => Entries::of(held.ino()),
            Ok(()) => Entries::none(held.ino()),
            Err(error) => {
                self.visitor.problem(error)?;
                Entries::none(held.ino())
            }
        };
        self.levels.push(Level {
            held,
            entries,
            path: self.path.len(),
            name,
            is_last,
        });
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        while let Some(level) = self.levels.last_mut() {
            self.path.truncate(level.path);
            match level.entries.next(self.fs, self.cx) {
                Some(Ok(entry)) => {
                    let is_last = self.sorted && level.entries.ready.is_empty();
                    let dir = level.held.ino();
                    push(&mut self.path, &entry.name);
                    let name = self.path.len() - entry.name.len();
                    match child(self.fs, self.cx, dir, &entry.name).on_volume(&self.path) {
                        Ok(held) => self.enter(held, name, is_last)?,
                        Err(error) => self.visitor.unreadable(Unreadable {
                            path: &self.path,
                            name: &self.path[name..],
                            depth: self.levels.len(),
                            is_last,
                            error,
                        })?,
                    }
                }
                Some(Err(source)) => {
                    let path = self.path.clone();
                    self.visitor.problem(ToolError::Volume { path, source })?;
                }
                None => {
                    let depth = self.levels.len() - 1;
                    let Some(level) = self.levels.pop() else {
                        break;
                    };
                    self.visitor.leave(Visited {
                        attr: level.held.attr(),
                        path: &self.path,
                        name: &self.path[level.name..],
                        depth,
                        is_last: level.is_last,
                    })?;
                }
            }
        }
        Ok(())
    }
}
