//! What a test has done to a volume, and the record of it.

use std::collections::{BTreeMap, BTreeSet};

use steadfs_base::InodeNo;
use steadfs_vfs::{
    Attr, Cx, FallocMode, FileKind, FileSystem, FsError, FsxAttr, InodeFlags, RecordedChange,
    RecordedFile, RecordedInode, RecordedName, RecordedState,
};

/// Hints of f2fs that are read and set like an extended attribute, and not listed.
pub const HINTS: &[u8] = b"system.advise";
/// Those that users may set: cold and hot.
pub const SETTABLE_HINTS: u8 = 0x21;

/// An inode as the calls have left it.
#[derive(Clone, Debug)]
pub struct File {
    pub attr: Attr,
    pub flags: FsxAttr,
    pub target: Option<Vec<u8>>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub content: Vec<u8>,
    pub lookups: u64,
    /// Made without a name, and may get one.
    pub linkable: bool,
    /// Changed extended attributes since everything was durable.
    changed_xattrs: BTreeSet<Vec<u8>>,
    changes: Vec<RecordedChange>,
}

/// All inodes and names of a volume, and which of them are recorded.
#[derive(Clone, Default)]
pub struct Model {
    pub files: BTreeMap<InodeNo, File>,
    pub names: BTreeMap<(InodeNo, Vec<u8>), InodeNo>,
    recorded: BTreeSet<InodeNo>,
    recorded_names: BTreeSet<(InodeNo, Vec<u8>)>,
}

impl Model {
    /// Records that the state of an inode changes or is needed.
    pub fn touch(&mut self, fs: &dyn FileSystem, ino: InodeNo) {
        self.recorded.insert(ino);
        let Ok(attr) = fs.getattr(&Cx::default(), ino) else {
            self.files.remove(&ino);
            self.recorded_names.retain(|(dir, _)| *dir != ino);
            return;
        };
        let flags = fs.flags(&Cx::default(), ino).unwrap();
        let lookups = u64::from(!self.files.contains_key(&ino));
        let file = self.files.entry(ino).or_insert_with(|| File {
            attr: attr.clone(),
            flags,
            target: None,
            xattrs: BTreeMap::new(),
            content: Vec::new(),
            lookups,
            linkable: false,
            changed_xattrs: BTreeSet::new(),
            changes: Vec::new(),
        });
        file.linkable &= attr.nlink == 0;
        (file.attr, file.flags) = (attr, flags);
    }

    pub fn name(&mut self, dir: InodeNo, name: &[u8], ino: Option<InodeNo>) {
        let key = (dir, name.to_vec());
        self.recorded_names.insert(key.clone());
        match ino {
            Some(ino) => self.names.insert(key, ino),
            None => self.names.remove(&key),
        };
    }

    /// Records a name as it is.
    pub fn touch_name(&mut self, dir: InodeNo, name: &[u8]) {
        self.recorded_names.insert((dir, name.to_vec()));
    }

    pub fn write(&mut self, ino: InodeNo, offset: u64, bytes: &[u8]) {
        let file = self.files.get_mut(&ino).unwrap();
        let end = offset as usize + bytes.len();
        if file.content.len() < end {
            file.content.resize(end, 0);
        }
        file.content[offset as usize..end].copy_from_slice(bytes);
        let change = RecordedChange::Bytes(offset, bytes.to_vec());
        file.changes.push(change);
    }

    pub fn resize(&mut self, ino: InodeNo, size: u64) {
        let file = self.files.get_mut(&ino).unwrap();
        file.content.resize(size as usize, 0);
        file.changes.push(RecordedChange::Size(size));
    }

    pub fn range(&mut self, ino: InodeNo, mode: FallocMode, offset: u64, len: u64) {
        let file = self.files.get_mut(&ino).unwrap();
        let size = file.content.len();
        let (from, end) = (offset as usize, (offset + len) as usize);
        let grows = match mode {
            FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } => !keep_size,
            _ => false,
        };
        if grows && end > size {
            file.content.resize(end, 0);
        }
        if !matches!(mode, FallocMode::Allocate { .. }) {
            let size = file.content.len();
            file.content[from.min(size)..end.min(size)].fill(0);
        }
        let change = RecordedChange::Range(mode, offset, len);
        file.changes.push(change);
    }

    pub fn xattr(&mut self, ino: InodeNo, name: &[u8], value: Option<&[u8]>) {
        let file = self.files.get_mut(&ino).unwrap();
        file.changed_xattrs.insert(name.to_vec());
        match value {
            Some(value) => file.xattrs.insert(name.to_vec(), value.to_vec()),
            None => file.xattrs.remove(name),
        };
    }

    /// Records an extended attribute as it is, which a call may have changed.
    pub fn read_xattr(&mut self, fs: &dyn FileSystem, ino: InodeNo, name: &[u8]) {
        match fs.getxattr(&Cx::default(), ino, name) {
            Ok(value) => self.xattr(ino, name, Some(&value)),
            Err(FsError::NoData) => self.xattr(ino, name, None),
            // Volumes without it, and inodes that cannot have it.
            Err(FsError::NotSupported(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Drops all lookups of an inode, which is free afterwards if it has no name.
    pub fn forget(&mut self, fs: &dyn FileSystem, ino: InodeNo) {
        let file = self.files.get_mut(&ino).unwrap();
        fs.forget(ino, file.lookups);
        file.lookups = 0;
        if file.attr.nlink == 0 {
            assert_eq!(fs.getattr(&Cx::default(), ino), Err(FsError::Stale));
            self.files.remove(&ino);
            self.recorded.insert(ino);
            // Later names of this number are those of another directory.
            self.recorded_names.retain(|(dir, _)| *dir != ino);
        }
    }

    /// The unfinished call of this model has not changed `before`: what it involves is recorded as it was.
    pub fn take_back(&mut self, before: Self) {
        let after = std::mem::replace(self, before);
        let known = |ino: &InodeNo| self.files.contains_key(ino) || self.recorded.contains(ino);
        let involved: Vec<_> = after.recorded.into_iter().filter(known).collect();
        self.recorded.extend(involved);
        let names = after.recorded_names.into_iter();
        let names = names.filter(|(dir, _)| self.files.contains_key(dir));
        self.recorded_names.extend(names);
    }

    /// Everything is durable.
    pub fn durable(&mut self) {
        self.recorded.clear();
        self.recorded_names.clear();
        for file in self.files.values_mut() {
            file.changed_xattrs.clear();
            file.changes.clear();
        }
    }

    /// Whether the inode of this number and generation has a name.
    pub fn has_name(&self, (ino, generation): (InodeNo, u32)) -> bool {
        let file = self.files.get(&ino);
        file.is_some_and(|file| file.attr.nlink > 0 && file.attr.generation == generation)
    }

    /// The lookup counts.
    pub fn lookups(&self) -> Vec<(InodeNo, u64)> {
        let each = self.files.iter().map(|(&ino, file)| (ino, file.lookups));
        each.filter(|(_, count)| *count > 0).collect()
    }

    pub fn state(&self) -> RecordedState {
        let inode = |ino: &InodeNo| match self.files.get(ino) {
            None => RecordedInode::Free,
            Some(file) => RecordedInode::InUse(Box::new(RecordedFile {
                generation: file.attr.generation,
                attr: file.attr.clone(),
                flags: file.flags,
                target: file.target.clone(),
                xattrs: (file.changed_xattrs.iter())
                    .map(|name| (name.clone(), file.xattrs.get(name).cloned()))
                    .collect(),
                contents: file.changes.clone(),
            })),
        };
        let unlinked = self.files.iter().filter(|(_, file)| file.attr.nlink == 0);
        RecordedState {
            inodes: self.recorded.iter().map(|ino| (*ino, inode(ino))).collect(),
            names: (self.recorded_names.iter())
                .zip(0..)
                .map(|(name, order)| {
                    let to = self.names.get(name).copied();
                    (name.clone(), RecordedName { to, order })
                })
                .collect(),
            unlinked: unlinked.map(|(ino, _)| *ino).collect(),
        }
    }

    /// Asserts that the volume is in this state.
    pub fn check(&self, fs: &dyn FileSystem, what: &str) {
        let cx = Cx::default();
        for (ino, file) in &self.files {
            let attr = fs.getattr(&cx, *ino);
            let mut attr = attr.unwrap_or_else(|e| panic!("{what}: inode {ino}: {e}"));
            attr.blocks = file.attr.blocks;
            let mut flags = fs.flags(&cx, *ino).unwrap();
            if attr.kind == FileKind::Directory {
                // Where its names are stored.
                attr.size = file.attr.size;
            }
            for (flags, wanted) in [
                (&mut attr.flags, file.attr.flags),
                (&mut flags.flags, file.flags.flags),
            ] {
                // How its content or names are stored.
                let mask = InodeFlags::INLINE_DATA.0 | InodeFlags::INDEX.0;
                flags.0 = flags.0 & !mask | wanted.0 & mask;
            }
            assert_eq!(attr, file.attr, "{what}: inode {ino}");
            assert_eq!(flags, file.flags, "{what}: inode {ino}");
            let names = fs.listxattr(&cx, *ino).unwrap();
            let value = |name: Vec<u8>| (name.clone(), fs.getxattr(&cx, *ino, &name).unwrap());
            let xattrs: BTreeMap<_, _> = names.into_iter().map(value).collect();
            let mut wanted = file.xattrs.clone();
            if let Some(hints) = wanted.remove(HINTS) {
                let found = fs.getxattr(&cx, *ino, HINTS).unwrap();
                let [found, wanted] = [found[0], hints[0]].map(|hints| hints & SETTABLE_HINTS);
                assert_eq!(found, wanted, "{what}: hints of inode {ino}");
            }
            assert_eq!(xattrs, wanted, "{what}: inode {ino}");
        }
        for ((dir, name), ino) in &self.names {
            let found = fs.lookup(&cx, *dir, name).map(|attr| attr.ino);
            let shown = String::from_utf8_lossy(name);
            assert_eq!(found, Ok(*ino), "{what}: {shown} in {dir}");
            fs.forget(*ino, 1);
        }
        for (ino, file) in &self.files {
            match file.attr.kind {
                FileKind::Directory if file.attr.nlink > 0 => {
                    let listed = steadfs_vfs::test_support::names(fs, &cx, *ino);
                    let range = (*ino, Vec::new())..(InodeNo(ino.0 + 1), Vec::new());
                    let wanted = self.names.range(range);
                    let wanted: Vec<_> = wanted.map(|((_, name), _)| name.clone()).collect();
                    assert_eq!(listed, wanted, "{what}: directory {ino}");
                }
                FileKind::Regular => {
                    let content = fs.read(&cx, *ino, 0, file.content.len() + 100).unwrap();
                    let content = content.to_vec();
                    let differs = content.iter().zip(&file.content).position(|(a, b)| a != b);
                    let lens = (content.len(), file.content.len());
                    let same = content == file.content;
                    assert!(same, "{what}: inode {ino} differs at {differs:?}, {lens:?}");
                }
                FileKind::Symlink => {
                    let target = fs.readlink(&cx, *ino).unwrap();
                    assert_eq!(Some(target), file.target, "{what}: inode {ino}");
                }
                _ => {}
            }
        }
    }
}
