//! Dispatches each call to a control file or to the volume.

use steadfs_base::InodeNo;

use super::*;
use crate::RecordedState;
use crate::verity::{FileDigest, VerityOptions};

impl FileSystem for WithControl {
    fn root(&self) -> InodeNo {
        self.inner.root()
    }

    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        if self.is_control_name(dir, name) {
            return Ok(self.make(0));
        }
        if !is_control_inode(dir) {
            return self.inner.lookup(cx, dir, name);
        }
        let node = self.dir_node(dir)?;
        match name {
            b"." => Ok(self.make(node)),
            b".." if node == 0 => self.inner.attach(cx, self.inner.root()),
            b".." => Ok(self.make(self.nodes[node].parent)),
            _ => self
                .child(node, name)
                .map(|found| self.make(found))
                .ok_or(FsError::NotFound),
        }
    }

    fn attach(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        if !is_control_inode(ino) {
            return self.inner.attach(cx, ino);
        }
        Ok(self.make(self.node(ino)?))
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        if !is_control_inode(ino) {
            return self.inner.forget(ino, count);
        }
        let mut inodes = self.inodes.lock();
        if let Some(inode) = inodes.get_mut(&ino.0) {
            inode.lookups = inode.lookups.saturating_sub(count);
            if inode.lookups == 0 {
                inodes.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        if is_control_inode(ino) {
            return self.control_attr(ino);
        }
        self.inner.getattr(cx, ino)
    }

    fn setattr(&self, cx: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        if !is_control_inode(ino) {
            return self.inner.setattr(cx, ino, set);
        }
        // Truncation and new times have no effect; owner and mode cannot change.
        if set.perm.is_some() || set.uid.is_some() || set.gid.is_some() {
            return Err(FsError::NotPermitted);
        }
        let mut attr = self.control_attr(ino)?;
        attr.size = set.size.unwrap_or(attr.size);
        Ok(attr)
    }

    fn readlink(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        if is_control_inode(ino) {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        self.inner.readlink(cx, ino)
    }

    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.changeable(dir, name)?;
        self.inner.mknod(cx, dir, name, mode, rdev)
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        self.changeable(dir, name)?;
        self.inner.mkdir(cx, dir, name, mode)
    }

    fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.changeable(dir, name)?;
        self.inner.symlink(cx, dir, name, target)
    }

    fn link(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.changeable(dir, name)?;
        if is_control_inode(ino) {
            return Err(FsError::NotPermitted);
        }
        self.inner.link(cx, ino, dir, name)
    }

    fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        if is_control_inode(dir) {
            return Err(FsError::NotPermitted);
        }
        self.inner.tmpfile(cx, dir, mode)
    }

    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.changeable(dir, name)?;
        self.inner.unlink(cx, dir, name)
    }

    fn rmdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.changeable(dir, name)?;
        self.inner.rmdir(cx, dir, name)
    }

    fn rename(
        &self,
        cx: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.changeable(from.0, from.1)?;
        self.changeable(to.0, to.1)?;
        self.inner.rename(cx, from, to, flags)
    }

    fn folds_names(&self) -> bool {
        self.inner.folds_names()
    }

    fn has_encryption(&self) -> bool {
        self.inner.has_encryption()
    }

    fn checks_opens(&self) -> bool {
        self.inner.checks_opens()
    }

    fn open(&self, cx: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        if is_control_inode(ino) {
            return Ok(());
        }
        self.inner.open(cx, ino, write)
    }

    fn tracks_files(&self) -> bool {
        self.inner.tracks_files()
    }

    fn drop_abandoned(&self, cx: &Cx, ino: InodeNo) -> bool {
        !is_control_inode(ino) && self.inner.drop_abandoned(cx, ino)
    }

    fn closed(&self, cx: &Cx, ino: InodeNo) -> bool {
        !is_control_inode(ino) && self.inner.closed(cx, ino)
    }

    fn verity_digest(&self, cx: &Cx, ino: InodeNo) -> Result<FileDigest> {
        if is_control_inode(ino) {
            return Err(FsError::NoData);
        }
        self.inner.verity_digest(cx, ino)
    }

    fn enable_verity(&self, cx: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        if is_control_inode(ino) {
            return Err(FsError::NotSupported("verity of a control file"));
        }
        self.inner.enable_verity(cx, ino, options)
    }

    fn read(&self, cx: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        if is_control_inode(ino) {
            return self.control_read(ino, offset, len);
        }
        self.inner.read(cx, ino, offset, len)
    }

    fn write(
        &self,
        cx: &Cx,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        if is_control_inode(ino) {
            return self.control_write(cx, ino, data);
        }
        self.inner.write(cx, ino, offset, data, kill_priv)
    }

    fn fsync(&self, cx: &Cx, ino: InodeNo, datasync: bool) -> Result<()> {
        if is_control_inode(ino) {
            return self.control_fsync(cx, ino);
        }
        self.inner.fsync(cx, ino, datasync)
    }

    fn fallocate(
        &self,
        cx: &Cx,
        ino: InodeNo,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if is_control_inode(ino) {
            return Err(FsError::NotSupported("fallocate on a control file"));
        }
        self.inner.fallocate(cx, ino, mode, offset, len)
    }

    fn seek(&self, cx: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        if !is_control_inode(ino) {
            return self.inner.seek(cx, ino, offset, what);
        }
        let size = self.control_attr(ino)?.size;
        match what {
            _ if offset >= size => Err(FsError::NoSuchOffset),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    fn copy_range(
        &self,
        cx: &Cx,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        if is_control_inode(from.0) || is_control_inode(to.0) {
            return Err(FsError::NotSupported("copy_file_range on a control file"));
        }
        self.inner.copy_range(cx, from, to, len)
    }

    fn readdir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if is_control_inode(dir) {
            return self.control_readdir(dir, cookie, emit);
        }
        if dir != self.inner.root() {
            return self.inner.readdir(cx, dir, cookie, emit);
        }
        // The control directory hides an entry of that name on the volume.
        self.inner.readdir(cx, dir, cookie, &mut |entry| {
            self.is_control_name(dir, entry.name) || emit(entry)
        })
    }

    fn getxattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        if is_control_inode(ino) {
            return Err(FsError::NoData);
        }
        self.inner.getxattr(cx, ino, name)
    }

    fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        if is_control_inode(ino) {
            return Ok(Vec::new());
        }
        self.inner.listxattr(cx, ino)
    }

    fn setxattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        if is_control_inode(ino) {
            return Err(FsError::NotSupported("attributes of a control file"));
        }
        self.inner.setxattr(cx, ino, name, value, how)
    }

    fn removexattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        if is_control_inode(ino) {
            return Err(FsError::NoData);
        }
        self.inner.removexattr(cx, ino, name)
    }

    fn statfs(&self, cx: &Cx) -> Result<StatFs> {
        self.inner.statfs(cx)
    }

    fn statfs_at(&self, cx: &Cx, ino: InodeNo) -> Result<StatFs> {
        if is_control_inode(ino) {
            return self.inner.statfs(cx);
        }
        self.inner.statfs_at(cx, ino)
    }

    fn flags(&self, cx: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        if is_control_inode(ino) {
            return Ok(FsxAttr::default());
        }
        self.inner.flags(cx, ino)
    }

    fn set_flags(&self, cx: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        if is_control_inode(ino) {
            return Err(FsError::NotSupported("flags of a control file"));
        }
        self.inner.set_flags(cx, ino, flags)
    }

    fn set_project(&self, cx: &Cx, ino: InodeNo, project: u32) -> Result<()> {
        if is_control_inode(ino) {
            return Err(FsError::NotSupported("project of a control file"));
        }
        self.inner.set_project(cx, ino, project)
    }

    fn ioctl(&self, cx: &Cx, ino: InodeNo, cmd: u32, input: &[u8]) -> Result<Option<IoctlAnswer>> {
        if is_control_inode(ino) {
            return Ok(None);
        }
        self.inner.ioctl(cx, ino, cmd, input)
    }

    fn ioctl_changes_files(&self, command: u32) -> bool {
        self.inner.ioctl_changes_files(command)
    }

    fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32> {
        if is_control_inode(ino) {
            return Ok(0);
        }
        self.inner.generation(cx, ino)
    }

    fn trim(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        self.inner.trim(cx, start, len, min_len)
    }

    fn panicked(&self) {
        self.inner.panicked();
    }

    fn sync_all(&self, cx: &Cx) -> Result<()> {
        self.inner.sync_all(cx)
    }

    fn shutdown(&self, cx: &Cx, mode: ShutdownMode) -> Result<()> {
        self.inner.shutdown(cx, mode)
    }

    fn options(&self) -> String {
        let mut list = self.inner.options();
        let more = self.layer.as_ref().map(|layer| layer.options());
        if let Some(more) = more.filter(|more| !more.is_empty()) {
            list = format!("{list},{more}");
        }
        list
    }

    fn remount(&self, cx: &Cx, options: &str) -> Result<()> {
        let Some(layer) = &self.layer else {
            return self.inner.remount(cx, options);
        };
        let prepared = layer.prepare(options)?;
        if !prepared.rest.is_empty() || options.is_empty() {
            self.inner.remount(cx, &prepared.rest)?;
        }
        (prepared.apply)();
        Ok(())
    }

    fn control(&self) -> Option<&dyn Control> {
        self.inner.control()
    }

    fn tune(&self, list: &str) -> Result<String> {
        tune(&self.controls(), list)
    }

    fn unmount(&self) -> Result<()> {
        self.inner.unmount()
    }

    fn hand_over(&self) -> Result<LookupCounts> {
        let mut counts = self.inner.hand_over()?;
        let control = self.inodes.lock();
        counts.extend(
            control
                .iter()
                .map(|(&ino, inode)| (InodeNo(ino), inode.lookups)),
        );
        Ok(counts)
    }

    fn restore(&self, state: &RecordedState) -> Result<()> {
        self.inner.restore(state)
    }
}
