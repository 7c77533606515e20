//! Changes of a volume's files, with the rules of the commands of coreutils.
//!
//! **Rule.** An [`Editor`] is given operands one after the other. What fails is reported and counted, and the next operand
//! goes on; only a signal or a stopped volume ends the work. Symbolic links are followed inside the volume where the
//! command follows them, and by no recursion.

mod attributes;
mod changed;
mod date;
mod mode;
mod names;
pub(in crate::tools) mod owner;
mod relative;
mod remove;
mod rename;
mod times;

use steadfs_vfs::{Cx, FileKind, FileSystem, FsError};

use super::walk::{Held, resolve, resolve_parent};
use super::{Progress, Result, ToolError};

pub use changed::{Changed, Question};
pub use date::{parse_date, parse_stamp, year_of};
pub use mode::ModeChange;
pub use names::MkdirOptions;
pub use owner::{OwnerSpec, Owners};
pub use remove::RmOptions;
pub use rename::{LinkOptions, MoveOptions, Target};
pub use times::{SizeChange, TouchOptions};

/// Permissions of new files, before the umask.
const NEW_FILE: u32 = 0o666;
/// Permissions of new directories, before the umask.
const NEW_DIRECTORY: u32 = 0o777;

/// Changes files of one volume.
pub struct Editor<'a> {
    fs: &'a dyn FileSystem,
    cx: &'a Cx,
    progress: &'a mut dyn Progress,
    failures: u64,
}

impl<'a> Editor<'a> {
    /// Of the volume `fs`; the umask of `cx` holds for new files.
    pub fn new(fs: &'a dyn FileSystem, cx: &'a Cx, progress: &'a mut dyn Progress) -> Self {
        Self {
            fs,
            cx,
            progress,
            failures: 0,
        }
    }

    /// Operands and files that could not be changed.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Reports a failure.
    ///
    /// # Errors
    /// The failure ends all work.
    fn note(&mut self, done: Result<()>) -> Result<()> {
        let Err(error) = done else {
            return self.check_stop();
        };
        if error.ends_all() {
            return Err(error);
        }
        self.failures += 1;
        self.progress.problem(&error);
        self.check_stop()
    }

    fn report(&mut self, change: &Changed<'_>) {
        self.progress.changed(change);
    }

    /// Whether a change is to be made, of which the user wants to be asked if `ask`.
    fn agrees(&mut self, ask: bool, question: &Question<'_>) -> bool {
        !ask || self.progress.confirm(question)
    }

    fn check_stop(&self) -> Result<()> {
        match self.progress.stopped() {
            true => Err(ToolError::Stopped),
            false => Ok(()),
        }
    }

    fn found(&self, path: &[u8], follow: bool, what: &'static str) -> Result<Held<'a>> {
        resolve(self.fs, self.cx, path, follow).in_change(path, what)
    }

    /// The directory and name of a file that is to be made or moved.
    fn parent(&self, path: &[u8], what: &'static str) -> Result<(Held<'a>, Vec<u8>)> {
        if super::is_root_path(path) {
            let why = FsError::Invalid("it is the root directory");
            return Err(why).in_change(path, what);
        }
        resolve_parent(self.fs, self.cx, path).in_change(path, what)
    }

    fn spot(&self, path: &[u8], what: &'static str) -> Result<Spot<'a>> {
        let (dir, name) = self.parent(path, what)?;
        let found = self.there(&dir, &name).in_change(path, what)?;
        Ok(Spot {
            dir,
            name,
            path: path.to_vec(),
            found,
        })
    }

    /// The file `name` of a directory, if there is one.
    fn there(&self, dir: &Held<'_>, name: &[u8]) -> Result<Option<Held<'a>>, FsError> {
        match super::walk::child(self.fs, self.cx, dir.ino(), name) {
            Ok(held) => Ok(Some(held)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a path leads to a directory.
    fn is_dir(&self, path: &[u8], follow: bool) -> bool {
        resolve(self.fs, self.cx, path, follow)
            .is_ok_and(|found| found.attr().kind == FileKind::Directory)
    }
}

/// The last name of a path, without slashes behind it.
pub(super) fn base_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|b| *b != b'/').map_or(0, |at| at + 1);
    path[..end]
        .rsplit(|b| *b == b'/')
        .next()
        .unwrap_or_default()
}

/// A name in a directory.
struct Spot<'a> {
    dir: Held<'a>,
    name: Vec<u8>,
    path: Vec<u8>,
    /// What is there.
    found: Option<Held<'a>>,
}

trait InChange<T> {
    /// Adds the path and what was tried to an error.
    fn in_change(self, path: &[u8], what: &'static str) -> Result<T>;
}

impl<T> InChange<T> for steadfs_vfs::Result<T> {
    fn in_change(self, path: &[u8], what: &'static str) -> Result<T> {
        self.map_err(|source| ToolError::Change {
            path: path.to_vec(),
            what,
            source,
        })
    }
}
