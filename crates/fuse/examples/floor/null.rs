//! A volume that keeps names and attributes in memory, discards what is written and reads as zeros.

use std::collections::BTreeMap;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags,
    ReadData, RenameFlags, Result, Seek, SetAttr, SetTime, SetXattr, ShutdownMode, StatFs,
};

const ROOT: InodeNo = InodeNo(1);
/// Cookies of entries begin after those of "." and "..", which are not reported.
const FIRST: u64 = 3;
const NO: FsError = FsError::NotSupported("the null volume does nothing");

/// See the module header.
pub struct NullFs {
    tree: Mutex<Tree>,
}

/// All inodes; none is freed.
struct Tree {
    nodes: Vec<Node>,
}

struct Node {
    attr: Attr,
    target: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
    /// Names by cookie, in the order of creation.
    order: BTreeMap<u64, (Vec<u8>, InodeNo)>,
}

impl Node {
    fn new(ino: InodeNo, kind: FileKind, perm: u32) -> Self {
        let now = steadfs_rt::wall_clock();
        let attr = Attr {
            ino,
            generation: 0,
            kind,
            perm: perm & 0o7777,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            block_size: 4096,
            atime: now,
            mtime: now,
            ctime: now,
            btime: None,
            flags: InodeFlags::default(),
        };
        Self {
            attr,
            target: Vec::new(),
            names: BTreeMap::new(),
            order: BTreeMap::new(),
        }
    }

    fn entry(&self, name: &[u8]) -> Result<(u64, InodeNo)> {
        let cookie = self.names.get(name).ok_or(FsError::NotFound)?;
        Ok((*cookie, self.order[cookie].1))
    }

    fn remove(&mut self, name: &[u8]) -> Result<InodeNo> {
        let (cookie, ino) = self.entry(name)?;
        self.names.remove(name);
        self.order.remove(&cookie);
        Ok(ino)
    }

    fn enter(&mut self, name: &[u8], ino: InodeNo) {
        let cookie = self.order.last_key_value().map_or(FIRST, |last| last.0 + 1);
        self.names.insert(name.to_vec(), cookie);
        self.order.insert(cookie, (name.to_vec(), ino));
    }
}

impl Tree {
    fn node(&mut self, ino: InodeNo) -> Result<&mut Node> {
        let at = usize::try_from(ino.0).map_err(|_| FsError::Stale)?;
        self.nodes.get_mut(at).ok_or(FsError::Stale)
    }

    fn make(&mut self, dir: InodeNo, name: &[u8], kind: FileKind, perm: u32) -> Result<&mut Node> {
        let ino = InodeNo(self.nodes.len() as u64);
        let parent = self.node(dir)?;
        if parent.names.contains_key(name) {
            return Err(FsError::Exists);
        }
        parent.enter(name, ino);
        self.nodes.push(Node::new(ino, kind, perm));
        self.node(ino)
    }
}

impl NullFs {
    /// An empty directory.
    pub fn new() -> Self {
        let node = |ino| Node::new(ino, FileKind::Directory, 0o755);
        // Inode numbers are indices; there is no inode 0.
        let tree = Tree {
            nodes: vec![node(InodeNo(0)), node(ROOT)],
        };
        Self {
            tree: Mutex::new(Rank::Leaf, tree),
        }
    }

    fn attr(&self, ino: InodeNo) -> Result<Attr> {
        Ok(self.tree.lock().node(ino)?.attr.clone())
    }

    fn add(&self, dir: InodeNo, name: &[u8], kind: FileKind, perm: u32) -> Result<Attr> {
        let mut tree = self.tree.lock();
        Ok(tree.make(dir, name, kind, perm)?.attr.clone())
    }
}

impl FileSystem for NullFs {
    fn root(&self) -> InodeNo {
        ROOT
    }
    fn lookup(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let (_, ino) = tree.node(dir)?.entry(name)?;
        Ok(tree.node(ino)?.attr.clone())
    }
    fn attach(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        self.attr(ino)
    }
    fn forget(&self, _: InodeNo, _: u64) {}
    fn getattr(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        self.attr(ino)
    }
    fn setattr(&self, _: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        let time = |time: SetTime| -> Timestamp {
            match time {
                SetTime::Now => steadfs_rt::wall_clock(),
                SetTime::At(time) => time,
            }
        };
        let mut tree = self.tree.lock();
        let attr = &mut tree.node(ino)?.attr;
        attr.perm = set.perm.unwrap_or(attr.perm);
        attr.uid = set.uid.unwrap_or(attr.uid);
        attr.gid = set.gid.unwrap_or(attr.gid);
        attr.size = set.size.unwrap_or(attr.size);
        attr.atime = set.atime.map_or(attr.atime, time);
        attr.mtime = set.mtime.map_or(attr.mtime, time);
        Ok(attr.clone())
    }
    fn readlink(&self, _: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        Ok(self.tree.lock().node(ino)?.target.clone())
    }
    fn mknod(&self, _: &Cx, dir: InodeNo, name: &[u8], mode: u32, _: u32) -> Result<Attr> {
        let kind = FileKind::from_mode(mode).ok_or(FsError::Invalid("mode"))?;
        self.add(dir, name, kind, mode)
    }
    fn mkdir(&self, _: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        self.add(dir, name, FileKind::Directory, mode)
    }
    fn symlink(&self, _: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        let node = tree.make(dir, name, FileKind::Symlink, 0o777)?;
        node.target = target.to_vec();
        node.attr.size = target.len() as u64;
        Ok(node.attr.clone())
    }
    fn link(&self, _: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        let mut tree = self.tree.lock();
        if tree.node(dir)?.names.contains_key(name) {
            return Err(FsError::Exists);
        }
        tree.node(dir)?.enter(name, ino);
        let attr = &mut tree.node(ino)?.attr;
        attr.nlink += 1;
        Ok(attr.clone())
    }
    fn tmpfile(&self, _: &Cx, _: InodeNo, _: u32) -> Result<Attr> {
        Err(NO)
    }
    fn unlink(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let ino = tree.node(dir)?.remove(name)?;
        let attr = &mut tree.node(ino)?.attr;
        attr.nlink = attr.nlink.saturating_sub(1);
        Ok(())
    }
    fn rmdir(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        let mut tree = self.tree.lock();
        let (_, ino) = tree.node(dir)?.entry(name)?;
        if !tree.node(ino)?.names.is_empty() {
            return Err(FsError::NotEmpty);
        }
        tree.node(dir)?.remove(name).map(drop)
    }
    fn rename(
        &self,
        _: &Cx,
        _: (InodeNo, &[u8]),
        _: (InodeNo, &[u8]),
        _: RenameFlags,
    ) -> Result<()> {
        Err(NO)
    }
    fn read(&self, _: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        let left = self.attr(ino)?.size.saturating_sub(offset);
        let mut data = ReadData::new();
        data.push_zeros(usize::try_from(left).map_or(len, |left| left.min(len)));
        Ok(data)
    }
    fn write(&self, _: &Cx, ino: InodeNo, offset: u64, data: &[u8], _: bool) -> Result<usize> {
        let mut tree = self.tree.lock();
        let attr = &mut tree.node(ino)?.attr;
        attr.size = attr.size.max(offset.saturating_add(data.len() as u64));
        Ok(data.len())
    }
    fn fsync(&self, _: &Cx, _: InodeNo, _: bool) -> Result<()> {
        Ok(())
    }
    fn fallocate(&self, _: &Cx, _: InodeNo, _: FallocMode, _: u64, _: u64) -> Result<()> {
        Err(NO)
    }
    fn seek(&self, _: &Cx, _: InodeNo, _: u64, _: Seek) -> Result<u64> {
        Err(NO)
    }
    fn copy_range(&self, _: &Cx, _: (InodeNo, u64), _: (InodeNo, u64), _: u64) -> Result<u64> {
        Err(NO)
    }
    fn readdir(
        &self,
        _: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let mut tree = self.tree.lock();
        let order = &tree.node(dir)?.order;
        for (&next, (name, ino)) in order.range(cookie.max(FIRST - 1) + 1..) {
            let (ino, kind) = (*ino, None);
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
    fn getxattr(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<Vec<u8>> {
        Err(FsError::NoData)
    }
    fn listxattr(&self, _: &Cx, _: InodeNo) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn setxattr(&self, _: &Cx, _: InodeNo, _: &[u8], _: &[u8], _: SetXattr) -> Result<()> {
        Err(NO)
    }
    fn removexattr(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(NO)
    }
    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        // Programs check the free space.
        const MANY: u64 = 1 << 30;
        Ok(StatFs {
            block_size: 4096,
            blocks: MANY,
            blocks_free: MANY,
            blocks_available: MANY,
            files: MANY,
            files_free: MANY,
            name_max: 255,
            fsid: 1,
        })
    }
    fn flags(&self, _: &Cx, _: InodeNo) -> Result<FsxAttr> {
        Ok(FsxAttr::default())
    }
    fn set_flags(&self, _: &Cx, _: InodeNo, _: InodeFlags) -> Result<()> {
        Err(NO)
    }
    fn set_project(&self, _: &Cx, _: InodeNo, _: u32) -> Result<()> {
        Err(NO)
    }
    fn generation(&self, _: &Cx, _: InodeNo) -> Result<u32> {
        Ok(0)
    }
    fn trim(&self, _: &Cx, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(NO)
    }
    fn sync_all(&self, _: &Cx) -> Result<()> {
        Ok(())
    }
    fn shutdown(&self, _: &Cx, _: ShutdownMode) -> Result<()> {
        Ok(())
    }
    fn options(&self) -> String {
        String::new()
    }
    fn remount(&self, _: &Cx, _: &str) -> Result<()> {
        Ok(())
    }
    fn control(&self) -> Option<&dyn Control> {
        None
    }
    fn unmount(&self) -> Result<()> {
        Ok(())
    }
}
