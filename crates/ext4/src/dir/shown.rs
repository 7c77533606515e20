//! What every listing has in common: the two names that are no entries, and names that are not shown.

use steadfs_vfs::{DirEntry, FileKind, Result};

use super::Dir;
use crate::disk;
use crate::disk::dir_entry::RawEntry;

/// A caller's function that takes entries until it returns false.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(DirEntry<'_>) -> bool;

impl Dir<'_> {
    /// Reports `.` and `..` at cookies 0 and 1; whether the caller wants more.
    pub(super) fn read_dots(
        &self,
        core: &disk::Inode,
        cookie: u64,
        emit: Emit<'_>,
    ) -> Result<bool> {
        for (at, name) in [(0, &b"."[..]), (1, b"..")] {
            if cookie > at {
                continue;
            }
            let ino = if at == 0 {
                self.ino
            } else {
                self.parent(core)?
            };
            let kind = Some(FileKind::Directory);
            if !emit(DirEntry {
                ino: ino.into(),
                kind,
                name,
                next: at + 1,
            }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Refuses what no caller could use as a name, or only to get somewhere else.
    pub(super) fn check_shown(&self, entry: &RawEntry<'_>) -> Result<()> {
        let name = entry.name;
        let dots = name == b"." || name == b"..";
        if dots || name.contains(&b'/') || name.contains(&0) {
            let at = entry.offset;
            return Err(self.corrupt(format_args!("the entry at {at} has an impossible name")));
        }
        Ok(())
    }
}
