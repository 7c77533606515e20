//! A mounted volume: the state that all modules share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use steadfs_block::Queue;
use steadfs_cache::{FsyncClustering, MetaCache, Writeback};
pub use steadfs_f2fs_format::io_error;
use steadfs_rt::{Mutex, RwLock, RwLockReadGuard};
use steadfs_vfs::verity::VerityFiles;
use steadfs_vfs::{Clock, Cx, FsError, PendingFrees, Result, StatFs};

use crate::checkpoint::Checkpoints;
use crate::checkpoint::daemon::Daemon;
use crate::corruption::ErrorLog;
use crate::discard::Discards;
use crate::disk::{BLOCK_SIZE, Layout, Superblock};
use crate::gc::Gc;
use crate::inode::{Inode, InodeTable};
use crate::namei::Extensions;
use crate::nat::Nat;
use crate::node::{NodeCache, NodeWrites};
use crate::options::MountOptions;
use crate::orphan::Orphans;
use crate::recovery::{Overlay, Recovered};
use crate::segment::Segments;
use crate::since_cp::SinceCp;
use crate::space::{RESERVED_NODES, Space};

/// Metadata blocks that checkpoints have written, by area.
#[derive(Default)]
pub struct MetaWrites {
    pub cp: AtomicU64,
    pub sit: AtomicU64,
    pub nat: AtomicU64,
    pub ssa: AtomicU64,
}

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
    pub(crate) node_writes: NodeWrites,
    pub(crate) meta_writes: MetaWrites,
    pub(crate) space: Space,
    /// Set once the volume is or has been writable.
    pub(crate) segments: OnceLock<Segments>,
    pub(crate) orphans: Orphans,
    /// Operations that have called `balance`.
    pub(crate) operations: AtomicU64,
    pub(crate) gc: Gc,
    pub(crate) discards: Arc<Discards>,
    pub(crate) writeback: Arc<Writeback>,
    /// Held shared by changes ([`Change`](crate::cp_lock::Change)), exclusively by a checkpoint's snapshot.
    pub(crate) cp_lock: RwLock<()>,
    pub(crate) since_cp: SinceCp,
    pub(crate) syncs: crate::data::SyncStats,
    /// Which files' chains an fsync writes clustering.
    pub(crate) clustering: FsyncClustering,
    pub(crate) inodes: InodeTable,
    pub(crate) freeing: PendingFrees,
    pub(crate) verities: VerityFiles,
    pub(crate) clock: Clock,
    /// Held while a name moves from one directory to another.
    pub(crate) rename: Mutex<()>,
    pub(crate) overlay: Overlay,
    pub(crate) options: RwLock<MountOptions>,
    /// File name extensions of cold and hot data.
    pub(crate) extensions: Extensions,
    pub(crate) read_only: AtomicBool,
    /// Corruption was found: checkpoints set the flag that requires fsck.
    pub(crate) damaged: AtomicBool,
    pub(crate) errors: ErrorLog,
    /// Why the volume aborted, if it did.
    pub(crate) aborted: Mutex<Option<String>>,
    /// Held during a remount, freeze or thaw.
    pub(crate) remounting: Mutex<()>,
    /// Held shared by calls that may change the volume, exclusively while it becomes read-only, writable or frozen.
    pub(crate) remount_lock: RwLock<()>,
    pub(crate) frozen: AtomicBool,
    /// Unlinked inodes whose last reference was dropped while frozen: the thaw frees them.
    pub(crate) deferred_evictions: Mutex<Vec<Arc<Inode>>>,
    /// Checkpoints are disabled.
    pub(crate) cp_disabled: AtomicBool,
    /// Recovery is in progress; and whether it has recovered anything since the mount.
    pub(crate) recovering: AtomicBool,
    pub(crate) has_recovered: AtomicBool,
    pub(crate) closing: AtomicBool,
    pub(crate) unmounted: AtomicBool,
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
        self.nodes.drop_unused();
        self.meta.drop_unused();
    }

    /// The volume's request queue.
    pub fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// The overlay: what fsync wrote after the checkpoint and is not part of the volume.
    pub(crate) fn recovered(&self) -> &Recovered {
        self.overlay.recovered()
    }

    /// Held by reads while the overlay is in use.
    pub(crate) fn read_overlay(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.overlay.read()
    }

    /// The segment manager of a writable volume.
    pub(crate) fn segments(&self) -> &Segments {
        let segments = self.segments.get();
        segments.expect("loaded before the volume becomes writable")
    }

    /// Fails after the unmount.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.unmounted.load(Ordering::Acquire) {
            return Err(FsError::Stopped("unmounted".to_owned()));
        }
        Ok(())
    }

    /// Whether the caller may use the blocks reserved for root.
    pub(crate) fn may_use_reserved(&self, cx: &Cx) -> bool {
        let options = self.options.read();
        let is_in = |gid: u32| cx.gid == gid || cx.groups.contains(&gid);
        cx.uid == 0
            || options.common.resuid == Some(cx.uid)
            || options
                .common
                .resgid
                .is_some_and(|gid| gid != 0 && is_in(gid))
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
