//! Reading names: lookup and readdir.

use steadfs_base::{InodeNo, IoTag};
use steadfs_vfs::names::{check_length, is_dots};
use steadfs_vfs::{Attr, Cx, FsError, Result};

use crate::dentry::{DentrySearch, Emit};
use crate::disk::Nid;
use crate::fs::F2fs;
use crate::inode::Inode;

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::lookup`].
    pub(crate) fn look_up(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        check_length(name)?;
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.read();
        let found = self.find_for_lookup(&dir, name, cx.tag)?;
        let inode = self.inode_of_entry(&dir, found.ok_or(FsError::NotFound)?, cx.tag)?;
        // Under the directory's lock: a task that removes the name later sees the count.
        inode.add_lookup();
        Ok(inode.attr(self, cx.tag))
    }

    /// As [`F2fs::find_name`]; where names can be added, keeps the slots for a name that does not exist.
    fn find_for_lookup(&self, dir: &Inode, name: &[u8], tag: IoTag) -> Result<Option<Nid>> {
        let may_add = !is_dots(name)
            && !self.stop_state.is_read_only()
            && self.check_may_add(dir, tag).is_ok();
        if may_add {
            match self.search(dir, name, tag) {
                Ok(DentrySearch::Found(found)) => return Ok(Some(found.ino)),
                Ok(DentrySearch::Free(_) | DentrySearch::InlineFull) | Err(FsError::NoSpace) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        self.find_name(dir, name, tag)
    }

    /// See [`steadfs_vfs::FileSystem::readdir`].
    pub(crate) fn read_dir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: Emit<'_>,
    ) -> Result<()> {
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.read();
        if dir.core.read().links == 0 {
            return Err(FsError::NotFound);
        }
        self.list(&dir, cookie, cx.tag, emit)
    }
}
