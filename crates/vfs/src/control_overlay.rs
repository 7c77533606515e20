//! The hidden directory of control files, laid over any volume.
//!
//! Problem: a mounted volume's kernel keeps names, attributes and pages for a day and opens files
//! without asking, but a control file's content is what is true at the moment. Rule: **each lookup
//! of a control file makes a new inode that holds the content of that moment** (the transport gives
//! these inodes no lifetime in the kernel's caches, see [`is_control_inode`]). So each open(2) by
//! name reads fresh and complete content, a reader that goes on sees one consistent text, and what
//! the page cache keeps belongs to an inode nobody finds again. A descriptor kept open shows the
//! content of its opening. The inode goes when the last lookup count goes.
//!
//! A write hands its whole buffer to [`Control::write`](crate::Control::write), wherever the file
//! position is; setting the size (`O_TRUNC`) does nothing.

mod places;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};

use places::{Place, PlaceKind, insert};

use crate::tune::tune;
use crate::{
    Attr, Control, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags,
    IoctlAnswer, Layer, ReadData, RenameFlags, Result, Seek, SetAttr, SetXattr, ShutdownMode,
    StatFs,
};

/// Name of the directory of control files in the root directory.
pub const CONTROL_DIR: &[u8] = b".steadfs";
/// Control file that is always there: writing anything to it, or fsync on it, makes the volume
/// durable.
pub const SYNC_FILE: &str = "sync";

/// Control file of the options: what is written to it is a remount.
const OPTIONS_FILE: &str = "options";

/// Control inodes have numbers from here on; no format has inode numbers of 62 bits.
const FIRST_INO: u64 = 1 << 62;

/// Whether `ino` is a control file or directory. Whoever caches must not keep anything about it:
/// the next lookup of its name finds another inode.
pub const fn is_control_inode(ino: InodeNo) -> bool {
    ino.0 >= FIRST_INO
}

/// A file's inode that was looked up: the place, and the content at that moment. Directories never
/// change and have one inode each, numbered by their place.
struct Inode {
    place: usize,
    content: Result<Arc<[u8]>>,
    made: Timestamp,
    lookups: u64,
}

impl Inode {
    fn size(&self) -> u64 {
        self.content.as_ref().map_or(0, |c| c.len() as u64)
    }
}

/// A volume with its control files below [`CONTROL_DIR`].
pub struct WithControl {
    inner: Arc<dyn FileSystem>,
    layer: Option<Arc<dyn Layer>>,
    /// Whether the directory is there.
    shown: bool,
    places: Vec<Place>,
    inodes: Mutex<BTreeMap<u64, Inode>>,
    next: AtomicU64,
    mounted: Timestamp,
    owner: (u32, u32),
}

impl WithControl {
    /// Lays the files that `inner.control()` names (and [`SYNC_FILE`]) over `inner`.
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        let mut places = vec![Place {
            name: "",
            parent: 0,
            kind: PlaceKind::Dir,
        }];
        let mut entries: Vec<_> = inner
            .control()
            .map(Control::entries)
            .unwrap_or_default()
            .into_iter()
            .map(|entry| (entry.path, entry.writable))
            .collect();
        if !entries.iter().any(|(path, _)| *path == SYNC_FILE) {
            entries.push((SYNC_FILE, true));
        }
        for (path, writable) in entries {
            insert(&mut places, path, writable);
        }
        // Numbers below are the places' own, as readdir reports them.
        let next = AtomicU64::new(FIRST_INO + places.len() as u64);
        Self {
            inner,
            layer: None,
            shown: true,
            places,
            inodes: Mutex::new(Rank::Leaf, BTreeMap::new()),
            next,
            mounted: steadfs_rt::wall_clock(),
            owner: (0, 0),
        }
    }

    /// Lets a user and group own the control files, which are root's otherwise: those of the one who
    /// mounts, when it is not root.
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Adds a layer's files and options.
    pub fn with_layer(mut self, layer: Arc<dyn Layer>) -> Self {
        for entry in layer.control().entries() {
            let same = |place: &Place| matches!(place.kind, PlaceKind::File { path, .. } if path == entry.path);
            match self.places.iter_mut().find(|place| same(place)) {
                Some(place) => {
                    place.kind = PlaceKind::File {
                        path: entry.path,
                        writable: entry.writable,
                    }
                }
                None => insert(&mut self.places, entry.path, entry.writable),
            }
        }
        self.next = AtomicU64::new(FIRST_INO + self.places.len() as u64);
        self.layer = Some(layer);
        self
    }

    /// Leaves the directory out; options work all the same.
    pub fn hidden(mut self) -> Self {
        self.shown = false;
        self
    }

    /// The volume itself.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.inner
    }

    fn child(&self, dir: usize, name: &[u8]) -> Option<usize> {
        (1..self.places.len())
            .find(|&i| self.places[i].parent == dir && self.places[i].name.as_bytes() == name)
    }

    /// The place of a control inode that is looked up, or that `readdir` reported.
    fn place(&self, ino: InodeNo) -> Result<usize> {
        if let Some(inode) = self.inodes.lock().get(&ino.0) {
            return Ok(inode.place);
        }
        usize::try_from(ino.0 - FIRST_INO)
            .ok()
            .filter(|&index| index < self.places.len())
            .ok_or(FsError::Stale)
    }

    /// A control directory's place.
    fn dir_place(&self, ino: InodeNo) -> Result<usize> {
        let place = self.place(ino)?;
        match self.places[place].kind {
            PlaceKind::Dir => Ok(place),
            PlaceKind::File { .. } => Err(FsError::NotDir),
        }
    }

    /// The inode of `place`, new for a file, with one lookup count.
    fn make(&self, place: usize) -> Attr {
        let PlaceKind::File { path, .. } = self.places[place].kind else {
            return self.attr(place_ino(place), place, 0, self.mounted);
        };
        let inode = Inode {
            place,
            content: self.content(path),
            made: steadfs_rt::wall_clock(),
            lookups: 1,
        };
        let ino = InodeNo(self.next.fetch_add(1, Ordering::Relaxed));
        let attr = self.attr(ino, place, inode.size(), inode.made);
        self.inodes.lock().insert(ino.0, inode);
        attr
    }

    fn content(&self, path: &str) -> Result<Arc<[u8]>> {
        if path == OPTIONS_FILE {
            return Ok(Arc::from((self.options() + "\n").into_bytes()));
        }
        match self.control_of(path) {
            Some(control) => control.read(path).map(Arc::from),
            None => Ok(Arc::from([])),
        }
    }

    /// Who has control files, those first whose files hide others'.
    fn controls(&self) -> Vec<&dyn Control> {
        let layer = self.layer.as_deref().map(Layer::control);
        layer.into_iter().chain(self.inner.control()).collect()
    }

    /// Whose file it is.
    fn control_of(&self, path: &str) -> Option<&dyn Control> {
        let has = |control: &&dyn Control| control.entries().iter().any(|e| e.path == path);
        self.controls().into_iter().find(has)
    }

    fn attr(&self, ino: InodeNo, place: usize, size: u64, time: Timestamp) -> Attr {
        let (kind, perm, nlink) = match self.places[place].kind {
            PlaceKind::Dir => (FileKind::Directory, 0o700, 2),
            PlaceKind::File { writable: true, .. } => (FileKind::Regular, 0o600, 1),
            PlaceKind::File { .. } => (FileKind::Regular, 0o400, 1),
        };
        Attr {
            ino,
            generation: 0,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            size,
            blocks: 0,
            block_size: 4096,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            flags: InodeFlags::default(),
        }
    }

    fn control_attr(&self, ino: InodeNo) -> Result<Attr> {
        if let Some(inode) = self.inodes.lock().get(&ino.0) {
            return Ok(self.attr(ino, inode.place, inode.size(), inode.made));
        }
        let place = self.dir_place(ino)?;
        Ok(self.attr(ino, place, 0, self.mounted))
    }

    fn control_read(&self, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        let content = match self.inodes.lock().get(&ino.0) {
            Some(inode) => inode.content.clone()?,
            None => return Err(FsError::IsDir),
        };
        let start = usize::try_from(offset).map_or(content.len(), |at| at.min(content.len()));
        let end = start.saturating_add(len).min(content.len());
        let mut data = ReadData::new();
        data.push(Arc::new(content), start..end);
        Ok(data)
    }

    fn control_write(&self, cx: &Cx, ino: InodeNo, data: &[u8]) -> Result<usize> {
        let place = self.place(ino)?;
        let PlaceKind::File { path, writable } = self.places[place].kind else {
            return Err(FsError::IsDir);
        };
        if !writable {
            return Err(FsError::NotPermitted);
        }
        match path {
            SYNC_FILE => self.inner.sync_all(cx)?,
            OPTIONS_FILE => {
                let list = std::str::from_utf8(data)
                    .map_err(|_| FsError::BadOption("options are text".to_owned()))?;
                self.remount(cx, list.trim())?;
            }
            _ => self
                .control_of(path)
                .ok_or(FsError::Stale)?
                .write(path, data)?,
        }
        Ok(data.len())
    }

    fn control_fsync(&self, cx: &Cx, ino: InodeNo) -> Result<()> {
        let place = self.place(ino)?;
        match self.places[place].kind {
            PlaceKind::File { path, .. } if path == SYNC_FILE => self.inner.sync_all(cx),
            _ => Ok(()),
        }
    }

    fn control_readdir(
        &self,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.dir_place(dir)?;
        let parent = match dir {
            0 => self.inner.root(),
            _ => place_ino(self.places[dir].parent),
        };
        let own = [(place_ino(dir), "."), (parent, "..")]
            .into_iter()
            .map(|(ino, name)| (ino, FileKind::Directory, name));
        let children = (1..self.places.len())
            .filter(|&i| self.places[i].parent == dir)
            .map(|i| {
                let kind = match self.places[i].kind {
                    PlaceKind::Dir => FileKind::Directory,
                    PlaceKind::File { .. } => FileKind::Regular,
                };
                (place_ino(i), kind, self.places[i].name)
            });
        // The list is fixed: the cookie is the count of entries already reported.
        let skip = usize::try_from(cookie).unwrap_or(usize::MAX);
        for ((ino, kind, name), next) in own.chain(children).zip(1..).skip(skip) {
            let entry = DirEntry {
                ino,
                kind: Some(kind),
                name: name.as_bytes(),
                next,
            };
            if !emit(entry) {
                break;
            }
        }
        Ok(())
    }

    /// Refuses changes of names in control directories, and of the control directory's own name.
    fn changeable(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        if is_control_inode(dir) || self.is_control_name(dir, name) {
            Err(FsError::NotPermitted)
        } else {
            Ok(())
        }
    }

    fn is_control_name(&self, dir: InodeNo, name: &[u8]) -> bool {
        self.shown && dir == self.inner.root() && name == CONTROL_DIR
    }
}

/// The number readdir reports for a place.
fn place_ino(place: usize) -> InodeNo {
    InodeNo(FIRST_INO + place as u64)
}

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
        let place = self.dir_place(dir)?;
        match name {
            b"." => Ok(self.make(place)),
            b".." if place == 0 => self.inner.attach(cx, self.inner.root()),
            b".." => Ok(self.make(self.places[place].parent)),
            _ => self
                .child(place, name)
                .map(|found| self.make(found))
                .ok_or(FsError::NotFound),
        }
    }

    fn attach(&self, cx: &Cx, ino: InodeNo) -> Result<Attr> {
        if !is_control_inode(ino) {
            return self.inner.attach(cx, ino);
        }
        Ok(self.make(self.place(ino)?))
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
        // Truncation and touching mean nothing here; ownership and mode are fixed.
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
        // An entry of that name on the volume cannot be reached while the controls are there.
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

    fn generation(&self, cx: &Cx, ino: InodeNo) -> Result<u32> {
        if is_control_inode(ino) {
            return Ok(0);
        }
        self.inner.generation(cx, ino)
    }

    fn trim(&self, cx: &Cx, start: u64, len: u64, min_len: u64) -> Result<u64> {
        self.inner.trim(cx, start, len, min_len)
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
}
