//! `rm`.
//!
//! A tree is removed in one pass: an entry that the directory calls no directory costs one call, a directory three. Names
//! are read in batches, so memory does not grow with the tree's size.

use steadfs_vfs::{FileKind, FsError};

use super::super::walk::{Entry, Held, check_depth, child, is_of_dir};
use super::super::walker::Entries;
use super::super::{Result, ToolError, join, push};
use super::{Editor, InChange};

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
            true if options.recursive => self.remove_tree(&dir, (found, name), path),
            true if options.directories => {
                let removed = self.fs.rmdir(self.cx, dir.ino(), &name);
                removed.in_change(path, RM)
            }
            true => Err(FsError::IsDir).in_change(path, RM),
            false if is_of_dir(path) => Err(FsError::NotDir).in_change(path, RM),
            false => {
                let removed = self.fs.unlink(self.cx, dir.ino(), &name);
                removed.in_change(path, RM)
            }
        }
    }

    /// Removes the directory `name` of `around` and all that is in it.
    fn remove_tree(
        &mut self,
        around: &Held<'_>,
        (found, name): (Held<'a>, Vec<u8>),
        path: &[u8],
    ) -> Result<()> {
        let mut path = path.to_vec();
        let mut levels = vec![level(found, &path, name)];
        while let Some(level) = levels.last_mut() {
            self.check_stop()?;
            path.truncate(level.path);
            match level.entries.next(self.fs, self.cx) {
                Some(Ok(entry)) => {
                    let removed = self.remove_entry(level.held.ino(), &entry);
                    match removed.in_change(&join(&path, &entry.name), RM) {
                        Ok(None) => {}
                        Ok(Some(below)) => {
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
                None => self.leave(&mut levels, around, &path)?,
            }
        }
        Ok(())
    }

    /// Removes an entry; returns it if it is a directory.
    fn remove_entry(
        &self,
        dir: steadfs_base::InodeNo,
        entry: &Entry,
    ) -> Result<Option<Held<'a>>, FsError> {
        let (fs, cx) = (self.fs, self.cx);
        let is_dir = match entry.kind {
            Some(kind) => kind == FileKind::Directory,
            None => child(fs, cx, dir, &entry.name)?.attr().kind == FileKind::Directory,
        };
        if is_dir {
            let found = child(fs, cx, dir, &entry.name)?;
            if found.attr().kind == FileKind::Directory {
                return Ok(Some(found));
            }
        }
        fs.unlink(cx, dir, &entry.name)?;
        Ok(None)
    }

    /// Reports an error below the innermost directory, which stays.
    fn keep(&mut self, levels: &mut [Level<'a>], error: ToolError) -> Result<()> {
        if let Some(level) = levels.last_mut() {
            level.stays = true;
        }
        self.note(Err(error))
    }

    /// Removes the innermost directory, which has been emptied.
    fn leave(&mut self, levels: &mut Vec<Level<'a>>, around: &Held<'_>, path: &[u8]) -> Result<()> {
        let Some(done) = levels.pop() else {
            return Ok(());
        };
        let dir = levels.last().map_or(around.ino(), |level| level.held.ino());
        let mut stays = done.stays;
        if !stays {
            let removed = self.fs.rmdir(self.cx, dir, &done.name).in_change(path, RM);
            stays = removed.is_err();
            self.note(removed)?;
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
