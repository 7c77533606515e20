//! Making things durable: fsync by a chain of nodes or by a checkpoint, and sync of the volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_base::{IoTag, Urgency};
use steadfs_cache::{DirtyFile, WritebackReason};
use steadfs_rt::inherit;
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use super::BLOCK;
use super::cp_reason::{CpReason, FsyncFacts};
use super::placement::Occasion;
use crate::disk;
use crate::disk::inode::Advise;
use crate::disk::superblock::StopReason;
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::node::chain::{Barrier, ChainPlan};
use crate::options::FsyncMode;

/// How often a chain is begun anew when the node log was full.
const CHAIN_ATTEMPTS_MAX: u32 = 4;

/// How fsyncs were served.
#[derive(Default)]
pub struct SyncStats {
    /// By a checkpoint, by reason.
    reasons: [AtomicU64; CpReason::ALL.len()],
    /// By the file's own nodes, or by a FLUSH alone where none had changed.
    own: AtomicU64,
    /// Blocks of data written over their old places.
    ipu: AtomicU64,
    /// Files that went along with an fsync by their own nodes.
    clustered: AtomicU64,
}

impl SyncStats {
    /// Blocks of data written over their old places.
    pub fn ipu(&self) -> u64 {
        self.ipu.load(Ordering::Relaxed)
    }

    pub(super) fn wrote_ipu(&self, blocks: u32) {
        self.ipu.fetch_add(blocks.into(), Ordering::Relaxed);
    }

    /// fsyncs that took a checkpoint, by reason; those without any are left out.
    pub fn reasons(&self) -> Vec<(CpReason, u64)> {
        let counts = self.reasons.iter().map(|n| n.load(Ordering::Relaxed));
        let all = CpReason::ALL.into_iter().zip(counts);
        all.filter(|(_, count)| *count > 0).collect()
    }

    /// fsyncs that needed none.
    pub fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// Files made durable by their own nodes along with another's fsync.
    pub fn clustered(&self) -> u64 {
        self.clustered.load(Ordering::Relaxed)
    }

    fn count(&self, reason: Option<CpReason>) {
        let counter = match reason {
            Some(reason) => {
                let known = CpReason::ALL.into_iter().position(|r| r == reason);
                &self.reasons[known.expect("each reason is among all")]
            }
            None => &self.own,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

impl F2fs {
    /// fsync and fdatasync. Threads woken: none, unless a checkpoint or a write of the same data is
    /// already under way elsewhere; the caller writes and flushes itself.
    pub(crate) fn fsync_inode(&self, cx: &Cx, inode: &Inode, datasync: bool) -> Result<()> {
        if let Some(cause) = self.abort_cause() {
            return Err(FsError::Stopped(cause));
        }
        let tag = cx.tag.with_urgency(Urgency::Waited);
        // Write-back of the file by others, and changes under way, end in this caller's name.
        let _acting = inherit::set_task_tag(tag);
        let mut cluster = Vec::new();
        if inode.kind() == FileKind::Regular {
            self.writeback.record_fsync(DirtyFile(inode.nid().0.into()));
            cluster = self.write_cluster(inode, tag);
            let most = u64::from(self.gc.tunables.lock().sync_blocks);
            let small = inode.pages.dirty_bytes() <= most * BLOCK;
            let occasion = if datasync || small {
                Occasion::SmallSync
            } else {
                Occasion::Sync
            };
            let written = self.write_out_as(inode, occasion, tag);
            // The error that a background write met since the last fsync is told here, once; what
            // failed is still dirty and was just tried again.
            let earlier = inode.pages.take_error();
            written?;
            if let Some(error) = earlier {
                return Err(error.into());
            }
        }
        if self.is_cp_disabled() {
            // As the kernel: nothing is durable before checkpoints are switched on again.
            return Ok(());
        }
        match self.check_writable() {
            // Mounted read-only: nothing was written.
            Err(FsError::ReadOnly) => return Ok(()),
            other => other?,
        }
        if datasync && !self.needs_nodes_for_data(inode, tag)? {
            self.syncs.count(None);
            return self.finish_sync(inode, tag);
        }
        self.sync_nodes(inode, &cluster, tag)
    }

    /// Makes what is stored of an inode durable: by its own nodes, and then what it can of its `cluster`,
    /// or by a checkpoint where they do not tell everything.
    fn sync_nodes(&self, inode: &Inode, cluster: &[Arc<Inode>], tag: IoTag) -> Result<()> {
        for _ in 0..CHAIN_ATTEMPTS_MAX {
            let (placed, opu) = {
                // What is named from here on is the next fsync's.
                let _one = inode.lock_flush();
                let placed = self.place_chain(inode, tag)?;
                (placed, !self.queue.has_flushed(inode.unflushed_opu()))
            };
            let chain = match placed {
                ChainPlan::Chain(chain) => chain,
                ChainPlan::Clean => {
                    self.syncs.count(None);
                    return self.finish_sync(inode, tag);
                }
                ChainPlan::NeedsCheckpoint(reason) => {
                    self.syncs.count(Some(reason));
                    return self.sync_by_checkpoint(inode, tag);
                }
            };
            let how = match (self.has_barriers(), opu) {
                (false, _) => Barrier::None,
                (true, true) => Barrier::Ordered,
                (true, false) => Barrier::Flush,
            };
            let others = self.plan_cluster_chains(cluster, tag);
            let clustered = others.len() as u64;
            self.syncs.clustered.fetch_add(clustered, Ordering::Relaxed);
            let written = match others.is_empty() {
                true => self.write_chain(chain, how, tag),
                false => self.write_chains(chain, others, tag),
            };
            match written {
                Err(FsError::NoSpace) => self.make_free_space(tag)?,
                other => {
                    self.syncs.count(None);
                    return other;
                }
            }
        }
        Err(FsError::NoSpace)
    }

    fn sync_by_checkpoint(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.request_checkpoint(tag)?;
        self.flush_written(inode, tag)?;
        self.restore_parent(inode, tag)
    }

    /// The end of an fsync that had no nodes to write: those of somebody else's fsync or of a checkpoint
    /// under way may have been this file's, and data was perhaps written over.
    fn finish_sync(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.node_writes
            .wait(self.node_writes.started(), &self.queue, tag)?;
        if self.nat.is_committing(inode.nid()) {
            let (_, version) = self.checkpoints.node_version();
            self.wait_checkpoint(version, tag)?;
        }
        self.flush_written(inode, tag)
    }

    /// Makes durable what the device has answered of a file's writes, if no FLUSH has yet, anybody's.
    fn flush_written(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        match self.queue.has_flushed(inode.unflushed()) {
            true => Ok(()),
            false => self.flush_device(tag),
        }
    }

    /// After a checkpoint the directory and the name that the inode notes can be believed again, if the
    /// one has the other: its next fsync needs none.
    fn restore_parent(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        let (parent, name) = {
            let core = inode.core.read();
            if !core.advise.contains(Advise::LOST_PARENT) || core.links != 1 {
                return Ok(());
            }
            (core.parent, core.name.clone())
        };
        let Ok(dir) = self.inode(parent, tag) else {
            return Ok(());
        };
        // A rename takes it alone.
        let _shared = dir.lock.read();
        if dir.kind() != FileKind::Directory
            || self.find_name(&dir, &name, tag)? != Some(inode.nid())
        {
            return Ok(());
        }
        let change = self.change()?;
        let mut core = inode.core.write();
        if core.parent == parent && core.name == name && core.links == 1 {
            self.mark_dirty(&change, inode, tag)?;
            core.advise = core.advise.without(Advise::LOST_PARENT);
        }
        Ok(())
    }

    /// Whether nothing of a regular file waits to be written by a checkpoint or a chain.
    pub(crate) fn is_clean_file(&self, inode: &Inode) -> bool {
        inode.kind() == FileKind::Regular
            && !inode.is_dirty()
            && self.nodes.dirty_of(inode.nid()).is_empty()
    }

    /// Whether anything has changed that is needed to find the file's data: more than its times.
    fn needs_nodes_for_data(&self, inode: &Inode, tag: IoTag) -> Result<bool> {
        if inode.kind() != FileKind::Regular || !self.nodes.dirty_of(inode.nid()).is_empty() {
            return Ok(true);
        }
        if !inode.is_dirty() {
            // A checkpoint may be writing it, or another fsync.
            return Ok(true);
        }
        let core = inode.core.read();
        let block = self.inode_block(inode, tag)?;
        let stored = disk::Inode::decode(&self.layout, &block)?;
        let as_now = disk::Inode {
            atime: core.atime,
            mtime: core.mtime,
            ctime: core.ctime,
            ..stored
        };
        Ok(as_now != *core)
    }

    /// What decides between a chain and a checkpoint, for an inode with these fields.
    pub(crate) fn fsync_facts(
        &self,
        inode: &Inode,
        core: &disk::Inode,
        tag: IoTag,
    ) -> Result<FsyncFacts> {
        let parent = core.parent;
        let (fastboot, active_logs, strict) = {
            let options = self.options.read();
            let strict = options.fsync_mode == FsyncMode::Strict;
            (options.fastboot, options.active_logs, strict)
        };
        let (renamed_into_parent, parent_attributes) = {
            let since = self.names_since_cp.lock();
            let renamed_into = since.renamed_into.contains(&parent);
            (renamed_into, since.attributes.contains(&parent))
        };
        let nodes_freed = self.truncated_since_cp.lock().contains(&inode.nid());
        Ok(FsyncFacts {
            kind: inode.kind(),
            compressed: core.is_compressed(&self.layout),
            links: core.links,
            lost_parent: core.advise.contains(Advise::LOST_PARENT),
            roll_forward_space: self.space.has_space_for_roll_forward(),
            parent_checkpointed: self.is_in_checkpoint(parent, tag)?,
            fastboot,
            active_logs,
            strict,
            new: !self.is_in_checkpoint(inode.nid(), tag)?,
            renamed_into_parent,
            parent_attributes,
            nodes_freed,
            broken_chain: self.node_writes.has_failed(),
        })
    }

    /// Whether fsync flushes the device.
    fn has_barriers(&self) -> bool {
        let options = self.options.read();
        options.barrier && options.fsync_mode != FsyncMode::NoBarrier
    }

    /// Makes everything durable that the device has answered. If it cannot, nobody knows which of the
    /// writes since the last good FLUSH it still has, and the cache has let them go: the volume stops,
    /// so that no later fsync acknowledges what may be lost.
    pub(crate) fn flush_device(&self, tag: IoTag) -> Result<()> {
        if !self.has_barriers() {
            return Ok(());
        }
        self.queue.flush(tag).wait().map_err(|error| {
            self.abort(StopReason::FLUSH_FAIL, &error.to_string());
            io_error(error)
        })
    }

    /// Writes all data and metadata and makes it durable.
    pub(crate) fn sync_volume(&self, cx: &Cx) -> Result<()> {
        self.sync_volume_by(cx, Self::request_checkpoint)
    }

    /// The same for whoever mounts, remounts, freezes or leaves the volume. He never waits for the task that
    /// writes checkpoints for others: it could come to wait for what he holds.
    pub(crate) fn sync_volume_unmerged(&self, cx: &Cx) -> Result<()> {
        self.sync_volume_by(cx, Self::checkpoint_unmerged)
    }

    fn sync_volume_by(
        &self,
        cx: &Cx,
        checkpoint: impl FnOnce(&Self, IoTag) -> Result<()>,
    ) -> Result<()> {
        if let Some(cause) = self.abort_cause() {
            return Err(FsError::Stopped(cause));
        }
        let tag = cx.tag.with_urgency(Urgency::Waited);
        let _acting = inherit::set_task_tag(tag);
        let dirty = self.writeback.dirty_files();
        let mut result = self.write_out_files(&dirty, WritebackReason::Sync, tag);
        if self.check_writable().is_ok() && !self.is_cp_disabled() {
            result = result.and(checkpoint(self, tag));
            // What was written in place changed nothing that a checkpoint would be written for.
            result = result.and(self.flush_device(tag));
        }
        // Whoever else met an error meanwhile has kept this from being written.
        match self.abort_cause() {
            Some(cause) => result.and(Err(FsError::Stopped(cause))),
            None => result,
        }
    }
}

#[cfg(test)]
mod tests;
