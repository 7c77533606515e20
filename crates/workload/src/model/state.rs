//! A whole small file system as a value; copies are cheap because they share unchanged nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::limits::SYMLINK_MAX;
use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{FileKind, FsError, RenameFlags, Result, check_name};

use super::content::Content;
use crate::TreePath;
use crate::observe::{InodeSnapshot, Observed};

mod inside;

/// A file, directory, symbolic link or special file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Number of links; of a directory 2 and its subdirectories, 0 when removed.
    pub nlink: u32,
    /// Size in bytes of a regular file, otherwise 0.
    pub size: u64,
    /// Content of a regular file.
    pub content: Content,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Entries of a directory.
    pub entries: BTreeMap<Vec<u8>, InodeNo>,
    /// Parent of a directory.
    pub parent: InodeNo,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Access time, while it is what a call set.
    pub atime: Option<Timestamp>,
    /// Modification time, while it is what a call set.
    pub mtime: Option<Timestamp>,
    /// Number of the state's change that last changed the inode itself, as ctime counts it: names, attributes, a size
    /// set by truncate; not written content.
    pub changed: u64,
    /// Created unnamed (O_TMPFILE): may be linked although its link count is 0.
    pub linkable: bool,
    /// It was created unnamed.
    pub was_unnamed: bool,
}

impl Node {
    fn new(kind: FileKind, perm: u32, owner: (u32, u32)) -> Self {
        Self {
            kind,
            perm: perm & 0o7777,
            uid: owner.0,
            gid: owner.1,
            rdev: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            size: 0,
            content: Content::default(),
            target: Vec::new(),
            entries: BTreeMap::new(),
            parent: InodeNo(0),
            xattrs: BTreeMap::new(),
            atime: None,
            mtime: None,
            changed: 0,
            linkable: false,
            was_unnamed: false,
        }
    }

    fn seen(seen: &InodeSnapshot, parent: InodeNo) -> Self {
        Self {
            rdev: seen.rdev,
            nlink: seen.nlink,
            size: if seen.kind == FileKind::Regular {
                seen.size
            } else {
                0
            },
            content: seen.content.clone(),
            target: seen.target.clone(),
            parent,
            xattrs: seen.xattrs.clone(),
            ..Self::new(seen.kind, seen.perm, seen.owner)
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Clears set-user-ID, and set-group-ID if the group may execute, as a change of owner does.
    pub fn drop_privileges(&mut self) {
        let group = if self.perm & 0o0010 != 0 { 0o2000 } else { 0 };
        self.perm &= !(0o4000 | group);
    }

    /// Compares what an observer sees of the inode, except size and content, names, its access time, and (of a
    /// directory) times and link count, which change with its entries.
    pub fn same_attributes(&self, other: &Node) -> bool {
        self.kind == other.kind
            && (self.perm, self.uid, self.gid) == (other.perm, other.uid, other.gid)
            && self.rdev == other.rdev
            && self.target == other.target
            && self.xattrs == other.xattrs
            && (self.is_dir() || self.mtime == other.mtime)
    }
}

/// A file system as a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    nodes: BTreeMap<InodeNo, Arc<Node>>,
    next: u64,
    changes: u64,
}

/// Number of the root directory in every state.
pub const ROOT: InodeNo = InodeNo(1);

impl State {
    /// An empty root directory.
    pub fn new() -> Self {
        let mut root = Node::new(FileKind::Directory, 0o755, (0, 0));
        root.parent = ROOT;
        Self {
            nodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            next: ROOT.0 + 1,
            changes: 0,
        }
    }

    /// The tree that a file system shows, with unknown times.
    pub fn of(seen: &Observed) -> Self {
        let mut state = Self::new();
        let mut numbers = BTreeMap::new();
        // Parents come before their children: a path is a prefix of those below it.
        for (path, there) in &seen.names {
            let attributes = &seen.inodes[there];
            let parent = path.parent().map_or(ROOT, |dir| numbers[&seen.names[&dir]]);
            let known = numbers.get(there).copied();
            let ino = match (path.name(), known) {
                (None, _) => ROOT,
                (Some(_), Some(ino)) => ino,
                (Some(_), None) => state.add(Node::seen(attributes, parent)),
            };
            numbers.insert(*there, ino);
            if let Some(name) = path.name() {
                let dir = state.touch(parent).expect("a parent was added before");
                dir.entries.insert(name.to_vec(), ino);
            } else {
                let root = Node::seen(attributes, ROOT);
                state.nodes.insert(ROOT, Arc::new(root));
            }
        }
        state
    }

    /// The inode `ino`.
    pub fn node(&self, ino: InodeNo) -> Result<&Arc<Node>> {
        self.nodes.get(&ino).ok_or(FsError::Stale)
    }

    /// All inodes, unnamed ones included.
    pub fn nodes(&self) -> impl Iterator<Item = (InodeNo, &Arc<Node>)> {
        self.nodes.iter().map(|(ino, node)| (*ino, node))
    }

    /// Inserts an inode as it is, without a name.
    #[cfg(test)]
    pub(crate) fn put(&mut self, ino: InodeNo, node: Node) {
        self.nodes.insert(ino, Arc::new(node));
    }

    /// The inode, to change its attributes; counts as a change of it.
    pub fn change(&mut self, ino: InodeNo) -> Result<&mut Node> {
        self.changes += 1;
        let changes = self.changes;
        let node = self.touch(ino)?;
        node.changed = changes;
        Ok(node)
    }

    /// Changes the inode's attributes; counts as a change only if one differs afterwards.
    pub fn alter(&mut self, ino: InodeNo, alter: impl FnOnce(&mut Node)) -> Result<&Arc<Node>> {
        let mut node = Node::clone(self.node(ino)?);
        alter(&mut node);
        if *self.node(ino)?.as_ref() != node {
            let slot = self.change(ino)?;
            let changed = slot.changed;
            *slot = Node { changed, ..node };
        }
        self.node(ino)
    }

    /// The inode, for changes that do not count as a change of it (written content, access time).
    pub fn touch(&mut self, ino: InodeNo) -> Result<&mut Node> {
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        Ok(Arc::make_mut(node))
    }

    /// Every named inode by path, the root included.
    pub fn flatten(&self) -> BTreeMap<TreePath, InodeNo> {
        let mut all = BTreeMap::new();
        let mut todo = vec![(TreePath::root(), ROOT)];
        while let Some((path, ino)) = todo.pop() {
            if let Some(node) = self.nodes.get(&ino) {
                for (name, child) in &node.entries {
                    todo.push((path.child(name), *child));
                }
            }
            all.insert(path, ino);
        }
        all
    }

    fn dir(&self, ino: InodeNo) -> Result<&Arc<Node>> {
        let node = self.node(ino)?;
        if node.is_dir() {
            Ok(node)
        } else {
            Err(FsError::NotDir)
        }
    }

    /// The entry `name` of `dir`.
    pub fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
        let node = self.dir(dir)?;
        check_name(name)?;
        node.entries.get(name).copied().ok_or(FsError::NotFound)
    }

    /// Returns the error of a new entry that is not possible.
    fn check_new(&self, dir: InodeNo, name: &[u8]) -> Result<()> {
        let node = self.dir(dir)?;
        check_name(name)?;
        if node.nlink == 0 {
            return Err(FsError::NotFound);
        }
        if node.entries.contains_key(name) {
            return Err(FsError::Exists);
        }
        Ok(())
    }

    fn add(&mut self, node: Node) -> InodeNo {
        let ino = InodeNo(self.next);
        self.next += 1;
        self.changes += 1;
        let changed = self.changes;
        self.nodes.insert(ino, Arc::new(Node { changed, ..node }));
        ino
    }

    /// A new inode's group and (directories) set-group-ID bit come from a set-group-ID directory.
    fn inherit(&self, dir: InodeNo, node: &mut Node) -> Result<()> {
        let parent = self.node(dir)?;
        if parent.perm & 0o2000 != 0 {
            node.gid = parent.gid;
            if node.is_dir() {
                node.perm |= 0o2000;
            }
        }
        Ok(())
    }

    /// Creates an entry of any kind; `shape` completes the new inode.
    pub fn make(
        &mut self,
        dir: InodeNo,
        name: &[u8],
        (kind, perm): (FileKind, u32),
        owner: (u32, u32),
        shape: impl FnOnce(&mut Node) -> Result<()>,
    ) -> Result<InodeNo> {
        self.check_new(dir, name)?;
        let mut node = Node::new(kind, perm, owner);
        self.inherit(dir, &mut node)?;
        node.parent = dir;
        shape(&mut node)?;
        let is_dir = node.is_dir();
        let ino = self.add(node);
        let parent = self.change(dir)?;
        parent.entries.insert(name.to_vec(), ino);
        parent.nlink += u32::from(is_dir);
        parent.mtime = None;
        Ok(ino)
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &mut self,
        dir: InodeNo,
        name: &[u8],
        target: &[u8],
        owner: (u32, u32),
    ) -> Result<InodeNo> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(FsError::NameTooLong);
        }
        self.make(dir, name, (FileKind::Symlink, 0o777), owner, |node| {
            node.target = target.to_vec();
            Ok(())
        })
    }

    /// Creates an unnamed regular file.
    pub fn tmpfile(&mut self, dir: InodeNo, perm: u32, owner: (u32, u32)) -> Result<InodeNo> {
        self.dir(dir)?;
        let mut node = Node::new(FileKind::Regular, perm, owner);
        self.inherit(dir, &mut node)?;
        node.nlink = 0;
        node.linkable = true;
        node.was_unnamed = true;
        Ok(self.add(node))
    }

    /// Makes a hard link.
    pub fn link(&mut self, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.check_new(dir, name)?;
        let node = self.node(ino)?;
        if node.is_dir() {
            return Err(FsError::NotPermitted);
        }
        if node.nlink == 0 && !node.linkable {
            return Err(FsError::NotFound);
        }
        let node = self.change(ino)?;
        node.nlink += 1;
        node.linkable = false;
        let parent = self.change(dir)?;
        parent.entries.insert(name.to_vec(), ino);
        parent.mtime = None;
        Ok(())
    }

    /// Removes the entry `name`; the inode stays until it is reaped.
    fn detach(&mut self, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
        let parent = self.change(dir)?;
        let ino = parent.entries.remove(name).ok_or(FsError::NotFound)?;
        parent.mtime = None;
        let node = self.change(ino)?;
        if node.is_dir() {
            node.nlink = 0;
            self.change(dir)?.nlink -= 1;
        } else {
            node.nlink -= 1;
        }
        Ok(ino)
    }

    /// Removes a name of a file that is not a directory.
    pub fn unlink(&mut self, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
        let ino = self.lookup(dir, name)?;
        if self.node(ino)?.is_dir() {
            return Err(FsError::IsDir);
        }
        self.detach(dir, name)
    }

    /// Removes an empty directory.
    pub fn rmdir(&mut self, dir: InodeNo, name: &[u8]) -> Result<InodeNo> {
        let ino = self.lookup(dir, name)?;
        let node = self.dir(ino)?;
        if !node.entries.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.detach(dir, name)
    }

    /// Removes an inode that has no name.
    pub fn reap(&mut self, ino: InodeNo) {
        if self.nodes.get(&ino).is_some_and(|n| n.nlink == 0) {
            self.nodes.remove(&ino);
        }
    }

    /// Whether `above` is `dir` or an ancestor of it.
    fn is_ancestor(&self, above: InodeNo, dir: InodeNo) -> bool {
        let mut at = dir;
        loop {
            if at == above {
                return true;
            }
            match self.nodes.get(&at) {
                Some(node) if node.parent != at => at = node.parent,
                _ => return false,
            }
        }
    }

    /// Returns the errors of rename(2) in Linux's order, or the inodes at both names.
    fn check_rename(
        &self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<(InodeNo, Option<InodeNo>)> {
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(FsError::Invalid("exchange excludes other rename flags"));
        }
        let source = self.lookup(from.0, from.1)?;
        let replaced = match self.lookup(to.0, to.1) {
            Ok(ino) => Some(ino),
            Err(FsError::NotFound) => None,
            Err(e) => return Err(e),
        };
        if flags.no_replace && replaced.is_some() {
            return Err(FsError::Exists);
        }
        if flags.exchange && replaced.is_none() || self.dir(to.0)?.nlink == 0 {
            return Err(FsError::NotFound);
        }
        let source_node = self.node(source)?;
        if source_node.is_dir() && self.is_ancestor(source, to.0) {
            return Err(FsError::Invalid("a directory cannot move below itself"));
        }
        let Some(other) = replaced else {
            return Ok((source, None));
        };
        let other_node = self.node(other)?;
        if other_node.is_dir() && self.is_ancestor(other, from.0) {
            return Err(if flags.exchange {
                FsError::Invalid("a directory cannot move below itself")
            } else {
                FsError::NotEmpty
            });
        }
        if other != source && !flags.exchange {
            match (source_node.is_dir(), other_node.is_dir()) {
                (true, false) => return Err(FsError::NotDir),
                (false, true) => return Err(FsError::IsDir),
                (true, true) if !other_node.entries.is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
        }
        Ok((source, replaced))
    }

    /// Renames; returns the inode that lost its name at the destination.
    pub fn rename(
        &mut self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
        owner: (u32, u32),
    ) -> Result<Option<InodeNo>> {
        let (source, replaced) = self.check_rename(from, to, flags)?;
        if replaced == Some(source) {
            return Ok(None);
        }
        if flags.exchange {
            let other = replaced.expect("exchange needs both names");
            self.place(from, other)?;
            self.place(to, source)?;
            self.moved_dir(source, from.0, to.0)?;
            self.moved_dir(other, to.0, from.0)?;
            return Ok(None);
        }
        if replaced.is_some() {
            self.detach(to.0, to.1)?;
        }
        let parent = self.change(from.0)?;
        parent.entries.remove(from.1);
        parent.mtime = None;
        self.place(to, source)?;
        self.moved_dir(source, from.0, to.0)?;
        if flags.whiteout {
            self.make(from.0, from.1, (FileKind::CharDevice, 0), owner, |_| Ok(()))?;
        }
        Ok(replaced)
    }

    fn place(&mut self, at: (InodeNo, &[u8]), ino: InodeNo) -> Result<()> {
        let parent = self.change(at.0)?;
        parent.entries.insert(at.1.to_vec(), ino);
        parent.mtime = None;
        Ok(())
    }

    /// After `ino` moved to another directory: it has changed, and a directory has a new parent.
    fn moved_dir(&mut self, ino: InodeNo, old: InodeNo, new: InodeNo) -> Result<()> {
        let node = self.change(ino)?;
        if !node.is_dir() {
            return Ok(());
        }
        node.parent = new;
        self.change(old)?.nlink -= 1;
        self.change(new)?.nlink += 1;
        Ok(())
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}
