//! The hidden directory of control files, laid over any volume.
//!
//! Problem: a mounted volume's kernel keeps names, attributes and pages for a day and opens files
//! without asking, but a control file's content is what is true at the moment. Rule: **each lookup
//! of a control file makes a new inode that holds the content of that moment** (the transport gives
//! these inodes no lifetime in the kernel's caches, see [`is_control_inode`]). So each open(2) by
//! name reads fresh and complete content, a reader that goes on sees one consistent text, and what
//! the page cache keeps belongs to an inode nobody finds again. A descriptor kept open shows the
//! content of its opening. The inode goes when the last lookup count goes. What programs are told is
//! the number of the file's place, which stays ([`reported_ino`]): cp(1) copies only what it has looked at.
//!
//! A write hands its whole buffer to [`Control::write`](crate::Control::write), wherever the file
//! position is; setting the size (`O_TRUNC`) does nothing.

mod ops;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};

use tree::{Place, PlaceKind, insert};

use crate::tune::tune;
use crate::{
    Attr, Control, ControlLayer, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr,
    InodeFlags, IoctlAnswer, ReadData, RenameFlags, Result, Seek, SetAttr, SetXattr, ShutdownMode,
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
/// More than there are places: the number of a file's n-th inode is that of its place and n times this.
const PLACES: u64 = 1 << 16;

/// Whether `ino` is a control file or directory. Whoever caches must not keep anything about it:
/// the next lookup of its name finds another inode.
pub const fn is_control_inode(ino: InodeNo) -> bool {
    ino.0 >= FIRST_INO
}

/// The number that programs are shown of an inode: of a control file one for all the inodes that it has
/// by and by, the same as in its directory.
pub const fn reported_ino(ino: InodeNo) -> InodeNo {
    match is_control_inode(ino) {
        true => InodeNo(FIRST_INO + (ino.0 - FIRST_INO) % PLACES),
        false => ino,
    }
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
    layer: Option<Arc<dyn ControlLayer>>,
    /// Whether the directory is there.
    shown: bool,
    places: Vec<Place>,
    inodes: Mutex<BTreeMap<u64, Inode>>,
    /// Inodes made for files.
    made: AtomicU64,
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
        Self {
            inner,
            layer: None,
            shown: true,
            places,
            inodes: Mutex::new(Rank::Leaf, BTreeMap::new()),
            made: AtomicU64::new(0),
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
    pub fn with_layer(mut self, layer: Arc<dyn ControlLayer>) -> Self {
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
        let before = self.made.fetch_add(1, Ordering::Relaxed);
        let ino = InodeNo(place_ino(place).0 + (before + 1) * PLACES);
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
        let layer = self.layer.as_deref().map(ControlLayer::control);
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
    assert!((place as u64) < PLACES, "there are a few dozen");
    InodeNo(FIRST_INO + place as u64)
}
