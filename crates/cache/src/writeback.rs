//! The flusher: when dirty data is written. By age, above the background limit, above the hard limit by the throttled
//! writer, and before an expected fsync (early write-back).

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use steadfs_rt::{Condvar, Instant, JoinHandle, Mutex, OnUnwind, Rank, now, try_spawn};
use steadfs_vfs::{Cx, Metrics, Result};

use crate::early::EarlyWriteback;

/// Why data is written back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WritebackReason {
    /// A task waits for it (fsync, sync, truncate).
    Sync,
    /// Its age, or the background limit.
    Background,
    /// The writer is throttled and writes its own data.
    Throttle,
    /// An fsync is expected soon ([`Writeback::record_write`]).
    Early,
}

/// The file system's side of the flusher.
pub trait Backing: Send + Sync {
    /// Writes the files' dirty data. It may leave some of it. Failed blocks stay dirty with their error in the mapping;
    /// the flusher tries such files again later.
    fn write_out(&self, files: &[u64], why: WritebackReason);
    /// Called once per period. Writes metadata that ages outside a journal.
    fn tick(&self);
    /// The flusher has panicked, perhaps with blocks in flight whose writes never complete: the volume aborts.
    fn panicked(&self);
}

/// Limits and periods of write-back.
#[derive(Clone, Debug)]
pub struct WritebackOptions {
    /// Above this many dirty bytes the flusher writes all files, whatever their age.
    pub background: u64,
    /// Above this many dirty bytes heavy writers are throttled: they write their own data first.
    pub hard: u64,
    /// The flusher writes files that have been dirty for longer.
    pub age: Duration,
    /// Time between two rounds of the flusher.
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

/// The end of a dirty epoch: separates data that was dirty before it from data dirtied later.
///
/// An operation that writes everything dirty (fsync, sync, a round of the flusher, a throttled writer) ends the epoch
/// when it begins and writes what is older. So it terminates (no livelock), however fast other tasks write, even to the
/// same blocks: a block keeps the epoch in which it became dirty until a write of it has succeeded. Linux tags pages
/// TOWRITE for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyEpoch(u64);

impl DirtyEpoch {
    /// Everything, whenever it became dirty: for a caller that excludes writers.
    pub const ALL: Self = Self(u64::MAX);

    /// Whether what became dirty in the epoch numbered `since` was dirty by the end of this one.
    pub(crate) fn contains(self, since: u64) -> bool {
        since < self.0
    }
}

/// A file's number in the flusher's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyFile(pub u64);

struct DirtyEntry {
    since: Instant,
    bytes: u64,
}

#[derive(Default)]
struct FlusherState {
    files: BTreeMap<u64, DirtyEntry>,
    bytes: u64,
    kicked: bool,
    /// Files that are to be written early.
    early: Vec<u64>,
    stop: bool,
    /// The flusher is parked: it begins no round.
    parked: bool,
    /// The flusher runs a round.
    running: bool,
}

/// What the flusher was woken for.
enum FlusherWork {
    /// The period is over, or the background limit is exceeded.
    Round,
    /// Early write-back of these files.
    Early(Vec<u64>),
}

/// A parked flusher: it begins no round while this guard lives. See [`Writeback::park`].
pub struct ParkedFlusher<'a>(&'a Writeback);

impl Drop for ParkedFlusher<'_> {
    fn drop(&mut self) {
        self.0.state.lock().parked = false;
        self.0.wake.notify_all();
    }
}

/// Dirty totals of a volume, and its flusher.
pub struct Writeback {
    options: WritebackOptions,
    state: Mutex<FlusherState>,
    early: EarlyWriteback,
    /// The number of the current epoch.
    epoch: AtomicU64,
    wake: Condvar,
    /// The flusher has finished a round.
    idle: Condvar,
    flusher: Mutex<Option<JoinHandle<()>>>,
}

impl Writeback {
    /// Without dirty data, and with no flusher yet.
    pub fn new(options: WritebackOptions) -> Self {
        Self {
            options,
            state: Mutex::new(Rank::Dirty, FlusherState::default()),
            early: EarlyWriteback::new(),
            epoch: AtomicU64::new(0),
            wake: Condvar::new(),
            idle: Condvar::new(),
            flusher: Mutex::new(Rank::Leaf, None),
        }
    }

    /// Starts the flusher's task over `backing`; again after [`Writeback::stop`].
    ///
    /// # Errors
    /// The thread cannot be created; then there is no flusher.
    pub fn start(self: &Arc<Self>, backing: Weak<dyn Backing>) -> io::Result<()> {
        {
            let mut state = self.state.lock();
            state.stop = false;
            state.early.clear();
        }
        let this = Arc::clone(self);
        let task = try_spawn("flusher", move || this.run(&backing))?;
        let before = self.flusher.lock().replace(task);
        assert!(before.is_none(), "a volume has one flusher");
        Ok(())
    }

    /// Waits until the flusher has finished its round; it begins no other until the guard is dropped. For callers that
    /// may need it again (a failed remount): creating a new thread can fail.
    #[must_use]
    pub fn park(&self) -> ParkedFlusher<'_> {
        let mut state = self.state.lock();
        state.parked = true;
        while state.running {
            self.idle.wait(&mut state);
        }
        ParkedFlusher(self)
    }

    /// Stops the flusher and waits for it. What is dirty stays dirty.
    pub fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
        let task = self.flusher.lock().take();
        if let Some(task) = task {
            // A flusher that panicked has aborted the volume; the caller gets that error.
            let _ = task.join_panicked();
        }
    }

    /// Wakes the flusher for a round before the end of its period.
    pub fn kick(&self) {
        self.state.lock().kicked = true;
        self.wake.notify_all();
    }

    /// Ends the current epoch.
    pub fn end_epoch(&self) -> DirtyEpoch {
        DirtyEpoch(self.epoch.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// The number of the current epoch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Bytes that are dirty or in flight.
    pub fn dirty_bytes(&self) -> u64 {
        self.state.lock().bytes
    }

    /// One JSON object.
    pub fn stats_json(&self) -> String {
        let (bytes, files) = self.dirty();
        format!("{{\"dirty_bytes\":{bytes},\"dirty_files\":{files}}}")
    }

    /// Adds the dirty data to the metrics of a mount.
    pub fn add_metrics(&self, metrics: &mut Metrics) {
        let (bytes, files) = self.dirty();
        let help = "Bytes of file data that are not on the device yet.";
        metrics.gauge("steadfs_dirty_bytes", help, &[], bytes);
        let help = "Files with data that is not on the device yet.";
        metrics.gauge("steadfs_dirty_files", help, &[], files);
    }

    /// Bytes that are dirty or in flight, and their files.
    fn dirty(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.bytes, state.files.len() as u64)
    }

    /// Files with dirty data, those dirty for the longest time first.
    pub fn dirty_files(&self) -> Vec<u64> {
        let state = self.state.lock();
        let mut files: Vec<(Instant, u64)> =
            state.files.iter().map(|(&ino, e)| (e.since, ino)).collect();
        files.sort_unstable();
        files.into_iter().map(|(_, ino)| ino).collect()
    }

    /// Up to `count` files whose numbers are close to `file`'s, alternately above and below it. Each has at most `bytes`
    /// dirty bytes, for at least `age`. Empty unless `file` itself has been dirty for `age`.
    pub(crate) fn close_files(
        &self,
        file: DirtyFile,
        age: Duration,
        bytes: u64,
        count: usize,
    ) -> Vec<u64> {
        let now = now();
        let state = self.state.lock();
        let settled = |e: &DirtyEntry| now.since(e.since) >= age;
        if count == 0 || !state.files.get(&file.0).is_some_and(settled) {
            return Vec::new();
        }
        let fits = |(_, e): &(&u64, &DirtyEntry)| settled(e) && e.bytes <= bytes;
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

    /// Counts `bytes` newly dirty bytes of `file`.
    pub(crate) fn dirtied(&self, file: &DirtyFile, bytes: u64) {
        let mut state = self.state.lock();
        let entry = state.files.entry(file.0).or_insert_with(|| DirtyEntry {
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

    /// Counts `bytes` of `file` as clean; `all`: the file has no block left that is dirty or in flight.
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

    /// Whether the writer of `file` must write some of it back before it dirties more: the dirty bytes exceed the hard
    /// limit and this file has more than its share of them, so that a heavy writer never delays a light one. Above
    /// twice the hard limit every writer must.
    pub fn must_throttle(&self, file: DirtyFile) -> bool {
        self.to_write_back(file) == Some(file)
    }

    /// The file that the writer of `file` must write back: its own, or above twice the hard limit, if its own is clean, the
    /// one with the most dirty bytes.
    fn to_write_back(&self, file: DirtyFile) -> Option<DirtyFile> {
        let state = self.state.lock();
        let hard = self.options.hard;
        if state.bytes <= hard {
            return None;
        }
        let is_above = state.bytes > hard.saturating_mul(2);
        match state.files.get(&file.0) {
            Some(own) => {
                let share = hard / (state.files.len() as u64 + 1);
                (own.bytes > share || own.bytes > 0 && is_above).then_some(file)
            }
            None if is_above => {
                let heaviest = state.files.iter().max_by_key(|(_, entry)| entry.bytes);
                heaviest.map(|(&number, _)| DirtyFile(number))
            }
            None => None,
        }
    }

    /// Throttles a writer of `file`: writes back by `write_out` until it may dirty more.
    ///
    /// It is called before a write is accepted: if write-back fails, the write is refused and has taken nothing, so failed
    /// data, which stays dirty, cannot fill the memory. The limit is exceeded by one write of each writer.
    ///
    /// # Errors
    /// Those of `write_out`, or the caller is being killed.
    pub fn throttle(
        &self,
        cx: &Cx,
        file: DirtyFile,
        mut write_out: impl FnMut(DirtyFile) -> Result<()>,
    ) -> Result<()> {
        let Some(next) = self.to_write_back(file) else {
            return Ok(());
        };
        loop {
            cx.check_killed()?;
            write_out(next)?;
            // Once is enough of a file that is another writer's.
            if next != file || !self.must_throttle(file) {
                return Ok(());
            }
        }
    }

    /// Records that these blocks of `file` are dirty; `overwrites`: without growing it. If an fsync is expected soon by
    /// the file's history, the flusher writes them (early write-back).
    pub fn record_write(&self, file: DirtyFile, blocks: Range<u64>, overwrites: bool) {
        if !self.early.record_write(file, blocks, overwrites) {
            return;
        }
        let mut state = self.state.lock();
        if !state.early.contains(&file.0) {
            state.early.push(file.0);
            // Woken under the lock, the flusher could take it first, and the writer would wait for it.
            drop(state);
            self.wake.notify_all();
        }
    }

    /// Records an fsync of `file`.
    pub fn record_fsync(&self, file: DirtyFile) {
        self.early.record_fsync(file);
    }

    fn run(&self, backing: &Weak<dyn Backing>) {
        let _guard = OnUnwind::new(|| {
            if let Some(backing) = backing.upgrade() {
                backing.panicked();
            }
            self.state.lock().running = false;
            self.idle.notify_all();
        });
        let mut round = now() + self.options.period;
        loop {
            let Some(work) = self.sleep(round) else {
                return;
            };
            let Some(backing) = backing.upgrade() else {
                return;
            };
            match work {
                FlusherWork::Early(files) => backing.write_out(&files, WritebackReason::Early),
                FlusherWork::Round => {
                    backing.tick();
                    backing.write_out(&self.due(), WritebackReason::Background);
                    round = now() + self.options.period;
                }
            }
        }
    }

    /// Waits until the next round, or for earlier work; `None` after [`Writeback::stop`].
    fn sleep(&self, round: Instant) -> Option<FlusherWork> {
        let mut state = self.state.lock();
        state.running = false;
        if state.parked {
            self.idle.notify_all();
        }
        while !state.stop {
            if state.parked {
                self.wake.wait(&mut state);
                continue;
            }
            let left = round.since(now());
            if state.kicked || left.is_zero() {
                (state.kicked, state.running) = (false, true);
                return Some(FlusherWork::Round);
            }
            if !state.early.is_empty() {
                state.running = true;
                return Some(FlusherWork::Early(std::mem::take(&mut state.early)));
            }
            self.wake.wait_for(&mut state, left);
        }
        None
    }

    /// The files of the next round: those older than the age limit, or all above the background limit; oldest first.
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
