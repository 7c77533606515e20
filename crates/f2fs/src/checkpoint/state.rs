//! The checkpoints of a volume: the last durable one, the one in flight, and the tasks that wait for it.
//!
//! **Rule.** One checkpoint at a time. Its version is that of the last durable one plus 1, from its snapshot on; it goes
//! to the other pack. After a failure no snapshot is taken any more, because the volume has aborted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{Condvar, Instant, Mutex, MutexGuard, Rank, now};
use steadfs_vfs::{FsError, Result};

use super::boost::CheckpointInFlight;
use super::steps::{Steps, Warnings};
use crate::disk::Checkpoint;

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

/// An area of metadata that checkpoints write.
#[derive(Clone, Copy, Debug)]
pub enum MetaArea {
    /// Packs.
    Cp,
    Sit,
    Nat,
    Ssa,
}

impl MetaArea {
    const ALL: [Self; 4] = [Self::Cp, Self::Sit, Self::Nat, Self::Ssa];

    const fn name(self) -> &'static str {
        match self {
            Self::Cp => "cp",
            Self::Sit => "sit",
            Self::Nat => "nat",
            Self::Ssa => "ssa",
        }
    }
}

/// `cp_interval` after a mount.
const INTERVAL: Duration = Duration::from_secs(60);
/// `idle_interval` after a mount.
const IDLE: Duration = Duration::from_secs(5);

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
    /// Checkpoints are disabled.
    disabled: AtomicBool,
    /// Metadata blocks written, by area.
    meta_writes: [AtomicU64; MetaArea::ALL.len()],
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
        assert!(pack < 2, "there are two packs");
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
            disabled: AtomicBool::new(false),
            meta_writes: Default::default(),
            written: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            background_calls: AtomicU64::new(0),
            interval: Mutex::new(Rank::Leaf, INTERVAL),
            idle: Mutex::new(Rank::Leaf, IDLE),
            last_steps: Mutex::new(Rank::Leaf, None),
            slow: Warnings::new(),
            slow_waits: Warnings::new(),
        }
    }

    /// Replaces the state by that of another checkpoint.
    pub fn reload(&self, last: Checkpoint, pack: u32) {
        let mut state = self.state.lock();
        assert!(
            state.version == state.last.version,
            "no checkpoint is in flight"
        );
        *state = CheckpointState::of(last, pack);
    }

    /// Waits until no other task writes a checkpoint; one at a time while the guard lives.
    pub(super) fn serialize(&self) -> MutexGuard<'_, ()> {
        self.cp_global_lock.lock()
    }

    /// Tags and requests of the checkpoint in flight.
    pub(super) fn in_flight(&self) -> &CheckpointInFlight {
        &self.in_flight
    }

    /// A snapshot for this checkpoint was taken. The caller holds `cp_lock` exclusively.
    pub(super) fn begin(&self, next: &Checkpoint) {
        let mut state = self.state.lock();
        assert!(
            state.version == state.last.version,
            "no snapshot is taken after a checkpoint failed"
        );
        assert!(
            next.version == state.version + 1,
            "each checkpoint has the version after the last one's"
        );
        state.version = next.version;
        state.node_version = next.node_version();
    }

    /// The pack that the next checkpoint is written to: the one that is not the last one's.
    pub(super) fn next_pack(&self) -> u32 {
        let last = self.state.lock().pack;
        assert!(last < 2, "there are two packs");
        1 - last
    }

    /// The checkpoint of the last snapshot is durable in this pack.
    pub(super) fn commit(&self, checkpoint: Checkpoint, pack: u32) {
        let mut state = self.state.lock();
        assert!(state.pack != pack, "a checkpoint goes to the other pack");
        assert!(
            state.version == checkpoint.version,
            "the last snapshot became durable"
        );
        assert!(
            checkpoint.version > state.last.version,
            "a mount prefers the pack with the higher version"
        );
        state.last = checkpoint;
        state.pack = pack;
        state.ended = now();
        drop(state);
        self.written.fetch_add(1, Ordering::Relaxed);
    }

    /// A checkpoint became durable or failed: its waiters learn of it. The lock is taken so that none is between its
    /// check and its wait.
    pub(super) fn notify_ended(&self) {
        drop(self.state.lock());
        self.ended.notify_all();
    }

    /// The same while a panic unwinds, which may hold the lock.
    pub(super) fn notify_unwinding(&self) {
        self.ended.notify_all();
    }

    /// Whether the checkpoint of this version is durable.
    pub(super) fn is_durable(&self, version: u64) -> bool {
        self.state.lock().last.version >= version
    }

    /// Waits until the checkpoint of this version is durable. `aborted`: why the volume stopped, if it did.
    ///
    /// # Errors
    /// The checkpoint failed.
    pub(super) fn wait_durable(
        &self,
        version: u64,
        aborted: impl Fn() -> Option<String>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        assert!(
            version <= state.version,
            "a task waits only for a checkpoint that has begun"
        );
        let _step = waits::during(WaitStep::Checkpoint);
        while state.last.version < version {
            if let Some(cause) = aborted() {
                return Err(FsError::Stopped(cause));
            }
            self.ended.wait(&mut state);
        }
        Ok(())
    }

    /// Whether checkpoints are disabled.
    pub fn is_disabled(&self) -> bool {
        self.disabled.load(Ordering::Acquire)
    }

    /// A checkpoint is durable that disables further ones, or enables them.
    pub(super) fn set_disabled(&self, disabled: bool) {
        self.disabled.store(disabled, Ordering::Release);
    }

    /// Counts metadata blocks that a checkpoint writes.
    pub(super) fn count_writes(&self, area: MetaArea, blocks: usize) {
        self.meta_writes[area as usize].fetch_add(blocks as u64, Ordering::Relaxed);
    }

    /// Metadata blocks that checkpoints have written, by the name of their area.
    pub fn meta_writes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.meta_writes.iter().map(|n| n.load(Ordering::Relaxed));
        MetaArea::ALL.map(MetaArea::name).into_iter().zip(counts)
    }

    /// Keeps the times of a checkpoint's steps.
    pub(super) fn record_steps(&self, steps: Steps) {
        *self.last_steps.lock() = Some(steps);
    }

    /// The last durable checkpoint.
    pub fn last(&self) -> Checkpoint {
        self.state.lock().last.clone()
    }

    /// The version for footers of nodes, and that of the checkpoint that they follow. Neither changes inside a
    /// `Change`.
    pub fn node_version(&self) -> (u64, u64) {
        let state = self.state.lock();
        debug_assert!(
            state.version >= state.last.version,
            "a snapshot is newer than what is durable"
        );
        (state.node_version, state.version)
    }

    /// From now on to the next snapshot, nodes carry a version that belongs to no checkpoint. Behind the position of
    /// the node log there may be nodes that an earlier session wrote after the same checkpoint; if nodes of this mount
    /// carried its version, too, roll-forward after another crash could continue from these to those.
    pub fn begin_mount(&self) {
        let mut state = self.state.lock();
        assert!(
            state.version == state.last.version,
            "a mount begins at a durable checkpoint"
        );
        let next = (state.version as u32).wrapping_add(1);
        state.node_version = u64::from(u32::MAX) << 32 | u64::from(next);
    }

    /// Whether there is a snapshot that is not durable: its checkpoint is in flight, or has failed.
    pub fn is_in_flight(&self) -> bool {
        let state = self.state.lock();
        debug_assert!(
            state.version - state.last.version <= 1,
            "one checkpoint is in flight at a time"
        );
        state.version != state.last.version
    }

    /// When the last checkpoint ended.
    pub(super) fn last_ended(&self) -> Instant {
        self.state.lock().ended
    }

    pub(super) fn count_call(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_background(&self) {
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use steadfs_block::{Queue, QueueOptions};
    use steadfs_rt::{sim, sleep, spawn};

    use super::*;
    use crate::format::{FormatOptions, image};

    /// The task that writes a checkpoint panics: its waiters end with the cause of the abort.
    #[test]
    fn waiters_end_when_the_checkpoint_unwinds() {
        sim::run(sim::Config::new(1), || {
            let device = image(64 << 20, &FormatOptions::default()).unwrap();
            let queue = Queue::new(device, QueueOptions::default());
            let layout = crate::read_superblock(&queue).unwrap().layout().clone();
            let current = crate::checkpoint::load(&queue, &layout).unwrap();
            let last = current.checkpoint;
            let next = Checkpoint {
                version: last.version + 1,
                ..last.clone()
            };
            let checkpoints = Arc::new(Checkpoints::new(last, current.pack));
            checkpoints.begin(&next);
            let has_aborted = Arc::new(AtomicBool::new(false));
            let waiter = spawn("waiter", {
                let (checkpoints, has_aborted) =
                    (Arc::clone(&checkpoints), Arc::clone(&has_aborted));
                move || {
                    let cause = || {
                        has_aborted
                            .load(Ordering::Acquire)
                            .then(|| "a panic".to_owned())
                    };
                    checkpoints.wait_durable(next.version, cause)
                }
            });
            sleep(Duration::from_millis(1));
            has_aborted.store(true, Ordering::Release);
            checkpoints.notify_unwinding();
            assert_eq!(waiter.join(), Err(FsError::Stopped("a panic".to_owned())));
        });
    }
}
