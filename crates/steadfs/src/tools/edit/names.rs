//! `mkdir` and `rmdir`.

use steadfs_vfs::{FileKind, FsError, SetAttr};

use super::super::walk::{Held, child};
use super::super::{LastName, Result, join};
use super::{Changed, Editor, InChange, ModeChange, NEW_DIRECTORY};

const MKDIR: &str = "cannot create directory";
const RMDIR: &str = "cannot remove directory";

/// The options of [`Editor::mkdir`].
#[derive(Clone, Debug, Default)]
pub struct MkdirOptions {
    /// Make what is missing on the way, and accept a directory that exists.
    pub parents: bool,
    /// The mode, a change of rwx for all.
    pub mode: Option<ModeChange>,
}

impl<'a> Editor<'a> {
    /// Makes a directory, as mkdir(1).
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn mkdir(&mut self, path: &[u8], options: &MkdirOptions) -> Result<()> {
        let made = match options.parents {
            true => self.make_all(path, options),
            false => self.make_one(path, options),
        };
        self.note(made)
    }

    fn make_one(&mut self, path: &[u8], options: &MkdirOptions) -> Result<()> {
        let made = LastName::of(self.fs, self.cx, path).and_then(|last| {
            last.check_make_dir()?;
            self.make(last.dir()?, &last.name, options.mode.as_ref())
        });
        made.in_change(path, MKDIR)?;
        self.report(&Changed::Made(path));
        Ok(())
    }

    fn make(
        &self,
        dir: &Held<'_>,
        name: &[u8],
        mode: Option<&ModeChange>,
    ) -> steadfs_vfs::Result<Held<'a>> {
        let (fs, cx) = (self.fs, self.cx);
        let attr = fs.mkdir(cx, dir.ino(), name, NEW_DIRECTORY)?;
        let made = Held::counted(fs, attr);
        if let Some(mode) = mode {
            // The set-group-ID bit that the directory inherited stays unless the mode mentions it.
            let inherited = made.attr().perm & 0o2000;
            let perm = mode.apply(NEW_DIRECTORY | inherited, true, cx.umask);
            let set = SetAttr {
                perm: Some(perm),
                ..SetAttr::default()
            };
            fs.setattr(cx, made.ino(), &set)?;
        }
        Ok(made)
    }

    /// `mkdir -p`: the directories on the way are made with the umask, but usable by their owner; links are followed.
    fn make_all(&mut self, path: &[u8], options: &MkdirOptions) -> Result<()> {
        let names: Vec<&[u8]> = path
            .split(|b| *b == b'/')
            .filter(|name| !name.is_empty() && *name != b".")
            .collect();
        let usable = steadfs_vfs::Cx {
            umask: self.cx.umask & !0o300,
            ..self.cx.clone()
        };
        let mut at = b"/".to_vec();
        for (index, name) in names.iter().enumerate() {
            let is_last = index + 1 == names.len();
            let parent = self.found(&at, true, MKDIR)?;
            at = join(&at, name);
            if *name == b".." {
                continue;
            }
            match child(self.fs, self.cx, parent.ino(), name) {
                Ok(found) if found.attr().kind == FileKind::Symlink => {
                    let led = self.found(&at, true, MKDIR)?;
                    check_dir(&led).in_change(&at, MKDIR)?;
                }
                Ok(found) => check_dir(&found).in_change(&at, MKDIR)?,
                Err(FsError::NotFound) if is_last => {
                    let made = self.make(&parent, name, options.mode.as_ref());
                    made.in_change(&at, MKDIR)?;
                    self.report(&Changed::Made(&at));
                }
                Err(FsError::NotFound) => {
                    let made = self.fs.mkdir(&usable, parent.ino(), name, NEW_DIRECTORY);
                    drop(Held::counted(self.fs, made.in_change(&at, MKDIR)?));
                    self.report(&Changed::Made(&at));
                }
                Err(error) => return Err(error).in_change(&at, MKDIR),
            }
        }
        Ok(())
    }

    /// Removes an empty directory, and with `parents` those around it that the path names.
    ///
    /// # Errors
    /// A signal, or the volume has stopped.
    pub fn rmdir(&mut self, path: &[u8], parents: bool, not_empty_is_fine: bool) -> Result<()> {
        let removed = self.remove_dirs(path, parents, not_empty_is_fine);
        self.note(removed)
    }

    fn remove_dirs(&mut self, path: &[u8], parents: bool, not_empty_is_fine: bool) -> Result<()> {
        let mut path = path;
        loop {
            self.report(&Changed::Removing(path));
            let removed = LastName::of(self.fs, self.cx, path).and_then(|last| {
                last.check_remove_dir()?;
                self.fs.rmdir(self.cx, last.dir()?.ino(), &last.name)
            });
            match removed {
                Err(FsError::NotEmpty) if not_empty_is_fine => return Ok(()),
                removed => removed.in_change(path, RMDIR)?,
            }
            let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
            let around = path[..end].iter().rposition(|b| *b == b'/');
            match around.map(|at| &path[..at]) {
                Some(around) if parents && !super::super::is_root_path(around) => path = around,
                _ => return Ok(()),
            }
        }
    }
}

fn check_dir(found: &Held<'_>) -> steadfs_vfs::Result<()> {
    match found.attr().kind {
        FileKind::Directory => Ok(()),
        // As mkdir(2) reports it.
        _ => Err(FsError::Exists),
    }
}
