//! Checkpoints: the whole volume becomes durable in one step.
//!
//! ```text
//! lock → [nothing dirty: done] → cp_lock exclusively: snapshot → I/O beside new operations → last block → committed
//! ```
//!
//! *Snapshot* (`snapshot`), without I/O: a block is allocated for each dirty node and directory block; tables and
//! counts are copied. *I/O* (`write`): nodes, directories, tables, the pack without its last block; then the last block
//! with preflush and FUA. Only that one makes the pack valid: until then a mount finds the other pack, and no block
//! that the other pack refers to has been overwritten.
//!
//! A checkpoint never waits for file data: a file's data is mapped only after it was written.
//!
//! A failure aborts the volume: the first cause is kept, and nothing is acknowledged afterwards.

mod background;
mod boost;
pub mod daemon;
mod disable;
mod flush_nodes;
mod snapshot;
pub mod state;
pub mod steps;
mod write;

use steadfs_base::IoTag;
use steadfs_rt::OnUnwind;
use steadfs_vfs::{FsError, Result};

pub(crate) use snapshot::Marks;
pub use state::Reason;
pub use steadfs_f2fs_format::checkpoint::{Current, load, read_blocks};
use steps::Steps;
pub use write::Writes;

use crate::disk::superblock::StopReason;
use crate::fs::F2fs;

impl F2fs {
    /// Makes everything durable that was done before the call, except data that is dirty in files. While checkpoints
    /// are disabled nothing is written, unless too many nodes are dirty.
    ///
    /// # Errors
    /// The device failed, now or earlier: the volume has aborted. `NoSpace`: the cursegs have no space for the dirty
    /// nodes; the volume continues with its last checkpoint.
    pub(crate) fn checkpoint(&self, reason: Reason, tag: IoTag) -> Result<()> {
        self.checkpoint_for_requesters(reason, tag, &[])
    }

    /// The same, merged for these requesters.
    fn checkpoint_for_requesters(
        &self,
        reason: Reason,
        tag: IoTag,
        requesters: &[IoTag],
    ) -> Result<()> {
        assert!(
            requesters.is_empty() || reason == Reason::Sync,
            "only requests to make changes durable are merged"
        );
        let mut steps = Steps::begin();
        self.boost_checkpoint(tag);
        let serialized = self.checkpoints.serialize();
        steps.ended("wait for another checkpoint");
        self.check_writable()?;
        if reason == Reason::Sync && !self.has_changed() {
            return Ok(());
        }
        if self.is_cp_disabled() && reason != Reason::Enable {
            return match self.must_flush_nodes() {
                true => self.flush_nodes(tag),
                false => Ok(()),
            };
        }
        self.checkpoints.in_flight().begin(tag, requesters);
        let guard = OnUnwind::new(|| {
            self.abort_for_panic();
            self.checkpoints.notify_unwinding();
        });
        let result = self.write_checkpoint(reason, &mut steps);
        drop(guard);
        self.checkpoints.in_flight().end();
        match &result {
            Ok(()) => assert!(
                !self.checkpoints.is_in_flight(),
                "a successful checkpoint is durable"
            ),
            Err(FsError::NoSpace) => {
                tracing::error!(
                    "a checkpoint failed: no free blocks for the dirty nodes and directories"
                );
            }
            Err(error) => self.abort(
                StopReason::WRITE_FAIL,
                &format!("a checkpoint failed: {error}"),
            ),
        }
        drop(serialized);
        self.checkpoints.notify_ended();
        if let Some(warning) = steps.warning() {
            self.checkpoints.slow.warn(warning);
        }
        self.checkpoints.record_steps(steps);
        result
    }

    fn write_checkpoint(&self, reason: Reason, steps: &mut Steps) -> Result<()> {
        let change = self.cp_lock.change_exclusive(&self.stop_state)?;
        steps.ended("wait for operations");
        let placed = self.place_dirty(&change);
        if placed.allocated.is_err() {
            // Allocated blocks are written, because the NAT refers to them.
            let tag = self.checkpoints.in_flight().tag();
            return self.write_placed(change, placed, tag);
        }
        assert!(
            self.inodes.dirty_count() == 0,
            "each dirty inode was stored in its node"
        );
        let snapshot = self.take_snapshot(&change, placed, reason)?;
        drop(change);
        steps.ended("snapshot");
        self.write_snapshot(snapshot, steps)
    }

    /// Whether anything changed since the last checkpoint.
    pub(crate) fn has_changed(&self) -> bool {
        self.nodes.dirty_count() > 0
            || self.nat.dirty_count() > 0
            || self.inodes.dirty_count() > 0
            || self.orphans.has_changed()
    }

    /// Waits until the checkpoint of this version, which contains changes of the waiter, is durable: the waiter is one of
    /// its requesters.
    ///
    /// # Errors
    /// The checkpoint failed.
    pub(crate) fn join_checkpoint(&self, version: u64, tag: IoTag) -> Result<()> {
        if !self.checkpoints.is_durable(version) {
            let in_flight = self.checkpoints.in_flight();
            in_flight.add_requester(&self.queue, tag);
        }
        self.wait_checkpoint(version, tag)
    }

    /// Waits until the checkpoint of this version is durable, and boosts it to the waiter's `tag`.
    ///
    /// # Errors
    /// The checkpoint failed.
    pub(crate) fn wait_checkpoint(&self, version: u64, tag: IoTag) -> Result<()> {
        if !self.checkpoints.is_durable(version) {
            self.boost_checkpoint(tag);
        }
        self.checkpoints
            .wait_durable(version, || self.abort_cause())
    }

    /// A task with this tag waits for the checkpoint in flight.
    pub(crate) fn boost_checkpoint(&self, waiter: IoTag) {
        let merge = self.options.read().checkpoint_merge;
        let in_flight = self.checkpoints.in_flight();
        in_flight.boost(&self.queue, waiter, merge);
    }
}
