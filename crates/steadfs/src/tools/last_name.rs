//! The last name of a path that a call makes, removes or moves.
//!
//! **Problem.** Such a name is not followed and need not exist, so it is not resolved with the rest of the path. What stands
//! behind it decides nevertheless: `file/`, `dir/.` and `/` are no names that a file could be removed by.
//!
//! **Rule.** As in Linux (path_resolution(7)): errors of the directories before the name come first. The root, `.` and `..` are
//! never made, removed or moved, and a slash behind a name is for directories only. The errors are those of the system calls.

use steadfs_vfs::{Attr, Cx, FileKind, FileSystem, FsError, Result};

use super::walk::{Held, PathWalk, child};

/// Steps of an open: links, and files that another task made meanwhile.
const TRIES_MAX: u32 = 100;

/// A directory, and the last name of a path that leads to it.
pub(crate) struct LastName<'a, 'c> {
    walk: PathWalk<'a, 'c>,
    /// The name: `.` or `..` of a path that ends in these, empty of the root.
    pub name: Vec<u8>,
    /// Slashes stand behind it.
    has_slash: bool,
}

impl<'a, 'c> LastName<'a, 'c> {
    /// Of a path that begins at the root, whether or not it begins with a slash.
    pub fn of(fs: &'a dyn FileSystem, cx: &'c Cx, path: &[u8]) -> Result<Self> {
        Self::at_end(PathWalk::begin(fs, cx)?, path)
    }

    fn at_end(mut walk: PathWalk<'a, 'c>, path: &[u8]) -> Result<Self> {
        if path.is_empty() {
            return Err(FsError::NotFound);
        }
        let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
        let before = path[..end].iter().rposition(|b| *b == b'/');
        let (before, name) = path[..end].split_at(before.map_or(0, |at| at + 1));
        walk.start(path);
        walk.go(before, true)?;
        Ok(Self {
            walk,
            name: name.to_vec(),
            has_slash: end < path.len(),
        })
    }

    /// The directory.
    pub fn dir(&self) -> Result<&Held<'a>> {
        self.walk.here()
    }

    /// The file that has the name.
    pub fn found(&self) -> Result<Held<'a>> {
        child(self.walk.fs, self.walk.cx, self.dir()?.ino(), &self.name)
    }

    /// Where links at the name lead: another name, of which a file is there or can be made.
    pub fn end(self) -> Result<Self> {
        let mut at = self;
        loop {
            let found = match at.has_no_name() {
                true => return Ok(at),
                false => at.found(),
            };
            match found {
                Ok(found) if found.attr().kind == FileKind::Symlink => {
                    let target = at.walk.behind(&found)?;
                    at = Self::at_end(at.walk, &target)?;
                }
                Ok(_) | Err(FsError::NotFound) => return Ok(at),
                Err(error) => return Err(error),
            }
        }
    }

    fn is_root(&self) -> bool {
        self.name.is_empty()
    }

    fn is_dots(&self) -> bool {
        matches!(&self.name[..], b"." | b"..")
    }

    fn has_no_name(&self) -> bool {
        self.is_root() || self.is_dots()
    }

    /// Before a directory is made: mkdir(2).
    pub fn check_make_dir(&self) -> Result<()> {
        match self.has_no_name() {
            true => Err(FsError::Exists),
            false => Ok(()),
        }
    }

    /// Before another file is made: mknod(2), symlink(2).
    pub fn check_make(&self) -> Result<()> {
        self.check_make_dir()?;
        match self.has_slash {
            true => self.found().and(Err(FsError::Exists)),
            false => Ok(()),
        }
    }

    /// Before a file gets this name, too: link(2).
    pub fn check_link(&self, file: &Attr) -> Result<()> {
        self.check_make()?;
        if file.kind != FileKind::Directory {
            return Ok(());
        }
        match self.found() {
            Ok(_) => Err(FsError::Exists),
            Err(FsError::NotFound) => Err(FsError::NotPermitted),
            Err(error) => Err(error),
        }
    }

    /// Before the name of a file is removed: unlink(2).
    pub fn check_remove(&self) -> Result<()> {
        match self {
            _ if self.has_no_name() => Err(FsError::IsDir),
            _ if !self.has_slash => Ok(()),
            _ => match self.found()?.attr().kind {
                FileKind::Directory => Err(FsError::IsDir),
                _ => Err(FsError::NotDir),
            },
        }
    }

    /// Before a directory is removed: rmdir(2).
    pub fn check_remove_dir(&self) -> Result<()> {
        match &self.name[..] {
            b"" => Err(FsError::Busy),
            b"." => Err(FsError::Invalid("the path ends in '.'")),
            b".." => Err(FsError::NotEmpty),
            _ => Ok(()),
        }
    }

    /// Before this name is given up for the other one: rename(2).
    pub fn check_move(&self, to: &Self) -> Result<()> {
        if self.has_no_name() || to.has_no_name() {
            return Err(FsError::Busy);
        }
        if !self.has_slash && !to.has_slash {
            return Ok(());
        }
        match self.found()?.attr().kind {
            FileKind::Directory => Ok(()),
            _ => Err(FsError::NotDir),
        }
    }

    /// The file that has the name, or the one that `make` makes: open(2) with O_CREAT, and with O_EXCL if `is_new`. A link is
    /// followed, also to a file that does not exist. The lookup of what is returned is counted.
    pub fn open(
        self,
        is_new: bool,
        make: impl Fn(&Held<'_>, &[u8]) -> Result<Attr>,
    ) -> Result<Attr> {
        let mut at = self;
        // Another task can make and remove the name again and again.
        for _ in 0..TRIES_MAX {
            match at {
                _ if at.has_no_name() && is_new => return Err(FsError::Exists),
                _ if at.has_no_name() || at.has_slash => return Err(FsError::IsDir),
                _ if is_new => return make(at.dir()?, &at.name),
                _ => {}
            }
            let found = match at.found() {
                Err(FsError::NotFound) => match make(at.dir()?, &at.name) {
                    // Another task was faster.
                    Err(FsError::Exists) => continue,
                    made => return made,
                },
                found => found?,
            };
            match found.attr().kind {
                FileKind::Directory => return Err(FsError::IsDir),
                FileKind::Symlink => {
                    let target = at.walk.behind(&found)?;
                    at = Self::at_end(at.walk, &target)?;
                }
                _ => return Ok(found.into_counted()),
            }
        }
        Err(FsError::Loop)
    }
}
