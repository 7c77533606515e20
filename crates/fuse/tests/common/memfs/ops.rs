//! The operations.

use std::sync::atomic::Ordering;

use steadfs_base::InodeNo;
use steadfs_vfs::verity::{FileDigest, VerityOptions};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags,
    LookupCounts, ReadData, RenameFlags, Result, Seek, SetAttr, SetTime, SetXattr, ShutdownMode,
    StatFs,
};

use super::{MemFs, ROOT, now};

impl FileSystem for MemFs {
    fn root(&self) -> InodeNo {
        InodeNo(ROOT)
    }

    fn lookup(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state.lock();
        let ino = state.find(dir, name)?;
        state.counted(ino)
    }

    fn attach(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        self.state.lock().counted(ino.0)
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let mut state = self.state.lock();
        let node = state
            .nodes
            .get_mut(&ino.0)
            .expect("a forgotten inode lives");
        assert!(node.lookups >= count, "more forgotten than looked up");
        node.lookups -= count;
        state.drop_if_dead(ino.0);
    }

    fn getattr(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        Ok(self.state.lock().node(ino)?.attr.clone())
    }

    fn setattr(&self, _: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let mut state = self.state.lock();
        let node = state.node_mut(ino)?;
        if let Some(size) = set.size {
            node.set_size(size);
            node.attr.mtime = now();
        }
        let time = |t| match t {
            SetTime::Now => now(),
            SetTime::At(t) => t,
        };
        let attr = &mut node.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        attr.ctime = now();
        if set.kill_priv && attr.kind != FileKind::Directory {
            attr.perm &= !0o6000;
        }
        Ok(attr.clone())
    }

    fn readlink(&self, _: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        Ok(self.state.lock().node(ino)?.target.clone())
    }

    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let kind = FileKind::from_mode(mode).ok_or(FsError::Invalid("mode"))?;
        let mut state = self.state.lock();
        let ino = state.add(cx, dir, name, kind, mode)?;
        state.node_mut(InodeNo(ino))?.attr.rdev = rdev;
        state.counted(ino)
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        let mut state = self.state.lock();
        let ino = state.add(cx, dir, name, FileKind::Directory, mode)?;
        state.dir(dir)?.attr.nlink += 1;
        state.counted(ino)
    }

    fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        let mut state = self.state.lock();
        let ino = state.add(cx, dir, name, FileKind::Symlink, 0o777)?;
        let node = state.node_mut(InodeNo(ino))?;
        node.target = target.to_vec();
        node.attr.size = target.len() as u64;
        state.counted(ino)
    }

    fn link(&self, _: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let mut state = self.state.lock();
        if state.find(dir, name).is_ok() {
            return Err(FsError::Exists);
        }
        state.node_mut(ino)?.attr.nlink += 1;
        state.enter(dir, name, ino.0)?;
        state.counted(ino.0)
    }

    fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        let mut state = self.state.lock();
        let ino = state.make(cx, dir, FileKind::Regular, mode);
        state.node_mut(InodeNo(ino))?.attr.nlink = 0;
        state.counted(ino)
    }

    fn unlink(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let ino = state.leave(dir, name)?;
        state.unlinked(ino, 1);
        Ok(())
    }

    fn rmdir(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let ino = state.find(dir, name)?;
        if !state.dir(InodeNo(ino))?.entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        state.leave(dir, name)?;
        state.dir(dir)?.attr.nlink -= 1;
        state.unlinked(ino, 2);
        Ok(())
    }

    fn rename(
        &self,
        _: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        self.state.lock().rename(from, to, flags)
    }

    /// Every file is a verity file.
    fn verity_digest(&self, _: &Cx, ino: InodeNo) -> Result<FileDigest> {
        match self.state.lock().node(ino)?.attr.kind {
            FileKind::Regular => Ok(FileDigest {
                algorithm: 1,
                bytes: vec![0xab; 32],
            }),
            _ => Err(FsError::NoData),
        }
    }

    fn enable_verity(&self, _: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        if options.algorithm > 2 {
            return Err(FsError::Invalid("algorithm"));
        }
        self.state.lock().sealed = Some((ino, options.clone()));
        Ok(())
    }

    fn checks_opens(&self) -> bool {
        self.unopenable_size.is_some()
    }

    fn open(&self, _: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        let size = self.state.lock().node(ino)?.attr.size;
        match Some(size) == self.unopenable_size {
            true if write => Err(FsError::NotPermitted),
            true => Err(FsError::NoKey),
            false => Ok(()),
        }
    }

    fn read(&self, _: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        Ok(self.state.lock().node(ino)?.read(offset, len))
    }

    fn write(
        &self,
        _: &Cx,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let held = |gate| gate != 0 && data.first().is_some_and(|&byte| u32::from(byte) == gate);
        while held(self.blocked_write_byte.load(Ordering::SeqCst)) {
            steadfs_rt::sleep(std::time::Duration::from_millis(2));
        }
        let mut state = self.state.lock();
        if state.free_bytes == 0 {
            return Err(FsError::NoSpace);
        }
        let data = &data[..data.len().min(state.free_bytes)];
        state.free_bytes -= data.len();
        let node = state.node_mut(ino)?;
        node.write(offset, data);
        if kill_priv {
            node.attr.perm &= !0o6000;
        }
        Ok(data.len())
    }

    fn fsync(&self, _: &Cx, _: InodeNo, _: bool) -> Result<()> {
        self.fsyncs.fetch_add(1, Ordering::SeqCst);
        while self.blocked_fsyncs.load(Ordering::SeqCst) > 0 {
            steadfs_rt::sleep(std::time::Duration::from_millis(2));
        }
        Ok(())
    }

    fn fallocate(
        &self,
        _: &Cx,
        ino: InodeNo,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.state.lock().node_mut(ino)?.allocate(mode, offset, len)
    }

    fn seek(&self, _: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        self.state.lock().node(ino)?.seek(offset, what)
    }

    fn copy_range(
        &self,
        _: &Cx,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        let mut state = self.state.lock();
        let data = state.node(from.0)?.read(from.1, len as usize).to_vec();
        state.node_mut(to.0)?.write(to.1, &data);
        Ok(data.len() as u64)
    }

    fn readdir(
        &self,
        _: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.state.lock().list(dir, cookie, emit)
    }

    fn getxattr(&self, _: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.state.lock();
        assert_ne!(name, b"user.panic", "this attribute breaks the volume");
        state
            .node(ino)?
            .xattrs
            .get(name)
            .cloned()
            .ok_or(FsError::NoData)
    }

    fn listxattr(&self, _: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        Ok(self
            .state
            .lock()
            .node(ino)?
            .xattrs
            .keys()
            .cloned()
            .collect())
    }

    fn setxattr(
        &self,
        _: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let xattrs = &mut state.node_mut(ino)?.xattrs;
        match (how, xattrs.contains_key(name)) {
            (SetXattr::Create, true) => return Err(FsError::Exists),
            (SetXattr::Replace, false) => return Err(FsError::NoData),
            _ => {}
        }
        xattrs.insert(name.to_vec(), value.to_vec());
        Ok(())
    }

    fn removexattr(&self, _: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let xattrs = &mut state.node_mut(ino)?.xattrs;
        xattrs.remove(name).map(drop).ok_or(FsError::NoData)
    }

    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        Ok(StatFs {
            block_size: 4096,
            blocks: 1000,
            blocks_free: 500,
            blocks_available: 400,
            files: 100,
            files_free: 50,
            name_max: 255,
            fsid: 1,
        })
    }

    fn flags(&self, _: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        let state = self.state.lock();
        let node = state.node(ino)?;
        Ok(FsxAttr {
            flags: node.attr.flags,
            project: node.project,
            extents: 3,
        })
    }

    fn set_flags(&self, _: &Cx, ino: InodeNo, flags: InodeFlags) -> Result<()> {
        self.state.lock().node_mut(ino)?.attr.flags = flags;
        Ok(())
    }

    fn set_project(&self, _: &Cx, ino: InodeNo, project: u32) -> Result<()> {
        self.state.lock().node_mut(ino)?.project = project;
        Ok(())
    }

    fn generation(&self, _: &Cx, ino: InodeNo) -> Result<u32> {
        Ok(self.state.lock().node(ino)?.attr.generation)
    }

    fn trim(&self, _: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        Ok(start + len.min(1 << 20) + min_len)
    }

    fn sync_all(&self, _: &Cx) -> Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn shutdown(&self, _: &Cx, mode: ShutdownMode) -> Result<()> {
        self.state.lock().shutdown = Some(mode);
        Ok(())
    }

    fn options(&self) -> String {
        "rw".to_owned()
    }

    fn remount(&self, _: &Cx, _: &str) -> Result<()> {
        Ok(())
    }

    fn control(&self) -> Option<&dyn Control> {
        Some(self)
    }

    fn unmount(&self) -> Result<()> {
        self.unmounts.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// The successor gets the same object, with its lookup counts.
    fn hand_over(&self) -> Result<LookupCounts> {
        match self.refuses_hand_over.load(Ordering::SeqCst) {
            true => Err(FsError::Busy),
            false => Ok(LookupCounts::new()),
        }
    }
}
