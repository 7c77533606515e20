//! Inodes in memory: one object per inode number in use, shared by all tasks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use steadfs_base::{BlockSize, InodeNo};
use steadfs_cache::{
    ClusterMark, DirtyFile, FlushGuard, FlushLock, Mapping, ReadAheadWindow, Writeback,
};
use steadfs_fscrypt::FileKey;
use steadfs_rt::{Mutex, Rank, RwLock};
use steadfs_vfs::names::NameLock;
use steadfs_vfs::{FileKind, FsxAttr, InodeFlags, InodeMarks, Result};

use crate::dentry::slots::AbsentName;
use crate::disk::inode::{Advise, Inline};
use crate::disk::{self, BLOCK_SIZE, DiskError, Nid, Structure};
use crate::quota::ChargedCell;

mod access;
mod blocks;
pub mod table;

pub(crate) use access::ReservedNodes;

/// An inode in memory.
///
/// Lock order: `lock`, `flush`, a [`Change`](crate::cp_lock::Change), `core`.
pub struct Inode {
    nid: Nid,
    kind: FileKind,
    /// Orders calls: held for writing by those that change content, size or names, for reading by the others.
    pub lock: RwLock<()>,
    /// The flush lock: one write-back of the file's data at a time.
    pub(crate) flush: FlushLock,
    /// The fields as the next checkpoint stores them. `size` is the size to be stored; it follows [`Inode::size`]
    /// once data is written. Held shared while the node tree is walked, exclusively while it changes.
    pub core: RwLock<disk::Inode>,
    /// Dirty blocks of a file, a directory or a long symbolic link.
    pub pages: Mapping,
    pub read_ahead: ReadAheadWindow,
    /// The size in bytes that callers see.
    size: AtomicU64,
    rdev: u32,
    lookups: AtomicU64,
    /// Offsets of nodes that are reserved for it.
    reserved: Mutex<BTreeSet<u32>>,
    /// `core` is newer than the inode's node.
    dirty: AtomicBool,
    /// The key of its encrypted content, while some of it may be dirty.
    pub(crate) held_key: Mutex<Option<Arc<FileKey>>>,
    /// Whether it is an orphan, may get a name, or was freed.
    pub(crate) marks: InodeMarks,
    /// The times have been read since the last write.
    pub(crate) times_seen: AtomicBool,
    /// Numbers of the FLUSH that makes the last completed write durable: of data and nodes, and of newly allocated
    /// data only ([`Queue::next_flush`](steadfs_block::Queue::next_flush)); 0: no write.
    unflushed: AtomicU64,
    unflushed_opu: AtomicU64,
    /// Beyond this byte, its block on the device may hold truncated content; [`NOTHING_STALE`] if it cannot.
    stale_tail: AtomicU64,
    /// Version of the checkpoint after which the log has the inode with a dentry mark; 0: none.
    dentry_marked: AtomicU64,
    /// Written by another file's fsync, and not synced itself since.
    pub(crate) clustered: ClusterMark,
    /// Of a directory: a name that it does not have. Set under `lock`, at least shared; each change of its names drops
    /// it.
    pub(crate) absent: Mutex<Option<AbsentName>>,
    /// The content is in `pages`, although the node still has older content inline (`inline.rs`). Changes under `lock`,
    /// exclusively, or under `core`, exclusively, in write-back.
    leaves_inline: AtomicBool,
    /// What quota counts for it.
    pub(crate) charged: ChargedCell,
    role: Role,
    /// Used since the last sweep.
    recent: AtomicBool,
}

/// What an inode is for the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A file of users.
    Plain,
    /// A quota file. Its fields change while those of a counted inode are locked.
    QuotaFile,
    /// It stages an atomic write (`atomic.rs`): no caller can refer to it, and its locks are taken after those of the
    /// file that is written.
    Staging,
}

/// Inode numbers have 32 bits: with this bit the lock keys of staging files are larger than all others.
const STAGING_KEY: u64 = 1 << 32;

/// See [`Inode::stale_tail`].
const NOTHING_STALE: u64 = u64::MAX;

/// The byte beyond which the last block of a file with this size may hold old content.
const fn stale_beyond(size: u64) -> u64 {
    match size.is_multiple_of(BLOCK_SIZE as u64) {
        true => NOTHING_STALE,
        false => size,
    }
}

impl NameLock for Inode {
    fn number(&self) -> InodeNo {
        self.nid.into()
    }

    fn lock(&self) -> &RwLock<()> {
        &self.lock
    }

    fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

impl Inode {
    /// An inode with these fields, not yet in the table.
    ///
    /// # Errors
    /// The mode has no file type.
    pub(crate) fn new(
        writeback: &Arc<Writeback>,
        nid: Nid,
        core: disk::Inode,
        rdev: u32,
        role: Role,
    ) -> Result<Self> {
        let rank = match role {
            Role::Plain => Rank::ExtentTree,
            Role::QuotaFile => Rank::InodeState,
            Role::Staging => Rank::StagedTree,
        };
        let lock_key = match role {
            Role::Plain | Role::QuotaFile => u64::from(nid.0),
            Role::Staging => u64::from(nid.0) | STAGING_KEY,
        };
        let kind = core.kind().ok_or_else(|| {
            DiskError::field(Structure::Inode, "i_mode", core.mode, "no type").in_node(nid)
        })?;
        let block_size =
            BlockSize::new(BLOCK_SIZE as u32).expect("BLOCK_SIZE is a valid block size");
        let file = DirtyFile(nid.0.into());
        let stale_tail = AtomicU64::new(stale_beyond(core.size));
        Ok(Self {
            nid,
            kind,
            lock: RwLock::with_key(Rank::Inode, lock_key, ()),
            flush: FlushLock::new(lock_key),
            size: AtomicU64::new(core.size),
            core: RwLock::new(rank, core),
            read_ahead: ReadAheadWindow::default(),
            pages: Mapping::new(block_size, file, Arc::clone(writeback)),
            rdev,
            lookups: AtomicU64::new(0),
            reserved: Mutex::new(Rank::Leaf, BTreeSet::new()),
            dirty: AtomicBool::new(false),
            held_key: Mutex::new(Rank::Leaf, None),
            marks: InodeMarks::default(),
            times_seen: AtomicBool::new(true),
            unflushed: AtomicU64::new(0),
            unflushed_opu: AtomicU64::new(0),
            stale_tail,
            dentry_marked: AtomicU64::new(0),
            clustered: ClusterMark::default(),
            absent: Mutex::new(Rank::Leaf, None),
            leaves_inline: AtomicBool::new(false),
            charged: ChargedCell::default(),
            role,
            recent: AtomicBool::new(true),
        })
    }

    /// Waits for the flush lock.
    pub(crate) fn lock_flush(&self) -> FlushGuard<'_> {
        FlushGuard::lock(self)
    }

    pub fn nid(&self) -> Nid {
        self.nid
    }

    /// Whether it is a quota file.
    pub(crate) fn is_quota_file(&self) -> bool {
        self.role == Role::QuotaFile
    }

    /// Whether it stages an atomic write.
    pub(crate) fn is_staging(&self) -> bool {
        self.role == Role::Staging
    }

    /// Whether checkpoints write its blocks, which write-back does for files of users.
    pub(crate) fn is_written_by_cp(&self) -> bool {
        self.kind != FileKind::Regular || self.is_quota_file()
    }

    /// The number of nodes that are reserved for it.
    pub(crate) fn reserved_nodes(&self) -> u64 {
        self.reserved.lock().len() as u64
    }

    /// The file type; it never changes.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// The size in bytes that callers see.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size that callers see. The caller holds `lock` for writing. `core.size` is separate.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// Whether content, or the names of a directory, are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.core.read().advise.contains(Advise::ENCRYPTED)
    }

    /// Whether the inode's node holds content inline: the newest, or what it was before ([`Inode::leaves_inline`]).
    pub fn has_inline_data(&self) -> bool {
        self.core.read().inline.contains(Inline::DATA)
    }

    /// Whether content that the node holds inline has moved to `pages`, and write-back has not mapped it yet.
    pub(crate) fn leaves_inline(&self) -> bool {
        self.leaves_inline.load(Ordering::Acquire)
    }

    /// Whether the content is read from the inode's node.
    pub(crate) fn is_content_inline(&self) -> bool {
        self.has_inline_data() && !self.leaves_inline()
    }

    pub(crate) fn set_leaves_inline(&self, leaves: bool) {
        self.leaves_inline.store(leaves, Ordering::Release);
    }

    /// Whether a directory's entries are stored in the inode.
    pub fn has_inline_dentries(&self) -> bool {
        self.core.read().inline.contains(Inline::DENTRIES)
    }

    /// The flags that ioctls report: those in `i_flags`, and those derived from hints and inline bits.
    pub fn flags(&self) -> InodeFlags {
        self.core.read().visible_flags()
    }

    /// Flags and project id (`FS_IOC_FSGETXATTR`).
    pub fn fsx(&self) -> FsxAttr {
        let core = self.core.read();
        FsxAttr {
            flags: core.visible_flags(),
            project: core.project,
            extents: 0,
        }
    }

    /// Adds one to the lookup count.
    pub fn add_lookup(&self) {
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// Sets the lookup count to 0; returns what it was.
    pub(crate) fn take_lookups(&self) -> u64 {
        self.lookups.swap(0, Ordering::AcqRel)
    }

    /// Subtracts from the lookup count. Returns whether it is 0 now.
    pub fn drop_lookups(&self, count: u64) -> bool {
        let before = self
            .lookups
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                Some(n.saturating_sub(count))
            })
            .unwrap_or(0);
        before <= count
    }

    /// Whether `core` is newer than the inode's node.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire)
    }

    /// A reserved node was created.
    pub(crate) fn consume_node_reservation(&self, offset: u32) {
        self.reserved.lock().remove(&offset);
    }

    /// Whether the lookup count is not 0.
    pub fn is_looked_up(&self) -> bool {
        self.lookups.load(Ordering::Acquire) > 0
    }

    /// Records a completed write of the file, to newly allocated blocks or in place; the FLUSH with this number
    /// makes it durable.
    pub(crate) fn record_written(&self, newly_allocated: bool, flush: u64) {
        self.unflushed.fetch_max(flush, Ordering::AcqRel);
        if newly_allocated {
            self.unflushed_opu.fetch_max(flush, Ordering::AcqRel);
        }
    }

    /// Records the new end of a truncated file: what the device holds in its last block beyond that must never
    /// become visible. The caller holds `flush`.
    pub(crate) fn record_truncation(&self, size: u64) {
        self.stale_tail.store(stale_beyond(size), Ordering::Release);
    }

    /// Where truncated content may still be on the device, if anywhere. A write of that block must be durable
    /// before a node with a size beyond it is written.
    pub(crate) fn stale_tail(&self) -> Option<u64> {
        let from = self.stale_tail.load(Ordering::Acquire);
        (from != NOTHING_STALE).then_some(from)
    }

    /// Records that the block of [`stale_tail`](Self::stale_tail) was written. The caller has held `flush` since
    /// the block was collected.
    pub(crate) fn clear_stale_tail(&self) {
        self.stale_tail.store(NOTHING_STALE, Ordering::Release);
    }

    /// The FLUSH that makes all completed writes durable; 0 if there were none.
    pub(crate) fn unflushed(&self) -> u64 {
        self.unflushed.load(Ordering::Acquire)
    }

    /// As [`Inode::unflushed`], for newly allocated data.
    pub(crate) fn unflushed_opu(&self) -> u64 {
        self.unflushed_opu.load(Ordering::Acquire)
    }

    /// Records that a node chain after the checkpoint with this version has the inode with a dentry mark.
    pub(crate) fn set_dentry_marked(&self, version: u64) {
        self.dentry_marked.store(version, Ordering::Release);
    }

    /// Whether recovery from this checkpoint restores the inode's name without another dentry mark.
    pub(crate) fn is_dentry_marked(&self, version: u64) -> bool {
        self.dentry_marked.load(Ordering::Acquire) == version
    }
}
