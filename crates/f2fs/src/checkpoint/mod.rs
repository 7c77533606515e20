//! Checkpoints: the volume as a whole made durable in one step.
//!
//! ```text
//! lock → [nothing changed: done] → gate alone: snapshot → I/O beside new operations → last block → committed
//! ```
//!
//! *Snapshot* (`snapshot`) is pure computing: every changed node and directory block gets its place, tables
//! and counts are copied. *I/O* (`write`): nodes, directories, tables, the pack but its last block; then the
//! last block with a flush before it and durable itself. Only that makes the pack valid: until then a mount
//! finds the other pack, and nothing that one refers to has been written over.
//!
//! A checkpoint has no step that waits for data of files: it names only what is written.
//!
//! A failure stops the volume: its first cause is kept, nothing is acknowledged after it.

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

/// Why a checkpoint is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Somebody waits for what was done so far to be durable, or there is too much of it.
    Sync,
    /// A mount ends what was begun before, and begins a version of its own.
    Mount,
    /// The volume is left: summaries of nodes are in the pack.
    Unmount,
    /// Checkpoints are switched off: this is the last one.
    Disable,
    /// They are switched on again.
    Enable,
}

/// The checkpoints of a mounted volume.
pub struct Checkpoints {
    /// One at a time.
    one: Mutex<()>,
    state: Mutex<CheckpointState>,
    /// Another one has become durable, or will not.
    ended: Condvar,
    /// Packs written.
    written: AtomicU64,
    /// Requests for checkpoints, and those of them that nobody waits for.
    calls: AtomicU64,
    background_calls: AtomicU64,
    /// `cp_interval`: how long changes may stay in memory.
    interval: Mutex<Duration>,
    /// `idle_interval`: how long after the last operation the volume counts as used.
    idle: Mutex<Duration>,
    /// The one under way, for those who wait for it.
    in_flight: CheckpointInFlight,
    /// How long the last one took, by steps.
    last_steps: Mutex<Option<Steps>>,
    /// Warnings of slow ones, and of long waits for one.
    pub slow: Warnings,
    pub slow_waits: Warnings,
}

struct CheckpointState {
    /// The last durable one.
    last: Checkpoint,
    /// Which pack it lies in.
    pack: u32,
    /// The version of the last snapshot: of `last`, or of the one under way.
    version: u64,
    /// What nodes written now carry.
    node_version: u64,
    /// When the last one ended.
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
    /// After a mount found `last` in `pack`.
    pub fn new(last: Checkpoint, pack: u32) -> Self {
        Self {
            one: Mutex::new(Rank::Checkpoint, ()),
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

    /// Another one is the volume's state.
    pub fn reload(&self, last: Checkpoint, pack: u32) {
        *self.state.lock() = CheckpointState::of(last, pack);
    }

    /// The last durable one.
    pub fn last(&self) -> Checkpoint {
        self.state.lock().last.clone()
    }

    /// What a node that is placed now carries, and the version of the checkpoint it comes after. Inside a
    /// change both stay.
    pub fn node_version(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.node_version, state.version)
    }

    /// From now on, up to the next snapshot, nodes carry what belongs to no checkpoint: those of a mount. Behind
    /// where they go there may be nodes that a session before this one wrote after the same checkpoint and lost
    /// a part of; with its version they would lead a recovery there, should this mount be cut off, too.
    pub fn begin_mount(&self) {
        let mut state = self.state.lock();
        let next = (state.version as u32).wrapping_add(1);
        state.node_version = u64::from(u32::MAX) << 32 | u64::from(next);
    }

    /// Whether there is a snapshot that is not durable: one is being written, or could not be.
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

    /// Requests for checkpoints since the mount, and those of them that nobody waited for.
    pub fn calls(&self) -> (u64, u64) {
        let background = self.background_calls.load(Ordering::Relaxed);
        (self.calls.load(Ordering::Relaxed), background)
    }

    /// `cp_interval`.
    pub fn interval(&self) -> Duration {
        *self.interval.lock()
    }

    /// Sets `cp_interval`.
    pub fn set_interval(&self, interval: Duration) {
        *self.interval.lock() = interval;
    }

    /// `idle_interval`.
    pub fn idle(&self) -> Duration {
        *self.idle.lock()
    }

    /// Sets `idle_interval`.
    pub fn set_idle(&self, idle: Duration) {
        *self.idle.lock() = idle;
    }

    /// Packs written since the mount.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// How long the last checkpoint took, by steps.
    pub fn last_steps(&self) -> Option<Steps> {
        self.last_steps.lock().clone()
    }
}

impl F2fs {
    /// Makes everything durable that was done before the call; what files have only in memory is not part
    /// of it. While checkpoints are switched off nothing is written, unless memory is full of it.
    ///
    /// # Errors
    /// The device failed, now or earlier: nothing is acknowledged any more. `NoSpace`: the logs have no
    /// room for what changed; the volume goes on, and the last checkpoint counts.
    pub(crate) fn checkpoint(&self, reason: Reason, tag: IoTag) -> Result<()> {
        self.checkpoint_for_requesters(reason, tag, &[])
    }

    /// The same by a task for others.
    fn checkpoint_for_requesters(
        &self,
        reason: Reason,
        tag: IoTag,
        requesters: &[IoTag],
    ) -> Result<()> {
        let mut steps = Steps::begin();
        self.boost_checkpoint(tag);
        let one = self.checkpoints.one.lock();
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
            Err(FsError::NoSpace) => tracing::error!("a checkpoint finds no room"),
            Err(error) => self.abort(
                StopReason::WRITE_FAIL,
                &format!("a checkpoint failed: {error}"),
            ),
        }
        drop(one);
        // Whoever waits for this one learns that it is durable or never will be; the lock, so that none is
        // between looking and waiting.
        drop(self.checkpoints.state.lock());
        self.checkpoints.ended.notify_all();
        if let Some(warning) = steps.warning() {
            self.checkpoints.slow.warn(warning);
        }
        *self.checkpoints.last_steps.lock() = Some(steps);
        result
    }

    fn write_checkpoint(&self, reason: Reason, steps: &mut Steps) -> Result<()> {
        let change = self.change_exclusive()?;
        steps.ended("wait for operations");
        let placed = self.place_dirty(&change);
        if placed.whole.is_err() {
            // What has its place is written there, as the nodes' addresses say.
            let tag = self.checkpoints.in_flight.tag();
            return self.write_placed(change, placed, tag);
        }
        let snapshot = self.take_snapshot(&change, placed, reason)?;
        drop(change);
        steps.ended("snapshot");
        self.write_snapshot(snapshot, steps)
    }

    /// Whether a checkpoint would say anything new.
    pub(crate) fn has_changed(&self) -> bool {
        self.nodes.dirty_count() > 0
            || self.nat.dirty_count() > 0
            || self.inodes.dirty_count() > 0
            || self.orphans.has_changed()
    }

    /// Waits until the checkpoint of this version is durable; `tag`: who waits.
    ///
    /// # Errors
    /// It failed.
    pub(crate) fn wait_checkpoint(&self, version: u64, tag: IoTag) -> Result<()> {
        if self.checkpoints.state.lock().last.version < version {
            self.boost_checkpoint(tag);
        }
        let mut state = self.checkpoints.state.lock();
        while state.last.version < version {
            if let Some(cause) = self.abort_cause() {
                return Err(FsError::Stopped(cause));
            }
            self.checkpoints.ended.wait(&mut state);
        }
        Ok(())
    }
}
