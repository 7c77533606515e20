//! Inodes in memory: shared by everybody who works on the file, counted by lookups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{FixedMap, InodeNo, IoTag};
use steadfs_block::Buf;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{Attr, FileKind, FsError, FsxAttr, InodeFlags, Result};

use crate::disk::inode::{Advise, Inline};
use crate::disk::node::Fanout;
use crate::disk::{self, BLOCK_SIZE, BlockAddr, DiskError, Nid, Structure};
use crate::fs::F2fs;

/// Inodes nobody holds that are kept nevertheless.
const KEEP: usize = 4096;

/// An inode in memory.
pub struct Inode {
    nid: Nid,
    kind: FileKind,
    /// Its fields.
    pub core: disk::Inode,
    /// Where its block lies. The block itself stays in the cache, which has a budget: the kernel may
    /// hold more inodes than memory has room for blocks.
    addr: BlockAddr,
    /// Device number of a device node.
    rdev: u32,
    /// How many blocks its nodes map.
    pub fanout: Fanout,
    lookups: AtomicU64,
}

impl Inode {
    /// Its number.
    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// Its type.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.core.size
    }

    /// Whether names (of a directory) and content are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.core.advise.contains(Advise::ENCRYPTED)
    }

    /// Whether content lies in the inode.
    pub fn has_inline_data(&self) -> bool {
        self.core.inline.contains(Inline::DATA)
    }

    /// Whether a directory's entries lie in the inode.
    pub fn has_inline_dentries(&self) -> bool {
        self.core.inline.contains(Inline::DENTRIES)
    }

    /// Flags as users see them: those stored, and those that are hints or bits elsewhere.
    pub fn flags(&self) -> InodeFlags {
        let mut flags = self.core.flags;
        if self.is_encrypted() {
            flags = flags.union(InodeFlags::ENCRYPTED);
        }
        if self.core.advise.contains(Advise::VERITY) {
            flags = flags.union(InodeFlags::VERITY);
        }
        flags
    }

    /// Attributes.
    pub fn attr(&self) -> Attr {
        let core = &self.core;
        Attr {
            ino: self.nid.into(),
            generation: core.generation,
            kind: self.kind,
            perm: u32::from(core.mode) & 0o7777,
            nlink: core.links,
            uid: core.uid,
            gid: core.gid,
            rdev: self.rdev,
            size: core.size,
            // The count includes the inode's own block, which is not shown.
            blocks: core
                .blocks
                .saturating_sub(1)
                .saturating_mul(BLOCK_SIZE as u64 / 512),
            block_size: BLOCK_SIZE as u32,
            atime: core.atime,
            mtime: core.mtime,
            ctime: core.ctime,
            btime: core.btime,
            flags: self.flags(),
        }
    }

    /// Flags with the project id.
    pub fn fsx(&self) -> FsxAttr {
        FsxAttr {
            flags: self.flags(),
            project: self.core.project,
            extents: 0,
        }
    }

    /// Adds one lookup count.
    pub fn add_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }
}

/// The inodes in memory, by number.
pub struct InodeTable {
    inodes: Mutex<FixedMap<u32, Arc<Inode>>>,
}

impl InodeTable {
    pub fn new() -> Self {
        Self {
            inodes: Mutex::new(Rank::InodeTable, FixedMap::default()),
        }
    }

    fn get(&self, nid: Nid) -> Option<Arc<Inode>> {
        self.inodes.lock().get(&nid.0).cloned()
    }

    /// Keeps an inode, or takes the one that somebody else read meanwhile.
    fn insert(&self, inode: Inode) -> Arc<Inode> {
        let mut inodes = self.inodes.lock();
        if inodes.len() >= KEEP && inodes.len().is_power_of_two() {
            inodes.retain(|_, inode| {
                inode.lookups.load(Ordering::Acquire) > 0 || Arc::strong_count(inode) > 1
            });
        }
        let slot = inodes.entry(inode.nid.0);
        Arc::clone(slot.or_insert_with(|| Arc::new(inode)))
    }

    /// Takes lookup counts away; an inode without any leaves memory.
    pub fn forget(&self, nid: Nid, count: u64) {
        let mut inodes = self.inodes.lock();
        let Some(inode) = inodes.get(&nid.0) else {
            return;
        };
        let before = inode
            .lookups
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                Some(n.saturating_sub(count))
            })
            .unwrap_or(0);
        if before <= count && nid != Nid::ROOT {
            inodes.remove(&nid.0);
        }
    }
}

impl F2fs {
    /// The inode with this number in the rest of the program. `Stale` where there is none.
    pub(crate) fn by_number(&self, ino: InodeNo, tag: IoTag) -> Result<Arc<Inode>> {
        self.check_open()?;
        let nid = Nid::from_vfs(ino).ok_or(FsError::Stale)?;
        self.inode(nid, tag)
    }

    /// The inode, read if need be. `Stale` where the node is not in use or is none.
    pub(crate) fn inode(&self, nid: Nid, tag: IoTag) -> Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.get(nid) {
            return Ok(inode);
        }
        if !self.layout.is_nid(nid) {
            return Err(FsError::Stale);
        }
        let addr = match self.recovered.inode(nid) {
            Some(addr) => addr,
            None => {
                let entry = self.nat.entry(nid, tag)?;
                if !entry.is_used() || entry.ino != nid {
                    return Err(FsError::Stale);
                }
                entry.validate(&self.layout, nid)?;
                entry.addr
            }
        };
        let node = self.node_at(addr, nid, nid, tag)?;
        let core = disk::Inode::parse(&self.layout, nid, &node.data)?;
        let kind = core.kind().ok_or_else(|| {
            DiskError::field(Structure::Inode, "i_mode", core.mode, "no type").in_node(nid)
        })?;
        Ok(self.inodes.insert(Inode {
            nid,
            kind,
            fanout: core.fanout(&self.layout),
            addr,
            rdev: match kind {
                FileKind::CharDevice | FileKind::BlockDevice => core.rdev(&self.layout, &node.data),
                _ => 0,
            },
            core,
            lookups: AtomicU64::new(0),
        }))
    }

    /// An inode's block: addresses, content and ids behind the fields.
    pub(crate) fn inode_block(&self, inode: &Inode, tag: IoTag) -> Result<Buf> {
        Ok(self.node_at(inode.addr, inode.nid, inode.nid, tag)?.data)
    }

    /// The inode that a directory entry names: that there is none is damage here.
    pub(crate) fn named(&self, dir: &Inode, nid: Nid, tag: IoTag) -> Result<Arc<Inode>> {
        match self.inode(nid, tag) {
            Err(FsError::Stale) => {
                let rule = "named by an entry, but no inode";
                let error = DiskError::field(Structure::Dentries, "ino", nid.0, rule);
                Err(error.in_node(dir.nid()).into())
            }
            other => other,
        }
    }
}
