//! All inodes, and their names.

use std::collections::BTreeMap;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_vfs::verity::VerityOptions;
use steadfs_vfs::{
    Attr, Cx, DirEntry, FileKind, FsError, InodeFlags, RenameFlags, Result, ShutdownMode,
    check_name,
};

use super::node::Node;
use super::{ROOT, now};

pub struct State {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) next_ino: u64,
    pub(super) next_cookie: u64,
    pub last_umask: u32,
    pub groups: Vec<u32>,
    pub shutdown: Option<ShutdownMode>,
    /// The last file that became a verity file.
    pub sealed: Option<(InodeNo, VerityOptions)>,
    /// How many bytes may still be written.
    pub free_bytes: usize,
}

impl State {
    pub fn flags_of(&self, ino: u64) -> InodeFlags {
        self.nodes[&ino].attr.flags
    }

    pub fn chown_root(&mut self, id: u32) {
        let root = self.nodes.get_mut(&ROOT).unwrap();
        (root.attr.uid, root.attr.gid) = (id, id);
    }

    pub(super) fn node(&self, ino: InodeNo) -> Result<&Node> {
        self.nodes.get(&ino.0).ok_or(FsError::Stale)
    }

    pub(super) fn node_mut(&mut self, ino: InodeNo) -> Result<&mut Node> {
        self.nodes.get_mut(&ino.0).ok_or(FsError::Stale)
    }

    pub(super) fn dir(&mut self, ino: InodeNo) -> Result<&mut Node> {
        let node = self.node_mut(ino)?;
        if node.attr.kind != FileKind::Directory {
            return Err(FsError::NotDir);
        }
        Ok(node)
    }

    pub(super) fn find(&mut self, dir: InodeNo, name: &[u8]) -> Result<u64> {
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

    pub(super) fn make(&mut self, cx: &Cx, dir: InodeNo, kind: FileKind, perm: u32) -> u64 {
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

    pub(super) fn enter(&mut self, dir: InodeNo, name: &[u8], ino: u64) -> Result<()> {
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let node = self.dir(dir)?;
        node.entries.insert(name.to_vec(), (ino, cookie));
        node.order.insert(cookie, name.to_vec());
        node.attr.mtime = now();
        Ok(())
    }

    pub(super) fn leave(&mut self, dir: InodeNo, name: &[u8]) -> Result<u64> {
        let node = self.dir(dir)?;
        let (ino, cookie) = node.entries.remove(name).ok_or(FsError::NotFound)?;
        node.order.remove(&cookie);
        node.attr.mtime = now();
        Ok(ino)
    }

    pub(super) fn unlinked(&mut self, ino: u64, by: u32) {
        let node = self.nodes.get_mut(&ino).unwrap();
        node.attr.nlink = node.attr.nlink.saturating_sub(by);
        self.drop_if_dead(ino);
    }

    pub(super) fn drop_if_dead(&mut self, ino: u64) {
        let node = &self.nodes[&ino];
        if node.lookups == 0 && node.attr.nlink == 0 {
            self.nodes.remove(&ino);
        }
    }

    pub(super) fn counted(&mut self, ino: u64) -> Result<Attr> {
        let node = self.node_mut(InodeNo(ino))?;
        node.lookups += 1;
        Ok(node.attr.clone())
    }

    pub(super) fn add(
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

    pub(super) fn rename(
        &mut self,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        check_name(to.1)?;
        self.find(from.0, from.1)?;
        let target = self.find(to.0, to.1).ok();
        if flags.no_replace && target.is_some() {
            return Err(FsError::Exists);
        }
        if flags.exchange {
            let other = target.ok_or(FsError::NotFound)?;
            let ino = self.leave(from.0, from.1)?;
            self.leave(to.0, to.1)?;
            self.enter(to.0, to.1, ino)?;
            return self.enter(from.0, from.1, other);
        }
        let ino = self.leave(from.0, from.1)?;
        if let Some(old) = target {
            self.leave(to.0, to.1)?;
            self.unlinked(old, 1);
        }
        self.enter(to.0, to.1, ino)?;
        self.node_mut(InodeNo(ino))?.parent = to.0.0;
        Ok(())
    }

    pub(super) fn list(
        &mut self,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let parent = self.dir(dir)?.parent;
        let dots = [(1, dir.0, &b"."[..]), (2, parent, &b".."[..])];
        let node = &self.nodes[&dir.0];
        let named = node
            .order
            .range(cookie.max(2) + 1..)
            .map(|(&next, name)| (next, node.entries[name].0, &name[..]));
        for (next, ino, name) in dots.into_iter().filter(|d| d.0 > cookie).chain(named) {
            let kind = Some(self.nodes[&ino].attr.kind);
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
}
