//! A mounted volume: what all parts of this room share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_block::Queue;
use steadfs_cache::{FsyncClustering, MetaBuf, MetaCache, Writeback};
use steadfs_jbd2::OverlayDevice;
use steadfs_rt::{Mutex, RwLock, RwLockReadGuard};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{Clock, Findings, FsError, PendingFrees, Result};

use crate::disk::{self, Geometry, Ino, Superblock};
use crate::inode::{Inode, InodeTable};
use crate::io_error;
use crate::mballoc::Allocator;
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::txn::{Handle, Txns};

/// Largest size of a file that needs no `large_file` feature.
const LARGE_FILE: u64 = (1 << 31) - 1;

/// A mounted ext2, ext3 or ext4 volume.
///
/// **Read-only and back.** Calls that may change the volume hold `remount_lock` shared while they run; a
/// remount that changes whether it may be written takes it alone.
pub struct Ext4 {
    pub(crate) me: Weak<Self>,
    pub(crate) geo: Geometry,
    pub(crate) queue: Arc<Queue>,
    pub(crate) meta: Arc<MetaCache>,
    pub(crate) txns: Txns,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) inodes: InodeTable,
    pub(crate) alloc: Allocator,
    pub(crate) orphans: Orphans,
    pub(crate) freeing: PendingFrees,
    pub(crate) verities: VerityFiles,
    /// Files that were truncated to nothing and will be written soon (`auto_da_alloc`).
    pub(crate) replaced: Mutex<BTreeSet<Ino>>,
    pub(crate) options: RwLock<MountOptions>,
    /// What goes along with an fsync.
    pub(crate) fsync_clustering: FsyncClustering,
    /// Gives time stamps.
    pub(crate) clock: Clock,
    /// One rename between directories at a time.
    pub(crate) rename: Mutex<()>,
    /// The superblock as it is or will be on disk.
    pub(crate) sb: Mutex<Superblock>,
    /// The superblock says that there are files of 2 GiB and more.
    pub(crate) large_file: AtomicBool,
    /// The volume's own files among the numbers of ordinary ones: nobody gets to see them.
    pub(crate) hidden: Vec<Ino>,
    /// Blocks that statfs counts as used by the volume itself.
    pub(crate) overhead: u64,
    pub(crate) read_only: AtomicBool,
    /// Everything is on the device, marked clean, and changes are refused until it is thawed.
    pub(crate) frozen: AtomicBool,
    /// Inodes without names that were let go while the volume was frozen: freed when it is thawed.
    pub(crate) unlinked_while_frozen: Mutex<Vec<Arc<Inode>>>,
    /// Bytes of metadata that may be held in memory.
    pub(crate) meta_budget: u64,
    /// One remount at a time.
    pub(crate) remounting: Mutex<()>,
    pub(crate) remount_lock: RwLock<()>,
    /// What lies over a device whose journal was replayed in memory.
    pub(crate) overlay: Option<Arc<OverlayDevice>>,
    /// The superblock as it lay on the device when the volume was last known to be nobody else's.
    pub(crate) super_bytes: Mutex<Vec<u8>>,
    /// Why the volume stopped, if it did.
    pub(crate) stopped: Mutex<Option<String>>,
    /// The last failure to write data.
    pub(crate) data_error: Mutex<Option<String>>,
    /// First byte of the superblock that the volume was opened by.
    pub(crate) super_at: AtomicU64,
    /// What is damaged, of a volume that only reading can do with.
    pub(crate) unwritable: Option<String>,
    /// What corruption was met.
    pub(crate) findings: Findings,
    /// Directories that take no further names although there is space.
    pub(crate) full_directories: Findings,
    pub(crate) unmounted: AtomicBool,
    /// The superblock said so when the volume was opened for writing.
    pub(crate) was_clean: AtomicBool,
}

impl Ext4 {
    /// The volume's unchanging facts.
    pub fn geo(&self) -> &Geometry {
        &self.geo
    }

    /// Its metadata blocks.
    pub fn meta(&self) -> &Arc<MetaCache> {
        &self.meta
    }

    /// Where its changes go.
    pub fn txns(&self) -> &Txns {
        &self.txns
    }

    /// Forgets the metadata that is not in use and not dirty, as memory pressure would.
    pub fn forget_clean(&self) {
        self.inodes.evict_all();
        self.meta.drop_unused();
    }

    /// Its device.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    pub(crate) fn writeback(&self) -> &Arc<Writeback> {
        &self.writeback
    }

    /// While the result is held the volume does not become read-only or writable.
    #[inline]
    pub(crate) fn open_to_changes(&self) -> RwLockReadGuard<'_, ()> {
        self.remount_lock.read()
    }

    /// Refuses to change a volume that is read-only, frozen or has stopped.
    pub fn check_writable(&self) -> Result<()> {
        if let Some(cause) = self.stopped.lock().as_ref() {
            return Err(FsError::refused(cause));
        }
        if self.frozen.load(Ordering::Acquire) {
            return Err(FsError::Busy);
        }
        if self.read_only.load(Ordering::Acquire) {
            return Err(FsError::ReadOnly);
        }
        Ok(())
    }

    /// A metadata block, read if need be.
    pub fn block(&self, block: DevBlock, tag: IoTag) -> Result<Arc<MetaBuf>> {
        if block.0 >= self.geo.blocks_count {
            return Err(Corruption::new("outside the volume").in_block(block).into());
        }
        self.meta.get(block, tag).map_err(io_error)
    }

    /// Whether `ino` may have a name and be asked for by number: not the volume's own files, by which its journal or
    /// its quota could be written.
    pub(crate) fn is_nameable(&self, ino: Ino) -> bool {
        self.geo.is_nameable(ino) && !self.hidden.contains(&ino)
    }

    /// The inode in memory, read from its table if need be. Fails with `Stale` where the table has no
    /// inode in use at this number.
    pub fn inode(&self, ino: Ino, tag: IoTag) -> Result<Arc<Inode>> {
        loop {
            let since = match self.inodes.find(ino) {
                Ok(inode) if inode.is_dead() => return Err(FsError::Stale),
                Ok(inode) => return Ok(inode),
                Err(since) => since,
            };
            let inode = self.read_inode(ino, tag)?;
            if let Some(inode) = self.inodes.insert_read(inode, since) {
                self.store_if_many_wait();
                return Ok(inode);
            }
        }
    }

    /// Wakes the flusher if inodes fill the memory that only wait to be stored.
    pub(crate) fn store_if_many_wait(&self) {
        if self.inodes.take_wants_store() {
            self.writeback.kick();
        }
    }

    /// An inode as its table has it.
    fn read_inode(&self, ino: Ino, tag: IoTag) -> Result<Inode> {
        let (buf, at) = self.inode_slot(ino, tag)?;
        let data = buf.data();
        let slot = &data[at..at + usize::from(self.geo.inode_size)];
        let raw = disk::Inode::decode(&self.geo, slot)?;
        // What has lost its last name stays in memory as long as anybody wants it.
        if raw.mode == 0 || (raw.links == 0 && !self.orphans.cleaning()) {
            return Err(FsError::Stale);
        }
        let core = disk::Inode::parse(&self.geo, ino, slot)?;
        let inode = Inode::new(self, ino, core)?;
        inode.mark_reread(self.queue.next_flush());
        Ok(inode)
    }

    /// The inode table's block that holds the inode, and the slot's offset in it. Reads the
    /// neighbourhood too: who reads one inode of a directory soon wants the next.
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

    /// Writes an inode into its table. The caller holds `inode.core` for writing and passes it, and keeps its slot
    /// in memory where it has changed something: an inode that differs from its slot by more than times is half done.
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
        if core.size > LARGE_FILE && !self.large_file.swap(true, Ordering::AcqRel) {
            self.update_super(handle, Superblock::set_large_file)?;
        }
        inode.note_tid(handle, false);
        inode.core_is_stored();
        Ok(())
    }

    /// Changes the superblock inside a handle (one credit).
    pub fn update_super(
        &self,
        handle: &mut Handle<'_>,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let (block, at) = self.geo.superblock_place();
        let buf = self.block(block, IoTag::default())?;
        let mut sb = self.sb.lock();
        change(&mut sb);
        let mut bytes = handle.write(&buf)?;
        sb.seal_into(&mut bytes[at..at + 1024]);
        Ok(())
    }
}
