//! The volume as a [`FileSystem`]: each call, delegated to the module that implements it.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_vfs::verity::{FileDigest, VerityOptions};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileSystem, FsError, FsxAttr, InodeFlags, IoctlAnswer,
    LookupCounts, ReadData, RecordedState, RenameFlags, Result, Seek, SetAttr, SetXattr,
    ShutdownMode, StatFs, XattrChange,
};

use crate::disk::Nid;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::options::OnError;

impl F2fs {
    /// Returns a call's result. Corruption is reported once here, and with `errors=remount-ro` the volume becomes
    /// read-only.
    pub(crate) fn report_corruption<T>(&self, result: Result<T>) -> Result<T> {
        if let Some(error) = result.as_ref().err().filter(|error| error.is_corruption()) {
            self.record_corruption(error);
            if self.options.read().errors == OnError::RemountReadOnly {
                self.stop_state.become_read_only();
            }
        }
        if result.is_err() {
            self.write_errors();
        }
        result
    }

    fn get(&self, cx: &Cx, ino: InodeNo) -> Result<Arc<Inode>> {
        self.by_number(ino, cx.tag)
    }

    /// An inode that may be written atomically: then it is in memory.
    fn in_memory(&self, ino: InodeNo) -> Option<Arc<Inode>> {
        let nid = Nid::from_vfs(ino).filter(|_| self.atomic_writes.any())?;
        self.inodes.find(nid).ok()
    }

    /// Ends a change of directories. With `sync` or `dirsync`, as a mount option or directory flag, it is durable
    /// before the call returns.
    fn finish_dir_change<T>(&self, cx: &Cx, dirs: &[InodeNo], result: Result<T>) -> Result<T> {
        let value = self.report_corruption(result)?;
        let all = {
            let options = self.options.read();
            options.common.sync || options.common.dirsync
        };
        let asks = |dir: &InodeNo| -> Result<bool> {
            let flags = self.get(cx, *dir)?.core.read().flags;
            Ok(flags.contains(InodeFlags::SYNC) || flags.contains(InodeFlags::DIRSYNC))
        };
        let mut now = all;
        for dir in dirs {
            now = now || asks(dir)?;
        }
        if now {
            self.report_corruption(self.request_checkpoint(cx.tag))?;
        }
        Ok(value)
    }

    /// Ends a change of one inode's content or attributes. With `sync`, as a mount option or inode flag, it is
    /// durable before the call returns.
    fn finish_inode_change<T>(&self, cx: &Cx, inode: &Inode, result: Result<T>) -> Result<T> {
        let value = self.report_corruption(result)?;
        let all = self.options.read().common.sync;
        if all || inode.core.read().flags.contains(InodeFlags::SYNC) {
            self.report_corruption(self.fsync_inode(cx, inode, false))?;
        }
        Ok(value)
    }

    /// As `finish_inode_change`, by inode number.
    fn finish_change_of<T>(&self, cx: &Cx, ino: InodeNo, result: Result<T>) -> Result<T> {
        let value = self.report_corruption(result)?;
        let inode = self.get(cx, ino)?;
        self.finish_inode_change(cx, &inode, Ok(value))
    }
}

impl FileSystem for F2fs {
    fn root(&self) -> InodeNo {
        Nid::ROOT.into()
    }

    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let _seen = self.read_overlay();
        self.report_corruption(self.look_up(cx, dir, name))
    }

    fn attach(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        let _seen = self.read_overlay();
        let inode = self.report_corruption(self.get(cx, ino))?;
        // The task that frees an inode holds this lock: the inode is either in use or marked dead.
        let _alive = inode.lock.read();
        if inode.marks.is_dead() {
            return Err(FsError::Stale);
        }
        inode.add_lookup();
        Ok(inode.attr(self, cx.tag))
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let _same = self.remount.hold_open();
        if let Err(error) = self.report_corruption(self.put(ino, count)) {
            // It stays on the orphan list, and the next mount frees it.
            tracing::warn!(%ino, %error, "cannot free an unlinked inode");
        }
    }

    fn getattr(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        let _seen = self.read_overlay();
        Ok(self
            .report_corruption(self.get(cx, ino))?
            .attr(self, cx.tag))
    }

    fn setattr(&self, cx: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let _open = self.open_to_changes()?;
        self.finish_change_of(cx, ino, self.set_attributes(cx, ino, set))
    }

    fn readlink(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        let _seen = self.read_overlay();
        self.report_corruption(
            self.by_number(ino, cx.tag)
                .and_then(|inode| self.link_target(&inode, cx.tag)),
        )
    }

    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let _open = self.open_to_changes()?;
        let made = self.make_node_file(cx, dir, name, mode, rdev);
        self.finish_dir_change(cx, &[dir], made)
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[dir], self.make_dir(cx, dir, name, mode))
    }

    fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[dir], self.make_symlink(cx, dir, name, target))
    }

    fn link(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[dir], self.make_link(cx, ino, dir, name))
    }

    fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[dir], self.make_tmpfile(cx, dir, mode))
    }

    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[dir], self.remove_file(cx, dir, name))
    }

    fn rmdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[dir], self.remove_dir(cx, dir, name))
    }

    fn rename(
        &self,
        cx: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let _open = self.open_to_changes()?;
        self.finish_dir_change(cx, &[from.0, to.0], self.move_names(cx, from, to, flags))
    }

    fn folds_names(&self) -> bool {
        self.layout.encoding.is_some()
    }

    fn has_encryption(&self) -> bool {
        F2fs::has_encryption(self)
    }

    fn checks_opens(&self) -> bool {
        self.has_closed_files()
    }

    fn tracks_files(&self) -> bool {
        self.has_atomic_writes()
    }

    fn drop_abandoned(&self, cx: &Cx, ino: InodeNo) -> bool {
        // Not refused while frozen.
        let _same = self.remount.hold_open();
        self.in_memory(ino)
            .is_some_and(|inode| self.drop_abandoned_atomic(cx, &inode))
    }

    fn closed(&self, cx: &Cx, ino: InodeNo) -> bool {
        let _same = self.remount.hold_open();
        self.in_memory(ino)
            .is_some_and(|inode| self.closed_atomic(cx, &inode))
    }

    fn open(&self, cx: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        let _seen = self.read_overlay();
        self.report_corruption(self.check_may_open(cx, ino, write))
    }

    fn verity_digest(&self, cx: &Cx, ino: InodeNo) -> Result<FileDigest> {
        let _seen = self.read_overlay();
        self.report_corruption(self.measure(cx, ino))
    }

    fn enable_verity(&self, cx: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        self.report_corruption(self.make_verity(cx, ino, options))
    }

    fn read(&self, cx: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        let _seen = self.read_overlay();
        let inode = self.report_corruption(self.get(cx, ino))?;
        self.report_corruption(self.read_file(cx, &inode, offset, len))
    }

    fn write(
        &self,
        cx: &Cx,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        let _open = self.open_to_changes()?;
        let inode = self.report_corruption(self.get(cx, ino))?;
        let written = self.write_file(cx, &inode, offset, data, kill_priv);
        self.finish_inode_change(cx, &inode, written)
    }

    fn fsync(&self, cx: &Cx, ino: InodeNo, datasync: bool) -> Result<()> {
        // Not refused while frozen.
        let _same = self.remount.hold_open();
        let inode = self.report_corruption(self.get(cx, ino))?;
        self.report_corruption(self.fsync_inode(cx, &inode, datasync))
    }

    fn fallocate(
        &self,
        cx: &Cx,
        ino: InodeNo,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let _open = self.open_to_changes()?;
        let inode = self.report_corruption(self.get(cx, ino))?;
        let done = self.fallocate_file(cx, &inode, mode, offset, len);
        self.finish_inode_change(cx, &inode, done)
    }

    fn seek(&self, cx: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        let _seen = self.read_overlay();
        self.report_corruption(
            self.by_number(ino, cx.tag)
                .and_then(|inode| self.seek_file(cx, &inode, offset, what)),
        )
    }

    fn copy_range(
        &self,
        cx: &Cx,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        let _open = self.open_to_changes()?;
        let source = self.report_corruption(self.get(cx, from.0))?;
        let target = self.report_corruption(self.get(cx, to.0))?;
        let copied = self.copy_between(cx, (&source, from.1), (&target, to.1), len);
        self.finish_inode_change(cx, &target, copied)
    }

    fn readdir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let _seen = self.read_overlay();
        self.report_corruption(self.read_dir(cx, dir, cookie, emit))?;
        let quiet = self.options.read().common.nodiratime;
        if cookie == 0 && !quiet {
            self.touch_atime(&*self.get(cx, dir)?, cx.tag);
        }
        Ok(())
    }

    fn getxattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let _seen = self.read_overlay();
        self.report_corruption(self.xattr_value(cx, ino, name))
    }

    fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let _seen = self.read_overlay();
        self.report_corruption(self.xattr_names(cx, ino))
    }

    fn setxattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let _open = self.open_to_changes()?;
        let change = XattrChange::set(name, value, how);
        let done = change.and_then(|change| self.change_xattr(cx, ino, &change));
        self.finish_change_of(cx, ino, done)
    }

    fn removexattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        let _open = self.open_to_changes()?;
        let done = self.change_xattr(cx, ino, &XattrChange::remove(name));
        self.finish_change_of(cx, ino, done)
    }

    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        let _seen = self.read_overlay();
        self.check_open()?;
        self.freeing.wait_all();
        Ok(self.usage())
    }

    fn statfs_at(&self, cx: &Cx, ino: InodeNo) -> Result<StatFs> {
        let mut shown = self.statfs(cx)?;
        self.limit_usage(&mut shown, ino, cx.tag)?;
        Ok(shown)
    }

    fn flags(&self, cx: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        let _seen = self.read_overlay();
        Ok(self.report_corruption(self.get(cx, ino))?.fsx())
    }

    fn set_flags(&self, cx: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        let _open = self.open_to_changes()?;
        self.finish_change_of(cx, ino, self.change_flags(cx, ino, flags))
    }

    fn set_project(&self, cx: &Cx, ino: InodeNo, project: u32) -> Result<()> {
        let _open = self.open_to_changes()?;
        self.finish_change_of(cx, ino, self.change_project(cx, ino, project))
    }

    fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32> {
        let _seen = self.read_overlay();
        Ok(self
            .report_corruption(self.get(cx, ino))?
            .core
            .read()
            .generation)
    }

    fn trim(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        self.check_open()?;
        self.report_corruption(self.trim_range(cx, start, len, min_len))
    }

    fn ioctl(
        &self,
        cx: &Cx,
        ino: InodeNo,
        command: u32,
        input: &[u8],
    ) -> Result<Option<IoctlAnswer>> {
        let _open = self.open_to_changes()?;
        let inode = self.report_corruption(self.get(cx, ino))?;
        self.report_corruption(self.own_ioctl(cx, &inode, command, input))
    }

    fn ioctl_changes_files(&self, command: u32) -> bool {
        crate::ioctl::changes_files(command)
    }

    fn panicked(&self) {
        self.abort_for_panic();
    }

    fn sync_all(&self, cx: &Cx) -> Result<()> {
        self.check_open()?;
        if self.is_frozen() {
            // It was written then, and only access times have changed.
            return Ok(());
        }
        self.report_corruption(self.sync_volume(cx))
    }

    fn shutdown(&self, cx: &Cx, mode: ShutdownMode) -> Result<()> {
        let written = self.shut_down(cx, mode);
        self.write_errors();
        written
    }

    fn options(&self) -> String {
        self.effective_options().show()
    }

    fn remount(&self, cx: &Cx, options: &str) -> Result<()> {
        self.change_options(cx, options)
    }

    fn control(&self) -> Option<&dyn Control> {
        Some(self)
    }

    fn unmount(&self) -> Result<()> {
        self.close()
    }

    fn hand_over(&self) -> Result<LookupCounts> {
        self.close_for_successor()
    }

    fn restore(&self, state: &RecordedState) -> Result<()> {
        self.restore_recorded(state)
    }
}
