//! Durability: fsync by a node chain or by a checkpoint, and sync of the volume.

use std::sync::Arc;

use steadfs_base::{IoTag, Urgency};
use steadfs_cache::{DirtyFile, WritebackReason};
use steadfs_rt::inherit;
use steadfs_vfs::{Cx, FileKind, FsError, Result};

use super::BLOCK;
use super::cp_reason::FsyncFacts;
use super::placement::Occasion;
use crate::disk;
use crate::disk::inode::Advise;
use crate::disk::superblock::StopReason;
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::node::chain::{Barrier, ChainPlan, ChainUse};
use crate::node::writes::Arrival;
use crate::options::FsyncMode;

/// How often a chain is planned again after the node log was full.
const CHAIN_ATTEMPTS_MAX: u32 = 4;

impl F2fs {
    /// fsync(2) and fdatasync(2). The caller writes and flushes itself. It wakes no other thread, unless a
    /// checkpoint or a write of the same data is already in flight elsewhere.
    pub(crate) fn fsync_inode(&self, cx: &Cx, inode: &Inode, datasync: bool) -> Result<()> {
        if let Some(cause) = self.abort_cause() {
            return Err(FsError::Stopped(cause));
        }
        let tag = cx.tag.with_urgency(Urgency::Waited);
        // Write-back of the file by other tasks, and open changes, proceed at this task's priority while it waits.
        let _task_tag = inherit::set_task_tag(tag);
        let arrival = self.node_writes.arrive(&self.queue, tag);
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
            let written = self.write_out_as(inode, WritebackReason::Sync, occasion, tag);
            // An error of background write-back since the last fsync is reported here, once. The data that failed
            // is still dirty and was just retried.
            let earlier = inode.pages.take_error();
            written?;
            if let Some(error) = earlier {
                return Err(error.into());
            }
        }
        if self.is_cp_disabled() {
            // As in the kernel: with checkpoint=disable nothing is durable before checkpoints are enabled again.
            return Ok(());
        }
        if self.is_frozen() {
            // As in Linux: the freeze has made everything durable, and nothing has changed since.
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
        self.sync_nodes(inode, &cluster, &arrival, tag)
    }

    /// Makes the stored state of an inode durable: by its own nodes, together with those of the files in `cluster`
    /// that allow it, or by a checkpoint if nodes cannot express all changes.
    fn sync_nodes(
        &self,
        inode: &Inode,
        cluster: &[Arc<Inode>],
        arrival: &Arrival<'_>,
        tag: IoTag,
    ) -> Result<()> {
        for _ in 0..CHAIN_ATTEMPTS_MAX {
            let (placed, by) = {
                // Blocks that are mapped from here on belong to the next fsync.
                let _flush = inode.lock_flush();
                let by = ChainUse {
                    barrier: self.chain_barrier(inode, cluster),
                    caller: Some(arrival),
                    tag,
                };
                (self.place_chain(inode, by)?, by)
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
            let others = self.plan_cluster_chains(cluster, by);
            self.syncs.count_clustered(others.len());
            let written = self.write_chains(chain, others, by.barrier, tag);
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

    /// How the chains of a file and of the files in its cluster are made durable.
    fn chain_barrier(&self, inode: &Inode, cluster: &[Arc<Inode>]) -> Barrier {
        let files = cluster.iter().map(AsRef::as_ref);
        let opu = files.chain([inode]).any(|file| self.has_volatile_opu(file));
        match (self.has_barriers(), opu) {
            (false, _) => Barrier::None,
            (true, true) => Barrier::Ordered,
            (true, false) => Barrier::Flush,
        }
    }

    /// Whether data of the file was written out of place and no FLUSH has covered it.
    pub(super) fn has_volatile_opu(&self, inode: &Inode) -> bool {
        !self.queue.has_flushed(inode.unflushed_opu())
    }

    pub(crate) fn sync_by_checkpoint(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.request_checkpoint(tag)?;
        self.flush_written(inode, tag)?;
        // All is durable, whatever the parent is like.
        match self.restore_parent(inode, tag) {
            Err(error) if error.is_corruption() => self.record_corruption(&error),
            Err(error) => {
                tracing::debug!(%error, ino = %inode.nid(), "the next fsync needs a checkpoint, too");
            }
            Ok(()) => {}
        }
        Ok(())
    }

    /// Ends an fsync that had no nodes to write: another fsync or a checkpoint in flight may be writing this file's
    /// nodes, and data may have been overwritten in place.
    fn finish_sync(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        self.node_writes
            .wait(self.node_writes.started(), &self.queue, tag)?;
        let (_, version) = self.checkpoints.node_version();
        if self.nat.is_committing(inode.nid()) {
            self.join_checkpoint(version, tag)?;
        } else if self.since_cp.has_chain(inode.nid()) {
            // Roll-forward finds the chain only behind the checkpoint that it follows.
            self.wait_checkpoint(version, tag)?;
        }
        self.flush_written(inode, tag)
    }

    /// Issues a FLUSH unless one has covered all completed writes of the file since.
    fn flush_written(&self, inode: &Inode, tag: IoTag) -> Result<()> {
        match self.queue.has_flushed(inode.unflushed()) {
            true => Ok(()),
            false => self.flush_device(tag),
        }
    }

    /// After a checkpoint, marks the parent and name in the inode as valid again if the directory has that entry,
    /// so that the next fsync needs no checkpoint.
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
        // A rename holds it for writing.
        let _shared = dir.lock.read();
        let plain = match dir.kind() == FileKind::Directory && dir.is_encrypted() {
            true => match self.names_key(&dir, tag)? {
                Some(key) => key.decrypt_name(&name).unwrap_or_default(),
                None => return Ok(()),
            },
            false => name.clone(),
        };
        if dir.kind() != FileKind::Directory
            || plain.is_empty()
            || self.find_name(&dir, &plain, tag)? != Some(inode.nid())
        {
            return Ok(());
        }
        let change = self.change()?;
        let mut core = inode.core.write();
        // The checkpoint may be older than the name.
        let durable = !self.since_cp.is_renamed(inode.nid());
        if durable && core.parent == parent && core.name == name && core.links == 1 {
            self.mark_dirty(&change, inode, tag)?;
            core.advise = core.advise.without(Advise::LOST_PARENT);
        }
        Ok(())
    }

    /// Whether a regular file has no dirty inode or node for a checkpoint or a chain to write.
    pub(crate) fn is_clean_file(&self, inode: &Inode) -> bool {
        inode.kind() == FileKind::Regular
            && !inode.is_dirty()
            && self.nodes.dirty_of(inode.nid()).is_empty()
    }

    /// Whether the inode or its nodes have changes that are needed to find the data: more than timestamps.
    fn needs_nodes_for_data(&self, inode: &Inode, tag: IoTag) -> Result<bool> {
        if inode.kind() != FileKind::Regular || !self.nodes.dirty_of(inode.nid()).is_empty() {
            return Ok(true);
        }
        if !inode.is_dirty() || self.since_cp.needs_checkpoint(inode.nid()) {
            // A checkpoint or another fsync may be writing it, or has written it without a mark.
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

    /// The state that decides between a chain and a checkpoint; `core` holds the inode's fields.
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
        let parent_changes = self.since_cp.of_directory(parent);
        let nodes_freed = self.since_cp.needs_checkpoint(inode.nid());
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
            renamed_into_parent: parent_changes.renamed_into,
            parent_attributes: parent_changes.attributes,
            nodes_freed,
            broken_chain: self.node_writes.has_failed(),
        })
    }

    /// Whether fsync issues a FLUSH.
    fn has_barriers(&self) -> bool {
        let options = self.options.read();
        options.barrier && options.fsync_mode != FsyncMode::NoBarrier
    }

    /// Makes all completed writes durable. If the FLUSH fails, it is unknown which writes since the last successful
    /// FLUSH are on the device, and the cache has dropped their data: the volume is aborted, so that no later fsync
    /// acknowledges what may be lost.
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

    /// As [`F2fs::sync_volume`], for mount, remount, freeze and unmount. It does not wait for the checkpoint task
    /// (`f2fs_ckpt`), which could wait for a lock that the caller holds.
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
        let _task_tag = inherit::set_task_tag(tag);
        let dirty = self.writeback.dirty_files();
        let mut result = self.write_out_files(&dirty, WritebackReason::Sync, tag);
        if self.check_writable().is_ok() && !self.is_cp_disabled() {
            result = result.and(checkpoint(self, tag));
            // Data written in place changes nothing that a checkpoint would be written for.
            result = result.and(self.flush_device(tag));
        }
        // Another task that met an error meanwhile has kept some of it from being written.
        match self.abort_cause() {
            Some(cause) => result.and(Err(FsError::Stopped(cause))),
            None => result,
        }
    }
}

#[cfg(test)]
mod tests;
