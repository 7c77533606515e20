//! A tree of files as a value: read from a mount, compared with another.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, SeekFrom, StatxFlags, XattrFlags};
use rustix::io::Errno;
use steadfs::tools::{Held, child, device_numbers, owner_cx, read_dir};
use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::{Cx, FileKind, FileSystem, FsError, Seek};

/// Seconds and nanoseconds.
pub type Time = (i64, u32);

/// A file with everything that a comparison may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u64,
    /// Size in bytes (of directories: not compared).
    pub size: u64,
    /// Device number: major, minor.
    pub rdev: (u32, u32),
    /// Last change of content.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Birth.
    pub btime: Option<Time>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// A hash of a regular file's content.
    pub content: Option<u64>,
    /// Byte ranges with data of a regular file.
    pub data: Vec<(u64, u64)>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The first path (in order) of the same inode, for files with several links.
    pub same_as: Option<Vec<u8>>,
}

/// What a comparison uses in addition to names, types, permissions, owners, links, sizes, device numbers, modification
/// times, extended attributes and contents.
#[derive(Clone, Copy, Debug)]
pub struct Compare {
    /// Times of last access.
    pub atime: bool,
    /// Times of the inode's last change.
    pub ctime: bool,
    /// Times of birth.
    pub btime: bool,
    /// Which parts of files are holes.
    pub holes: bool,
    /// Modification times of directories.
    pub dir_mtime: bool,
    /// Link counts of directories.
    pub dir_nlink: bool,
}

impl Compare {
    /// Everything: for two views of one volume.
    pub const ALL: Self = Self {
        atime: true,
        ctime: true,
        btime: true,
        holes: true,
        dir_mtime: true,
        dir_nlink: true,
    };
    /// What a copy preserves.
    pub const COPY: Self = Self {
        atime: false,
        ctime: false,
        btime: false,
        holes: false,
        dir_mtime: true,
        dir_nlink: false,
    };
}

/// Files by their path from the tree's top; the top's path is empty.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

impl Tree {
    /// The tree at `top`. `lost+found` and the control folder at the top are left out.
    ///
    /// # Panics
    /// If a file cannot be read.
    #[track_caller]
    pub fn of(top: &Path) -> Self {
        let mut tree = Self::default();
        let mut names_of: BTreeMap<(u64, u64), Vec<Vec<u8>>> = BTreeMap::new();
        let mut todo = vec![Vec::new()];
        while let Some(at) = todo.pop() {
            let path = top.join(OsStr::from_bytes(&at));
            let fail = |error: std::io::Error| -> ! { panic!("{}: {error}", path.display()) };
            let (node, inode) = read_node(&path).unwrap_or_else(|e| fail(e));
            if node.is_dir() {
                for entry in fs::read_dir(&path).unwrap_or_else(|e| fail(e)) {
                    let name = entry.unwrap_or_else(|e| fail(e)).file_name().into_vec();
                    let own = [&b"lost+found"[..], b".steadfs"];
                    if at.is_empty() && own.contains(&&name[..]) {
                        continue;
                    }
                    let dir = if at.is_empty() { &[] } else { &b"/"[..] };
                    todo.push([&at, dir, &name].concat());
                }
            } else if node.nlink > 1 {
                names_of.entry(inode).or_default().push(at.clone());
            }
            let twice = tree.nodes.insert(at, node);
            assert!(twice.is_none(), "{}: listed twice", path.display());
        }
        tree.name_links(names_of.values());
        tree
    }

    /// The tree of a volume that is not mounted.
    ///
    /// # Panics
    /// If a file cannot be read.
    #[track_caller]
    pub fn of_volume(fs: &dyn FileSystem) -> Self {
        let cx = owner_cx();
        let mut tree = Self::default();
        let mut names_of: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        let mut todo = vec![(Vec::new(), fs.root())];
        while let Some((at, ino)) = todo.pop() {
            let shown = at.escape_ascii().to_string();
            let node = volume_node(fs, &cx, ino).unwrap_or_else(|e| panic!("/{shown}: {e}"));
            if node.is_dir() {
                let entries = read_dir(fs, &cx, ino).unwrap_or_else(|e| panic!("/{shown}: {e}"));
                for entry in entries {
                    if at.is_empty() && entry.name == b"lost+found" {
                        continue;
                    }
                    let dir = if at.is_empty() { &[] } else { &b"/"[..] };
                    // By name, not by the inode number in the entry: the lookup is tested, too.
                    let held = child(fs, &cx, ino, &entry.name)
                        .unwrap_or_else(|e| panic!("/{shown}/{}: {e}", entry.name.escape_ascii()));
                    assert_eq!(held.ino(), entry.ino, "/{shown}: readdir and lookup differ");
                    todo.push(([&at, dir, &entry.name].concat(), entry.ino));
                }
            } else if node.nlink > 1 {
                names_of.entry(ino.0).or_default().push(at.clone());
            }
            let twice = tree.nodes.insert(at, node);
            assert!(twice.is_none(), "/{shown}: listed twice");
        }
        tree.name_links(names_of.values());
        tree
    }

    /// Records the first name of each file with several links.
    fn name_links<'a>(&mut self, all: impl Iterator<Item = &'a Vec<Vec<u8>>>) {
        for names in all {
            let first = names.iter().min();
            for name in names {
                self.nodes
                    .entry(name.clone())
                    .and_modify(|n| n.same_as = first.cloned());
            }
        }
    }

    /// Differences from `other`, one line each; none if equal.
    pub fn differences(&self, other: &Self, compare: Compare) -> Vec<String> {
        let mut lines = Vec::new();
        for (path, node) in &self.nodes {
            let shown = format!("/{}", path.escape_ascii());
            match other.nodes.get(path) {
                None => lines.push(format!("{shown}: missing on the right")),
                Some(there) => node.differences(there, compare, &shown, &mut lines),
            }
        }
        for path in other.nodes.keys() {
            if !self.nodes.contains_key(path) {
                lines.push(format!("/{}: missing on the left", path.escape_ascii()));
            }
        }
        lines
    }

    /// Fails the test unless `other` is equal.
    #[track_caller]
    pub fn assert_same(&self, other: &Self, compare: Compare, what: &str) {
        let lines = self.differences(other, compare);
        let shown: Vec<_> = lines.iter().take(20).map(String::as_str).collect();
        assert!(
            lines.is_empty(),
            "{what}: {} differences:\n{}",
            lines.len(),
            shown.join("\n")
        );
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the tree has no files, not even the top.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
}

impl Node {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & 0o170_000 == 0o040_000
    }

    fn differences(&self, other: &Self, compare: Compare, path: &str, lines: &mut Vec<String>) {
        let mut field = |name: &str, compared: bool, [ours, theirs]: [String; 2]| {
            if compared && ours != theirs {
                lines.push(format!("{path}: {name}: {ours} | {theirs}"));
            }
        };
        let dir = self.is_dir();
        let both = [self, other];
        field("mode", true, both.map(|node| format!("{:o}", node.mode)));
        let owner = both.map(|node| format!("{:?}", (node.uid, node.gid)));
        field("owner", true, owner);
        let nlink = both.map(|node| node.nlink.to_string());
        field("nlink", !dir || compare.dir_nlink, nlink);
        field("size", !dir, both.map(|node| node.size.to_string()));
        field("device", true, both.map(|node| format!("{:?}", node.rdev)));
        let mtime = both.map(|node| format!("{:?}", node.mtime));
        field("mtime", !dir || compare.dir_mtime, mtime);
        let atime = both.map(|node| format!("{:?}", node.atime));
        field("atime", compare.atime, atime);
        let ctime = both.map(|node| format!("{:?}", node.ctime));
        field("ctime", compare.ctime, ctime);
        let btime = both.map(|node| format!("{:?}", node.btime));
        field("btime", compare.btime, btime);
        let content = both.map(|node| format!("{:?}", node.content));
        field("content", true, content);
        let data = both.map(|node| format!("{:?}", node.data));
        field("data ranges", compare.holes, data);
        field("target", true, both.map(|node| text(&node.target)));
        field("same file as", true, both.map(|node| text(&node.same_as)));
        let names = self.xattrs.keys().chain(other.xattrs.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            let label = format!("attribute {}", name.escape_ascii());
            field(&label, true, both.map(|node| node.xattr_text(name)));
        }
    }

    /// An attribute's value, or the length and hash of a long one.
    fn xattr_text(&self, name: &[u8]) -> String {
        match self.xattrs.get(name) {
            None => "none".to_owned(),
            Some(value) if value.len() > 64 => format!("{} bytes #{:x}", value.len(), hash(value)),
            Some(value) => value.escape_ascii().to_string(),
        }
    }
}

fn text(bytes: &Option<Vec<u8>>) -> String {
    let text = bytes.as_ref().map(|bytes| bytes.escape_ascii().to_string());
    text.unwrap_or_default()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

fn read_node(path: &Path) -> std::io::Result<(Node, (u64, u64))> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
    let mode = u32::from(stat.stx_mode);
    let kind = mode & 0o170_000;
    let time = |t: rustix::fs::StatxTimestamp| (t.tv_sec, t.tv_nsec);
    let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    let mut node = Node {
        mode,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        nlink: stat.stx_nlink.into(),
        size: stat.stx_size,
        rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
        mtime: time(stat.stx_mtime),
        atime: time(stat.stx_atime),
        ctime: time(stat.stx_ctime),
        btime: has_birth.then(|| time(stat.stx_btime)),
        xattrs: xattrs(path)?,
        content: None,
        data: Vec::new(),
        target: None,
        same_as: None,
    };
    if kind == 0o120_000 {
        node.target = Some(fs::read_link(path)?.into_os_string().into_vec());
    } else if kind == 0o100_000 {
        let (content, data) = read_content(path, node.size)?;
        node.content = Some(content);
        node.data = data;
    }
    let device = (u64::from(stat.stx_dev_major) << 32) | u64::from(stat.stx_dev_minor);
    Ok((node, (device, stat.stx_ino)))
}

fn volume_node(fs: &dyn FileSystem, cx: &Cx, ino: InodeNo) -> Result<Node, FsError> {
    // An inode number from a directory entry must be looked up before it is used.
    let held = Held::counted(fs, fs.attach(cx, ino)?);
    let attr = held.attr();
    let time = |t: Timestamp| (t.secs, t.nanos);
    let mut node = Node {
        mode: attr.kind.mode_bits() | attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink.into(),
        size: attr.size,
        rdev: device_numbers(attr.rdev),
        mtime: time(attr.mtime),
        atime: time(attr.atime),
        ctime: time(attr.ctime),
        btime: attr.btime.map(time),
        xattrs: BTreeMap::new(),
        content: None,
        data: Vec::new(),
        target: None,
        same_as: None,
    };
    for name in fs.listxattr(cx, ino)? {
        let value = fs.getxattr(cx, ino, &name)?;
        node.xattrs.insert(name, value);
    }
    match attr.kind {
        FileKind::Symlink => node.target = Some(fs.readlink(cx, ino)?),
        FileKind::Regular => {
            let (content, data) = volume_content(fs, cx, ino, attr.size)?;
            node.content = Some(content);
            node.data = data;
        }
        _ => {}
    }
    Ok(node)
}

fn volume_content(
    fs: &dyn FileSystem,
    cx: &Cx,
    ino: InodeNo,
    size: u64,
) -> Result<(u64, Vec<(u64, u64)>), FsError> {
    let mut hasher = DefaultHasher::new();
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let start = match fs.seek(cx, ino, at, Seek::Data) {
            Ok(start) => start,
            Err(FsError::NoSuchOffset) => break,
            Err(error) => return Err(error),
        };
        let end = fs.seek(cx, ino, start, Seek::Hole)?;
        ranges.push((start, end));
        at = start;
        while at < end {
            let piece = (1 << 20) - at % (1 << 20);
            let len = usize::try_from(piece.min(end - at)).unwrap_or(1 << 20);
            let bytes = fs.read(cx, ino, at, len)?.to_vec();
            assert_eq!(bytes.len(), len, "a read inside the file is short");
            hash_piece(&mut hasher, &bytes, at);
            at += len as u64;
        }
    }
    hasher.write_u64(size);
    Ok((hasher.finish(), ranges))
}

/// A hash of the content that does not depend on where holes are, and the ranges with data. Reads data ranges only, so
/// that huge sparse files are cheap; blocks of zeros count as holes in the hash.
fn read_content(path: &Path, size: u64) -> std::io::Result<(u64, Vec<(u64, u64)>)> {
    // Reading must not change the access time.
    let flags = OFlags::RDONLY | OFlags::NOATIME | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, rustix::fs::Mode::empty())?);
    let mut hasher = DefaultHasher::new();
    let mut ranges = Vec::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?;
        ranges.push((start, end));
        at = start;
        while at < end {
            // Pieces end at multiples of the buffer size, so that equal contents have equal pieces.
            let piece = (1 << 20) - at % (1 << 20);
            let len = usize::try_from(piece.min(end - at)).unwrap_or(1 << 20);
            file.read_exact_at(&mut buffer[..len], at)?;
            hash_piece(&mut hasher, &buffer[..len], at);
            at += len as u64;
        }
    }
    hasher.write_u64(size);
    Ok((hasher.finish(), ranges))
}

/// The hash that [`Node::content`] has for a file with this content.
pub fn content_hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hash_piece(&mut hasher, bytes, 0);
    hasher.write_u64(bytes.len() as u64);
    hasher.finish()
}

/// Hashes each 512-byte unit that is not all zero, with its offset.
fn hash_piece(hasher: &mut DefaultHasher, bytes: &[u8], offset: u64) {
    const UNIT: usize = 512;
    static ZEROS: [u8; UNIT] = [0; UNIT];
    for (n, unit) in bytes.chunks(UNIT).enumerate() {
        if *unit != ZEROS[..unit.len()] {
            hasher.write_u64(offset + (n * UNIT) as u64);
            // A unit at the end of a range may be followed by zeros in the other tree.
            let used = unit
                .iter()
                .rposition(|&b| b != 0)
                .map_or(0, |last| last + 1);
            hasher.write(&unit[..used]);
            hasher.write_usize(used);
        }
    }
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 65_536];
    let len = match rustix::fs::llistxattr(path, &mut names[..]) {
        Err(Errno::OPNOTSUPP) => return Ok(BTreeMap::new()),
        len => len?,
    };
    let mut all = BTreeMap::new();
    let mut value = vec![0; 65_536];
    for name in names[..len].split(|&b| b == 0).filter(|n| !n.is_empty()) {
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        all.insert(name.to_vec(), value[..len].to_vec());
    }
    Ok(all)
}

/// Sets an extended attribute on the file itself.
///
/// # Panics
/// If that fails.
#[track_caller]
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{}: {name}: {error}", path.display()));
}

/// Paths of all regular files below `top`.
pub fn regular_files(top: &Path) -> Vec<PathBuf> {
    let tree = Tree::of(top);
    let regular = |node: &Node| node.content.is_some();
    tree.nodes
        .iter()
        .filter(|(_, node)| regular(node))
        .map(|(path, _)| top.join(OsStr::from_bytes(path)))
        .collect()
}
