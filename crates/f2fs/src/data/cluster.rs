//! Files that go along with another file's fsync ([`steadfs_cache::FsyncClustering`]): their data is written
//! together and made durable by one FLUSH, and their chains by a second one. Where the fsync takes a
//! checkpoint, that has them anyway: only their data goes along.
//!
//! The chain of the file that fsync was called for comes first in the log. Recovery follows the log, so it
//! finds the others only behind it, each as if somebody had called fsync for it at that moment: the same
//! rules say whether a chain can do that.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_cache::DirtyFile;
use steadfs_vfs::{FileKind, Result};

use super::placement::Occasion;
use crate::disk::Nid;
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::node::chain::{Chain, ChainPlan};

impl F2fs {
    /// Before the data of a regular file is written for an fsync: writes it together with that of
    /// neighbours, where that promises to spare them their own. These neighbours. What fails is left
    /// dirty: each file's own fsync meets it again.
    pub(super) fn write_cluster(&self, inode: &Inode, tag: IoTag) -> Vec<Arc<Inode>> {
        if inode.take_clustered() && inode.pages.is_empty() {
            self.clustering.record_hit();
        }
        let file = DirtyFile(inode.nid().0.into());
        let dirty = inode.pages.dirty_bytes();
        let candidates = self.clustering.candidates(&self.writeback, file, dirty);
        if candidates.is_empty() || self.check_writable().is_err() {
            return Vec::new();
        }
        self.clustering.record_run();
        let numbers = candidates.iter().chain([&file.0]);
        let nids = numbers.filter_map(|&ino| u32::try_from(ino).ok().map(Nid));
        let known = nids.filter_map(|nid| self.inodes.find(nid).ok());
        let mut cluster: Vec<Arc<Inode>> = known
            .filter(|inode| inode.kind() == FileKind::Regular)
            .collect();
        // The order of their locks.
        cluster.sort_unstable_by_key(|inode| inode.nid());
        let written = self
            .balance(tag)
            .and_then(|()| self.write_small_files(None, &cluster, Occasion::SmallSync, tag));
        if let Err(error) = written {
            tracing::debug!(%error, "a file that went along with an fsync was not written");
        }
        cluster.retain(|other| other.nid() != inode.nid());
        cluster.iter().for_each(|other| other.mark_clustered());
        cluster
    }

    /// Gives places to the chains of files whose data went along, of those that can be made durable so and
    /// that nobody is writing.
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
                    tracing::debug!(%error, "what went along with an fsync was not made durable");
                    break;
                }
            }
        }
        chains
    }

    fn plan_other_chain<'f>(&'f self, inode: &'f Inode, tag: IoTag) -> Result<Option<Chain<'f>>> {
        let Some(_one) = inode.try_lock_flush() else {
            return Ok(None);
        };
        match self.place_chain(inode, tag)? {
            ChainPlan::Chain(chain) => Ok(Some(chain)),
            ChainPlan::Clean | ChainPlan::NeedsCheckpoint(_) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
