//! A mounted volume: what all parts of this room share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use steadfs_block::Queue;
use steadfs_cache::MetaCache;
use steadfs_rt::RwLock;
use steadfs_vfs::{FsError, Result, StatFs};

use crate::disk::{BLOCK_SIZE, Checkpoint, Layout, Superblock};
use crate::inode::InodeTable;
use crate::nat::Nat;
use crate::options::MountOptions;
use crate::recovery::Recovered;

/// Node ids that no file has (`F2FS_RESERVED_NODE_NUM`).
const RESERVED_NODES: u64 = 3;

/// A mounted f2fs volume.
pub struct F2fs {
    pub(crate) layout: Layout,
    pub(crate) superblock: Superblock,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) queue: Arc<Queue>,
    /// Nodes, directory data and tables, by block.
    pub(crate) meta: Arc<MetaCache>,
    pub(crate) nat: Nat,
    pub(crate) inodes: InodeTable,
    /// What fsync wrote after the checkpoint.
    pub(crate) recovered: Recovered,
    pub(crate) options: RwLock<MountOptions>,
    pub(crate) unmounted: AtomicBool,
}

impl F2fs {
    /// The volume's unchanging facts.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Refuses calls after the end.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.unmounted.load(Ordering::Acquire) {
            return Err(FsError::Stopped("unmounted".to_owned()));
        }
        Ok(())
    }

    /// Usage as the kernel's statfs shows it.
    pub(crate) fn usage(&self) -> StatFs {
        let cp = &self.checkpoint;
        let free = cp.user_blocks.saturating_sub(cp.valid_blocks);
        let nodes = u64::from(self.layout.max_nid).saturating_sub(RESERVED_NODES);
        // A file needs a block too: there are never more files than blocks.
        let (files, files_free) = if nodes > cp.user_blocks {
            (cp.user_blocks, free)
        } else {
            let unused = nodes.saturating_sub(cp.valid_nodes.into());
            (nodes, unused.min(free))
        };
        let before = u64::from(self.layout.cp_start);
        StatFs {
            block_size: BLOCK_SIZE as u32,
            blocks: self.layout.block_count.saturating_sub(before),
            blocks_free: free,
            blocks_available: free,
            files,
            files_free,
            name_max: steadfs_base::limits::NAME_MAX as u32,
            fsid: self.superblock.fsid(),
        }
    }
}

/// A device's failure as the caller of a file-system call sees it.
pub fn io_error(error: steadfs_block::IoError) -> FsError {
    FsError::Io(error.to_string())
}
