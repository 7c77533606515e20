//! A volume in memory, as simple as the tests allow: one lock, files as maps of 4 KiB blocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use steadfs_base::{InodeNo, Timestamp};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{
    Attr, Control, ControlEntry, Cx, DirEntry, FallocMode, FileKind, FileSystem, FsError, FsxAttr,
    InodeFlags, ReadData, RenameFlags, Result, Seek, SetAttr, SetTime, SetXattr, ShutdownMode,
    StatFs, check_name,
};

const BLOCK: u64 = 4096;
/// Not 1, so that the translation of node ids is tested.
const ROOT: u64 = 2;

struct Node {
    attr: Attr,
    lookups: u64,
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    entries: BTreeMap<Vec<u8>, (u64, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
    parent: u64,
    target: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    project: u32,
}

pub struct State {
    nodes: BTreeMap<u64, Node>,
    next_ino: u64,
    next_cookie: u64,
    pub last_umask: u32,
    pub groups: Vec<u32>,
    pub shutdown: Option<ShutdownMode>,
}

pub struct MemFs {
    state: Mutex<State>,
    pub unmounts: AtomicU32,
    pub syncs: AtomicU32,
    pub fsyncs: AtomicU32,
    pub value: AtomicU64,
    /// fsync waits until this is zero.
    pub fsync_gate: AtomicU32,
    /// While this is not 0, writes wait before they change anything.
    pub write_gate: AtomicU32,
    /// Writes that came.
    pub writes: AtomicU32,
}

fn now() -> Timestamp {
    steadfs_rt::wall_clock()
}

impl State {
    pub fn flags_of(&self, ino: u64) -> InodeFlags {
        self.nodes[&ino].attr.flags
    }

    pub fn chown_root(&mut self, id: u32) {
        let root = self.nodes.get_mut(&ROOT).unwrap();
        (root.attr.uid, root.attr.gid) = (id, id);
    }

    fn node(&self, ino: InodeNo) -> Result<&Node> {
        self.nodes.get(&ino.0).ok_or(FsError::Stale)
    }

    fn node_mut(&mut self, ino: InodeNo) -> Result<&mut Node> {
        self.nodes.get_mut(&ino.0).ok_or(FsError::Stale)
    }

    fn dir(&mut self, ino: InodeNo) -> Result<&mut Node> {
        let node = self.node_mut(ino)?;
        if node.attr.kind != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        Ok(node)
    }

    fn find(&mut self, dir: InodeNo, name: &[u8]) -> Result<u64> {
        check_name(name)?;
        let parent = self.node(dir)?.parent;
        match name {
            b"." => Ok(dir.0),
            b".." => Ok(parent),
            _ => self
                .dir(dir)?
                .entries
                .get(name)
                .map(|(ino, _)| *ino)
                .ok_or(FsError::NotFound),
        }
    }

    fn make(&mut self, cx: &Cx, dir: InodeNo, kind: FileKind, perm: u32) -> u64 {
        self.next_ino += 1;
        self.last_umask = cx.umask;
        self.groups.clone_from(&cx.groups);
        let ino = self.next_ino;
        let node = Node {
            attr: Attr {
                ino: InodeNo(ino),
                generation: 7,
                kind,
                perm: perm & 0o7777 & !cx.umask,
                nlink: if kind == FileKind::Directory { 2 } else { 1 },
                uid: cx.uid,
                gid: cx.gid,
                rdev: 0,
                size: 0,
                blocks: 0,
                block_size: 4096,
                atime: now(),
                mtime: now(),
                ctime: now(),
                btime: Some(Timestamp {
                    secs: 1_000_000_000,
                    nanos: 5,
                }),
                flags: InodeFlags::default(),
            },
            lookups: 0,
            blocks: BTreeMap::new(),
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            parent: dir.0,
            target: Vec::new(),
            xattrs: BTreeMap::new(),
            project: 0,
        };
        self.nodes.insert(ino, node);
        ino
    }

    fn enter(&mut self, dir: InodeNo, name: &[u8], ino: u64) -> Result<()> {
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let node = self.dir(dir)?;
        node.entries.insert(name.to_vec(), (ino, cookie));
        node.order.insert(cookie, name.to_vec());
        node.attr.mtime = now();
        Ok(())
    }

    fn leave(&mut self, dir: InodeNo, name: &[u8]) -> Result<u64> {
        let node = self.dir(dir)?;
        let (ino, cookie) = node.entries.remove(name).ok_or(FsError::NotFound)?;
        node.order.remove(&cookie);
        node.attr.mtime = now();
        Ok(ino)
    }

    fn unlinked(&mut self, ino: u64, by: u32) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.attr.nlink = node.attr.nlink.saturating_sub(by);
        self.drop_if_dead(ino);
    }

    fn drop_if_dead(&mut self, ino: u64) {
        let node = &self.nodes[&ino];
        if node.lookups == 0 && node.attr.nlink == 0 {
            self.nodes.remove(&ino);
        }
    }

    fn counted(&mut self, ino: u64) -> Result<Attr> {
        let node = self.node_mut(InodeNo(ino))?;
        node.lookups += 1;
        Ok(node.attr.clone())
    }

    fn add(
        &mut self,
        cx: &Cx,
        dir: InodeNo,
        name: &[u8],
        kind: FileKind,
        perm: u32,
    ) -> Result<u64> {
        match self.find(dir, name) {
            Ok(_) => return Err(FsError::Exists),
            Err(FsError::NotFound) => {}
            Err(e) => return Err(e),
        }
        let ino = self.make(cx, dir, kind, perm);
        self.enter(dir, name, ino)?;
        Ok(ino)
    }
}

impl Node {
    fn set_size(&mut self, size: u64) {
        if size < self.attr.size {
            self.blocks.retain(|&b, _| b * BLOCK < size);
            let (last, within) = (size / BLOCK, (size % BLOCK) as usize);
            if let Some(block) = self.blocks.get_mut(&last) {
                Arc::make_mut(block)[within..].fill(0);
            }
        }
        self.attr.size = size;
        self.account();
    }

    fn account(&mut self) {
        self.attr.blocks = self.blocks.len() as u64 * BLOCK / 512;
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = (at % BLOCK) as usize;
            let n = rest.len().min(BLOCK as usize - within);
            let block = self
                .blocks
                .entry(at / BLOCK)
                .or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
            Arc::make_mut(block)[within..within + n].copy_from_slice(&rest[..n]);
            at += n as u64;
            rest = &rest[n..];
        }
        self.attr.size = self.attr.size.max(at);
        self.attr.mtime = now();
        self.attr.ctime = now();
        self.account();
    }

    fn read(&self, offset: u64, len: usize) -> ReadData {
        let mut out = ReadData::new();
        let end = self.attr.size.min(offset.saturating_add(len as u64));
        let mut at = offset;
        while at < end {
            let within = (at % BLOCK) as usize;
            let n = ((end - at) as usize).min(BLOCK as usize - within);
            match self.blocks.get(&(at / BLOCK)) {
                Some(block) => out.push(block.clone(), within..within + n),
                None => out.push_zeros(n),
            }
            at += n as u64;
        }
        out
    }

    fn zero(&mut self, offset: u64, len: u64, keep_blocks: bool) {
        let end = offset + len;
        for b in offset / BLOCK..end.div_ceil(BLOCK) {
            let from = offset.max(b * BLOCK) - b * BLOCK;
            let to = end.min((b + 1) * BLOCK) - b * BLOCK;
            if from == 0 && to == BLOCK && !keep_blocks {
                self.blocks.remove(&b);
            } else if keep_blocks || self.blocks.contains_key(&b) {
                let block = self
                    .blocks
                    .entry(b)
                    .or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
                Arc::make_mut(block)[from as usize..to as usize].fill(0);
            }
        }
        self.account();
    }
}

impl MemFs {
    pub fn new() -> Self {
        let mut state = State {
            nodes: BTreeMap::new(),
            next_ino: ROOT - 1,
            next_cookie: 2,
            last_umask: 0,
            groups: Vec::new(),
            shutdown: None,
        };
        let root = state.make(&Cx::default(), InodeNo(ROOT), FileKind::Directory, 0o755);
        assert_eq!(root, ROOT);
        Self {
            state: Mutex::new(Rank::Inode, state),
            unmounts: AtomicU32::new(0),
            syncs: AtomicU32::new(0),
            fsyncs: AtomicU32::new(0),
            value: AtomicU64::new(0),
            fsync_gate: AtomicU32::new(0),
            write_gate: AtomicU32::new(0),
            writes: AtomicU32::new(0),
        }
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock())
    }

    /// Content of a file in the root directory, as the volume has it.
    pub fn content(&self, path: &std::path::Path) -> Vec<u8> {
        use std::os::unix::ffi::OsStrExt;
        let name = path.file_name().unwrap().as_bytes();
        let mut state = self.state.lock();
        let ino = state.find(InodeNo(ROOT), name).unwrap();
        state.nodes[&ino].read(0, usize::MAX).to_vec()
    }

    /// Inodes that are alive, and the sum of their lookup counts.
    pub fn alive(&self) -> (usize, u64) {
        let state = self.state.lock();
        (
            state.nodes.len(),
            state.nodes.values().map(|n| n.lookups).sum(),
        )
    }
}

impl FileSystem for MemFs {
    fn root(&self) -> InodeNo {
        InodeNo(ROOT)
    }

    fn lookup(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
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
        let mut state = self.state.lock();
        check_name(to.1)?;
        state.find(from.0, from.1)?;
        let target = state.find(to.0, to.1).ok();
        if flags.no_replace && target.is_some() {
            return Err(FsError::Exists);
        }
        if flags.exchange {
            let other = target.ok_or(FsError::NotFound)?;
            let ino = state.leave(from.0, from.1)?;
            state.leave(to.0, to.1)?;
            state.enter(to.0, to.1, ino)?;
            return state.enter(from.0, from.1, other);
        }
        let ino = state.leave(from.0, from.1)?;
        if let Some(old) = target {
            state.leave(to.0, to.1)?;
            state.unlinked(old, 1);
        }
        state.enter(to.0, to.1, ino)?;
        state.node_mut(InodeNo(ino))?.parent = to.0.0;
        Ok(())
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
        while self.write_gate.load(Ordering::SeqCst) > 0 {
            steadfs_rt::sleep(std::time::Duration::from_millis(2));
        }
        let mut state = self.state.lock();
        let node = state.node_mut(ino)?;
        node.write(offset, data);
        if kill_priv {
            node.attr.perm &= !0o6000;
        }
        Ok(data.len())
    }

    fn fsync(&self, _: &Cx, _: InodeNo, _: bool) -> Result<()> {
        self.fsyncs.fetch_add(1, Ordering::SeqCst);
        while self.fsync_gate.load(Ordering::SeqCst) > 0 {
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
        let mut state = self.state.lock();
        let node = state.node_mut(ino)?;
        let grow = match mode {
            FallocMode::PunchHole => {
                node.zero(offset, len, false);
                false
            }
            FallocMode::ZeroRange { keep_size } => {
                node.zero(offset, len, true);
                !keep_size
            }
            FallocMode::Allocate { keep_size } => !keep_size,
            _ => return Err(FsError::NotSupported("range")),
        };
        if grow {
            node.attr.size = node.attr.size.max(offset + len);
        }
        Ok(())
    }

    fn seek(&self, _: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        let state = self.state.lock();
        let node = state.node(ino)?;
        let size = node.attr.size;
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        let wanted = what == Seek::Data;
        let mut at = offset;
        while at < size && node.blocks.contains_key(&(at / BLOCK)) != wanted {
            at = (at / BLOCK + 1) * BLOCK;
        }
        match what {
            Seek::Data if at >= size => Err(FsError::NoSuchOffset),
            _ => Ok(at.min(size)),
        }
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
        let mut state = self.state.lock();
        let parent = state.dir(dir)?.parent;
        let dots = [(1, dir.0, &b"."[..]), (2, parent, &b".."[..])];
        let node = &state.nodes[&dir.0];
        let named = node
            .order
            .range(cookie.max(2) + 1..)
            .map(|(&next, name)| (next, node.entries[name].0, &name[..]));
        for (next, ino, name) in dots.into_iter().filter(|d| d.0 > cookie).chain(named) {
            let kind = Some(state.nodes[&ino].attr.kind);
            let ino = InodeNo(ino);
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
}

impl Control for MemFs {
    fn entries(&self) -> Vec<ControlEntry> {
        let entry = |path, writable| ControlEntry { path, writable };
        vec![
            entry("value", true),
            entry("options", false),
            entry("jbd2/info", false),
            entry("jbd2/deep/er", false),
        ]
    }

    /// `value` counts its reads, so that no two have the same content.
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        Ok(match path {
            "value" => format!("{:08}\n", self.value.fetch_add(1, Ordering::SeqCst)),
            other => format!("content of {other}\n"),
        }
        .into_bytes())
    }

    fn write(&self, path: &str, value: &[u8]) -> Result<()> {
        assert_eq!(path, "value");
        let text = std::str::from_utf8(value).map_err(|_| FsError::Invalid("not a number"))?;
        let number = text
            .trim()
            .parse()
            .map_err(|_| FsError::BadOption(format!("not a number: {text}")))?;
        self.value.store(number, Ordering::SeqCst);
        Ok(())
    }
}
