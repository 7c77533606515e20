//! fsync clustering ([`steadfs_cache::FsyncClustering`]): an fsync writes the data of other dirty files along.
//!
//! The data of all of them is made durable by one FLUSH, and their node chains by a second one. If the fsync takes
//! a checkpoint, which covers their nodes anyway, only their data is written along.
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
use crate::node::chain::{Chain, ChainPlan};

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
        tag: IoTag,
    ) -> Vec<Chain<'f>> {
        let mut chains = Vec::with_capacity(files.len());
        for inode in files {
            match self.plan_other_chain(inode, tag) {
                Ok(chain) => chains.extend(chain),
                Err(error) => {
                    tracing::debug!(%error, "cannot plan the node chain of a file clustered with an fsync");
                    break;
                }
            }
        }
        chains
    }

    fn plan_other_chain<'f>(&'f self, inode: &'f Inode, tag: IoTag) -> Result<Option<Chain<'f>>> {
        let Some(_flush) = FlushGuard::try_lock(inode) else {
            return Ok(None);
        };
        match self.place_chain(inode, tag)? {
            ChainPlan::Chain(chain) => Ok(Some(chain)),
            ChainPlan::Clean | ChainPlan::NeedsCheckpoint(_) => Ok(None),
        }
    }
}
