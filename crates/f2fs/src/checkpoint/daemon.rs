//! Checkpoint merging (`checkpoint_merge`): concurrent requests share one checkpoint, written by the task `f2fs_ckpt`
//! with an I/O priority of its own (`ckpt_thread_ioprio`).
//!
//! **Rule.** A request is answered only by a checkpoint that began after the request was queued: the task takes the
//! whole list, then begins. Later requests belong to the next checkpoint, so a request waits for at most two.
//!
//! **Group commit.** Two tasks that fsync in a loop miss each other: each requests a checkpoint just after that of the
//! other began, and waits for two. So the task waits briefly for the usual requesters before it takes the list
//! ([`steadfs_cache::wait_for_callers`]), at most `max_batch_time`. A lone requester never waits.
//!
//! **No task.** Without the task a requester writes the checkpoint itself, and the caller that stops the task serves
//! what is left on the list, so each request is answered. A task that holds what a checkpoint or its waiters need
//! (mount, unmount, remount, freeze, GC) calls [`F2fs::checkpoint`] directly.
//!
//! **Alone.** A request that finds the list empty and no batch in progress is served in the requester's thread, with
//! the task's tag, which alone decides the order of I/O. So a single fsync costs the same as without merging and wakes
//! no thread; a batch wakes the task, and the task its waiters. Requests that the requester waited for are served with
//! its own.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use steadfs_base::{GroupId, IoPrio, IoTag, OwnerId, PrioClass, Urgency};
use steadfs_cache::{BatchedCommit, CommitBatch, wait_for_callers};
use steadfs_rt::cpu::ThreadIoPrio;
use steadfs_rt::waits::{self, WaitStep};
use steadfs_rt::{
    Condvar, Event, Instant, JoinHandle, Mutex, MutexGuard, OnUnwind, PANICKED, Rank, fault_point,
    inherit, now, sleep, try_spawn,
};
use steadfs_vfs::{FsError, Result};

use super::boost::boosted_tag;
use super::state::Reason;
use super::steps::SLOW;
use crate::fs::F2fs;

/// Interval at which `flush` checks whether all requests are answered, as in the kernel.
const POLL: Duration = Duration::from_millis(20);
/// Longest wait for more requesters, unless it is set (`max_batch_time`).
const BATCH_WAIT: Duration = Duration::from_millis(15);
/// Levels of an I/O priority class: 0 (highest) to 7.
const IO_PRIO_LEVELS: u8 = 8;
/// Upper bounds of the histogram of waits, in milliseconds; the last class has none.
pub const CLASSES: [u64; 9] = [1, 3, 10, 30, 100, 300, 1000, 3000, 10_000];
/// Upper bounds of the histogram of batch sizes; the last class has none.
pub const BATCHES: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];

/// A request that waits for a checkpoint.
struct Request {
    tag: IoTag,
    queued: Instant,
    done: Event<Result<()>>,
}

struct MergeState {
    /// The task runs.
    running: bool,
    /// I/O priority of the task.
    prio: IoPrio,
    /// A batch is being served, or its leader waits for more requests.
    busy: bool,
    requests: Vec<Arc<Request>>,
    /// Group commit: the usual requesters.
    batch: CommitBatch,
    /// `max_batch_time`: longest wait for them.
    max_batch: Duration,
    /// Waits for them, and their time.
    batch_waits: u64,
    batch_waited: Duration,
}

impl BatchedCommit for MergeState {
    fn batch(&mut self) -> &mut CommitBatch {
        &mut self.batch
    }

    fn callers(&self) -> u32 {
        count(&self.requests)
    }

    fn is_stopping(&self) -> bool {
        !self.running
    }
}

fn count(requests: &[Arc<Request>]) -> u32 {
    u32::try_from(requests.len()).unwrap_or(u32::MAX)
}

/// The thread that serves a request.
enum ServedBy {
    /// There is no task.
    NoTask,
    /// The requester itself.
    Requester(Arc<Request>),
    Task(Arc<Request>),
}

/// Counters of checkpoint merging. Times in milliseconds, where no other unit is stated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Requests not answered yet.
    pub queued: u64,
    /// Checkpoints written for requests.
    pub issued: u64,
    /// Requests answered.
    pub total: u64,
    /// Sum of their waits.
    pub waited: u64,
    /// Mean wait of the last batch.
    pub cur_time: u64,
    /// The largest of those means.
    pub peak_time: u64,
    /// The largest batch.
    pub largest: u64,
    /// Checkpoints that waited for more requests before they began, and the time of these waits in microseconds.
    pub batch_waits: u64,
    pub batch_waited_us: u64,
    /// Histogram of waits.
    pub waits: [u64; CLASSES.len() + 1],
    /// Histogram of batch sizes.
    pub batches: [u64; BATCHES.len() + 1],
}

/// The task and its queue of requests.
pub struct Daemon {
    state: Mutex<MergeState>,
    wake: Condvar,
    /// Wakes a leader that waits for more requests.
    batch_full: Condvar,
    task: Mutex<Option<JoinHandle<()>>>,
    queued: AtomicU64,
    stats: Mutex<MergeStats>,
}

impl Daemon {
    pub fn new() -> Self {
        let state = MergeState {
            running: false,
            prio: IoPrio::best_effort(3),
            busy: false,
            requests: Vec::new(),
            batch: CommitBatch::default(),
            max_batch: BATCH_WAIT,
            batch_waits: 0,
            batch_waited: Duration::ZERO,
        };
        Self {
            state: Mutex::new(Rank::Leaf, state),
            wake: Condvar::new(),
            batch_full: Condvar::new(),
            task: Mutex::new(Rank::Leaf, None),
            queued: AtomicU64::new(0),
            stats: Mutex::new(Rank::Leaf, MergeStats::default()),
        }
    }

    /// Starts the task unless it runs.
    ///
    /// # Errors
    /// No thread can be created.
    pub fn start(self: &Arc<Self>, fs: Weak<F2fs>) -> io::Result<()> {
        // Held until the thread exists, so that no request is queued for a task that does not start.
        let mut state = self.state.lock();
        if state.running {
            return Ok(());
        }
        let this = Arc::clone(self);
        let task = try_spawn("f2fs_ckpt", move || this.run(&fs))?;
        state.running = true;
        drop(state);
        *self.task.lock() = Some(task);
        Ok(())
    }

    /// The volume is dropped: the task ends by itself.
    pub fn abandon(&self) {
        self.state.lock().running = false;
        self.wake.notify_all();
        self.batch_full.notify_all();
    }

    /// Ends the task after its batch; the caller serves what is left.
    pub fn stop(&self, fs: &F2fs) {
        self.abandon();
        let task = self.task.lock().take();
        if let Some(task) = task {
            // A panic of the task has aborted the volume already.
            let _ = task.join_panicked();
        }
        self.flush(fs);
    }

    /// Serves the queued requests, and waits for the batch in progress.
    pub fn flush(&self, fs: &F2fs) {
        let left = std::mem::take(&mut self.state.lock().requests);
        if !left.is_empty() {
            self.serve(fs, left);
        }
        while self.queued.load(Ordering::Acquire) > 0 {
            sleep(POLL);
        }
    }

    pub fn is_running(&self) -> bool {
        self.state.lock().running
    }

    pub fn prio(&self) -> IoPrio {
        self.state.lock().prio
    }

    /// Sets the task's I/O priority; it is kept while there is no task.
    pub fn set_prio(&self, prio: IoPrio) {
        self.state.lock().prio = prio;
        // The daemon passes it on to the host.
        self.wake.notify_all();
    }

    /// Longest wait for more requests.
    pub fn max_batch(&self) -> Duration {
        self.state.lock().max_batch
    }

    /// Sets the longest wait for more requests; zero: none. A wait in progress keeps its limit.
    pub fn set_max_batch(&self, limit: Duration) {
        self.state.lock().max_batch = limit;
    }

    pub fn stats(&self) -> MergeStats {
        let stats = self.stats.lock().clone();
        let queued = self.queued.load(Ordering::Acquire);
        let state = self.state.lock();
        MergeStats {
            queued,
            batch_waits: state.batch_waits,
            batch_waited_us: u64::try_from(state.batch_waited.as_micros()).unwrap_or(u64::MAX),
            ..stats
        }
    }

    /// Creates a request and queues it, unless the requester serves it.
    fn enqueue(&self, tag: IoTag) -> ServedBy {
        let request = Arc::new(Request {
            tag,
            queued: now(),
            done: Event::new(),
        });
        let mut state = self.state.lock();
        if !state.running {
            return ServedBy::NoTask;
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        state.requests.push(Arc::clone(&request));
        let callers = state.callers();
        assert!(
            u64::from(callers) <= self.queued.load(Ordering::Acquire),
            "each request on the list is counted"
        );
        if !state.busy && callers == 1 {
            state.busy = true;
            return ServedBy::Requester(request);
        }
        if state.batch.joined(callers) {
            self.batch_full.notify_one();
        }
        // The thread that serves the batch in progress checks the list when it has ended.
        let free = !state.busy;
        drop(state);
        if free {
            self.wake.notify_one();
        }
        ServedBy::Task(request)
    }

    /// Waits briefly for the usual requesters (group commit) and takes the list. The caller has set `busy`. The list is
    /// empty if [`Daemon::flush`] took it meanwhile.
    fn take_batch(&self, state: &mut MutexGuard<'_, MergeState>) -> Vec<Arc<Request>> {
        assert!(state.busy, "one leader at a time waits for requests");
        let limit = state.max_batch;
        if let Some(waited) = wait_for_callers(&self.batch_full, state, limit) {
            state.batch_waits += 1;
            state.batch_waited += waited;
        }
        std::mem::take(&mut state.requests)
    }

    /// Serves a batch of [`Daemon::take_batch`], and records it as the last one.
    fn serve_batch(&self, fs: &F2fs, batch: Vec<Arc<Request>>) {
        if batch.is_empty() {
            return self.served();
        }
        let (served, began) = (count(&batch), now());
        self.serve(fs, batch);
        {
            let mut state = self.state.lock();
            assert!(state.busy, "the leader serves until the batch has ended");
            let waiting = state.callers();
            state
                .batch
                .commit_ended(served, waiting, began.elapsed(), now());
        }
        self.served();
    }

    /// A batch has been served; the task is woken for the next one.
    fn served(&self) {
        let mut state = self.state.lock();
        state.busy = false;
        let more = !state.requests.is_empty();
        drop(state);
        if more {
            self.wake.notify_one();
        }
    }

    /// Writes one checkpoint and answers all requests of `batch` with its result.
    fn serve(&self, fs: &F2fs, batch: Vec<Arc<Request>>) {
        assert!(!batch.is_empty(), "a batch has a request");
        let tag = IoTag {
            urgency: Urgency::Checkpoint,
            prio: self.prio(),
            group: GroupId(0),
            owner: OwnerId(0),
        };
        // The daemon's tag, or that of a requester with a better I/O class.
        let better = |tag, request: &Arc<Request>| {
            fs.queue
                .effective_tag(tag, boosted_tag(tag, request.tag, true))
        };
        let tag = batch.iter().fold(tag, better);
        // Changes that the checkpoint has to wait for inherit this tag.
        let _task_tag = inherit::set_task_tag(tag);
        let requesters: Vec<IoTag> = batch.iter().map(|request| request.tag).collect();
        let guard = OnUnwind::new(|| {
            fs.abort_for_panic();
            for request in &batch {
                request.done.set(Err(FsError::Stopped(PANICKED.to_owned())));
            }
            self.queued.fetch_sub(batch.len() as u64, Ordering::AcqRel);
            self.served();
        });
        let result = fs.checkpoint_for_requesters(Reason::Sync, tag, &requesters);
        drop(guard);
        let ended = now();
        let wait = |request: &Arc<Request>| millis(ended.since(request.queued));
        let waits: Vec<u64> = batch.iter().map(wait).collect();
        let count = batch.len() as u64;
        for request in batch {
            request.done.set(result.clone());
        }
        {
            let mut stats = self.stats.lock();
            stats.issued += 1;
            stats.total += count;
            let sum = waits.iter().sum::<u64>();
            stats.waited += sum;
            stats.cur_time = sum / count;
            stats.peak_time = stats.peak_time.max(stats.cur_time);
            stats.largest = stats.largest.max(count);
            stats.batches[BATCHES.partition_point(|most| *most < count)] += 1;
            for wait in waits {
                stats.waits[CLASSES.partition_point(|end| *end <= wait)] += 1;
            }
            debug_assert!(
                stats.batches.iter().sum::<u64>() == stats.issued
                    && stats.waits.iter().sum::<u64>() == stats.total,
                "each batch and each wait is in one class"
            );
        }
        let queued = self.queued.fetch_sub(count, Ordering::AcqRel);
        assert!(queued >= count, "a request is counted until it is answered");
    }

    /// Waits for requests; `None` when the task has to end.
    fn next(&self, thread_prio: &mut ThreadIoPrio) -> Option<Vec<Arc<Request>>> {
        let mut state = self.state.lock();
        loop {
            if !state.running {
                return None;
            }
            if !thread_prio.is(state.prio) {
                let prio = state.prio;
                drop(state);
                thread_prio.set(prio);
                state = self.state.lock();
                continue;
            }
            if !state.requests.is_empty() && !state.busy {
                state.busy = true;
                return Some(self.take_batch(&mut state));
            }
            self.wake.wait_idle(&mut state);
        }
    }

    fn run(&self, fs: &Weak<F2fs>) {
        // Requesters fail with the error of an aborted volume.
        let _guard = OnUnwind::new(|| {
            self.abandon();
            let left = std::mem::take(&mut self.state.lock().requests);
            self.queued.fetch_sub(left.len() as u64, Ordering::AcqRel);
            for request in left {
                request.done.set(Err(FsError::Stopped(PANICKED.to_owned())));
            }
        });
        let mut thread_prio = ThreadIoPrio::default();
        while let Some(batch) = self.next(&mut thread_prio) {
            match fs.upgrade() {
                Some(fs) => {
                    fault_point("f2fs.ckpt");
                    self.serve_batch(&fs, batch);
                }
                // Each requester holds the volume, so there is none.
                None => return,
            }
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl F2fs {
    /// Makes everything durable that was done before the call; merged with concurrent requests.
    ///
    /// # Errors
    /// As [`F2fs::checkpoint`].
    pub(crate) fn request_checkpoint(&self, tag: IoTag) -> Result<()> {
        self.checkpoints.count_call();
        let asked = now();
        let result = self.merge_or_checkpoint(tag);
        let waited = asked.elapsed();
        if waited >= SLOW {
            let steps = self.checkpoints.last_steps();
            let longest = steps.as_ref().and_then(|steps| steps.longest());
            let step = longest.map_or("none", |(name, _)| name);
            let waited = waited.as_millis();
            let warning = "a request for a checkpoint waited";
            let last = "the last one was longest in";
            let warning = format!("{warning} {waited} ms; {last} \"{step}\"");
            self.checkpoints.slow_waits.warn(warning);
        }
        result
    }

    /// The same without merging, for callers that the task may have to wait for.
    ///
    /// # Errors
    /// As [`F2fs::checkpoint`].
    pub(crate) fn checkpoint_unmerged(&self, tag: IoTag) -> Result<()> {
        self.checkpoints.count_call();
        self.checkpoint(Reason::Sync, tag)
    }

    fn merge_or_checkpoint(&self, tag: IoTag) -> Result<()> {
        let _step = waits::during(WaitStep::Checkpoint);
        let merge = {
            let options = self.options.read();
            // Only checkpoints of the same kind can be merged.
            options.checkpoint_merge && !options.fastboot
        };
        let served_by = match merge {
            true => self.daemon.enqueue(tag),
            false => ServedBy::NoTask,
        };
        let request = match served_by {
            ServedBy::NoTask => return self.checkpoint(Reason::Sync, tag),
            ServedBy::Requester(request) => {
                let batch = self.daemon.take_batch(&mut self.daemon.state.lock());
                self.daemon.serve_batch(self, batch);
                request
            }
            ServedBy::Task(request) => {
                // The request's own checkpoint begins after the one in flight.
                self.boost_checkpoint(tag);
                request
            }
        };
        request.done.wait()
    }
}

/// A priority in the format of `ckpt_thread_ioprio`.
pub fn show_prio(prio: IoPrio) -> String {
    debug_assert!(prio.level < IO_PRIO_LEVELS, "a class has eight levels");
    let class = match prio.class {
        PrioClass::RealTime => "rt",
        PrioClass::BestEffort => "be",
        PrioClass::Idle => "idle",
    };
    format!("{class},{}", prio.level)
}

/// Parses a value for `ckpt_thread_ioprio`: `rt,` or `be,` and a level from 0 to 7.
///
/// # Errors
/// Any other text.
pub fn parse_prio(text: &str) -> Result<IoPrio> {
    let bad = || FsError::BadOption(format!("{text:?} is not rt,LEVEL or be,LEVEL (0 to 7)"));
    let (class, level) = text.trim().split_once(',').ok_or_else(bad)?;
    let class = match class {
        "rt" => PrioClass::RealTime,
        "be" => PrioClass::BestEffort,
        _ => return Err(bad()),
    };
    let digits = !level.is_empty() && level.bytes().all(|byte| byte.is_ascii_digit());
    let level = level.parse().ok();
    let level = level
        .filter(|level| digits && *level < IO_PRIO_LEVELS)
        .ok_or_else(bad)?;
    Ok(IoPrio { class, level })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_priorities_round_trip() {
        for text in ["rt,3", "be,0", "be,7"] {
            assert_eq!(show_prio(parse_prio(text).unwrap()), text);
        }
        assert_eq!(parse_prio(" be,4\n"), Ok(IoPrio::best_effort(4)));
        for text in [
            "", "be", "be,", "be,8", "be,-1", "be,+1", "be,0x1", "idle,1", "3",
        ] {
            assert!(parse_prio(text).is_err(), "{text}");
        }
    }
}
