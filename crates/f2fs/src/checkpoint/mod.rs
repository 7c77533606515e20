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
mod steps;
mod write;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_rt::{Condvar, Instant, Mutex, OnUnwind, Rank, now};
use steadfs_vfs::{FsError, Result};

use boost::CheckpointInFlight;
pub(crate) use snapshot::Marks;
pub use steadfs_f2fs_format::checkpoint::{Current, load, read_blocks};
pub use steps::{Steps, Warnings};
pub use write::Writes;

use crate::disk::Checkpoint;
use crate::disk::superblock::StopReason;
use crate::fs::F2fs;

/// Why a checkpoint is written (`CP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// To make changes durable (fsync, sync), or because too much is dirty.
    Sync,
    /// At the end of recovery; it begins a new version.
    Mount,
    /// At unmount: the pack contains the summaries of the node logs.
    Unmount,
    /// The last one before checkpoints are disabled.
    Disable,
    /// The first one after checkpoints are enabled.
    Enable,
}

/// The checkpoints of a mounted volume.
pub struct Checkpoints {
    /// Held by the task that writes a checkpoint.
    cp_global_lock: Mutex<()>,
    state: Mutex<CheckpointState>,
    /// Notified when a checkpoint became durable, or failed.
    ended: Condvar,
    /// Packs written since the mount.
    written: AtomicU64,
    /// Requests for checkpoints, and those of background checkpoints.
    calls: AtomicU64,
    background_calls: AtomicU64,
    /// `cp_interval`: how long changes may stay in memory.
    interval: Mutex<Duration>,
    /// `idle_interval`: how long after the last operation the volume counts as in use.
    idle: Mutex<Duration>,
    in_flight: CheckpointInFlight,
    /// Times of the last checkpoint's steps.
    last_steps: Mutex<Option<Steps>>,
    /// Warnings about slow checkpoints, and about long waits for one.
    pub slow: Warnings,
    pub slow_waits: Warnings,
}

struct CheckpointState {
    /// The last durable checkpoint.
    last: Checkpoint,
    /// Its pack: 0 or 1.
    pack: u32,
    /// Version of the last snapshot: of `last`, or of the checkpoint in flight.
    version: u64,
    /// Version in the footers of nodes written now.
    node_version: u64,
    /// When the last checkpoint ended.
    ended: Instant,
}

impl CheckpointState {
    fn of(last: Checkpoint, pack: u32) -> Self {
        Self {
            version: last.version,
            node_version: last.node_version(),
            last,
            pack,
            ended: now(),
        }
    }
}

impl Checkpoints {
    pub fn new(last: Checkpoint, pack: u32) -> Self {
        Self {
            cp_global_lock: Mutex::new(Rank::Checkpoint, ()),
            state: Mutex::new(Rank::Super, CheckpointState::of(last, pack)),
            ended: Condvar::new(),
            in_flight: CheckpointInFlight::new(),
            written: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            background_calls: AtomicU64::new(0),
            interval: Mutex::new(Rank::Leaf, background::INTERVAL),
            idle: Mutex::new(Rank::Leaf, background::IDLE),
            last_steps: Mutex::new(Rank::Leaf, None),
            slow: Warnings::new(),
            slow_waits: Warnings::new(),
        }
    }

    /// Replaces the state by that of another checkpoint.
    pub fn reload(&self, last: Checkpoint, pack: u32) {
        *self.state.lock() = CheckpointState::of(last, pack);
    }

    /// The last durable checkpoint.
    pub fn last(&self) -> Checkpoint {
        self.state.lock().last.clone()
    }

    /// The version for footers of nodes, and that of the checkpoint that they follow. Neither changes inside a
    /// `Change`.
    pub fn node_version(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.node_version, state.version)
    }

    /// From now on to the next snapshot, nodes carry a version that belongs to no checkpoint. Behind the position of
    /// the node log there may be nodes that an earlier session wrote after the same checkpoint; if nodes of this mount
    /// carried its version, too, roll-forward after another crash could continue from these to those.
    pub fn begin_mount(&self) {
        let mut state = self.state.lock();
        let next = (state.version as u32).wrapping_add(1);
        state.node_version = u64::from(u32::MAX) << 32 | u64::from(next);
    }

    /// Whether there is a snapshot that is not durable: its checkpoint is in flight, or has failed.
    pub fn is_in_flight(&self) -> bool {
        let state = self.state.lock();
        state.version != state.last.version
    }

    fn last_ended(&self) -> Instant {
        self.state.lock().ended
    }

    fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    fn count_background(&self) {
        self.background_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Requests for checkpoints since the mount, and those of background checkpoints.
    pub fn calls(&self) -> (u64, u64) {
        let background = self.background_calls.load(Ordering::Relaxed);
        (self.calls.load(Ordering::Relaxed), background)
    }

    /// `cp_interval`.
    pub fn interval(&self) -> Duration {
        *self.interval.lock()
    }

    pub fn set_interval(&self, interval: Duration) {
        *self.interval.lock() = interval;
    }

    /// `idle_interval`.
    pub fn idle(&self) -> Duration {
        *self.idle.lock()
    }

    pub fn set_idle(&self, idle: Duration) {
        *self.idle.lock() = idle;
    }

    /// Packs written since the mount.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Times of the last checkpoint's steps.
    pub fn last_steps(&self) -> Option<Steps> {
        self.last_steps.lock().clone()
    }
}

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
        let mut steps = Steps::begin();
        self.boost_checkpoint(tag);
        let serialized = self.checkpoints.cp_global_lock.lock();
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
        self.checkpoints.in_flight.begin(tag, requesters);
        let guard = OnUnwind::new(|| {
            self.abort_for_panic();
            self.checkpoints.ended.notify_all();
        });
        let result = self.write_checkpoint(reason, &mut steps);
        drop(guard);
        self.checkpoints.in_flight.end();
        match &result {
            Ok(()) => {}
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
        // Waiters learn that this one is durable or has failed. The lock is taken so that none is between its check and
        // its wait.
        drop(self.checkpoints.state.lock());
        self.checkpoints.ended.notify_all();
        if let Some(warning) = steps.warning() {
            self.checkpoints.slow.warn(warning);
        }
        *self.checkpoints.last_steps.lock() = Some(steps);
        result
    }

    fn write_checkpoint(&self, reason: Reason, steps: &mut Steps) -> Result<()> {
        let change = self.cp_lock.change_exclusive(&self.stop_state)?;
        steps.ended("wait for operations");
        let placed = self.place_dirty(&change);
        if placed.allocated.is_err() {
            // Allocated blocks are written, because the NAT refers to them.
            let tag = self.checkpoints.in_flight.tag();
            return self.write_placed(change, placed, tag);
        }
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

    /// Waits until the checkpoint of this version is durable, and boosts it to the waiter's `tag`.
    ///
    /// # Errors
    /// The checkpoint failed.
    pub(crate) fn wait_checkpoint(&self, version: u64, tag: IoTag) -> Result<()> {
        if self.checkpoints.state.lock().last.version < version {
            self.boost_checkpoint(tag);
        }
        let mut state = self.checkpoints.state.lock();
        assert!(
            version <= state.version,
            "a task waits only for a checkpoint that has begun"
        );
        while state.last.version < version {
            if let Some(cause) = self.abort_cause() {
                return Err(FsError::Stopped(cause));
            }
            self.checkpoints.ended.wait(&mut state);
        }
        Ok(())
    }
}
