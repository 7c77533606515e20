//! The hidden directory of control files, added to any volume.
//!
//! Problem: the kernel caches a volume's names, attributes and pages for a day and opens files without a request, but the
//! content of a control file is the current state. Rule: **each lookup of a control file makes a new inode with a
//! snapshot of the content** (the transport sets no lifetime for these inodes in the kernel's caches, see
//! [`is_control_inode`]). So each open(2) by name reads current and complete content, a reader sees one consistent text,
//! and cached pages belong to an inode that no later lookup finds. An open descriptor keeps its snapshot. The inode is
//! dropped with its last lookup count. Programs see the inode number of the file's node in the tree, which is constant
//! ([`reported_ino`]): cp(1) only copies a file whose number is that of its stat(2).
//!
//! After a hand-over ([`FileSystem::hand_over`]) a snapshot is stale: the successor may have other control files. Its own
//! inodes have numbers that the predecessor's did not have.
//!
//! The overlay itself has [`SYNC_FILE`] and [`METRICS_FILE`], which are made of what all parts of the mount have.
//!
//! A write passes its whole buffer to [`Control::write`](crate::Control::write), whatever the file position; setting the
//! size (`O_TRUNC`) does nothing.

mod ops;
mod tree;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};

use tree::{ControlNode, NodeKind, insert};

use crate::tune::tune;
use crate::{
    Attr, Control, ControlLayer, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr,
    InodeFlags, IoctlAnswer, LookupCounts, Metrics, ReadData, RenameFlags, Result, Seek, SetAttr,
    SetXattr, ShutdownMode, StatFs,
};

/// Name of the directory of control files in the root directory.
pub const CONTROL_DIR: &[u8] = b".steadfs";
/// Control file that always exists: any write to it, and fsync of it, makes the volume durable.
pub const SYNC_FILE: &str = "sync";

/// Control file with the metrics of all parts of the mount, for Prometheus.
pub const METRICS_FILE: &str = "metrics";

/// Control file of the options: a write to it is a remount.
const OPTIONS_FILE: &str = "options";

/// Control inodes have numbers from here on; no format has inode numbers of 62 bits.
const FIRST_INO: u64 = 1 << 62;
/// Most nodes of the tree. The number of a file's n-th inode is that of its node plus n times this.
const NODES_MAX: u64 = 1 << 16;

/// Whether `ino` is a control file or directory. Caches must not keep anything about it: the next lookup of its name
/// finds another inode.
pub const fn is_control_inode(ino: InodeNo) -> bool {
    ino.0 >= FIRST_INO
}

/// The inode number that programs see: all inodes of a control file have the number that is in its directory.
pub const fn reported_ino(ino: InodeNo) -> InodeNo {
    match is_control_inode(ino) {
        true => InodeNo(FIRST_INO + (ino.0 - FIRST_INO) % NODES_MAX),
        false => ino,
    }
}

/// An inode of a control file: its node, and the snapshot of its content. Directories never change and have one inode
/// each, with the number of their node.
struct ControlInode {
    node: usize,
    content: Result<Arc<[u8]>>,
    made: Timestamp,
    lookups: u64,
}

impl ControlInode {
    fn size(&self) -> u64 {
        self.content.as_ref().map_or(0, |c| c.len() as u64)
    }
}

/// A volume with its control files below [`CONTROL_DIR`].
pub struct WithControl {
    inner: Arc<dyn FileSystem>,
    layer: Option<Arc<dyn ControlLayer>>,
    /// Whether the directory is visible.
    shown: bool,
    nodes: Vec<ControlNode>,
    inodes: Mutex<BTreeMap<u64, ControlInode>>,
    /// Number of inodes made for files.
    made: AtomicU64,
    mounted: Timestamp,
    owner: (u32, u32),
}

impl WithControl {
    /// Adds the control files of `inner`, [`SYNC_FILE`] and [`METRICS_FILE`].
    pub fn new(inner: Arc<dyn FileSystem>) -> Self {
        let mut nodes = vec![ControlNode {
            name: "",
            parent: 0,
            kind: NodeKind::Dir,
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
        entries.push((METRICS_FILE, false));
        for (path, writable) in entries {
            insert(&mut nodes, path, writable);
        }
        Self {
            inner,
            layer: None,
            shown: true,
            nodes,
            inodes: Mutex::new(Rank::Leaf, BTreeMap::new()),
            made: AtomicU64::new(0),
            mounted: steadfs_rt::wall_clock(),
            owner: (0, 0),
        }
    }

    /// Sets the owner of the control files: an unprivileged user that mounts. By default it is root.
    pub fn owned_by(mut self, uid: u32, gid: u32) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// Adds a layer's files and options.
    pub fn with_layer(mut self, layer: Arc<dyn ControlLayer>) -> Self {
        for entry in layer.control().entries() {
            let same = |node: &ControlNode| matches!(node.kind, NodeKind::File { path, .. } if path == entry.path);
            match self.nodes.iter_mut().find(|node| same(node)) {
                Some(node) => {
                    node.kind = NodeKind::File {
                        path: entry.path,
                        writable: entry.writable,
                    }
                }
                None => insert(&mut self.nodes, entry.path, entry.writable),
            }
        }
        self.layer = Some(layer);
        self
    }

    /// Continues the service of a volume that was handed over with these lookup counts; `None`: its server has ended, and
    /// they are unknown.
    pub fn succeeding(self, counts: Option<&[(InodeNo, u64)]>) -> Self {
        let Some(counts) = counts else {
            // More than were made until now: a server makes fewer than 32 768 in a second.
            let seconds = u32::try_from(steadfs_rt::wall_clock().secs).unwrap_or(u32::MAX);
            self.made
                .fetch_max(u64::from(seconds) << 15, Ordering::Relaxed);
            return self;
        };
        let made = |&(ino, _): &(InodeNo, u64)| {
            is_control_inode(ino).then(|| (ino.0 - FIRST_INO) / NODES_MAX)
        };
        let most = counts.iter().filter_map(made).max().unwrap_or(0);
        self.made.fetch_max(most, Ordering::Relaxed);
        self
    }

    /// Hides the directory. Options of the layer still work.
    pub fn hidden(mut self) -> Self {
        self.shown = false;
        self
    }

    /// The volume below.
    pub fn inner(&self) -> &Arc<dyn FileSystem> {
        &self.inner
    }

    fn child(&self, dir: usize, name: &[u8]) -> Option<usize> {
        (1..self.nodes.len())
            .find(|&i| self.nodes[i].parent == dir && self.nodes[i].name.as_bytes() == name)
    }

    /// The node of a control inode that was looked up, or that `readdir` reported.
    fn node(&self, ino: InodeNo) -> Result<usize> {
        if let Some(inode) = self.inodes.lock().get(&ino.0) {
            return Ok(inode.node);
        }
        usize::try_from(ino.0 - FIRST_INO)
            .ok()
            .filter(|&index| index < self.nodes.len())
            .ok_or(FsError::Stale)
    }

    /// The node of a control directory.
    fn dir_node(&self, ino: InodeNo) -> Result<usize> {
        let node = self.node(ino)?;
        match self.nodes[node].kind {
            NodeKind::Dir => Ok(node),
            NodeKind::File { .. } => Err(FsError::NotDir),
        }
    }

    /// The inode of `node`, new for a file, with one lookup count.
    fn make(&self, node: usize) -> Attr {
        let NodeKind::File { path, .. } = self.nodes[node].kind else {
            return self.attr(node_ino(node), node, 0, self.mounted);
        };
        let inode = ControlInode {
            node,
            content: self.content(path),
            made: steadfs_rt::wall_clock(),
            lookups: 1,
        };
        let before = self.made.fetch_add(1, Ordering::Relaxed);
        let ino = InodeNo(node_ino(node).0 + (before + 1) * NODES_MAX);
        let attr = self.attr(ino, node, inode.size(), inode.made);
        self.inodes.lock().insert(ino.0, inode);
        attr
    }

    fn content(&self, path: &str) -> Result<Arc<[u8]>> {
        if path == OPTIONS_FILE {
            return Ok(Arc::from((self.options() + "\n").into_bytes()));
        }
        if path == METRICS_FILE {
            return Ok(Arc::from(self.metrics().into_bytes()));
        }
        match self.control_of(path) {
            Some(control) => control.read(path).map(Arc::from),
            None => Ok(Arc::from([])),
        }
    }

    /// The metrics of all parts of the mount.
    fn metrics(&self) -> String {
        let labels = self.layer.as_deref().map(ControlLayer::labels);
        let labels = labels.unwrap_or_default();
        let labels: Vec<_> = labels
            .iter()
            .map(|(name, text)| (*name, &text[..]))
            .collect();
        let mut metrics = Metrics::with_labels(&labels);
        for control in self.controls() {
            control.metrics(&mut metrics);
        }
        metrics.to_string()
    }

    /// The owners of control files; files of the first hide those of the others.
    fn controls(&self) -> Vec<&dyn Control> {
        let layer = self.layer.as_deref().map(ControlLayer::control);
        layer.into_iter().chain(self.inner.control()).collect()
    }

    /// The owner of the file at `path`.
    fn control_of(&self, path: &str) -> Option<&dyn Control> {
        let has = |control: &&dyn Control| control.entries().iter().any(|e| e.path == path);
        self.controls().into_iter().find(has)
    }

    fn attr(&self, ino: InodeNo, node: usize, size: u64, time: Timestamp) -> Attr {
        let (kind, perm, nlink) = match self.nodes[node].kind {
            NodeKind::Dir => (FileKind::Directory, 0o700, 2),
            NodeKind::File { writable: true, .. } => (FileKind::Regular, 0o600, 1),
            NodeKind::File { .. } => (FileKind::Regular, 0o400, 1),
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
            return Ok(self.attr(ino, inode.node, inode.size(), inode.made));
        }
        let node = self.dir_node(ino)?;
        Ok(self.attr(ino, node, 0, self.mounted))
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
        let node = self.node(ino)?;
        let NodeKind::File { path, writable } = self.nodes[node].kind else {
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
        let node = self.node(ino)?;
        match self.nodes[node].kind {
            NodeKind::File { path, .. } if path == SYNC_FILE => self.inner.sync_all(cx),
            _ => Ok(()),
        }
    }

    fn control_readdir(
        &self,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.dir_node(dir)?;
        let parent = match dir {
            0 => self.inner.root(),
            _ => node_ino(self.nodes[dir].parent),
        };
        let own = [(node_ino(dir), "."), (parent, "..")]
            .into_iter()
            .map(|(ino, name)| (ino, FileKind::Directory, name));
        let children = (1..self.nodes.len())
            .filter(|&i| self.nodes[i].parent == dir)
            .map(|i| {
                let kind = match self.nodes[i].kind {
                    NodeKind::Dir => FileKind::Directory,
                    NodeKind::File { .. } => FileKind::Regular,
                };
                (node_ino(i), kind, self.nodes[i].name)
            });
        // The tree is constant, so the cookie is the number of entries already reported.
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

/// The inode number that readdir reports for a node.
fn node_ino(node: usize) -> InodeNo {
    assert!(
        (node as u64) < NODES_MAX,
        "the tree has at most 65536 nodes"
    );
    InodeNo(FIRST_INO + node as u64)
}
