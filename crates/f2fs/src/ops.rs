//! The volume as the rest of the program sees it: each call of [`FileSystem`], named after what does
//! it. Volumes are only read: what would change one is refused.

use std::sync::Arc;
use steadfs_base::InodeNo;
use steadfs_base::limits::NAME_MAX;
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags,
    ReadData, RenameFlags, Result, Seek, SetAttr, SetXattr, ShutdownMode, StatFs,
};

use crate::disk::Nid;
use crate::fs::F2fs;
use crate::inode::Inode;

/// Passes a call's result on; damage that it met is told once here.
fn judge<T>(result: Result<T>) -> Result<T> {
    if let Err(FsError::Corrupt(what)) = &result {
        tracing::error!(what, "the volume is damaged");
    }
    result
}

impl F2fs {
    fn directory(&self, cx: &Cx, ino: InodeNo) -> Result<Arc<Inode>> {
        let dir = self.by_number(ino, cx.tag)?;
        if dir.kind() != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        Ok(dir)
    }

    fn look_up(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let dir = self.directory(cx, dir)?;
        let found = self.find_name(&dir, name, cx.tag)?;
        let inode = self.named(&dir, found.ok_or(FsError::NotFound)?, cx.tag)?;
        inode.add_lookup();
        Ok(inode.attr())
    }
}

impl FileSystem for F2fs {
    fn root(&self) -> InodeNo {
        Nid::ROOT.into()
    }

    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        judge(self.look_up(cx, dir, name))
    }

    fn attach(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        let inode = judge(self.by_number(ino, cx.tag))?;
        inode.add_lookup();
        Ok(inode.attr())
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let away = |nid| self.inodes.drop_away(nid, count);
        if let Some(inode) = Nid::from_vfs(ino).and_then(away) {
            inode.drop_lookups(count);
        }
    }

    fn getattr(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        Ok(judge(self.by_number(ino, cx.tag))?.attr())
    }

    fn setattr(&self, _: &Cx, _: InodeNo, _: &SetAttr) -> Result<Attr> {
        Err(FsError::ReadOnly)
    }

    fn readlink(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        judge(
            self.by_number(ino, cx.tag)
                .and_then(|inode| self.link_target(&inode, cx.tag)),
        )
    }

    fn mknod(&self, _: &Cx, _: InodeNo, _: &[u8], _: u32, _: u32) -> Result<Attr> {
        Err(FsError::ReadOnly)
    }

    fn mkdir(&self, _: &Cx, _: InodeNo, _: &[u8], _: u32) -> Result<Attr> {
        Err(FsError::ReadOnly)
    }

    fn symlink(&self, _: &Cx, _: InodeNo, _: &[u8], _: &[u8]) -> Result<Attr> {
        Err(FsError::ReadOnly)
    }

    fn link(&self, _: &Cx, _: InodeNo, _: InodeNo, _: &[u8]) -> Result<Attr> {
        Err(FsError::ReadOnly)
    }

    fn tmpfile(&self, _: &Cx, _: InodeNo, _: u32) -> Result<Attr> {
        Err(FsError::ReadOnly)
    }

    fn unlink(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn rmdir(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn rename(
        &self,
        _: &Cx,
        _: (InodeNo, &[u8]),
        _: (InodeNo, &[u8]),
        _: RenameFlags,
    ) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn read(&self, cx: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        judge(
            self.by_number(ino, cx.tag)
                .and_then(|inode| self.read_file(cx, &inode, offset, len)),
        )
    }

    fn write(&self, _: &Cx, _: InodeNo, _: u64, _: &[u8], _: bool) -> Result<usize> {
        Err(FsError::ReadOnly)
    }

    fn fsync(&self, cx: &Cx, ino: InodeNo, _: bool) -> Result<()> {
        // Nothing is ever dirty.
        self.by_number(ino, cx.tag).map(|_| ())
    }

    fn fallocate(&self, _: &Cx, _: InodeNo, _: FallocMode, _: u64, _: u64) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn seek(&self, cx: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        judge(
            self.by_number(ino, cx.tag)
                .and_then(|inode| self.seek_file(cx, &inode, offset, what)),
        )
    }

    fn copy_range(&self, _: &Cx, _: (InodeNo, u64), _: (InodeNo, u64), _: u64) -> Result<u64> {
        Err(FsError::ReadOnly)
    }

    fn readdir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        judge(
            self.directory(cx, dir)
                .and_then(|dir| self.list(&dir, cookie, cx.tag, emit)),
        )
    }

    fn getxattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        judge(self.xattr_value(cx, ino, name))
    }

    fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        judge(self.xattr_names(cx, ino))
    }

    fn setxattr(&self, _: &Cx, _: InodeNo, _: &[u8], _: &[u8], _: SetXattr) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn removexattr(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        self.check_open()?;
        Ok(self.usage())
    }

    fn flags(&self, cx: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        Ok(judge(self.by_number(ino, cx.tag))?.fsx())
    }

    fn set_flags(&self, _: &Cx, _: InodeNo, _: InodeFlags) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn set_project(&self, _: &Cx, _: InodeNo, _: u32) -> Result<()> {
        Err(FsError::ReadOnly)
    }

    fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32> {
        Ok(judge(self.by_number(ino, cx.tag))?.core.read().generation)
    }

    fn trim(&self, _: &Cx, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(FsError::ReadOnly)
    }

    fn sync_all(&self, _: &Cx) -> Result<()> {
        self.check_open()
    }

    fn shutdown(&self, _: &Cx, _: ShutdownMode) -> Result<()> {
        self.close()
    }

    fn options(&self) -> String {
        self.options.read().show()
    }

    fn remount(&self, _: &Cx, options: &str) -> Result<()> {
        let new = self.options.read().remounted(options)?;
        *self.options.write() = new;
        Ok(())
    }

    fn control(&self) -> Option<&dyn Control> {
        Some(self)
    }

    fn unmount(&self) -> Result<()> {
        self.close()
    }
}
