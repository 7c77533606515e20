//! Multiple-mount protection: of the nodes that share a device, one at a time writes the volume.
//!
//! **Problem.** Locks of the host do not reach another host that has the same device: two hosts that write one volume
//! destroy it.
//!
//! **Rule.** The volume has a block with a sequence number ([`Mmp`]), which the node that writes the volume counts up at an
//! interval. A node that wants to write it reads the block, and unless it is marked clean waits and reads again: another
//! number means that a node is there. Then it writes a number of its own, and after an equal wait that one must still be
//! there. The unmount marks the block clean. Waiting times and values are those of Linux and e2fsprogs, as each side must
//! notice the other.
//!
//! While the volume is mounted a task updates the block. Linux looks whether another node has written it only after an
//! update that came late. Here the block is read before each update, which also finds a node that mounted at the same moment.
//! If it is not as it was written, the lock is lost, and the volume is not written any more: neither is the block.
//!
//! | event | block |
//! |---|---|
//! | mount for writing, remount to `rw` | the lock is taken |
//! | read-only mount | not read: it writes nothing |
//! | freeze | not updated, so that the device stays as it is; the thaw looks whether it is still the own one |
//! | hand-over | left as it is for the successor, which continues without a wait |
//! | unmount, remount to `ro`, a mount that failed | marked clean, also if an error has stopped the volume |
//! | the update fails | as in Linux tried again, until another node would consider this one gone |

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::{Corruption, DevBlock};
use steadfs_block::{Buf, Queue};
use steadfs_rt::{
    Condvar, Instant, JoinHandle, Mutex, OnUnwind, PANICKED, Rank, fault_point, node_name, now,
    random_u64, sleep, try_spawn, wall_clock,
};
use steadfs_vfs::{FsError, Result};

use crate::disk::mmp::{
    CHECK_INTERVAL_MAX, CHECK_INTERVAL_MIN, SEQ_CLEAN, SEQ_MAX, UPDATE_INTERVAL_MAX, Usage,
};
use crate::disk::{Geometry, Mmp, Superblock};
use crate::fs::Ext4;
use crate::io_error;
use crate::mmp::{self, TAG};
use crate::mount::no_thread;

/// Longest check interval that any program writes, in seconds: twice the longest update interval.
const CHECK_INTERVAL_SANE: u16 = 2 * UPDATE_INTERVAL_MAX;
/// Of how many failed updates one is logged, as in Linux.
const FAILURES_PER_MESSAGE: u32 = 60;
/// Most seconds of a wait beyond the check interval.
const WAIT_MAX: u16 = 60;
/// The way out if the block cannot be used.
const CLEAR: &str = "if no node uses the volume, tune2fs -f -E clear_mmp makes the block anew";

/// How an open for writing treats multiple-mount protection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// The device's name in the block, for administrators; at most 32 bytes are kept. `None`: it is not known.
    pub device: Option<Vec<u8>>,
    /// Whether the lock is taken.
    pub mode: ProtectionMode,
}

/// Whether an open for writing takes the lock of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProtectionMode {
    /// It does.
    #[default]
    Take,
    /// The same, and a lock of this node on this device is that of a predecessor: there is no wait.
    Continue,
    /// The caller holds it ([`NodeLock::take`]).
    Held,
}

/// What this node wrote last.
#[derive(Clone)]
struct Written {
    mmp: Mmp,
    at: Instant,
    /// What a failed write may have left in place of it.
    tried: Option<Mmp>,
}

/// What the update task is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Update,
    /// The volume is frozen.
    Pause,
    End,
}

/// Is called with the cause when the lock is lost.
type OnLost = dyn Fn(&str) + Send + Sync;

struct State {
    phase: Phase,
    /// The task reads or writes the block.
    updating: bool,
    written: Written,
    /// When the next update begins.
    due: Instant,
    /// Why the lock is lost, if it is.
    lost: Option<String>,
    on_lost: Option<Arc<OnLost>>,
}

/// Where the block is.
#[derive(Clone)]
struct Place {
    queue: Arc<Queue>,
    geo: Geometry,
    at: DevBlock,
}

struct Shared {
    place: Place,
    interval: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// The lock of this node on a volume, which a task keeps up. A value that is dropped leaves the block as it is, as a crash
/// does.
pub struct NodeLock {
    shared: Arc<Shared>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl NodeLock {
    /// Takes the lock; `None` if the volume has no multiple-mount protection. Waits for 22 s or more if the volume was not
    /// unmounted.
    ///
    /// # Errors
    /// `InUse`: another node has it, or a program of e2fsprogs. The block cannot be used or written.
    pub fn take(queue: &Arc<Queue>, sb: &Superblock, how: &Protection) -> Result<Option<Self>> {
        let Some(at) = sb.mmp_block() else {
            return Ok(None);
        };
        if how.mode == ProtectionMode::Held {
            return Ok(None);
        }
        let place = Place {
            queue: Arc::clone(queue),
            geo: sb.geometry().clone(),
            at,
        };
        let (found, block) = place.read()?;
        let (interval, check) = intervals(sb, &found)?;
        let mut own = found.clone();
        own.set_names(&node_name(), how.device.as_deref().unwrap_or_default());
        let continues = how.mode == ProtectionMode::Continue
            && found.usage() == Usage::Mounted
            && own.has_names_of(&found);
        let wait = match continues {
            true => Duration::ZERO,
            false => place.wait_until_unused(&found, check, Attempt::Take)?,
        };
        own.set_seq(match continues {
            true => next_seq(found.seq()),
            false => (random_u64() % (u64::from(SEQ_MAX) + 1)) as u32,
        });
        own.set_check_interval((2 * interval).max(CHECK_INTERVAL_MIN));
        own.set_time(wall_clock().secs);
        let written = Written {
            mmp: own,
            at: now(),
            tried: None,
        };
        place.write(block, &written.mmp)?;
        sleep(wait);
        let (after, _) = place.read()?;
        match after.is_same_write(&written.mmp) {
            true => Self::start(place, interval, written).map(Some),
            false => Err(in_use(&after)),
        }
    }

    /// Starts the task.
    fn start(place: Place, interval: u16, written: Written) -> Result<Self> {
        let interval = Duration::from_secs(interval.into());
        let shared = Arc::new(Shared {
            place,
            interval,
            state: Mutex::new(
                Rank::Leaf,
                State {
                    phase: Phase::Update,
                    updating: false,
                    due: written.at + interval,
                    written,
                    lost: None,
                    on_lost: None,
                },
            ),
            changed: Condvar::new(),
        });
        let updated = Arc::clone(&shared);
        let task = try_spawn("mmp", move || updated.update_until_end());
        let task = task.map_err(|error| match shared.mark_clean() {
            Ok(()) => no_thread(error),
            Err(error) => error,
        })?;
        Ok(Self {
            shared,
            task: Mutex::new(Rank::Leaf, Some(task)),
        })
    }

    /// Has `on_lost` called with the cause when the lock is lost; at once if it is lost already.
    fn on_lost(&self, on_lost: Arc<OnLost>) {
        let lost = {
            let mut state = self.shared.state.lock();
            state.on_lost = Some(Arc::clone(&on_lost));
            state.lost.clone()
        };
        if let Some(cause) = lost {
            on_lost(&cause);
        }
    }

    /// Stops the updates until [`NodeLock::resume`]. None is in progress afterwards.
    fn pause(&self) {
        let mut state = self.shared.state.lock();
        if state.phase == Phase::Update {
            state.phase = Phase::Pause;
        }
        self.shared.changed.notify_all();
        while state.updating {
            self.shared.changed.wait(&mut state);
        }
    }

    /// Looks whether the block is still this node's, and continues with the updates. If it is not, the lock is lost.
    fn resume(&self) {
        let written = self.shared.state.lock().written.clone();
        if let Err(error) = self.shared.check(&written) {
            self.shared.lose(&cause_of(error));
            return;
        }
        let mut state = self.shared.state.lock();
        if state.phase == Phase::Pause {
            state.phase = Phase::Update;
        }
        self.shared.changed.notify_all();
    }

    /// Ends the updates and leaves the block as it is. Returns whether they had not ended before.
    fn leave(&self) -> bool {
        self.shared.end();
        let task = self.task.lock().take();
        // A task that panicked has stopped the volume.
        task.map(JoinHandle::join_panicked).is_some()
    }

    /// Looks whether this node still has the lock.
    ///
    /// # Errors
    /// `Stopped`: it is lost. The block cannot be read.
    pub fn check(&self) -> Result<()> {
        // An update between looking at what was written last and reading the block would look like another node's.
        self.pause();
        self.resume();
        match self.shared.state.lock().lost.clone() {
            Some(cause) => Err(FsError::Stopped(cause)),
            None => Ok(()),
        }
    }

    /// Ends the updates and marks the block clean. All other writes of this node have ended.
    ///
    /// # Errors
    /// The lock is lost, or the block cannot be written.
    pub fn release(&self) -> Result<()> {
        if !self.leave() {
            return Ok(());
        }
        let lost = self.shared.state.lock().lost.clone();
        match lost {
            Some(cause) => Err(FsError::Stopped(cause)),
            None => self.shared.mark_clean(),
        }
    }
}

impl Drop for NodeLock {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// How an update ended.
enum Updated {
    Done(Written),
    /// It is tried again; what the device may have now.
    Failed(FsError, Option<Mmp>),
    Lost(String),
}

impl Shared {
    fn end(&self) {
        self.state.lock().phase = Phase::End;
        self.changed.notify_all();
    }

    /// The lock is lost: the volume stops, and the updates end.
    fn lose(&self, cause: &str) {
        let (cause, on_lost) = {
            let mut state = self.state.lock();
            state.phase = Phase::End;
            state.updating = false;
            let cause = state.lost.get_or_insert_with(|| cause.to_owned()).clone();
            (cause, state.on_lost.clone())
        };
        self.changed.notify_all();
        if let Some(on_lost) = on_lost {
            on_lost(&cause);
        }
    }

    /// The task.
    fn update_until_end(&self) {
        let _guard = OnUnwind::new(|| self.lose(PANICKED));
        let mut failures = 0;
        while let Some(written) = self.next_update() {
            fault_point("mmp");
            let began = now();
            let updated = self.update(&written, began);
            if let Updated::Lost(cause) = updated {
                self.lose(&cause);
                return;
            }
            if let Updated::Failed(error, _) = &updated {
                if failures % FAILURES_PER_MESSAGE == 0 {
                    tracing::error!(%error, "multiple-mount protection: updating its block failed");
                }
                failures += 1;
            }
            let mut state = self.state.lock();
            state.updating = false;
            state.due = began + self.interval;
            match updated {
                Updated::Done(written) => state.written = written,
                Updated::Failed(_, tried) => state.written.tried = tried,
                Updated::Lost(_) => {}
            }
            self.changed.notify_all();
        }
    }

    /// Waits until an update is due; `None`: the task ends.
    fn next_update(&self) -> Option<Written> {
        let mut state = self.state.lock();
        loop {
            let left = state.due.since(now());
            match state.phase {
                Phase::End => return None,
                Phase::Pause => self.changed.wait_idle(&mut state),
                Phase::Update if left.is_zero() => {
                    state.updating = true;
                    return Some(state.written.clone());
                }
                Phase::Update => {
                    self.changed.wait_for(&mut state, left);
                }
            }
        }
    }

    /// Looks whether the block is as it was written, and writes the next number.
    fn update(&self, written: &Written, began: Instant) -> Updated {
        let age = began.since(written.at);
        let is_late = age > Duration::from_secs(written.mmp.check_interval().into());
        let block = match self.check(written) {
            Ok(block) => block,
            Err(error @ FsError::Stopped(_)) => return Updated::Lost(cause_of(error)),
            Err(error) if is_late => return Updated::Lost(cause_of(error)),
            Err(error) => return Updated::Failed(error, written.tried.clone()),
        };
        let mut next = written.mmp.clone();
        next.set_seq(next_seq(next.seq()));
        next.set_time(wall_clock().secs);
        let measured = u16::try_from(2 * age.as_secs()).unwrap_or(CHECK_INTERVAL_MAX);
        next.set_check_interval(measured.clamp(CHECK_INTERVAL_MIN, CHECK_INTERVAL_MAX));
        match self.place.write(block, &next) {
            Ok(()) => Updated::Done(Written {
                mmp: next,
                at: began,
                tried: None,
            }),
            Err(error) => Updated::Failed(error, Some(next)),
        }
    }

    /// Reads the block, which must be as this node wrote it.
    ///
    /// # Errors
    /// `Stopped`: another node has written it. It cannot be read.
    fn check(&self, written: &Written) -> Result<Buf> {
        let (found, block) = self.place.read()?;
        let tried = written.tried.as_ref();
        let is_own = found.is_same_write(&written.mmp)
            || tried.is_some_and(|tried| found.is_same_write(tried));
        match is_own {
            true => Ok(block),
            false => Err(FsError::Stopped(format!(
                "another node writes the volume, too: {} (multiple-mount protection)",
                found.writer()
            ))),
        }
    }

    /// Marks the block clean, if it is as this node wrote it.
    fn mark_clean(&self) -> Result<()> {
        let written = self.state.lock().written.clone();
        let block = self.check(&written)?;
        let mut clean = written.mmp;
        clean.set_seq(SEQ_CLEAN);
        clean.set_time(wall_clock().secs);
        self.place.write(block, &clean)
    }
}

/// Whether the lock is taken afterwards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Take,
    Look,
}

impl Place {
    fn read(&self) -> Result<(Mmp, Buf)> {
        mmp::read(&self.queue, &self.geo, self.at).map_err(|error| match error {
            FsError::Corrupt(corruption) => corruption.with_hint(CLEAR).into(),
            error => error,
        })
    }

    /// Writes `mmp` into the block, whose bytes are `block`.
    fn write(&self, mut block: Buf, mmp: &Mmp) -> Result<()> {
        mmp.seal_into(self.geo.seed, block.make_mut());
        let at = self.geo.block_size.offset_of(self.at);
        let written = self.queue.write(at, vec![block], TAG);
        written.map_err(io_error)
    }

    /// Waits until it is certain that no node uses the volume whose block was `found`. Returns how long that was.
    fn wait_until_unused(&self, found: &Mmp, check: u16, attempt: Attempt) -> Result<Duration> {
        match found.usage() {
            Usage::Clean => return Ok(Duration::ZERO),
            Usage::Fsck => {
                return Err(FsError::InUse(format!(
                    "in use by a program of e2fsprogs (multiple-mount protection): {}; {CLEAR}",
                    found.writer()
                )));
            }
            Usage::Mounted | Usage::Unknown => {}
        }
        let wait = (2 * check + 1).min(check + WAIT_MAX);
        let whole = match attempt {
            Attempt::Take => 2 * wait,
            Attempt::Look => wait,
        };
        tracing::warn!(
            "the volume is in use, or was not unmounted, by {}: waiting for {whole} s to find out \
             (multiple-mount protection)",
            found.writer()
        );
        let wait = Duration::from_secs(wait.into());
        sleep(wait);
        let (again, _) = self.read()?;
        match again.seq() == found.seq() {
            true => Ok(wait),
            false => Err(in_use(&again)),
        }
    }
}

/// The error of a volume that a node has mounted.
fn in_use(mmp: &Mmp) -> FsError {
    FsError::InUse(format!(
        "in use by {} (multiple-mount protection): unmount it there",
        mmp.writer()
    ))
}

fn cause_of(error: FsError) -> String {
    match error {
        FsError::Stopped(cause) => cause,
        error => format!(
            "multiple-mount protection: whether another node has mounted the volume cannot be read: {error}"
        ),
    }
}

/// The number after `seq`.
fn next_seq(seq: u32) -> u32 {
    match seq {
        SEQ_MAX.. => 1,
        seq => seq + 1,
    }
}

/// The update interval of this node and the check interval of the one that wrote `found`, in seconds.
fn intervals(sb: &Superblock, found: &Mmp) -> Result<(u16, u16)> {
    let update = sb.mmp_update_interval();
    let check = update.max(CHECK_INTERVAL_MIN).max(found.check_interval());
    if update > UPDATE_INTERVAL_MAX || check > CHECK_INTERVAL_SANE {
        let what = format!(
            "multiple-mount protection: an update interval of {update} s and a check interval of {check} s, which no \
             program sets"
        );
        return Err(Corruption::new(what).with_hint(CLEAR).into());
    }
    Ok((update, check))
}

/// Makes sure that no node uses the volume, without taking its lock: before it is replaced as a whole. Waits for 11 s or
/// more if the volume was not unmounted.
///
/// # Errors
/// `InUse`. The block cannot be read; one without valid content protects nothing.
pub fn check_unused(queue: &Arc<Queue>, sb: &Superblock) -> Result<()> {
    let Some(at) = sb.mmp_block() else {
        return Ok(());
    };
    let place = Place {
        queue: Arc::clone(queue),
        geo: sb.geometry().clone(),
        at,
    };
    let read = place.read().and_then(|(found, _)| {
        let (_, check) = intervals(sb, &found)?;
        Ok((found, check))
    });
    match read {
        Ok((found, check)) => place
            .wait_until_unused(&found, check, Attempt::Look)
            .map(drop),
        Err(FsError::Corrupt(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

impl Ext4 {
    /// Keeps the lock until [`Ext4::release_node_lock`]. The volume stops if it is lost.
    pub(crate) fn keep_node_lock(&self, lock: &Arc<NodeLock>) {
        *self.node_lock.lock() = Some(Arc::clone(lock));
        let me = self.me.clone();
        lock.on_lost(Arc::new(move |cause: &str| {
            if let Some(fs) = me.upgrade() {
                fs.shut_down(cause);
            }
        }));
    }

    fn node_lock(&self) -> Option<Arc<NodeLock>> {
        self.node_lock.lock().clone()
    }

    /// The block of the lock is not updated until [`Ext4::resume_node_lock`].
    pub(crate) fn pause_node_lock(&self) {
        if let Some(lock) = self.node_lock() {
            lock.pause();
        }
    }

    /// Continues with the updates. The volume has stopped afterwards if another node has taken the lock.
    pub(crate) fn resume_node_lock(&self) {
        if let Some(lock) = self.node_lock() {
            lock.resume();
        }
    }

    /// Leaves the lock to a successor.
    pub(crate) fn leave_node_lock(&self) {
        if let Some(lock) = self.node_lock() {
            lock.leave();
        }
    }

    /// Releases the lock: this node does not write the volume any more.
    ///
    /// # Errors
    /// As [`NodeLock::release`].
    pub(crate) fn release_node_lock(&self) -> Result<()> {
        let lock = self.node_lock.lock().take();
        lock.map_or(Ok(()), |lock| lock.release())
    }
}

#[cfg(test)]
mod tests;
