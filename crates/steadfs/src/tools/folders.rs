//! The open directories of the host from the top of a copy down to the current one.
//!
//! Problem: a tree can be deeper than the limit of open files (`ulimit -n`). Rule: only the innermost [`OPEN_MAX`]
//! directories stay open. An outer one is opened again as `..` of the inner one, and must have the same inode: if the
//! inner directory was moved meanwhile, `..` leads elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::host;

/// Directories that stay open. Two suffice; more save reopening for small trees.
const OPEN_MAX: usize = 16;

/// Nested directories, the innermost last.
pub struct Folders {
    levels: Vec<Level>,
    open_max: usize,
}

impl Default for Folders {
    fn default() -> Self {
        Self {
            levels: Vec::new(),
            open_max: OPEN_MAX,
        }
    }
}

struct Level {
    id: (u64, u64),
    /// Always `Some` for the innermost one.
    open: Option<OwnedFd>,
}

impl Folders {
    /// For copies that follow links: the directory around a link's target is not its `..`, so all stay open.
    pub fn through_links() -> Self {
        Self {
            levels: Vec::new(),
            open_max: usize::MAX,
        }
    }

    /// The innermost directory.
    pub fn here(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.open.as_ref().map(AsFd::as_fd)
    }

    /// Enters a directory, the top or an entry of the innermost one.
    pub fn enter(&mut self, dir: OwnedFd) -> io::Result<()> {
        let id = host::id_of(&rustix::fs::fstat(&dir)?);
        let open = Some(dir);
        self.levels.push(Level { id, open });
        if let Some(outer) = self.levels.iter_mut().nth_back(self.open_max) {
            outer.open = None;
        }
        Ok(())
    }

    /// Leaves the innermost directory and returns it; `None` if there is none. Its permissions can change afterwards, since
    /// `..` was opened before.
    pub fn leave(&mut self) -> io::Result<Option<OwnedFd>> {
        let Some(left) = self.levels.pop().and_then(|level| level.open) else {
            return Ok(None);
        };
        if let Some(around) = self.levels.last_mut()
            && around.open.is_none()
        {
            around.open = Some(open_again(&left, around.id)?);
        }
        Ok(Some(left))
    }
}

/// Opens the parent directory of `inner`, which must be `id`.
fn open_again(inner: &OwnedFd, id: (u64, u64)) -> io::Result<OwnedFd> {
    let dir = host::open_dir(inner.as_fd(), "..".as_ref())?;
    if host::id_of(&rustix::fs::fstat(&dir)?) != id {
        let why = "was moved to another directory while it was copied";
        return Err(io::Error::other(why));
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Makes and enters `depth` nested directories.
    fn descend(top: &Path, depth: usize) -> (Folders, Vec<(u64, u64)>) {
        let mut folders = Folders::default();
        let mut path = top.to_owned();
        let mut ids = Vec::new();
        for _ in 0..depth {
            path.push("d");
            fs::create_dir(&path).unwrap();
            let dir = host::open_dir(host::cwd(), path.as_os_str()).unwrap();
            ids.push(host::id_of(&rustix::fs::fstat(&dir).unwrap()));
            folders.enter(dir).unwrap();
        }
        (folders, ids)
    }

    #[test]
    fn all_directories_are_left_in_order_though_few_stay_open() {
        let top = tempfile::tempdir().unwrap();
        let (mut folders, ids) = descend(top.path(), 3 * OPEN_MAX);
        let open = folders.levels.iter().filter(|level| level.open.is_some());
        assert_eq!(open.count(), OPEN_MAX);
        for id in ids.iter().rev() {
            let left = folders.leave().unwrap().unwrap();
            assert_eq!(host::id_of(&rustix::fs::fstat(&left).unwrap()), *id);
        }
        assert!(folders.leave().unwrap().is_none() && folders.here().is_none());
    }

    #[test]
    fn a_moved_directory_is_detected() {
        let top = tempfile::tempdir().unwrap();
        let (mut folders, _) = descend(top.path(), OPEN_MAX + 2);
        let moved = top.path().join("d/d/d");
        fs::rename(moved, top.path().join("elsewhere")).unwrap();
        for _ in 1..OPEN_MAX {
            folders.leave().unwrap();
        }
        let error = folders.leave().unwrap_err().to_string();
        assert!(error.contains("was moved"), "{error}");
    }
}
