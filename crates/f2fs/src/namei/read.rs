//! Reading names: lookup and readdir.

use steadfs_base::InodeNo;
use steadfs_vfs::names::check_length;
use steadfs_vfs::{Attr, Cx, FsError, Result};

use crate::dentry::Emit;
use crate::fs::F2fs;

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::lookup`].
    pub(crate) fn look_up(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        check_length(name)?;
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.read();
        let found = self.find_name(&dir, name, cx.tag)?;
        let inode = self.inode_of_entry(&dir, found.ok_or(FsError::NotFound)?, cx.tag)?;
        // Under the directory's lock: a task that removes the name later sees the count.
        inode.add_lookup();
        Ok(inode.attr(self, cx.tag))
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
