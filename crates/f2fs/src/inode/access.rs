//! Access to inodes of a volume: by number or directory entry, read from their nodes, and stored in them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use steadfs_base::{InodeNo, IoTag};
use steadfs_block::Buf;
use steadfs_vfs::{Attr, FileKind, FsError, InodeFlags, Result};

use super::{Inode, Role};
use crate::cp_lock::Change;
use crate::disk::{self, BLOCK_SIZE, DiskError, Nid, Structure};
use crate::fs::F2fs;
use crate::node::Node;
use crate::space::Need;

/// Inodes stored per hold of `cp_lock`.
const STORED_PER_CHANGE: usize = 128;

impl Inode {
    /// The length of an encrypted link's target as it is shown; `None` if it cannot be read, and
    /// for other inodes.
    fn shown_target(&self, fs: &F2fs, tag: IoTag) -> Option<u64> {
        let encrypted = self.kind == FileKind::Symlink && self.is_encrypted();
        let target = encrypted.then(|| fs.link_target(self, tag).ok());
        target.flatten().map(|target| target.len() as u64)
    }

    pub(crate) fn attr(&self, fs: &F2fs, tag: IoTag) -> Attr {
        let shown_target = self.shown_target(fs, tag);
        let core = self.core.read();
        self.times_seen.store(true, Ordering::Release);
        Attr {
            ino: self.nid.into(),
            generation: core.generation,
            kind: self.kind,
            perm: u32::from(core.mode) & 0o7777,
            nlink: core.links,
            uid: core.uid,
            gid: core.gid,
            rdev: self.rdev,
            size: shown_target.unwrap_or_else(|| self.size()),
            blocks: self.sectors(fs, &core, tag),
            block_size: BLOCK_SIZE as u32,
            atime: core.atime,
            mtime: core.mtime,
            ctime: core.ctime,
            btime: core.btime,
            flags: core.visible_flags(),
        }
    }
}

/// Nodes that a call has reserved for blocks which it does not have yet: released if this is dropped.
#[must_use = "the nodes are released when this is dropped"]
pub(crate) struct ReservedNodes<'f> {
    fs: &'f F2fs,
    inode: &'f Inode,
    offsets: BTreeSet<u32>,
}

impl ReservedNodes<'_> {
    /// The blocks are there, or as good as there: the nodes stay reserved until they are made, or until a truncation.
    pub(crate) fn keep(mut self) {
        self.offsets.clear();
    }
}

impl Drop for ReservedNodes<'_> {
    fn drop(&mut self) {
        if !self.offsets.is_empty() {
            let ours = |offset: u32| self.offsets.contains(&offset);
            self.fs.release_some_nodes(self.inode, ours);
        }
    }
}

impl F2fs {
    /// The inode with this number. `Stale` if there is none.
    pub(crate) fn by_number(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        self.check_open()?;
        let nid = Nid::from_vfs(ino).filter(|nid| !self.is_hidden(*nid));
        let inode = self.inode(nid.ok_or(FsError::Stale)?, tag)?;
        match inode.is_staging() {
            true => Err(FsError::Stale),
            false => Ok(inode),
        }
    }

    /// Whether a node is one of the volume's own inodes, which callers cannot access.
    pub(crate) fn is_hidden(&self, nid: Nid) -> bool {
        nid != Nid::ROOT && self.superblock.quota_inodes().contains(&Some(nid))
    }

    /// The inode, read if it is not in memory. `Stale` if the node is not in use or not an inode.
    pub(crate) fn inode(&self, nid: Nid, tag: IoTag) -> Result<Arc<Inode>> {
        loop {
            let since = match self.inodes.find(nid) {
                Ok(inode) if inode.marks.is_dead() => return Err(FsError::Stale),
                Ok(inode) => return Ok(inode),
                Err(since) if since.is_announced => return Err(FsError::Stale),
                Err(since) => since,
            };
            let inode = self.read_inode(nid, tag)?;
            inode.record_written(true, since.unflushed);
            if let Some(inode) = self.inodes.insert_read(inode, since) {
                return Ok(inode);
            }
        }
    }

    /// Reads an inode from its node.
    fn read_inode(&self, nid: Nid, tag: IoTag) -> Result<Inode> {
        if !self.layout.is_nid(nid) {
            return Err(FsError::Stale);
        }
        if self.recovered().leaf(nid, 0).is_none() {
            let entry = self.nat.entry(nid, tag)?;
            if !entry.is_used() || entry.ino != nid {
                return Err(FsError::Stale);
            }
        }
        let node = self.node(nid, nid, tag)?.ok_or(FsError::Stale)?;
        // The fields are kept; the block mostly is not needed again.
        let data = node.block()?;
        let core = disk::Inode::decode(&self.layout, &data).map_err(|e| e.in_node(nid))?;
        core.validate(&self.layout, nid)
            .map_err(|e| e.in_node(nid))?;
        if core.has(InodeFlags::CASEFOLD) && self.layout.encoding.is_none() {
            let rule = "has the casefold flag, but the volume has no encoding of names";
            let error = DiskError::field(Structure::Inode, "i_flags", core.flags.0, rule);
            return Err(error.in_node(nid).into());
        }
        let rdev = match core.kind() {
            Some(FileKind::CharDevice | FileKind::BlockDevice) => core.rdev(&self.layout, &data),
            _ => 0,
        };
        let role = match self.is_hidden(nid) {
            true => Role::QuotaFile,
            false => Role::Plain,
        };
        let inode = Inode::new(&self.writeback, nid, core, rdev, role)?;
        Ok(self.with_charged_before(inode))
    }

    /// An inode's block: the fields, then addresses or inline content, then node ids.
    pub(crate) fn inode_block(&self, inode: &Inode, tag: IoTag) -> Result<Buf> {
        self.inode_node(inode.nid, tag)?.data()
    }

    /// The inode that a directory entry refers to. If there is none, the volume is corrupt.
    pub(crate) fn inode_of_entry(&self, dir: &Inode, nid: Nid, tag: IoTag) -> Result<Arc<Inode>> {
        let found = match self.is_hidden(nid) {
            true => Err(FsError::Stale),
            false => self.inode(nid, tag),
        };
        match found {
            Err(FsError::Stale) => {
                let rule = "which is not an inode in use";
                let error = DiskError::field(Structure::Dentries, "ino", nid.0, rule);
                Err(error.in_node(dir.nid()).into())
            }
            other => other,
        }
    }

    /// Marks `core` as newer than the inode's node, for the next checkpoint or fsync to store. The node is read if
    /// it is not in memory, and stays there. The caller holds `core` exclusively, during this call and the change.
    pub(crate) fn mark_dirty(&self, change: &Change<'_>, inode: &Inode, tag: IoTag) -> Result<()> {
        if !inode.is_dirty() {
            let node = self.inode_node(inode.nid, tag)?;
            self.touch_charged(change, inode, tag)?;
            self.inodes.mark_dirty(inode, node);
        }
        Ok(())
    }

    /// Stores an inode's fields in its node and marks the node dirty; returns the node, if the fields were newer. The
    /// caller holds `core`, shared or exclusively, and passes it.
    pub(crate) fn store_inode(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        core: &disk::Inode,
    ) -> Result<Option<Arc<Node>>> {
        let node = self.inodes.take_dirty(inode);
        if let Some(node) = &node {
            self.charge(inode, core);
            let mut data = self.nodes.change(change, node)?;
            core.encode_into(&self.layout, &mut data)?;
        }
        Ok(node)
    }

    /// Stores unused inodes if many are dirty, so that they can be evicted before the next checkpoint: a packed
    /// node takes a third of the memory of an inode and its node. The caller holds no lock.
    ///
    /// # Errors
    /// As [`F2fs::change`]. An inode that cannot be stored stays dirty, and the checkpoint reports why.
    pub(crate) fn store_unused_inodes(&self) -> Result<()> {
        for inodes in self.inodes.unused_dirty().chunks(STORED_PER_CHANGE) {
            let change = self.change()?;
            for inode in inodes {
                if let Err(error) = self.store_unused(&change, inode) {
                    tracing::debug!(%error, ino = %inode.nid(), "cannot store an unused inode");
                }
            }
        }
        Ok(())
    }

    fn store_unused(&self, change: &Change<'_>, inode: &Inode) -> Result<()> {
        // While it is held the inode keeps its name, so no task frees it, and no task marks it dirty.
        let Some(core) = inode.core.try_write().filter(|core| core.links > 0) else {
            return Ok(());
        };
        let Some(node) = self.inodes.take_dirty(inode) else {
            return Ok(());
        };
        self.charge(inode, &core);
        let store = |block: &mut [u8]| Ok(core.encode_into(&self.layout, block)?);
        let stored = self.nodes.change_packed(change, &node, store);
        if stored.is_err() {
            self.inodes.mark_dirty(inode, node);
        }
        stored
    }

    /// Reserves the nodes that mapping these blocks would create, each at most once per inode. The caller holds the
    /// inode's lock for writing and does not hold `core`.
    pub(crate) fn reserve_nodes<'f>(
        &'f self,
        inode: &'f Inode,
        runs: impl IntoIterator<Item = std::ops::Range<u64>>,
        privileged: bool,
        tag: IoTag,
    ) -> Result<ReservedNodes<'f>> {
        let mut reserved = ReservedNodes {
            fs: self,
            inode,
            offsets: BTreeSet::new(),
        };
        for run in runs {
            self.reserve_nodes_of(&mut reserved, run, privileged, tag)?;
        }
        Ok(reserved)
    }

    fn reserve_nodes_of(
        &self,
        reserved: &mut ReservedNodes<'_>,
        blocks: std::ops::Range<u64>,
        privileged: bool,
        tag: IoTag,
    ) -> Result<()> {
        let inode = reserved.inode;
        let mut at = blocks.start;
        while at < blocks.end {
            let core = inode.core.read();
            let left = core.fanout(&self.layout).left_in_node(at);
            // Under this lock no node of the file is created, so only missing ones are reserved.
            let new = self.unreserved_in(inode, &core, at, tag)?;
            let need = Need {
                blocks: 0,
                nodes: new.len() as u64,
            };
            self.space.reserve(need, privileged)?;
            inode.reserved.lock().extend(&new);
            reserved.offsets.extend(new);
            at += left;
        }
        Ok(())
    }

    /// Offsets of missing nodes on the path to a block that are not reserved.
    fn unreserved_in(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        block: u64,
        tag: IoTag,
    ) -> Result<Vec<u32>> {
        let missing = self.missing_nodes(inode, core, block, tag)?;
        let known = |offset: &u32| inode.reserved.lock().contains(offset);
        Ok(missing.into_iter().filter(|n| !known(n)).collect())
    }

    /// The nodes that [`F2fs::reserve_nodes`] would reserve.
    pub(crate) fn unreserved_nodes(
        &self,
        inode: &Inode,
        blocks: std::ops::Range<u64>,
        tag: IoTag,
    ) -> Result<BTreeSet<u32>> {
        let core = inode.core.read();
        let mut found = BTreeSet::new();
        let mut at = blocks.start;
        while at < blocks.end {
            found.extend(self.unreserved_in(inode, &core, at, tag)?);
            at += core.fanout(&self.layout).left_in_node(at);
        }
        Ok(found)
    }

    /// Releases the reservations of nodes that only blocks from `first` on would need (truncation).
    pub(crate) fn release_nodes(&self, inode: &Inode, first: u64) {
        let fanout = inode.core.read().fanout(&self.layout);
        self.release_some_nodes(inode, |offset| fanout.first_block_below(offset) >= first);
    }

    fn release_some_nodes(&self, inode: &Inode, which: impl Fn(u32) -> bool) {
        let mut nodes = 0;
        inode.reserved.lock().retain(|&offset| {
            let goes = which(offset);
            nodes += u64::from(goes);
            !goes
        });
        self.space.release(Need { blocks: 0, nodes });
        if nodes > 0 {
            // They are counted as delayed, too.
            self.end_delay(inode, 0);
        }
    }
}
