//! When dirty data is written: age, background limit, hard limit, before an fsync that is expected.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use steadfs_rt::{Condvar, Instant, JoinHandle, Mutex, OnUnwind, Rank, now, try_spawn};

use crate::early::Early;

/// WritebackReason data is written back now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritebackReason {
    /// Somebody waits for exactly this (fsync, sync, truncate).
    Sync,
    /// It has been dirty for long, or too much is dirty.
    Background,
    /// The writer has dirtied so much that it writes some itself.
    Throttle,
    /// An fsync of it is expected soon ([`Writeback::wrote`]).
    Early,
}

/// What the flusher asks of a file system.
pub trait Backing: Send + Sync {
    /// Writes the files' dirty data (at least much of it). Errors are kept by the mappings, which
    /// stay dirty; such files are tried again later.
    fn write_out(&self, files: &[u64], why: WritebackReason);
    /// Called once a period: metadata that ages outside a journal is written here.
    fn tick(&self);
    /// The flusher has panicked, perhaps with blocks in flight that will never land: the volume stops.
    fn panicked(&self);
}

/// Limits and periods of write-back.
#[derive(Clone, Debug)]
pub struct WritebackOptions {
    /// Above this many dirty bytes the flusher writes whatever their age.
    pub background: u64,
    /// Above this many dirty bytes heavy writers write their own data before they go on.
    pub hard: u64,
    /// Data older than this is written.
    pub age: Duration,
    /// How often the flusher looks.
    pub period: Duration,
}

impl WritebackOptions {
    /// Limits for a cache of `bytes`: background at a quarter of it, hard at a half.
    pub fn for_cache(bytes: u64) -> Self {
        Self {
            background: bytes / 4,
            hard: bytes / 2,
            age: Duration::from_secs(30),
            period: Duration::from_secs(5),
        }
    }
}

/// The end of an epoch of dirtying: separates data that was dirty by then from data dirtied later.
///
/// Whatever writes "all that is dirty" (fsync, sync, a round of the flusher, a throttled writer) ends an epoch when it
/// begins and writes what is older. So it ends, however fast others write on, and also where they write the same blocks
/// again: a block has the epoch in which it became dirty until a write of it has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyEpoch(u64);

impl DirtyEpoch {
    /// Everything, whenever it became dirty: for a caller that keeps writers out.
    pub const ALL: Self = Self(u64::MAX);

    /// Whether what became dirty in the epoch numbered `since` was dirty by the end of this one.
    pub(crate) fn contains(self, since: u64) -> bool {
        since < self.0
    }
}

/// A file as the flusher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyFile(pub u64);

struct Entry {
    since: Instant,
    bytes: u64,
}

#[derive(Default)]
struct State {
    files: BTreeMap<u64, Entry>,
    bytes: u64,
    kicked: bool,
    /// Files that are to be written early.
    early: Vec<u64>,
    stop: bool,
    /// Somebody holds the flusher: it is to begin nothing.
    held: bool,
    /// The flusher is at its work.
    at_work: bool,
}

/// What the flusher was woken for.
enum Turn {
    /// The period is over, or there is too much dirt.
    Round,
    /// These files are to be written early.
    Early(Vec<u64>),
}

/// A flusher that begins nothing as long as this lives: see [`Writeback::hold`].
pub struct ParkedFlusher<'a>(&'a Writeback);

impl Drop for ParkedFlusher<'_> {
    fn drop(&mut self) {
        self.0.state.lock().held = false;
        self.0.wake.notify_all();
    }
}

/// Dirty totals of a volume, and its flusher.
pub struct Writeback {
    options: WritebackOptions,
    state: Mutex<State>,
    early: Early,
    /// Number of the present epoch.
    epoch: AtomicU64,
    wake: Condvar,
    /// The flusher has ended what it had under way.
    rests: Condvar,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

impl Writeback {
    /// No dirt, no flusher yet.
    pub fn new(options: WritebackOptions) -> Self {
        Self {
            options,
            state: Mutex::new(Rank::Dirty, State::default()),
            early: Early::new(),
            epoch: AtomicU64::new(0),
            wake: Condvar::new(),
            rests: Condvar::new(),
            flusher: Mutex::new(Rank::Leaf, None),
        }
    }

    /// Starts the flusher's task over `backing`; again after [`Writeback::stop`].
    ///
    /// # Errors
    /// The host refuses another thread: there is no flusher.
    pub fn start(self: &Arc<Self>, backing: Weak<dyn Backing>) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.stop = false;
            state.early.clear();
        }
        let this = Arc::clone(self);
        let task = try_spawn("flusher", move || this.run(&backing))?;
        let before = self.flusher.lock().replace(task);
        assert!(before.is_none(), "one flusher a volume");
        Ok(())
    }

    /// Waits until the flusher has ended what it has under way; it begins nothing more until the result is
    /// dropped. For who may want it again: a new one the host may refuse.
    #[must_use]
    pub fn park(&self) -> ParkedFlusher<'_> {
        let mut state = self.state.lock();
        state.held = true;
        while state.at_work {
            self.rests.wait(&mut state);
        }
        ParkedFlusher(self)
    }

    /// Stops the flusher and waits for it. What is dirty stays dirty.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
        let task = self.flusher.lock().take();
        if let Some(task) = task {
            // One that panicked has stopped the volume, which the caller finds.
            let _ = task.join_panicked();
        }
    }

    /// Lets the flusher look now, not at the end of its period.
    pub fn kick(&self) {
        self.state.lock().kicked = true;
        self.wake.notify_all();
    }

    /// Ends the present epoch.
    pub fn end_epoch(&self) -> DirtyEpoch {
        DirtyEpoch(self.epoch.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// The number of the present epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Bytes that are dirty or in flight.
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// Files with dirty data, the longest dirty first.
    pub fn dirty_files(&self) -> Vec<u64> {
        let state = self.state.lock();
        let mut files: Vec<(Instant, u64)> =
            state.files.iter().map(|(&ino, e)| (e.since, ino)).collect();
        files.sort_unstable();
        files.into_iter().map(|(_, ino)| ino).collect()
    }

    /// Up to `count` files near `file` by number, the nearest first above and below in turn, of which
    /// each has at most `bytes` dirty, for at least `age`. None unless `file` has been dirty for so long.
    pub(crate) fn close_files(
        &self,
        file: DirtyFile,
        age: Duration,
        bytes: u64,
        count: usize,
    ) -> Vec<u64> {
        let now = now();
        let state = self.state.lock();
        let settled = |e: &Entry| now.since(e.since) >= age;
        if count == 0 || !state.files.get(&file.0).is_some_and(settled) {
            return Vec::new();
        }
        let fits = |(_, e): &(&u64, &Entry)| settled(e) && e.bytes <= bytes;
        let above = state.files.range(file.0 + 1..).take(2 * count).filter(fits);
        let below = state
            .files
            .range(..file.0)
            .rev()
            .take(2 * count)
            .filter(fits);
        let (mut above, mut below) = (above.map(|(&n, _)| n), below.map(|(&n, _)| n));
        let mut found = Vec::with_capacity(count);
        loop {
            let before = found.len();
            found.extend(above.by_ref().take(1));
            found.extend(below.by_ref().take(1));
            if found.len() == before || found.len() >= count {
                found.truncate(count);
                return found;
            }
        }
    }

    /// `bytes` more of `file` are dirty.
    pub(crate) fn dirtied(&self, file: &DirtyFile, bytes: u64) {
        let mut state = self.state.lock();
        let entry = state.files.entry(file.0).or_insert_with(|| Entry {
            since: now(),
            bytes: 0,
        });
        entry.bytes += bytes;
        state.bytes += bytes;
        if state.bytes > self.options.background && !state.kicked {
            state.kicked = true;
            drop(state);
            self.wake.notify_all();
        }
    }

    /// `bytes` of `file` are clean; `all`: the file has no dirty and no flying block left.
    pub(crate) fn cleaned(&self, file: &DirtyFile, bytes: u64, all: bool) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        if let Some(entry) = state.files.get_mut(&file.0) {
            entry.bytes -= bytes;
            if all {
                assert_eq!(entry.bytes, 0, "a clean file has no dirty bytes");
                state.files.remove(&file.0);
            }
        }
    }

    /// Whether the writer of `file` must write some of it back itself before it dirties more: the
    /// hard limit is passed and this file holds more than its share, so that a light writer is never
    /// held up by a heavy one; past twice the hard limit everybody must.
    pub fn must_throttle(&self, file: DirtyFile) -> bool {
        let state = self.state.lock();
        if state.bytes <= self.options.hard {
            return false;
        }
        let share = self.options.hard / (state.files.len() as u64 + 1);
        let own = state.files.get(&file.0).map_or(0, |e| e.bytes);
        own > share || (own > 0 && state.bytes > self.options.hard.saturating_mul(2))
    }

    /// These blocks of `file` are dirty now; `overwrites`: without growing it. Where what is known of the
    /// file says that an fsync will ask for them soon, the flusher writes them.
    pub fn record_write(&self, file: DirtyFile, blocks: Range<u64>, overwrites: bool) {
        if !self.early.record_write(file, blocks, overwrites) {
            return;
        }
        let mut state = self.state.lock();
        if !state.early.contains(&file.0) {
            state.early.push(file.0);
            // Who is woken under the lock may get it, and then the writer waits until he has run.
            drop(state);
            self.wake.notify_all();
        }
    }

    /// fsync is called for `file`.
    pub fn record_fsync(&self, file: DirtyFile) {
        self.early.record_fsync(file);
    }

    fn run(&self, backing: &Weak<dyn Backing>) {
        let _guard = OnUnwind::new(|| {
            if let Some(backing) = backing.upgrade() {
                backing.panicked();
            }
            self.state.lock().at_work = false;
            self.rests.notify_all();
        });
        let mut round = now() + self.options.period;
        loop {
            let Some(turn) = self.sleep(round) else {
                return;
            };
            let Some(backing) = backing.upgrade() else {
                return;
            };
            match turn {
                Turn::Early(files) => backing.write_out(&files, WritebackReason::Early),
                Turn::Round => {
                    backing.tick();
                    backing.write_out(&self.due(), WritebackReason::Background);
                    round = now() + self.options.period;
                }
            }
        }
    }

    /// Waits until the next round, or for something to do before it; `None` when told to stop.
    fn sleep(&self, round: Instant) -> Option<Turn> {
        let mut state = self.state.lock();
        state.at_work = false;
        if state.held {
            self.rests.notify_all();
        }
        while !state.stop {
            if state.held {
                self.wake.wait(&mut state);
                continue;
            }
            let left = round.since(now());
            if state.kicked || left.is_zero() {
                (state.kicked, state.at_work) = (false, true);
                return Some(Turn::Round);
            }
            if !state.early.is_empty() {
                state.at_work = true;
                return Some(Turn::Early(std::mem::take(&mut state.early)));
            }
            self.wake.wait_for(&mut state, left);
        }
        None
    }

    /// The files whose turn it is: the aged ones; above the background limit all, oldest first.
    fn due(&self) -> Vec<u64> {
        let over = self.dirty_bytes() > self.options.background;
        let now = now();
        let state = self.state.lock();
        let mut files: Vec<(Instant, u64)> = state
            .files
            .iter()
            .filter(|(_, e)| over || now.since(e.since) >= self.options.age)
            .map(|(&ino, e)| (e.since, ino))
            .collect();
        files.sort_unstable();
        files.into_iter().map(|(_, ino)| ino).collect()
    }
}

#[cfg(test)]
mod tests;
