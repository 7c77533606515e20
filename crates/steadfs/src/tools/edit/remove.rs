//! `rm`.
//!
//! A tree is removed in one pass: an entry that the directory calls no directory costs one call, a directory three. Names
//! are read in batches, so memory does not grow with the tree's size.

use steadfs_vfs::{FileKind, FsError};

use super::super::walk::{Entry, Held, check_depth, child, is_of_dir};
use super::super::walker::Entries;
use super::super::{Result, ToolError, join, push};
use super::{Changed, Editor, InChange, Question};

const RM: &str = "cannot remove";

/// The options of [`Editor::rm`].
#[derive(Clone, Copy, Debug, Default)]
pub struct RmOptions {
    /// Remove directories with all that is in them.
    pub recursive: bool,
    /// What does not exist is no error.
    pub force: bool,
    /// Remove empty directories.
    pub directories: bool,
    /// The user is asked before each removal.
    pub ask: bool,
}

/// What became of an entry.
enum Removal<'a> {
    Gone,
    /// The user wants to keep this file. As with rm(1), the question about its directory comes all the same.
    Declined,
    /// The user wants to keep what is in this directory, so those around it stay, too.
    Stays,
    /// It is a directory, which is to be emptied.
    Below(Held<'a>),
}

/// A directory that is being removed.
struct Level<'a> {
    held: Held<'a>,
    entries: Entries,
    /// Length of its path.
    path: usize,
    name: Vec<u8>,
    /// Something in it stays, so it does, too.
    stays: bool,
}

impl<'a> Editor<'a> {
    /// Removes a file or tree, as rm(1).
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn rm(&mut self, path: &[u8], options: RmOptions) -> Result<()> {
        let removed = self.remove(path, options);
        self.note(removed)
    }

    fn remove(&mut self, path: &[u8], options: RmOptions) -> Result<()> {
        let last = super::base_name(path);
        if super::super::is_root_path(path) {
            let why = "the root directory cannot be removed (/* names what is in it)";
            return Err(FsError::Invalid(why)).in_change(path, RM);
        }
        if last == b"." || last == b".." {
            let why = "'.' and '..' are not removed";
            return Err(FsError::Invalid(why)).in_change(path, RM);
        }
        let found = super::super::walk::resolve_parent(self.fs, self.cx, path)
            .and_then(|(dir, name)| Ok((child(self.fs, self.cx, dir.ino(), &name)?, dir, name)));
        let (found, dir, name) = match found {
            Err(FsError::NotFound | FsError::NotDir) if options.force => return Ok(()),
            found => found.in_change(path, RM)?,
        };
        let is_dir = found.attr().kind == FileKind::Directory;
        match is_dir {
            true if options.recursive => self.remove_tree(&dir, (found, name), path, options.ask),
            true if options.directories => {
                if !self.agrees(options.ask, &Question::RemoveDirectory(path)) {
                    return Ok(());
                }
                let removed = self.fs.rmdir(self.cx, dir.ino(), &name);
                removed.in_change(path, RM)?;
                self.report(&Changed::Removed { path, is_dir: true });
                Ok(())
            }
            true => Err(FsError::IsDir).in_change(path, RM),
            false if is_of_dir(path) => Err(FsError::NotDir).in_change(path, RM),
            false => {
                let removed = self.remove_file(&dir, &name, path, options.ask.then_some(&found));
                removed.map(drop).in_change(path, RM)
            }
        }
    }

    /// Removes the directory `name` of `around` and all that is in it.
    fn remove_tree(
        &mut self,
        around: &Held<'_>,
        (found, name): (Held<'a>, Vec<u8>),
        path: &[u8],
        ask: bool,
    ) -> Result<()> {
        if !self.enters(&found, path, ask) {
            return Ok(());
        }
        let mut path = path.to_vec();
        let mut levels = vec![level(found, &path, name)];
        while let Some(level) = levels.last_mut() {
            self.check_stop()?;
            path.truncate(level.path);
            match level.entries.next(self.fs, self.cx) {
                Some(Ok(entry)) => {
                    let at = join(&path, &entry.name);
                    let removed = self.remove_entry(&level.held, &entry, &at, ask);
                    match removed.in_change(&at, RM) {
                        Ok(Removal::Gone | Removal::Declined) => {}
                        Ok(Removal::Stays) => level.stays = true,
                        Ok(Removal::Below(below)) => {
                            push(&mut path, &entry.name);
                            if let Err(error) = check_depth(levels.len(), &path) {
                                self.keep(&mut levels, error)?;
                                continue;
                            }
                            levels.push(self::level(below, &path, entry.name));
                        }
                        Err(error) => self.keep(&mut levels, error)?,
                    }
                }
                Some(Err(source)) => {
                    let path = path.clone();
                    self.keep(&mut levels, ToolError::Volume { path, source })?;
                }
                None => self.leave(&mut levels, around, &path, ask)?,
            }
        }
        Ok(())
    }

    /// Whether a directory is to be emptied.
    fn enters(&mut self, found: &Held<'_>, path: &[u8], ask: bool) -> bool {
        let mut entries = Entries::of(found.ino());
        let mut is_empty = || entries.next(self.fs, self.cx).is_none();
        !ask || is_empty() || self.agrees(ask, &Question::Descend(path))
    }

    /// Removes what is no directory; `asked` is the file if the user wants to be asked.
    fn remove_file(
        &mut self,
        dir: &Held<'_>,
        name: &[u8],
        path: &[u8],
        asked: Option<&Held<'_>>,
    ) -> Result<Removal<'a>, FsError> {
        if let Some(found) = asked {
            let (kind, is_empty) = (found.attr().kind, found.attr().size == 0);
            let question = Question::Remove {
                path,
                kind,
                is_empty,
            };
            if !self.agrees(true, &question) {
                return Ok(Removal::Declined);
            }
        }
        self.fs.unlink(self.cx, dir.ino(), name)?;
        let is_dir = false;
        self.report(&Changed::Removed { path, is_dir });
        Ok(Removal::Gone)
    }

    /// Removes an entry, unless it is a directory.
    fn remove_entry(
        &mut self,
        dir: &Held<'_>,
        entry: &Entry,
        path: &[u8],
        ask: bool,
    ) -> Result<Removal<'a>, FsError> {
        let is_file = entry.kind.is_some_and(|kind| kind != FileKind::Directory);
        if is_file && !ask {
            return self.remove_file(dir, &entry.name, path, None);
        }
        let found = child(self.fs, self.cx, dir.ino(), &entry.name)?;
        match found.attr().kind {
            FileKind::Directory if self.enters(&found, path, ask) => Ok(Removal::Below(found)),
            FileKind::Directory => Ok(Removal::Stays),
            _ => self.remove_file(dir, &entry.name, path, ask.then_some(&found)),
        }
    }

    /// Reports an error below the innermost directory, which stays.
    fn keep(&mut self, levels: &mut [Level<'a>], error: ToolError) -> Result<()> {
        if let Some(level) = levels.last_mut() {
            level.stays = true;
        }
        self.note(Err(error))
    }

    /// Removes the innermost directory, which has been emptied.
    fn leave(
        &mut self,
        levels: &mut Vec<Level<'a>>,
        around: &Held<'_>,
        path: &[u8],
        ask: bool,
    ) -> Result<()> {
        let Some(done) = levels.pop() else {
            return Ok(());
        };
        let dir = levels.last().map_or(around.ino(), |level| level.held.ino());
        let mut stays = done.stays;
        if !stays && !self.agrees(ask, &Question::RemoveDirectory(path)) {
            return Ok(());
        }
        if !stays {
            let removed = self.fs.rmdir(self.cx, dir, &done.name).in_change(path, RM);
            stays = removed.is_err();
            self.note(removed)?;
            if !stays {
                self.report(&Changed::Removed { path, is_dir: true });
            }
        }
        if let Some(level) = levels.last_mut() {
            level.stays |= stays;
        }
        Ok(())
    }
}

fn level<'a>(held: Held<'a>, path: &[u8], name: Vec<u8>) -> Level<'a> {
    Level {
        entries: Entries::of(held.ino()),
        held,
        path: path.len(),
        name,
        stays: false,
    }
}
