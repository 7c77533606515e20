//! Atomic writes (`F2FS_IOC_START_ATOMIC_WRITE`, `_COMMIT_`, `_ABORT_ATOMIC_WRITE` and `_START_ATOMIC_REPLACE`), with which
//! SQLite commits without a journal: what is written to a file after the start becomes part of it by the commit, all of it
//! or nothing, also after a power cut.
//!
//! **Staging file.** As in the kernel, written blocks go to a file without a name, an orphan, which the next mount frees.
//! So delayed allocation, write-back, GC, quota and the limits of memory apply to them as to any other data. Until the
//! commit all callers see the staged content and size, those that do not take part too; the file itself does not change,
//! so a crash, an abort and an error of the commit leave what was there before.
//!
//! **Invariants** while a file has an [`AtomicWrite`]; all of it changes under the file's `lock`, held for writing:
//! 1. A block is read from the staging file if it has that block, otherwise from the file, up to the byte `base`, behind
//!    which the file was truncated (or replaced); else it is zeros.
//! 2. The file has no dirty data, and its stored size is that from before the start. The staging file's size is the one
//!    that callers see.
//! 3. Nodes that the commit must make are reserved for the file, so a commit needs no space.
//!
//! **Commit** ([`commit`]): staged data is on the device before one `Change` moves its blocks, so each checkpoint and each
//! node chain has all of them or none. Then it is an fsync.
//!
//! **End without a commit.** The kernel aborts when the process that started ends, and when the file is closed. So a
//! volume with the option `atomic_write` is notified of opens and closes
//! ([`FileSystem::tracks_files`](steadfs_vfs::FileSystem::tracks_files)); without it nothing can be started. Before Linux
//! 6.2 that is before the process's file locks are dropped, since then soon after; whatever opens the file later sees the
//! old content.

pub(crate) mod commit;
mod content;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use steadfs_base::IoTag;
use steadfs_rt::{Mutex, Rank, random_u64};
use steadfs_vfs::{Cx, FileKind, FsError, InodeFlags, IoctlAnswer, Result};

use crate::data::BLOCK;
use crate::disk::inode::{Advise, Compression, Extent, Inline};
use crate::disk::{self, BLOCK_SIZE, Nid};
use crate::fs::F2fs;
use crate::inode::{Inode, Role};
use crate::quota::owners_of;
use crate::space::Need;

/// A file that is written atomically.
pub(crate) struct AtomicWrite {
    file: Arc<Inode>,
    /// Has the written blocks.
    staging: Arc<Inode>,
    /// The bytes of the file that were not truncated since the start.
    base: AtomicU64,
    /// The size before the start.
    old_size: u64,
    /// What started it, as far as that is known: a process, by an open file.
    process: Option<u64>,
    opened: Option<u64>,
}

/// The files of a volume that are written atomically.
pub(crate) struct AtomicWrites {
    /// Their number: usually 0, which is all that reads and writes need to know.
    count: AtomicUsize,
    by_file: Mutex<BTreeMap<Nid, Arc<AtomicWrite>>>,
}

impl AtomicWrites {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            by_file: Mutex::new(Rank::Leaf, BTreeMap::new()),
        }
    }

    /// The atomic write of a file. It begins and ends only while `lock` of the file is held for writing.
    pub(crate) fn of(&self, inode: &Inode) -> Option<Arc<AtomicWrite>> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            _ => self.by_file.lock().get(&inode.nid()).cloned(),
        }
    }

    /// Whether any is in progress.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    fn insert(&self, write: AtomicWrite) {
        let mut by_file = self.by_file.lock();
        let before = by_file.insert(write.file.nid(), Arc::new(write));
        assert!(before.is_none(), "a file has at most one atomic write");
        self.count.store(by_file.len(), Ordering::Release);
    }

    fn remove(&self, inode: &Inode) {
        let mut by_file = self.by_file.lock();
        by_file.remove(&inode.nid());
        self.count.store(by_file.len(), Ordering::Release);
    }
}

impl AtomicWrite {
    fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    /// The file was truncated to this size.
    fn limit_base(&self, size: u64) {
        self.base.fetch_min(size, Ordering::AcqRel);
    }

    /// The file whose dirty data is what was written to this one.
    pub(crate) fn staging(&self) -> &Arc<Inode> {
        &self.staging
    }
}

/// The answer of a call that dropped content which callers have seen.
fn stale(dropped: bool) -> IoctlAnswer {
    IoctlAnswer {
        stale: dropped,
        ..IoctlAnswer::default()
    }
}

impl F2fs {
    /// Whether atomic writes can be started.
    pub(crate) fn has_atomic_writes(&self) -> bool {
        self.options.read().atomic_write
    }

    /// Fails for a caller that may not write the file atomically.
    fn check_may_stage(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if !self.has_atomic_writes() {
            return Err(FsError::NotSupported(
                "atomic writes without the mount option atomic_write",
            ));
        }
        // Directories never are.
        let for_reading = cx.opened.is_some_and(|opened| !opened.write);
        if for_reading || inode.kind() != FileKind::Regular {
            return Err(FsError::NotOpenForWriting);
        }
        if cx.uid != 0 && cx.uid != inode.core.read().uid {
            return Err(FsError::Access);
        }
        self.check_writable()
    }

    /// Fails for a file that is written atomically.
    pub(crate) fn check_not_atomic(&self, inode: &Inode) -> Result<()> {
        match self.atomic_writes.of(inode) {
            Some(_) => Err(FsError::Invalid("the file is written atomically")),
            None => Ok(()),
        }
    }

    /// Starts an atomic write; with `replace` the file is empty until something is written. Where one is in progress
    /// already, nothing changes.
    pub(crate) fn start_atomic_write(
        &self,
        cx: &Cx,
        inode: &Inode,
        replace: bool,
    ) -> Result<IoctlAnswer> {
        self.check_may_stage(cx, inode)?;
        if cx.opened.is_some_and(|opened| opened.direct) {
            return Err(FsError::Invalid(
                "a file opened with O_DIRECT is not written atomically",
            ));
        }
        self.prepare(cx)?;
        let inode = self.inode(inode.nid(), cx.tag)?;
        self.with_space(cx, || self.start_once(cx, &inode, replace))
            .map(stale)
    }

    /// Returns whether the content that callers see has changed.
    fn start_once(&self, cx: &Cx, inode: &Arc<Inode>, replace: bool) -> Result<bool> {
        let _exclusive = inode.lock.write();
        if inode.marks.is_dead() {
            return Err(FsError::Stale);
        }
        if self.atomic_writes.of(inode).is_some() {
            return Ok(false);
        }
        self.check_readable(inode, cx.tag)?;
        self.check_may_change(inode)?;
        if inode.is_encrypted() {
            // The staging file has no policy: its blocks would be plain.
            return Err(FsError::NotSupported("atomic writes of encrypted files"));
        }
        if inode.is_pinned() {
            return Err(FsError::Invalid("a pinned file is not written atomically"));
        }
        self.end_compression(inode, cx.tag)
            .map_err(|error| match error {
                FsError::NotSupported(_) => {
                    FsError::Invalid("a compressed file is not written atomically")
                }
                other => other,
            })?;
        self.leave_inline(cx, inode)?;
        self.write_out_locked(inode, cx.tag)?;
        let size = inode.size();
        let staging = self.make_staging_file(cx, inode)?;
        let seen = if replace { 0 } else { size };
        staging.set_size(seen);
        inode.set_size(seen);
        self.atomic_writes.insert(AtomicWrite {
            file: Arc::clone(inode),
            staging,
            base: AtomicU64::new(seen),
            old_size: size,
            process: cx.caller_state.as_ref().and_then(|state| state.process()),
            opened: cx.opened.map(|opened| opened.id),
        });
        Ok(replace)
    }

    /// Makes an orphan with the owners of `inode`.
    pub(crate) fn make_staging_file(&self, cx: &Cx, inode: &Inode) -> Result<Arc<Inode>> {
        let tag = cx.tag;
        let core = self.staging_fields(&inode.core.read());
        let owners = owners_of(&core);
        let need = Need {
            blocks: 0,
            nodes: 1,
        };
        let _room = self.orphans.room()?;
        let _pins = self.prepare_owners(owners, tag)?;
        let _held = self.hold_new(cx, (owners, need), (inode, Need::default()))?;
        let mut reservation = self.space.reservation(need, self.may_use_reserved(cx))?;
        let change = self.change()?;
        self.touch_owners(&change, owners, tag)?;
        let number = self.nat.alloc_nid(&change, None, tag)?;
        let zeros = vec![0; BLOCK_SIZE];
        let made = self.insert_inode(&change, number, core, (0, Role::Staging), zeros);
        let staging = self.abort_on_error(made)?;
        reservation.used(need);
        let listed = self.orphans.add(&change, &staging);
        self.abort_on_error(listed)?;
        staging.add_lookup();
        Ok(staging)
    }

    fn staging_fields(&self, file: &disk::Inode) -> disk::Inode {
        const OWNER_READS_AND_WRITES: u32 = 0o600;
        let now = self.now();
        let extra = file.inline.contains(Inline::EXTRA);
        disk::Inode {
            mode: (FileKind::Regular.mode_bits() | OWNER_READS_AND_WRITES) as u16,
            advise: Advise::default(),
            inline: if extra {
                Inline::EXTRA
            } else {
                Inline::default()
            },
            links: 0,
            size: 0,
            blocks: 1,
            atime: now,
            ctime: now,
            mtime: now,
            btime: file.btime.map(|_| now),
            // The low 32 bits of a random number.
            generation: random_u64() as u32,
            depth: 0,
            xattr_nid: Nid(0),
            flags: InodeFlags::default(),
            name: Vec::new(),
            extent: Extent::default(),
            xattr_words: 0,
            compression: file.compression.map(|_| Compression::default()),
            ..file.clone()
        }
    }

    /// Drops what was written since the start, if an atomic write is in progress.
    pub(crate) fn abort_atomic_write(&self, cx: &Cx, inode: &Inode) -> Result<IoctlAnswer> {
        self.check_may_stage(cx, inode)?;
        Ok(stale(self.drop_staged(inode, cx.tag, |_| true)))
    }

    /// Ends an atomic write whose starter is a process that has ended.
    pub(crate) fn drop_abandoned_atomic(&self, cx: &Cx, inode: &Inode) -> bool {
        let Some(state) = &cx.caller_state else {
            return false;
        };
        self.drop_staged(inode, cx.tag, |write| {
            write
                .process
                .is_some_and(|process| state.has_ended(process))
        })
    }

    /// The open file that started an atomic write is closed.
    pub(crate) fn closed_atomic(&self, cx: &Cx, inode: &Inode) -> bool {
        self.drop_staged(inode, cx.tag, |write| write.is_of(cx))
    }

    /// Ends an atomic write without a commit, if there is one and `ends` it. Returns whether content that callers have
    /// seen was dropped.
    fn drop_staged(&self, inode: &Inode, tag: IoTag, ends: impl Fn(&AtomicWrite) -> bool) -> bool {
        if !self.atomic_writes.any() {
            return false;
        }
        let write = {
            let _exclusive = inode.lock.write();
            match self.atomic_writes.of(inode).filter(|write| ends(write)) {
                None => return false,
                Some(write) => self.drop_locked(inode, write),
            }
        };
        self.free_staging(&write.staging, tag);
        true
    }

    /// The same for an inode that is being freed. The caller holds `inode.lock` for writing.
    pub(crate) fn drop_staged_of_dead(&self, inode: &Inode, tag: IoTag) {
        if let Some(write) = self.atomic_writes.of(inode) {
            let write = self.drop_locked(inode, write);
            self.free_staging(&write.staging, tag);
        }
    }

    /// [`F2fs::drop_staged`] by a caller that holds `inode.lock` for writing; it frees the staging file afterwards.
    fn drop_locked(&self, inode: &Inode, write: Arc<AtomicWrite>) -> Arc<AtomicWrite> {
        self.atomic_writes.remove(inode);
        inode.set_size(write.old_size);
        self.release_nodes(inode, 0);
        write
    }

    /// Frees a staging file and what is left in it. If that fails it stays an orphan for the next mount.
    pub(crate) fn free_staging(&self, staging: &Arc<Inode>, tag: IoTag) {
        staging.drop_lookups(u64::MAX);
        if self.is_frozen() {
            self.remount.defer(Arc::clone(staging));
            return;
        }
        if self.check_writable().is_err() {
            return;
        }
        if let Err(error) = self.evict(staging, tag) {
            tracing::warn!(ino = %staging.nid(), %error, "freeing staged blocks failed");
        }
    }

    /// Ends all atomic writes: the volume is about to be closed.
    pub(crate) fn drop_all_staged(&self) {
        while let Some(write) = self.atomic_writes.first() {
            tracing::warn!(ino = %write.file.nid(), "an atomic write was not committed, and is dropped");
            self.drop_staged(&write.file, IoTag::default(), |_| true);
        }
    }
}

impl AtomicWrites {
    fn first(&self) -> Option<Arc<AtomicWrite>> {
        self.by_file.lock().values().next().cloned()
    }
}

impl AtomicWrite {
    /// Whether the caller's open file has started it.
    fn is_of(&self, cx: &Cx) -> bool {
        self.opened.is_some() && self.opened == cx.opened.map(|opened| opened.id)
    }

    /// Blocks of the file that callers see, a started one included.
    fn seen_blocks(&self) -> u64 {
        self.staging.size().div_ceil(BLOCK)
    }
}

#[cfg(test)]
mod tests;
