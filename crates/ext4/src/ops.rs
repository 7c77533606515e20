//! The implementation of [`FileSystem`]: each call delegates to the module that implements it.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_base::limits::NAME_MAX;
use steadfs_vfs::verity::{FileDigest, VerityOptions};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileSystem, FsError, FsxAttr, InodeFlags,
    LookupCounts, ReadData, RecordedState, RenameFlags, Result, SHUT_DOWN, Seek, SetAttr, SetXattr,
    ShutdownMode, StatFs,
};

use crate::disk::Ino;
use crate::fs::Ext4;
use crate::inode::Inode;

impl Ext4 {
    /// Drops lookup counts; the last one of an unlinked inode frees it.
    fn put(&self, ino: InodeNo, count: u64) -> Result<()> {
        let _open = self.open_to_changes();
        let Some(inode) =
            Ino::from_vfs(ino).and_then(|ino| self.inodes.drop_evicted_lookups(ino, count))
        else {
            return Ok(());
        };
        if !inode.drop_lookups(count) {
            return Ok(());
        }
        self.alloc.drop_prealloc(self, inode.ino());
        if inode.core.read().links > 0 {
            return Ok(());
        }
        if self.remount_state.is_frozen() {
            self.remount_state.defer(inode);
            return Ok(());
        }
        match self.check_writable() {
            Ok(()) => self.free_unlinked(&inode),
            Err(_) => Ok(()),
        }
    }

    /// Frees an inode without names after its last reference was dropped. The caller prevents a freeze of the volume.
    pub(crate) fn free_unlinked(&self, inode: &Inode) -> Result<()> {
        let evicted = self.report_corruption(self.evict(inode));
        self.freeing.released();
        evicted
    }

    /// Usage of the volume.
    fn usage(&self) -> StatFs {
        self.freeing.wait_all();
        let minixdf = self.options.read().minixdf;
        let totals = self.alloc.totals();
        let sb = self.sb.lock();
        // For every caller: one may ask for another.
        let reserved = sb.reserved_blocks();
        let overhead = if minixdf {
            0
        } else {
            sb.overhead().unwrap_or(self.overhead)
        };
        // Half of a reservation is space for metadata that most writes do not need.
        let delayed = totals.reserved / 2;
        // The counts are in clusters.
        let clusters = (totals.free + totals.pending).saturating_sub(delayed);
        let free = clusters << self.geo.cluster_bits;
        StatFs {
            block_size: self.geo.block_size.bytes() as u32,
            blocks: self.geo.blocks_count.saturating_sub(overhead),
            blocks_free: free,
            blocks_available: free.saturating_sub(reserved),
            files: self.geo.inodes_count.into(),
            files_free: totals.free_inodes,
            name_max: NAME_MAX as u32,
            fsid: sb.fsid(),
        }
    }

    /// Discards free space in a byte range.
    fn trim_range(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        let open = self.open_to_changes();
        self.check_writable()?;
        let Some(granularity) = self.queue.geometry().discard_granularity else {
            return Err(FsError::NotSupported("discard on this device"));
        };
        let bs = self.geo.block_size;
        let end = start
            .saturating_add(len)
            .min(self.geo.blocks_count << bs.bits());
        if start >= self.geo.blocks_count << bs.bits() || len < bs.bytes() as u64 {
            return Err(FsError::Invalid("range to trim"));
        }
        if min_len > u64::from(self.geo.blocks_per_group) << bs.bits() {
            return Err(FsError::Invalid("the minimum length exceeds a block group"));
        }
        if self.alloc.totals().pending > 0 {
            self.commit_running(cx.tag)?;
        }
        let min = bs
            .blocks_for(min_len.max(granularity))
            .min(u64::from(u32::MAX)) as u32;
        let blocks = bs.blocks_for(start)..end >> bs.bits();
        drop(open);
        Ok(self.alloc.trim(self, cx, blocks, min)? << bs.bits())
    }

    /// Stops the volume as a power cut would.
    fn cut_power(&self, cx: &Cx, mode: ShutdownMode) -> Result<()> {
        match mode {
            ShutdownMode::Sync => self.sync_volume(cx)?,
            ShutdownMode::FlushLog => self.commit_running(cx.tag)?,
            ShutdownMode::NoFlush => {}
            ShutdownMode::MetaFlush | ShutdownMode::NeedCheck => {
                return Err(FsError::Invalid("a shutdown that only f2fs has"));
            }
        }
        match self.txns.journal() {
            Some(journal) => journal.shutdown(SHUT_DOWN),
            None => self.stop(SHUT_DOWN),
        }
        Ok(())
    }

    fn get(&self, cx: &Cx, ino: InodeNo) -> Result<Arc<Inode>> {
        self.by_number(ino, cx.tag)
    }

    /// Ends a change of directories: makes it durable if the mount (`sync`, `dirsync`) or a directory's flags require
    /// that.
    fn changed<T>(&self, cx: &Cx, dirs: &[InodeNo], result: Result<T>) -> Result<T> {
        self.free_values();
        let value = self.report_corruption(result)?;
        let all = {
            let options = self.options.read();
            options.common.sync || options.common.dirsync
        };
        let mut batched = false;
        for &dir in dirs {
            let dir = self.get(cx, dir)?;
            let flags = dir.core.read().flags;
            if all || flags.contains(InodeFlags::SYNC) || flags.contains(InodeFlags::DIRSYNC) {
                if let Some(journal) = self.txns.journal().filter(|_| !batched) {
                    journal.wait_for_batch(cx.caller);
                    batched = true;
                }
                self.fsync_inode(cx, &dir, false)?;
            }
        }
        Ok(value)
    }

    /// Ends a change of one inode's content or attributes: makes it durable if the mount (`sync`) or the inode's flag
    /// requires that.
    fn changed_one<T>(&self, cx: &Cx, inode: &Inode, result: Result<T>) -> Result<T> {
        self.free_values();
        let value = self.report_corruption(result)?;
        let all = self.options.read().common.sync;
        if all || inode.core.read().flags.contains(InodeFlags::SYNC) {
            self.fsync_inode(cx, inode, false)?;
        }
        Ok(value)
    }

    /// [`Ext4::changed_one`] by inode number.
    fn changed_at<T>(&self, cx: &Cx, ino: InodeNo, result: Result<T>) -> Result<T> {
        let value = self.report_corruption(result)?;
        let inode = self.get(cx, ino)?;
        self.changed_one(cx, &inode, Ok(value))
    }
}

impl FileSystem for Ext4 {
    fn root(&self) -> InodeNo {
        Ino::ROOT.into()
    }

    fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.report_corruption(Ext4::lookup(self, cx, dir, name))
    }

    fn attach(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        let inode = self.report_corruption(self.get(cx, ino))?;
        // Freeing holds the lock for writing: the inode is either in use or already dead.
        let _alive = inode.lock.read();
        if inode.marks.is_dead() {
            return Err(FsError::Stale);
        }
        inode.add_lookup();
        Ok(inode.attr(self))
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        if let Err(error) = self.put(ino, count) {
            // It stays on the orphan list, and the next mount frees it.
            tracing::warn!(%ino, %error, "freeing an unlinked inode failed");
        }
    }

    fn getattr(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        Ok(self.report_corruption(self.get(cx, ino))?.attr(self))
    }

    fn setattr(&self, cx: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let _open = self.open_to_changes();
        self.changed_at(cx, ino, Ext4::setattr(self, cx, ino, set))
    }

    fn readlink(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        self.report_corruption(Ext4::readlink(self, cx, ino))
    }

    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::mknod(self, cx, dir, name, mode, rdev))
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::mkdir(self, cx, dir, name, mode))
    }

    fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::symlink(self, cx, dir, name, target))
    }

    fn link(&self, cx: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::link(self, cx, ino, dir, name))
    }

    fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::tmpfile(self, cx, dir, mode))
    }

    fn unlink(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::unlink(self, cx, dir, name))
    }

    fn rmdir(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed(cx, &[dir], Ext4::rmdir(self, cx, dir, name))
    }

    fn rename(
        &self,
        cx: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed(cx, &[from.0, to.0], Ext4::rename(self, cx, from, to, flags))
    }

    fn folds_names(&self) -> bool {
        self.geo().encoding.is_some()
    }

    fn has_encryption(&self) -> bool {
        Ext4::has_encryption(self)
    }

    fn checks_opens(&self) -> bool {
        self.has_closed_files()
    }

    fn open(&self, cx: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        self.report_corruption(self.check_open(cx, ino, write))
    }

    fn verity_digest(&self, cx: &Cx, ino: InodeNo) -> Result<FileDigest> {
        self.report_corruption(self.measure(cx, ino))
    }

    fn enable_verity(&self, cx: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        self.report_corruption(self.make_verity(cx, ino, options))
    }

    fn read(&self, cx: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        self.report_corruption(
            self.get(cx, ino)
                .and_then(|inode| self.read_file(cx, &inode, offset, len)),
        )
    }

    fn write(
        &self,
        cx: &Cx,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        let _open = self.open_to_changes();
        let inode = self.report_corruption(self.get(cx, ino))?;
        let result = self.write_file(cx, &inode, offset, data, kill_priv);
        self.changed_one(cx, &inode, result)
    }

    fn fsync(&self, cx: &Cx, ino: InodeNo, datasync: bool) -> Result<()> {
        let _open = self.open_to_changes();
        self.report_corruption(
            self.get(cx, ino)
                .and_then(|inode| self.fsync_inode(cx, &inode, datasync)),
        )
    }

    fn fallocate(
        &self,
        cx: &Cx,
        ino: InodeNo,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let _open = self.open_to_changes();
        let inode = self.report_corruption(self.get(cx, ino))?;
        let result = self.fallocate_file(cx, &inode, mode, offset, len);
        self.changed_one(cx, &inode, result)
    }

    fn seek(&self, cx: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        self.report_corruption(
            self.get(cx, ino)
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
        let _open = self.open_to_changes();
        let (source, target) = (self.get(cx, from.0)?, self.get(cx, to.0)?);
        let result = self.copy_between(cx, (&source, from.1), (&target, to.1), len);
        self.changed_one(cx, &target, result)
    }

    fn readdir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.report_corruption(Ext4::readdir(self, cx, dir, cookie, emit))?;
        let quiet = self.options.read().common.nodiratime;
        if cookie == 0 && !quiet {
            self.touch_atime(&*self.get(cx, dir)?);
        }
        Ok(())
    }

    fn getxattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.report_corruption(Ext4::getxattr(self, cx, ino, name))
    }

    fn listxattr(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        self.report_corruption(Ext4::listxattr(self, cx, ino))
    }

    fn setxattr(
        &self,
        cx: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed_at(cx, ino, Ext4::setxattr(self, cx, ino, name, value, how))
    }

    fn removexattr(&self, cx: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed_at(cx, ino, Ext4::removexattr(self, cx, ino, name))
    }

    fn statfs(&self, _cx: &Cx) -> Result<StatFs> {
        Ok(self.usage())
    }

    fn statfs_at(&self, cx: &Cx, ino: InodeNo) -> Result<StatFs> {
        let mut shown = self.statfs(cx)?;
        self.limit_usage(&mut shown, ino, cx.tag)?;
        Ok(shown)
    }

    fn flags(&self, cx: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        self.report_corruption(Ext4::flags(self, cx, ino))
    }

    fn set_flags(&self, cx: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed_at(cx, ino, Ext4::set_flags(self, cx, ino, flags))
    }

    fn set_project(&self, cx: &Cx, ino: InodeNo, project: u32) -> Result<()> {
        let _open = self.open_to_changes();
        self.changed_at(cx, ino, Ext4::set_project(self, cx, ino, project))
    }

    fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32> {
        self.report_corruption(Ext4::generation(self, cx, ino))
    }

    fn trim(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        self.report_corruption(self.trim_range(cx, start, len, min_len))
    }

    fn panicked(&self) {
        self.shut_down(steadfs_rt::PANICKED);
    }

    fn sync_all(&self, cx: &Cx) -> Result<()> {
        self.report_corruption(self.sync_volume(cx))
    }

    fn shutdown(&self, cx: &Cx, mode: ShutdownMode) -> Result<()> {
        self.cut_power(cx, mode)
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

#[cfg(test)]
mod tests;
