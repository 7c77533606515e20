//! A mounted volume: the state that all modules share.

use std::sync::{Arc, OnceLock, Weak};

use steadfs_block::Queue;
use steadfs_cache::{MetaCache, Writeback};
pub use steadfs_f2fs_format::io_error;
use steadfs_fscrypt::Keyring;
use steadfs_rt::{Mutex, RwLock, RwLockReadGuard};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{Clock, Cx, OrderlyDirs, PendingFrees, RemountState, Result, StatFs, StopState};

use crate::atomic::AtomicWrites;
use crate::checkpoint::daemon::Daemon;
use crate::checkpoint::state::Checkpoints;
use crate::cp_lock::{self, Change, CpLock};
use crate::data::sync_stats::SyncStats;
use crate::discard::Discards;
use crate::disk::{BLOCK_SIZE, Layout, Superblock};
use crate::error_log::ErrorLog;
use crate::gc::Gc;
use crate::inode::Inode;
use crate::inode::table::InodeTable;
use crate::namei::extensions::Extensions;
use crate::nat::Nat;
use crate::node::cache::NodeCache;
use crate::node::neighbours::NeighbourReads;
use crate::node::writes::NodeWrites;
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::quota::QuotaState;
use crate::recovery::overlay::Recovered;
use crate::recovery::state::RecoveryState;
use crate::segment::Segments;
use crate::since_cp::SinceCp;
use crate::space::{RESERVED_NODES, Space};

/// A mounted f2fs volume.
pub struct F2fs {
    /// Set when the volume has been opened; its tasks hold clones.
    pub(crate) weak_self: OnceLock<Weak<Self>>,
    pub(crate) layout: Layout,
    pub(crate) superblock: Superblock,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) daemon: Arc<Daemon>,
    pub(crate) queue: Arc<Queue>,
    /// Directory blocks and tables, by address.
    pub(crate) meta: Arc<MetaCache>,
    pub(crate) nat: Nat,
    pub(crate) nodes: NodeCache,
    /// Neighbourhoods of the node logs, and of directory blocks, that are read ahead.
    pub(crate) node_reads: NeighbourReads,
    pub(crate) dir_reads: NeighbourReads,
    pub(crate) node_writes: NodeWrites,
    pub(crate) space: Space,
    /// Set once the volume is or has been writable.
    pub(crate) segments: OnceLock<Segments>,
    pub(crate) orphans: Orphans,
    pub(crate) quota: QuotaState,
    pub(crate) gc: Gc,
    pub(crate) discards: Arc<Discards>,
    pub(crate) writeback: Arc<Writeback>,
    pub(crate) cp_lock: CpLock,
    pub(crate) since_cp: SinceCp,
    pub(crate) syncs: SyncStats,
    pub(crate) inodes: InodeTable,
    pub(crate) freeing: PendingFrees,
    pub(crate) atomic_writes: AtomicWrites,
    pub(crate) verities: VerityFiles,
    pub(crate) keyring: Keyring,
    /// Case-insensitive directories that have each name where its hash leads to.
    pub(crate) orderly_dirs: OrderlyDirs,
    pub(crate) clock: Clock,
    /// Held while a name moves from one directory to another.
    pub(crate) rename: Mutex<()>,
    pub(crate) recovery: RecoveryState,
    pub(crate) options: RwLock<MountOptions>,
    /// File name extensions of cold and hot data.
    pub(crate) extensions: Extensions,
    /// Whether the volume is open, writable or stopped.
    pub(crate) stop_state: StopState,
    pub(crate) errors: ErrorLog,
    pub(crate) remount: RemountState<Inode>,
}

impl Drop for F2fs {
    fn drop(&mut self) {
        self.daemon.abandon();
    }
}

impl F2fs {
    /// Geometry of the volume.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Evicts clean, unused metadata, as memory pressure would.
    pub fn forget_clean(&self) {
        self.inodes.drop_unused();
        self.drop_unused_quota();
        self.nodes.drop_unused();
        self.meta.drop_unused();
    }

    /// The volume's request queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The overlay: what fsync wrote after the checkpoint and is not part of the volume.
    pub(crate) fn recovered(&self) -> &Recovered {
        self.recovery.overlay().recovered()
    }

    /// Held by reads while the overlay is in use.
    pub(crate) fn read_overlay(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.recovery.overlay().read()
    }

    /// The segment manager of a writable volume.
    pub(crate) fn segments(&self) -> &Segments {
        let segments = self.segments.get();
        segments.expect("loaded before the volume becomes writable")
    }

    /// Fails after the unmount.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.stop_state.check_open()
    }

    /// Fails if the volume is read-only, aborted or unmounted.
    pub(crate) fn check_writable(&self) -> Result<()> {
        cp_lock::check_writable(&self.stop_state)
    }

    /// Begins a change.
    ///
    /// # Errors
    /// The volume is read-only or has aborted.
    pub(crate) fn change(&self) -> Result<Change<'_>> {
        self.cp_lock.change(&self.stop_state)
    }

    /// Whether the caller may use the blocks reserved for root.
    pub(crate) fn may_use_reserved(&self, cx: &Cx) -> bool {
        let (resuid, resgid) = {
            let options = self.options.read();
            (options.common.resuid, options.common.resgid)
        };
        // The group last: it may be a question to the host.
        cx.uid == 0
            || resuid == Some(cx.uid)
            || resgid.is_some_and(|gid| gid != 0 && cx.is_in_group(gid))
    }

    /// Usage as the kernel's statfs reports it.
    pub(crate) fn usage(&self) -> StatFs {
        let counts = self.space.counts();
        let used = counts.valid_blocks + counts.reserved;
        let free = counts.user_blocks.saturating_sub(used + counts.unusable);
        let nodes = u64::from(self.layout.max_nid).saturating_sub(RESERVED_NODES);
        // A file needs at least one block, so there cannot be more files than blocks.
        let (files, files_free) = if nodes > counts.user_blocks {
            (counts.user_blocks, free)
        } else {
            let used = counts.valid_nodes + counts.reserved_nodes;
            (nodes, nodes.saturating_sub(used).min(free))
        };
        let before = u64::from(self.layout.cp_start);
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks: self.layout.block_count.saturating_sub(before),
            blocks_free: free,
            blocks_available: free.saturating_sub(counts.root_reserved),
            files,
            files_free,
            name_max: steadfs_base::limits::NAME_MAX as u32,
            fsid: self.superblock.fsid(),
        }
    }
}
