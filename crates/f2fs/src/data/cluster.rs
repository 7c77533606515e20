//! fsync clustering ([`steadfs_cache::FsyncClustering`]): an fsync writes the data of other dirty files along.
//!
//! Their node chains join the group of the file's own chain, so all become durable together. If the fsync takes a
//! checkpoint, which covers their nodes anyway, only their data is written along.
//!
//! The chain of the file that fsync was called for is first in the log. Recovery follows the log, so it finds the
//! other chains only after that one, each as if its file had been synced at that moment: the rules of
//! [`cp_reason`](super::cp_reason) decide for each file whether a chain is possible.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_cache::{Engine, FlushGuard, Intent, WritebackReason};
use steadfs_vfs::Result;

use super::placement::Occasion;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::chain::{Barrier, Chain, ChainPlan, ChainUse};

impl F2fs {
    /// Called before an fsync writes the data of a regular file: writes it together with that of the files that are
    /// likely to be synced next, and returns those. A file whose write fails stays dirty; its own fsync meets the
    /// error again.
    pub(super) fn write_cluster(&self, inode: &Inode, tag: IoTag) -> Vec<Arc<Inode>> {
        let intent = Intent {
            reason: WritebackReason::Sync,
            hint: Occasion::SmallSync,
            tag,
        };
        Engine(self).write_cluster(inode, intent)
    }

    /// Plans the chains of clustered files, except those that need a checkpoint and those under write-back.
    pub(super) fn plan_cluster_chains<'f>(
        &'f self,
        files: &'f [Arc<Inode>],
        by: ChainUse<'_>,
    ) -> Vec<Chain<'f>> {
        let by = ChainUse { caller: None, ..by };
        let mut chains = Vec::with_capacity(files.len());
        for inode in files {
            match self.plan_other_chain(inode, by) {
                Ok(chain) => chains.extend(chain),
                Err(error) => {
                    tracing::debug!(%error, "cannot plan the node chain of a file clustered with an fsync");
                    break;
                }
            }
        }
        chains
    }

    fn plan_other_chain<'f>(&'f self, inode: &'f Inode, by: ChainUse) -> Result<Option<Chain<'f>>> {
        let Some(_flush) = FlushGuard::try_lock(inode) else {
            return Ok(None);
        };
        if by.barrier == Barrier::Flush && self.has_volatile_opu(inode) {
            // Another write-back of the file ended meanwhile: a FLUSH after the chain would be too late.
            return Ok(None);
        }
        match self.place_chain(inode, by)? {
            ChainPlan::Chain(chain) => Ok(Some(chain)),
            ChainPlan::Clean | ChainPlan::NeedsCheckpoint(_) => Ok(None),
        }
    }
}
