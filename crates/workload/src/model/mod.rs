//! A file system in memory. It predicts the result of every call, and its states are what the oracle compares with.

mod content;
mod format;
mod state;

pub use content::{Content, PAGE, Page};
pub use format::{Format, Recovery};
pub use state::{Node, ROOT, State};

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags,
    ReadData, RenameFlags, Result, Seek, SetAttr, SetTime, SetXattr, ShutdownMode, StatFs,
};

use crate::Span;

/// A [`State`] behind the [`FileSystem`] trait. Space and inodes never run out; times are those that a call set,
/// otherwise zero.
pub struct ModelFs {
    format: Format,
    inner: Mutex<Inner>,
    on_sync: Option<OnSync>,
}

/// Called for a sync, with a function that returns the present content. The callee calls it under a lock, so that of
/// two syncs the later one never has the older content.
pub type OnSync = Box<dyn Fn(&dyn Fn() -> State) -> Result<()> + Send + Sync>;

struct Inner {
    state: State,
    /// Lookup counts above 0.
    lookups: BTreeMap<InodeNo, u64>,
}

impl Inner {
    /// Counts one lookup and returns the attributes.
    fn hold(&mut self, ino: InodeNo, format: Format) -> Result<Attr> {
        let attr = attr(ino, self.state.node(ino)?, format);
        *self.lookups.entry(ino).or_default() += 1;
        Ok(attr)
    }

    /// After a name was removed: removes an unnamed inode that has no lookup count.
    fn drop_reference(&mut self, ino: InodeNo) {
        if !self.lookups.contains_key(&ino) {
            self.state.reap(ino);
        }
    }
}

fn attr(ino: InodeNo, node: &Node, format: Format) -> Attr {
    let size = match node.kind {
        FileKind::Regular => node.size,
        FileKind::Symlink => node.target.len() as u64,
        FileKind::Directory => u64::from(format.block_size),
        _ => 0,
    };
    Attr {
        ino,
        generation: 1,
        kind: node.kind,
        perm: node.perm,
        nlink: node.nlink,
        uid: node.uid,
        gid: node.gid,
        rdev: node.rdev,
        size,
        blocks: node.content.pages().count() as u64 * (PAGE as u64 / 512),
        block_size: format.block_size,
        atime: node.atime.unwrap_or_default(),
        mtime: node.mtime.unwrap_or_default(),
        ctime: Timestamp::default(),
        btime: None,
        flags: InodeFlags::default(),
    }
}

const fn owner(cx: &Cx) -> (u32, u32) {
    (cx.uid, cx.gid)
}

fn set_time(time: SetTime, format: Format) -> Option<Timestamp> {
    match time {
        SetTime::Now => None,
        SetTime::At(at) => Some(format.stored(at)),
    }
}

impl ModelFs {
    /// A file system with this content.
    pub fn new(state: State, format: Format) -> Self {
        let inner = Inner {
            state,
            lookups: BTreeMap::new(),
        };
        Self {
            format,
            inner: Mutex::new(Rank::Table, inner),
            on_sync: None,
        }
    }

    /// The same, but every fsync, sync and unmount calls `on_sync` and returns its result.
    pub fn with_sync(self, on_sync: OnSync) -> Self {
        Self {
            on_sync: Some(on_sync),
            ..self
        }
    }

    fn synced(&self) -> Result<()> {
        match &self.on_sync {
            Some(on_sync) => on_sync(&|| self.state()),
            None => Ok(()),
        }
    }

    /// The present content.
    pub fn state(&self) -> State {
        self.inner.lock().state.clone()
    }

    fn made(&self, make: impl FnOnce(&mut State) -> Result<InodeNo>) -> Result<Attr> {
        let mut inner = self.inner.lock();
        let ino = make(&mut inner.state)?;
        inner.hold(ino, self.format)
    }
}

impl FileSystem for ModelFs {
    fn root(&self) -> InodeNo {
        ROOT
    }

    fn lookup(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let mut inner = self.inner.lock();
        let ino = inner.state.lookup(dir, name)?;
        inner.hold(ino, self.format)
    }

    fn attach(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        self.inner.lock().hold(ino, self.format)
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let mut inner = self.inner.lock();
        let left = inner
            .lookups
            .get_mut(&ino)
            .expect("forget of an inode without a lookup count");
        *left = left
            .checked_sub(count)
            .expect("forget exceeds the lookup count");
        if *left == 0 {
            inner.lookups.remove(&ino);
            inner.state.reap(ino);
        }
    }

    fn getattr(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        let inner = self.inner.lock();
        Ok(attr(ino, inner.state.node(ino)?, self.format))
    }

    fn setattr(&self, _: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let mut inner = self.inner.lock();
        if let Some(size) = set.size {
            inner.state.truncate(ino, size)?;
        }
        let node = inner.state.alter(ino, |node| {
            if set.kills_privileges(node.kind) {
                node.drop_privileges();
            }
            node.perm = set.perm.map_or(node.perm, |perm| perm & 0o7777);
            node.uid = set.uid.unwrap_or(node.uid);
            node.gid = set.gid.unwrap_or(node.gid);
            if let Some(time) = set.atime {
                node.atime = set_time(time, self.format);
            }
            if let Some(time) = set.mtime {
                node.mtime = set_time(time, self.format);
            }
        })?;
        Ok(attr(ino, node, self.format))
    }

    fn readlink(&self, _: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        let inner = self.inner.lock();
        let node = inner.state.node(ino)?;
        match node.kind {
            FileKind::Symlink => Ok(node.target.clone()),
            _ => Err(FsError::Invalid("not a symbolic link")),
        }
    }

    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let kind = FileKind::from_mode(mode)
            .filter(|kind| !matches!(kind, FileKind::Directory | FileKind::Symlink))
            .ok_or(FsError::Invalid("type of the new file"))?;
        let perm = mode & !cx.umask;
        self.made(|state| {
            state.make(dir, name, (kind, perm), owner(cx), |node| {
                if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
                    node.rdev = rdev;
                }
                Ok(())
            })
        })
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        // mkdir(2) takes the sticky bit but no set-ID bits.
        let perm = mode & 0o1777 & !cx.umask;
        self.made(|state| {
            state.make(
                dir,
                name,
                (FileKind::Directory, perm),
                owner(cx),
                |_| Ok(()),
            )
        })
    }

    fn symlink(&self, cx: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.made(|state| state.symlink(dir, name, target, owner(cx)))
    }

    fn link(&self, _: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.made(|state| state.link(ino, dir, name).map(|()| ino))
    }

    fn tmpfile(&self, cx: &Cx, dir: InodeNo, mode: u32) -> Result<Attr> {
        self.made(|state| state.tmpfile(dir, mode & !cx.umask, owner(cx)))
    }

    fn unlink(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        let ino = inner.state.unlink(dir, name)?;
        inner.drop_reference(ino);
        Ok(())
    }

    fn rmdir(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let mut inner = self.inner.lock();
        let ino = inner.state.rmdir(dir, name)?;
        inner.drop_reference(ino);
        Ok(())
    }

    fn rename(
        &self,
        cx: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let mut inner = self.inner.lock();
        if let Some(replaced) = inner.state.rename(from, to, flags, owner(cx))? {
            inner.drop_reference(replaced);
        }
        Ok(())
    }

    fn read(&self, _: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        let mut inner = self.inner.lock();
        let bytes = inner.state.read(ino, offset, len)?;
        inner.state.touch(ino)?.atime = None;
        let mut data = ReadData::new();
        let len = bytes.len();
        data.push(Arc::new(bytes), 0..len);
        Ok(data)
    }

    fn write(
        &self,
        _: &Cx,
        ino: InodeNo,
        offset: u64,
        data: &[u8],
        kill_priv: bool,
    ) -> Result<usize> {
        let state = &mut self.inner.lock().state;
        state.write(ino, offset, data)?;
        if kill_priv && !data.is_empty() {
            state.alter(ino, Node::drop_privileges)?;
        }
        Ok(data.len())
    }

    fn fsync(&self, _: &Cx, ino: InodeNo, _: bool) -> Result<()> {
        self.inner.lock().state.node(ino)?;
        self.synced()
    }

    fn fallocate(
        &self,
        _: &Cx,
        ino: InodeNo,
        mode: FallocMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let span = Span::new(offset, len);
        self.inner
            .lock()
            .state
            .fallocate(ino, mode, span, self.format)
    }

    fn seek(&self, _: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        let inner = self.inner.lock();
        let node = inner.state.node(ino)?;
        if offset >= node.size {
            return Err(FsError::NoSuchOffset);
        }
        let page = PAGE as u64;
        let wanted = what == Seek::Data;
        let found = (offset / page..=(node.size - 1) / page)
            .find(|index| node.content.page(*index).is_some() == wanted);
        match (found, what) {
            (Some(index), _) => Ok(offset.max(index * page)),
            (None, Seek::Hole) => Ok(node.size),
            (None, Seek::Data) => Err(FsError::NoSuchOffset),
        }
    }

    fn copy_range(
        &self,
        cx: &Cx,
        from: (InodeNo, u64),
        to: (InodeNo, u64),
        len: u64,
    ) -> Result<u64> {
        let len = usize::try_from(len).map_err(|_| FsError::NoMemory)?;
        let mut inner = self.inner.lock();
        inner.state.write(to.0, 0, &[])?;
        let bytes = inner.state.read(from.0, from.1, len)?;
        // Only bytes that exist in the source can overlap.
        if from.0 == to.0 && from.1.abs_diff(to.1) < bytes.len() as u64 {
            return Err(FsError::Invalid("ranges overlap"));
        }
        inner.state.write(to.0, to.1, &bytes)?;
        if !bytes.is_empty() && !cx.fsetid {
            inner.state.alter(to.0, Node::drop_privileges)?;
        }
        inner.state.touch(from.0)?.atime = None;
        Ok(bytes.len() as u64)
    }

    fn readdir(
        &self,
        _: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut inner = self.inner.lock();
        let node = Arc::clone(inner.state.node(dir)?);
        if !node.is_dir() {
            return Err(FsError::NotDir);
        }
        inner.state.touch(dir)?.atime = None;
        let dots = [(&b"."[..], dir), (&b".."[..], node.parent)];
        let named = node
            .entries
            .iter()
            .map(|(name, ino)| (name.as_slice(), *ino));
        for (index, (name, ino)) in dots.into_iter().chain(named).enumerate() {
            let next = index as u64 + 1;
            if next <= cookie {
                continue;
            }
            let kind = inner.state.node(ino).ok().map(|n| n.kind);
            if !emit(DirEntry {
                ino,
                kind,
                name,
                next,
            }) {
                break;
            }
        }
        Ok(())
    }

    fn getxattr(&self, _: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.lock().state.getxattr(ino, name)
    }

    fn listxattr(&self, _: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let inner = self.inner.lock();
        Ok(inner.state.node(ino)?.xattrs.keys().cloned().collect())
    }

    fn setxattr(
        &self,
        _: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        self.inner.lock().state.setxattr(ino, name, value, how)
    }

    fn removexattr(&self, _: &Cx, ino: InodeNo, name: &[u8]) -> Result<()> {
        self.inner.lock().state.removexattr(ino, name)
    }

    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        let inner = self.inner.lock();
        Ok(StatFs {
            block_size: self.format.block_size,
            files: inner.state.nodes().count() as u64,
            name_max: 255,
            ..StatFs::default()
        })
    }

    fn flags(&self, _: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        self.inner
            .lock()
            .state
            .node(ino)
            .map(|_| FsxAttr::default())
    }

    fn set_flags(&self, _: &Cx, _: InodeNo, _: InodeFlags) -> Result<()> {
        Err(FsError::NotSupported("inode flags"))
    }

    fn set_project(&self, _: &Cx, _: InodeNo, _: u32) -> Result<()> {
        Err(FsError::NotSupported("projects"))
    }

    fn generation(&self, _: &Cx, ino: InodeNo) -> Result<u32> {
        self.inner.lock().state.node(ino).map(|_| 1)
    }

    fn trim(&self, _: &Cx, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(FsError::NotSupported("trim"))
    }

    fn sync_all(&self, _: &Cx) -> Result<()> {
        self.synced()
    }

    fn shutdown(&self, _: &Cx, _: ShutdownMode) -> Result<()> {
        Err(FsError::NotSupported("shutdown"))
    }

    fn options(&self) -> String {
        "rw".to_owned()
    }

    fn remount(&self, _: &Cx, _: &str) -> Result<()> {
        Err(FsError::NotSupported("remount"))
    }

    fn control(&self) -> Option<&dyn Control> {
        None
    }

    fn unmount(&self) -> Result<()> {
        self.synced()
    }
}
