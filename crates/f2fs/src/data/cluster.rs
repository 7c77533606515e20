//! fsync clustering ([`steadfs_cache::FsyncClustering`]): an fsync writes the data of other dirty files along, and the
//! nodes of files whose data is written.
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
use steadfs_vfs::{FileKind, Result};

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
        let mut cluster = Engine(self).write_cluster(inode, intent);
        self.add_written(inode, &mut cluster, tag);
        cluster
    }

    /// Adds the files near this one whose data a flusher has written, and whose nodes no fsync has written since: each
    /// of them would need a node write and a FLUSH of its own.
    fn add_written(&self, inode: &Inode, cluster: &mut Vec<Arc<Inode>>, tag: IoTag) {
        let clustering = self.syncs.clustering();
        let room = clustering.files().saturating_sub(cluster.len());
        if room == 0 || (cluster.is_empty() && self.nodes.dirty_of(inode.nid()).is_empty()) {
            return;
        }
        let is_written = |other: &Arc<Inode>| {
            let regular = other.kind() == FileKind::Regular;
            regular && other.pages.is_empty() && other.unflushed_opu() > 0
        };
        let near = self.nodes.near_dirty(inode.nid(), room).into_iter();
        let near = near.filter_map(|nid| self.inode(nid, tag).ok());
        let written: Vec<_> = near.filter(is_written).collect();
        if cluster.is_empty() && !written.is_empty() {
            clustering.record_run();
        }
        written.iter().for_each(|other| other.clustered.set());
        cluster.extend(written);
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
