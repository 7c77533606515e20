//! The fast transport: FUSE over io_uring (Linux 6.14).
//!
//! The kernel has a queue of requests for each CPU and puts a request on the queue of its caller's CPU. A service
//! thread that is pinned to that CPU serves it, so no request crosses to another CPU. A single system call replies to
//! the last request and fetches the next one.
//!
//! Each entry of a queue (the buffers of one request) belongs to a thread with its own ring: a thread that waits inside
//! the volume occupies its own entry and nothing else. The kernel gives a request to the entry that became free last,
//! so that few threads serve most requests, with warm CPU caches.
//!
//! A request that finds no free entry stays in the kernel until another request of its queue is replied to, even if an
//! entry is registered in the meantime (observed on 6.18). So a queue gets more entries while some are still free:
//! requests that wait for a slot ([`Admission`](crate::admission::Admission)) or for the device keep theirs. The limits
//! are [`QUEUE_ENTRIES_MAX`] and [`ENTRIES_MAX`]. Only threads that have an entry, or are about to, count; where one is
//! refused, the queue tries again each second.
//!
//! FORGET and INTERRUPT still come through `/dev/fuse`, and so does everything if registration fails.

mod entry;
mod ring;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use steadfs_rt::cpu::{PinnedThread, ServiceThreads};
use steadfs_rt::{Condvar, Event, Mutex, Rank, check_thread_limit, now};

use crate::admission::{Queued, Verdict, Waiter};
use crate::error::MountError;
use crate::reply::ReplyBuf;
use crate::transport::MountThreads;
use crate::wire;

use entry::{Entry, SMALL_PAYLOAD_BYTES};
use ring::{QUEUE_RINGS_MIN, Ring, entries_max, make_ring, prepared_rings};

pub use ring::{prepare_rings, refusal};

/// Entries, over all queues, that keep the memory of a large request.
const LARGE_ENTRIES_KEPT: usize = 16;
/// Entries with large requests above which queued writes are cut.
const LARGE_ENTRIES_QUEUED: usize = 64;

/// A queue with fewer free entries gets more (half its entries, if it has fewer than 32).
const FREE_ENTRIES_MIN: usize = 16;
/// Entries that a queue gets at a time.
const ENTRIES_STEP: usize = 4;
/// Largest number of entries of one queue, and of all queues; of a contained server fewer ([`entries_max`]).
const QUEUE_ENTRIES_MAX: usize = 512;
const ENTRIES_MAX: usize = 1024;
/// How long after a thread without an entry its queue tries to get more.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// A thread for each entry of the kernel's queues.
pub struct UringPool {
    mount_threads: Arc<MountThreads>,
    /// Makes busy service threads SCHED_IDLE, so that a woken caller keeps its CPU.
    idle_policy: Arc<ServiceThreads>,
    device: Arc<OwnedFd>,
    /// Entries that now hold the memory of a large request.
    large: AtomicUsize,
    queues: Vec<QueueThreads>,
    startup: Mutex<Startup>,
    started: Condvar,
}

/// Counts the threads of one of the kernel's queues.
struct QueueThreads {
    /// Requests in service.
    busy: AtomicUsize,
    /// Threads that have an entry or are about to register one.
    existing: AtomicUsize,
    /// When another attempt is due after a thread had no entry, in nanoseconds; 0: each had one.
    retry_at: AtomicU64,
}

impl QueueThreads {
    fn new(existing: usize) -> Self {
        Self {
            busy: AtomicUsize::new(0),
            existing: AtomicUsize::new(existing),
            retry_at: AtomicU64::new(0),
        }
    }

    /// Counts [`ENTRIES_STEP`] more threads, which the caller creates, if few are free and the queue may have more; returns
    /// whether it did. `all`: the threads of all queues.
    fn grow(&self, all: impl FnOnce() -> usize) -> bool {
        let existing = self.existing.load(Ordering::Relaxed);
        let free_min = FREE_ENTRIES_MIN.min(existing / 2);
        if self.busy.load(Ordering::Relaxed) + free_min < existing {
            return false;
        }
        let more = existing + ENTRIES_STEP;
        let retry_at = self.retry_at.load(Ordering::Relaxed);
        let too_early = retry_at > 0 && now().0 < retry_at;
        if too_early || more > QUEUE_ENTRIES_MAX || all() + ENTRIES_STEP > entries_max() {
            return false;
        }
        let order = Ordering::Relaxed;
        let counted = self.existing.compare_exchange(existing, more, order, order);
        counted.is_ok()
    }

    /// A counted thread has no entry.
    fn has_failed(&self) {
        self.existing.fetch_sub(1, Ordering::Relaxed);
        let retry_at = now() + REFUSED_PAUSE;
        self.retry_at.store(retry_at.0, Ordering::Relaxed);
    }
}

/// Number of threads for each queue. Leaves some of the process limit unused: other programs of this user or container
/// need threads, and unmounting does too.
fn threads_of_each(queues: u16, threads: usize) -> Result<usize, MountError> {
    const QUEUE_THREADS_MIN: usize = 4;
    const UNUSED_THREADS: usize = 8;
    let queues = usize::from(queues).max(1);
    let mut each = (threads / queues).clamp(QUEUE_THREADS_MIN, 64);
    while let Err(error) = check_thread_limit(each * queues + UNUSED_THREADS) {
        if each == QUEUE_THREADS_MIN {
            return Err(MountError::Uring(error.to_string()));
        }
        each = (each / 2).max(QUEUE_THREADS_MIN);
    }
    // The same for every queue: none gets its entries at the cost of another.
    let rings = prepared_rings().map_or(each, |rings| (rings / queues).max(QUEUE_RINGS_MIN));
    Ok(each.min(rings))
}

/// Progress of the threads' registration.
struct Startup {
    /// Threads that have neither registered their entry nor failed to.
    pending: usize,
    /// Entries registered, for each queue.
    registered: Vec<usize>,
    /// The first failure.
    failure: Option<std::io::Error>,
}

impl UringPool {
    /// Registers entries on `device` for each of the kernel's `queues`, about `threads` in all, or fewer if the process
    /// limit is lower.
    ///
    /// # Errors
    /// If a queue is left without an entry, the first cause: the kernel then serves no request, and the mount has to be
    /// ended.
    pub fn start(
        mount_threads: &Arc<MountThreads>,
        device: Arc<OwnedFd>,
        queues: u16,
        threads: usize,
    ) -> Result<(), MountError> {
        let each = threads_of_each(queues, threads)?;
        let startup = Startup {
            pending: each * usize::from(queues),
            registered: vec![0; usize::from(queues)],
            failure: None,
        };
        let pool = Arc::new(Self {
            mount_threads: mount_threads.clone(),
            idle_policy: ServiceThreads::new(),
            device,
            large: AtomicUsize::new(0),
            queues: (0..queues).map(|_| QueueThreads::new(each)).collect(),
            startup: Mutex::new(Rank::Leaf, startup),
            started: Condvar::new(),
        });
        for _ in 0..each {
            for queue in 0..queues {
                let worker = pool.clone();
                if let Err(error) = mount_threads.start("fuse-ring", move || worker.run(queue)) {
                    pool.registration_failed(queue, error);
                }
            }
        }
        let mut startup = pool.startup.lock();
        while startup.pending > 0 {
            pool.started.wait(&mut startup);
        }
        if startup.registered.iter().all(|&entries| entries > 0) {
            drop(startup);
            let monitor = steadfs_rt::try_spawn("fuse-watch", move || {
                if let Err(error) = pool.idle_policy.monitor() {
                    tracing::debug!(%error, "service threads stay SCHED_OTHER: callers may move between CPUs");
                }
            });
            return monitor
                .map(drop)
                .map_err(|error| MountError::Uring(error.to_string()));
        }
        // Unmounted before it was usable: the other transport would fail, too.
        let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(|e| Some(e.raw_os_error()));
        match startup.failure.take() {
            Some(error) if gone.contains(&error.raw_os_error()) => Err(MountError::ConnectionEnded),
            Some(error) => Err(MountError::Uring(error.to_string())),
            None => Err(MountError::Uring(String::new())),
        }
    }

    /// Adds entries to a queue if few of its entries are free.
    fn grow(self: &Arc<Self>, queue: u16) {
        let count = |one: &QueueThreads| one.existing.load(Ordering::Relaxed);
        let all = || self.queues.iter().map(count).sum();
        if !self.queues[usize::from(queue)].grow(all) {
            return;
        }
        for _ in 0..ENTRIES_STEP {
            self.startup.lock().pending += 1;
            let worker = self.clone();
            if let Err(error) = self
                .mount_threads
                .start("fuse-ring", move || worker.run(queue))
            {
                tracing::debug!(queue, %error, "cannot create another service thread");
                self.registration_failed(queue, error);
            }
        }
    }

    /// Records that a thread did not register its entry.
    fn registration_failed(&self, queue: u16, error: std::io::Error) {
        self.queues[usize::from(queue)].has_failed();
        let mut startup = self.startup.lock();
        startup.failure.get_or_insert(error);
        startup.pending -= 1;
        self.started.notify_all();
    }

    /// The loop of a service thread.
    fn run(self: &Arc<Self>, queue: u16) {
        let mut pinned = PinnedThread::pin(usize::from(queue))
            .inspect_err(|error| tracing::debug!(queue, %error, "cannot pin a service thread"))
            .ok();
        let (mut ring, mut entry) = match self.register(queue) {
            Ok(registered) => registered,
            Err(error) => return self.registration_failed(queue, error),
        };
        {
            let mut startup = self.startup.lock();
            startup.registered[usize::from(queue)] += 1;
            startup.pending -= 1;
            self.started.notify_all();
        }
        if let Err(error) = self.serve_queue(queue, &mut ring, &mut entry, pinned.as_mut()) {
            tracing::error!(queue, %error, "FUSE over io_uring failed");
            self.queues[usize::from(queue)].has_failed();
        }
    }

    /// Creates a ring and an entry, and registers the entry with the kernel.
    fn register(&self, queue: u16) -> std::io::Result<(Ring, Entry)> {
        let mut ring = make_ring()?;
        let mut entry = Entry::new(self.mount_threads.session.volume.config.payload_bytes())?;
        loop {
            entry.submit_register(&mut ring, &self.device, queue)?;
            ring.submit()?;
            // A refused command completes at once; an accepted one completes with a request.
            match entry.reap(&mut ring) {
                None => return Ok((ring, entry)),
                Some(Ok(())) => {
                    entry.arrived = true;
                    return Ok((ring, entry));
                }
                // The kernel has not processed INIT's reply yet.
                Some(Err(Errno::AGAIN)) => steadfs_rt::sleep(Duration::from_millis(1)),
                Some(Err(errno)) => return Err(errno.into()),
            }
        }
    }

    fn serve_queue(
        self: &Arc<Self>,
        queue: u16,
        ring: &mut Ring,
        entry: &mut Entry,
        mut pinned: Option<&mut PinnedThread>,
    ) -> std::io::Result<()> {
        let mut out = self.mount_threads.session.reply_buf();
        let busy = &self.queues[usize::from(queue)].busy;
        let mut thread = self.idle_policy.join();
        loop {
            match entry.wait(ring)? {
                Ok(()) => {}
                // A registration from before the kernel processed INIT's reply; its refusal may arrive late, from a
                // kernel worker.
                Err(Errno::AGAIN) => {
                    steadfs_rt::sleep(Duration::from_millis(1));
                    entry.submit_register(ring, &self.device, queue)?;
                    continue;
                }
                // Unmounted, or the connection was aborted.
                Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            let has_large_reply = entry.has_large_reply();
            if wire::waits_long(entry.in_header().opcode)
                || entry.has_large_payload()
                || has_large_reply
            {
                thread.before_long_request();
            }
            // On the CPU of its caller, unless copying the data takes longer than a migration to another CPU.
            if let Some(pinned) = &mut pinned
                && let Err(error) = pinned.set_pinned(!has_large_reply)
            {
                tracing::debug!(queue, %error, "cannot change the CPU affinity of a service thread");
            }
            busy.fetch_add(1, Ordering::Relaxed);
            self.grow(queue);
            self.serve(entry, &mut out);
            busy.fetch_sub(1, Ordering::Relaxed);
            self.bound_memory(entry);
            thread.before_reply();
            entry.submit_commit(ring, &self.device, queue)?;
        }
    }

    /// Serves an entry's request once it has a slot.
    fn serve(&self, entry: &mut Entry, out: &mut ReplyBuf) {
        let session = &self.mount_threads.session;
        let raw = entry.request();
        let header = raw.header;
        let Some(class) = session.class(&raw) else {
            return entry.serve(session, out);
        };
        let event = Arc::new(Event::new());
        let queued = || Queued::of(&header, Waiter::Thread(event.clone()));
        let slot = match session.admission.enter(class, header.uid, queued) {
            Some(slot) => slot,
            None => {
                session.was_queued(header.unique);
                entry.count_payload();
                self.count_large(entry);
                if self.large.load(Ordering::Relaxed) > LARGE_ENTRIES_QUEUED && entry.cut_write() {
                    self.bound_memory(entry);
                }
                match event.wait() {
                    Verdict::Admitted { slot, interrupted } => {
                        if interrupted {
                            out.served.interrupt(header.unique);
                        }
                        slot
                    }
                    Verdict::Interrupted => {
                        out.clear();
                        return entry.reply(out, -Errno::INTR.raw_os_error());
                    }
                }
            }
        };
        entry.serve(session, out);
        session.admission.leave(slot);
    }

    fn count_large(&self, entry: &mut Entry) {
        if entry.touched > SMALL_PAYLOAD_BYTES && !entry.large {
            entry.large = true;
            self.large.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets only [`LARGE_ENTRIES_KEPT`] entries keep the memory that large requests touched; the others release it as
    /// soon as a reply does not use it.
    fn bound_memory(&self, entry: &mut Entry) {
        self.count_large(entry);
        if entry.large
            && entry.used <= SMALL_PAYLOAD_BYTES
            && self.large.load(Ordering::Relaxed) > LARGE_ENTRIES_KEPT
        {
            entry.release_large();
            self.large.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Number of queues that the kernel has: one for each possible CPU.
pub fn queue_count() -> Option<u16> {
    parse_cpus(&std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?)
}

/// Number of CPUs in a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Option<u16> {
    let mut count = 0_u16;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue with one thread would keep every other request of its CPU waiting in the kernel.
    #[test]
    fn entries_that_failed_are_not_taken_for_free_ones() {
        let queue = QueueThreads::new(4);
        queue.busy.store(1, Ordering::Relaxed);
        assert!(!queue.grow(|| 4), "three are free");
        for _ in 0..3 {
            queue.has_failed();
        }
        assert!(!queue.grow(|| 1), "too early for another attempt");
        queue.retry_at.store(1, Ordering::Relaxed);
        assert!(queue.grow(|| 1));
        assert_eq!(queue.existing.load(Ordering::Relaxed), 1 + ENTRIES_STEP);
        assert!(!queue.grow(|| 1), "those are free");
        queue.busy.store(5, Ordering::Relaxed);
        assert!(!queue.grow(|| ENTRIES_MAX), "there are no more rings");
    }

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(parse_cpus("0-1\n"), Some(2));
        assert_eq!(parse_cpus("0"), Some(1));
        assert_eq!(parse_cpus("0-3,8,10-11"), Some(7));
        assert_eq!(parse_cpus("3-1"), None);
        assert_eq!(parse_cpus(""), None);
    }
}
