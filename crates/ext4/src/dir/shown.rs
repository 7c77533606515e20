//! What all listings share: `.` and `..`, and the validation of names.

use steadfs_vfs::{DirEntry, FileKind, Result};

use super::Dir;
use crate::disk;
use crate::disk::dir_entry::RawEntry;

/// Callback of a listing; returns false when it wants no more entries.
pub(crate) type Emit<'e> = &'e mut dyn FnMut(DirEntry<'_>) -> bool;

impl Dir<'_> {
    /// Calls `emit` for `.` and `..` at cookies 0 and 1; returns whether the caller wants more.
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

    /// Refuses names that no caller can use, or that would resolve to another file.
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
