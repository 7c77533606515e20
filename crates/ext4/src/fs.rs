//! A mounted volume: the state that all modules share.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_block::Queue;
use steadfs_cache::{FsyncClustering, MetaBuf, MetaCache, Writeback};
use steadfs_fscrypt::Keyring;
use steadfs_jbd2::OverlayDevice;
use steadfs_rt::{Mutex, RwLock};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{
    Clock, Cx, FileKind, FsError, InodeFlags, OpenGuard, OrderlyDirs, PendingFrees, RemountState,
    Result, StopState,
};

use crate::disk::{self, Geometry, Ino, Superblock};
use crate::error_log::ErrorLog;
use crate::fast_commit::{FastCommitTracker, refusal};
use crate::inode::{Inode, InodeTable};
use crate::io_error;
use crate::mballoc::Allocator;
use crate::node_lock::NodeLock;
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::pins::Pins;
use crate::quota::Quota;
use crate::super_origin::SuperOrigin;
use crate::txn::{Handle, Txns};
use crate::xattr::Values;

/// Largest size of a file that needs no `large_file` feature.
const LARGE_FILE: u64 = (1 << 31) - 1;

/// A mounted ext2, ext3 or ext4 volume.
///
/// **Remount.** Calls that may change the volume hold `remount_lock` shared ([`RemountState`]); a remount between
/// read-only and writable, a freeze and an unmount hold it exclusively.
pub struct Ext4 {
    pub(crate) me: Weak<Self>,
    pub(crate) geo: Geometry,
    pub(crate) queue: Arc<Queue>,
    pub(crate) meta: Arc<MetaCache>,
    pub(crate) txns: Txns,
    /// What the running transaction has changed, for fast commits.
    pub(crate) fast_commits: FastCommitTracker,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) inodes: InodeTable,
    pub(crate) alloc: Allocator,
    pub(crate) orphans: Orphans,
    pub(crate) freeing: PendingFrees,
    /// What users, groups and projects use, once the volume was writable.
    pub(crate) quota: OnceLock<Quota>,
    /// Values of attributes in inodes of their own.
    pub(crate) values: Values,
    pub(crate) verities: VerityFiles,
    pub(crate) keyring: Keyring,
    /// Case-insensitive directories that have each name where its hash leads to.
    pub(crate) orderly_dirs: OrderlyDirs,
    /// Files that were truncated to 0 bytes and are written at the next flusher period (`auto_da_alloc`).
    pub(crate) replaced: Mutex<BTreeSet<Ino>>,
    pub(crate) options: RwLock<MountOptions>,
    /// The learned window of fsync clustering.
    pub(crate) fsync_clustering: FsyncClustering,
    /// Source of time stamps.
    pub(crate) clock: Clock,
    /// One rename between directories at a time.
    pub(crate) rename: Mutex<()>,
    /// The superblock on disk, or to be written.
    pub(crate) sb: Mutex<Superblock>,
    /// The superblock has the feature `large_file`.
    pub(crate) large_file: AtomicBool,
    /// The volume's own files outside the reserved inode numbers: no caller may access them.
    pub(crate) hidden: Vec<Ino>,
    /// Blocks that statfs counts as used by the volume itself.
    pub(crate) overhead: u64,
    /// Whether it is writable, read-only, stopped or unmounted.
    pub(crate) stop_state: StopState,
    /// Keeps changes away from a remount or freeze.
    pub(crate) remount_state: RemountState<Inode>,
    /// Bytes of metadata that may be held in memory.
    pub(crate) meta_budget: u64,
    /// The overlay over a device whose journal was replayed in memory.
    pub(crate) overlay: Option<Arc<OverlayDevice>>,
    /// The superblock on the device.
    pub(crate) super_origin: SuperOrigin,
    /// Errors since the mount.
    pub(crate) errors: ErrorLog,
    /// Why a corrupt volume cannot become writable, if so.
    pub(crate) unwritable: Option<String>,
    /// The lock of multiple-mount protection, while the volume can be written.
    pub(crate) node_lock: Mutex<Option<Arc<NodeLock>>>,
    /// The clean mark of the superblock when the volume was opened for writing.
    pub(crate) was_clean: AtomicBool,
}

impl Ext4 {
    /// The facts of the volume that do not change.
    pub fn geo(&self) -> &Geometry {
        &self.geo
    }

    /// Its metadata blocks.
    pub fn meta(&self) -> &Arc<MetaCache> {
        &self.meta
    }

    /// Its transactions.
    pub fn txns(&self) -> &Txns {
        &self.txns
    }

    /// Runs an operation of a user in a handle ([`Txns::run`]). Its metadata leaves free what only root may use, unless
    /// the caller may. Write-back, and what frees something, must not fail for lack of space and uses [`Txns::run`].
    pub(crate) fn run_for<T, E: Display + From<FsError>>(
        &self,
        cx: &Cx,
        credits: u32,
        operation: impl FnOnce(&mut Handle<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let kept = self.root_reserved_clusters(cx);
        self.txns.run(credits, cx.tag, |handle| {
            handle.keep_for_root(kept);
            operation(handle)
        })
    }

    /// Evicts metadata that is not in use and not dirty, as under memory pressure.
    pub fn forget_clean(&self) {
        self.inodes.evict_all();
        self.drop_unused_quota();
        self.meta.drop_unused();
    }

    /// Its device.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// While the guard is held the volume becomes neither read-only nor writable, and is not frozen.
    #[inline]
    pub(crate) fn open_to_changes(&self) -> OpenGuard<'_> {
        self.remount_state.hold_open()
    }

    /// Fails if the volume is read-only, frozen or stopped.
    pub fn check_writable(&self) -> Result<()> {
        self.stop_state.check_writable(FsError::refused)?;
        match self.remount_state.is_frozen() {
            true => Err(FsError::Busy),
            false => Ok(()),
        }
    }

    /// A metadata block, read unless it is cached.
    pub fn block(&self, block: DevBlock, tag: IoTag) -> Result<Arc<MetaBuf>> {
        if block.0 >= self.geo.blocks_count {
            return Err(Corruption::new("outside the volume").in_block(block).into());
        }
        self.meta.get(block, tag).map_err(io_error)
    }

    /// Pins the blocks of the inode table that hold these inodes, and what counts for their owners.
    pub(crate) fn pin_inodes(&self, inodes: &[Ino], tag: IoTag) -> Result<Pins> {
        let mut pins = Pins::default();
        for &ino in inodes {
            pins.keep(self.inode_slot(ino, tag)?.0);
            if self.quota.get().is_some()
                && let Ok(inode) = self.inodes.find(ino)
            {
                self.pin_charged(&mut pins, &inode)?;
            }
        }
        Ok(pins)
    }

    /// Pins the superblock's block.
    pub(crate) fn pin_superblock(&self, pins: &mut Pins, tag: IoTag) -> Result<()> {
        pins.keep(self.block(self.geo.superblock_place().0, tag)?);
        Ok(())
    }

    /// Whether `ino` may have a name and be accessed by number. False for the volume's own files, through which its
    /// journal or quota could be written.
    pub(crate) fn is_nameable(&self, ino: Ino) -> bool {
        self.geo.is_nameable(ino) && !self.hidden.contains(&ino)
    }

    /// The inode in memory, read from its table unless it is cached. Fails with `Stale` if the number is not in use.
    pub fn inode(&self, ino: Ino, tag: IoTag) -> Result<Arc<Inode>> {
        loop {
            let since = match self.inodes.find(ino) {
                Ok(inode) if inode.marks.is_dead() => return Err(FsError::Stale),
                Ok(inode) => return Ok(inode),
                Err(since) => since,
            };
            let inode = self.read_inode(ino, tag)?;
            inode.mark_reread(since.unflushed);
            if let Some(inode) = self.inodes.insert_read(inode, since) {
                self.store_if_many_wait();
                return Ok(inode);
            }
        }
    }

    /// Wakes the flusher if many cached inodes only wait to be stored.
    pub(crate) fn store_if_many_wait(&self) {
        if self.inodes.take_wants_store() {
            self.writeback.kick();
        }
    }

    /// Reads an inode from its table.
    fn read_inode(&self, ino: Ino, tag: IoTag) -> Result<Inode> {
        let (buf, at) = self.inode_slot(ino, tag)?;
        let data = buf.data();
        let slot = &data[at..at + usize::from(self.geo.inode_size)];
        let raw = disk::Inode::decode(&self.geo, slot)?;
        // An inode that has lost its last name stays in memory while it is referenced.
        if raw.mode == 0 || (raw.links == 0 && !self.orphans.cleaning()) {
            return Err(FsError::Stale);
        }
        let core = disk::Inode::parse(&self.geo, ino, slot)?;
        if core.has(InodeFlags::CASEFOLD) && self.geo.encoding.is_none() {
            let what = "has the casefold flag, but the volume has no encoding of names";
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        // Linux moves the names to a block before it encrypts a directory.
        let is_dir = core.kind() == Some(FileKind::Directory);
        if is_dir && core.has(InodeFlags::ENCRYPTED) && core.has(disk::inode::INLINE_DATA) {
            let what = "an encrypted directory has its names in the inode";
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        self.cache_owners(&core);
        let charged = self.charged_before(ino, &core);
        let inode = Inode::new(ino, core, self.geo.block_size, &self.writeback)?;
        Ok(inode.with_charged(charged))
    }

    /// The inode table's block that holds the inode, and the slot's offset in it. Reads ahead, as the next inode of a
    /// directory is often read next.
    pub(crate) fn inode_slot(&self, ino: Ino, tag: IoTag) -> Result<(Arc<MetaBuf>, usize)> {
        if !self.geo.is_inode(ino) {
            return Err(Corruption::new("no such inode").in_inode(ino).into());
        }
        let (group, index) = self.geo.group_of_inode(ino);
        let table = self.alloc.inode_table(group)?;
        let (block, at) = self.geo.inode_slot(table, index);
        if let Some(buf) = self.meta.peek(block) {
            return Ok((buf, at));
        }
        let window = u64::from(self.options.read().inode_readahead_blocks.max(1));
        let first = (block.0 - table.0) / window * window;
        let count = window.min(u64::from(self.geo.itable_blocks()).saturating_sub(first));
        self.meta.prefetch(table.plus(first), count, tag);
        Ok((self.block(block, tag)?, at))
    }

    /// Writes an inode into its table. The caller holds `inode.core` for writing and passes it, and has pinned its slot
    /// if anything but times has changed, as a failed read here leaves a half-done change.
    pub fn store_inode(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        core: &disk::Inode,
    ) -> Result<()> {
        let slot = self.inode_slot(inode.ino(), IoTag::default());
        let (buf, at) = slot.inspect_err(|error| handle.must_not_commit(error))?;
        let mut block = handle.write(&buf)?;
        let slot = &mut block[at..at + usize::from(self.geo.inode_size)];
        core.encode_into(&self.geo, inode.ino(), slot)?;
        drop(block);
        self.charge(handle, inode, core)?;
        if core.size > LARGE_FILE && !self.large_file.swap(true, Ordering::AcqRel) {
            self.update_super(handle, Superblock::set_large_file)?;
        }
        if handle.is_tracked() {
            self.fast_commits.stored(handle, inode);
        }
        inode.record_tid(handle, false);
        inode.core_is_stored();
        Ok(())
    }

    /// Changes the superblock inside a handle (one credit).
    pub fn update_super(
        &self,
        handle: &mut Handle<'_>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        handle.refuse_fast_commits(refusal::SUPERBLOCK);
        let (block, at) = self.geo.superblock_place();
        let buf = self.block(block, IoTag::default())?;
        let mut sb = self.sb.lock();
        change(&mut sb);
        let mut bytes = handle.write(&buf)?;
        sb.seal_into(&mut bytes[at..at + 1024]);
        Ok(())
    }
}
