//! The host's folders from the top of a copy down to where it is.
//!
//! A tree may be deeper than a program may have files open (`ulimit -n`), so only the innermost folders stay open. One
//! further out is opened again from below, as its `..`, and only believed if it is the one that was left: a folder
//! that somebody moved meanwhile would lead elsewhere.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::host;

/// Folders that stay open. Two would do; the others are not opened again for each small tree in them.
const KEPT_OPEN: usize = 16;

/// Folders in one another, the innermost last.
pub struct Folders {
    levels: Vec<Level>,
    kept_open: usize,
}

impl Default for Folders {
    fn default() -> Self {
        Self {
            levels: Vec::new(),
            kept_open: KEPT_OPEN,
        }
    }
}

struct Level {
    id: (u64, u64),
    /// Always there of the innermost one.
    open: Option<OwnedFd>,
}

impl Folders {
    /// Folders that links lead into: what is around such a one is not its `..`, so all stay open.
    pub fn through_links() -> Self {
        Self {
            levels: Vec::new(),
            kept_open: usize::MAX,
        }
    }

    /// The innermost folder.
    pub fn here(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last()?.open.as_ref().map(AsFd::as_fd)
    }

    /// Goes into a folder, which is the top or in the innermost one.
    pub fn enter(&mut self, dir: OwnedFd) -> io::Result<()> {
        let id = host::id_of(&rustix::fs::fstat(&dir)?);
        let open = Some(dir);
        self.levels.push(Level { id, open });
        if let Some(outer) = self.levels.iter_mut().nth_back(self.kept_open) {
            outer.open = None;
        }
        Ok(())
    }

    /// Goes out of the innermost folder and returns it: `None` if there is none. What happens to it afterwards, such as
    /// losing the permission to be searched, bars no way any more.
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

/// Opens the folder around `inner`, which must be `id`.
fn open_again(inner: &OwnedFd, id: (u64, u64)) -> io::Result<OwnedFd> {
    let dir = host::open_dir(inner.as_fd(), "..".as_ref())?;
    if host::id_of(&rustix::fs::fstat(&dir)?) != id {
        let why = "was moved to another folder while it was copied";
        return Err(io::Error::other(why));
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Goes down `depth` folders, which are made.
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
    fn all_are_left_in_order_though_few_stay_open() {
        let top = tempfile::tempdir().unwrap();
        let (mut folders, ids) = descend(top.path(), 3 * KEPT_OPEN);
        let open = folders.levels.iter().filter(|level| level.open.is_some());
        assert_eq!(open.count(), KEPT_OPEN);
        for id in ids.iter().rev() {
            let left = folders.leave().unwrap().unwrap();
            assert_eq!(host::id_of(&rustix::fs::fstat(&left).unwrap()), *id);
        }
        assert!(folders.leave().unwrap().is_none() && folders.here().is_none());
    }

    #[test]
    fn a_folder_that_was_moved_leads_nowhere() {
        let top = tempfile::tempdir().unwrap();
        let (mut folders, _) = descend(top.path(), KEPT_OPEN + 2);
        let moved = top.path().join("d/d/d");
        fs::rename(moved, top.path().join("elsewhere")).unwrap();
        for _ in 1..KEPT_OPEN {
            folders.leave().unwrap();
        }
        let error = folders.leave().unwrap_err().to_string();
        assert!(error.contains("was moved"), "{error}");
    }
}
