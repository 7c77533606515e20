//! The fast transport: FUSE over io_uring (Linux 6.14).
//!
//! The kernel has a queue of requests for each CPU and puts a request on the queue of the CPU its
//! caller runs on; a thread of ours that is pinned there serves it, so that no request crosses to
//! another CPU. Taking the next request and replying to the last one is a single system call.
//!
//! A queue's entries (buffers that hold one request) each belong to a thread with a ring of its
//! own: a thread that waits inside the volume keeps its entry and nothing else. The kernel gives a
//! request to the entry that became free last, so as few threads as possible are warm.
//!
//! A request that finds no entry free stays in the kernel until another of its queue is replied to, even if an entry is
//! registered meanwhile (seen on 6.18). So a queue gets more entries while some are still free: requests that wait for a
//! slot ([`Admission`](crate::admission::Admission)) or for the device keep theirs. The limit is [`ENTRIES_MAX`].
//!
//! FORGET and INTERRUPT, and everything if registering fails, still come through `/dev/fuse`.

mod entry;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::IoUring;
use rustix::io::Errno;
use steadfs_rt::cpu::{PinnedThread, ServiceThreads};
use steadfs_rt::{Condvar, Event, Mutex, Rank, check_thread_limit};

use crate::admission::{Queued, Verdict, Waiter};
use crate::error::MountError;
use crate::reply::ReplyBuf;
use crate::transport::Crew;
use crate::wire;

use entry::{Entry, Ring, SMALL};

/// Entries of all queues that keep the memory of a large request.
const KEEP_LARGE: usize = 16;
/// Entries with large requests beyond which queued writes are cut.
const QUEUED_LARGE: usize = 64;

/// Entries of one queue that are free before it gets more, where it has many.
const SPARE: usize = 16;
/// Entries that a queue gets at a time.
const STEP: usize = 4;
/// Entries of one queue, and of all, at most.
const ENTRIES_MAX: (usize, usize) = (512, 1024);

/// Threads for each of the kernel's queues.
pub struct UringPool {
    crew: Arc<Crew>,
    service_threads: Arc<ServiceThreads>,
    device: Arc<OwnedFd>,
    /// Entries that hold the memory of a large request now.
    large: AtomicUsize,
    /// Requests that each queue's threads have now.
    busy: Vec<AtomicUsize>,
    /// Threads of each queue.
    threads: Vec<AtomicUsize>,
    start: Mutex<Start>,
    started: Condvar,
}

/// How many threads each queue gets. Those that a limit of processes allows are not all taken: others of this user or
/// container need some, unmounting too.
fn threads_of_each(queues: u16, threads: usize) -> Result<usize, MountError> {
    const LEAST: usize = 4;
    const SPARE: usize = 8;
    let queues = usize::from(queues).max(1);
    let mut each = (threads / queues).clamp(LEAST, 64);
    while let Err(error) = check_thread_limit(each * queues + SPARE) {
        if each == LEAST {
            return Err(MountError::Uring(error.to_string()));
        }
        each = (each / 2).max(LEAST);
    }
    Ok(each)
}

/// How far the threads have come.
struct Start {
    /// Threads that have neither registered their entry nor failed to.
    pending: usize,
    /// Entries registered, for each queue.
    registered: Vec<usize>,
    /// The first failure.
    failure: Option<std::io::Error>,
}

impl UringPool {
    /// Registers entries on `device` for each of the kernel's `queues`, about `threads` in all, or fewer where the
    /// host does not allow so many.
    ///
    /// # Errors
    /// If a queue is left without an entry, with the first cause: the kernel then serves nobody, and
    /// the mount has to be ended.
    pub fn start(
        crew: &Arc<Crew>,
        device: Arc<OwnedFd>,
        queues: u16,
        threads: usize,
    ) -> Result<(), MountError> {
        let each = threads_of_each(queues, threads)?;
        let start = Start {
            pending: each * usize::from(queues),
            registered: vec![0; usize::from(queues)],
            failure: None,
        };
        let pool = Arc::new(Self {
            crew: crew.clone(),
            service_threads: ServiceThreads::new(),
            device,
            large: AtomicUsize::new(0),
            busy: (0..queues).map(|_| AtomicUsize::new(0)).collect(),
            threads: (0..queues).map(|_| AtomicUsize::new(each)).collect(),
            start: Mutex::new(Rank::Leaf, start),
            started: Condvar::new(),
        });
        for _ in 0..each {
            for queue in 0..queues {
                let worker = pool.clone();
                if let Err(error) = crew.start("fuse-ring", move || worker.work(queue)) {
                    pool.failed(error);
                }
            }
        }
        let mut start = pool.start.lock();
        while start.pending > 0 {
            pool.started.wait(&mut start);
        }
        if start.registered.iter().all(|&entries| entries > 0) {
            drop(start);
            let monitor = steadfs_rt::try_spawn("fuse-watch", move || {
                if let Err(error) = pool.service_threads.monitor() {
                    tracing::debug!(%error, "service threads stay SCHED_OTHER: callers may move between CPUs");
                }
            });
            return monitor
                .map(drop)
                .map_err(|error| MountError::Uring(error.to_string()));
        }
        // Unmounted before it was usable: no reason to try another way.
        let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(|e| Some(e.raw_os_error()));
        match start.failure.take() {
            Some(error) if gone.contains(&error.raw_os_error()) => Err(MountError::ConnectionEnded),
            Some(error) => Err(MountError::Uring(error.to_string())),
            None => Err(MountError::Uring(String::new())),
        }
    }

    /// Gives a queue more entries if few are free.
    fn grow(self: &Arc<Self>, queue: u16) {
        let (busy, threads) = (
            &self.busy[usize::from(queue)],
            &self.threads[usize::from(queue)],
        );
        let there = threads.load(Ordering::Relaxed);
        if busy.load(Ordering::Relaxed) + SPARE.min(there / 2) < there {
            return;
        }
        let all: usize = self.threads.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        let more = there + STEP;
        if more > ENTRIES_MAX.0 || all + STEP > ENTRIES_MAX.1 {
            return;
        }
        let grown = threads.compare_exchange(there, more, Ordering::Relaxed, Ordering::Relaxed);
        if grown.is_err() {
            return;
        }
        for _ in 0..STEP {
            self.start.lock().pending += 1;
            let worker = self.clone();
            if let Err(error) = self.crew.start("fuse-ring", move || worker.work(queue)) {
                tracing::debug!(queue, %error, "no further ring entry");
                self.failed(error);
            }
        }
    }

    /// One of the threads that were to register an entry does not.
    fn failed(&self, error: std::io::Error) {
        let mut start = self.start.lock();
        start.failure.get_or_insert(error);
        start.pending -= 1;
        self.started.notify_all();
    }

    /// A thread's life.
    fn work(self: &Arc<Self>, queue: u16) {
        let mut pinned = PinnedThread::pin(usize::from(queue))
            .inspect_err(|error| tracing::debug!(queue, %error, "service thread is not pinned"))
            .ok();
        let (mut ring, mut entry) = match self.register(queue) {
            Ok(registered) => registered,
            Err(error) => return self.failed(error),
        };
        {
            let mut start = self.start.lock();
            start.registered[usize::from(queue)] += 1;
            start.pending -= 1;
            self.started.notify_all();
        }
        if let Err(error) = self.serve_queue(queue, &mut ring, &mut entry, pinned.as_mut()) {
            tracing::error!(queue, %error, "FUSE over io_uring");
        }
    }

    /// Makes a ring and an entry, and gives the entry to the kernel.
    fn register(&self, queue: u16) -> std::io::Result<(Ring, Entry)> {
        let mut ring = make_ring()?;
        let mut entry = Entry::new(self.crew.session.volume.config.max_request as usize)?;
        loop {
            entry.submit_register(&mut ring, &self.device, queue)?;
            ring.submit()?;
            // A command that is refused completes at once; one that is taken, with a request.
            match entry.take(&mut ring) {
                None => return Ok((ring, entry)),
                Some(Ok(())) => {
                    entry.arrived = true;
                    return Ok((ring, entry));
                }
                // INIT's reply is still on its way into the kernel.
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
        let mut out = self.crew.session.reply_buf();
        let busy = &self.busy[usize::from(queue)];
        let mut thread = self.service_threads.join();
        loop {
            match entry.wait(ring)? {
                Ok(()) => {}
                // The refusal of a registration that came before INIT's reply was in the kernel; it may
                // reach us late, from a worker of the kernel's.
                Err(Errno::AGAIN) => {
                    steadfs_rt::sleep(Duration::from_millis(1));
                    entry.submit_register(ring, &self.device, queue)?;
                    continue;
                }
                // Unmounted, or the connection was aborted.
                Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
            let fetches_much = entry.fetches_much();
            if wire::waits_long(entry.in_header().opcode) || entry.carries_much() || fetches_much {
                thread.before_long_request();
            }
            // On the CPU of its caller, unless the data to copy is worth the move to another CPU.
            if let Some(pinned) = &mut pinned
                && let Err(error) = pinned.set_pinned(!fetches_much)
            {
                tracing::debug!(queue, %error, "service thread stays where it may run");
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
        let session = &self.crew.session;
        let raw = entry.request();
        let header = raw.header;
        let Some(class) = session.class(&raw) else {
            return entry.serve(session, out);
        };
        let event = Arc::new(Event::new());
        let queued = || Queued {
            unique: header.unique,
            pid: header.pid,
            waiter: Waiter::Thread(event.clone()),
        };
        let slot = match session.admission.enter(class, header.uid, queued) {
            Some(slot) => slot,
            None => {
                entry.note_payload();
                self.count_large(entry);
                if self.large.load(Ordering::Relaxed) > QUEUED_LARGE && entry.cut_write() {
                    self.bound_memory(entry);
                }
                match event.wait() {
                    Verdict::Admitted(slot) => slot,
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
        if entry.touched > SMALL && !entry.large {
            entry.large = true;
            self.large.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets only [`KEEP_LARGE`] entries hold the memory that large requests touched; the others give
    /// it back as soon as a reply leaves it unused.
    fn bound_memory(&self, entry: &mut Entry) {
        self.count_large(entry);
        if entry.large && entry.used <= SMALL && self.large.load(Ordering::Relaxed) > KEEP_LARGE {
            entry.release_large();
            self.large.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn make_ring() -> std::io::Result<Ring> {
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(2)
}

/// Why this process cannot use io_uring as it has to be used here, if so.
pub fn refusal() -> Option<String> {
    make_ring().err().map(|error| error.to_string())
}

/// How many queues the kernel has: one for each CPU there could be.
pub fn queue_count() -> Option<u16> {
    parse_cpus(&std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?)
}

/// The number of CPUs in a list such as `0-3,8`.
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

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(parse_cpus("0-1\n"), Some(2));
        assert_eq!(parse_cpus("0"), Some(1));
        assert_eq!(parse_cpus("0-3,8,10-11"), Some(7));
        assert_eq!(parse_cpus("3-1"), None);
        assert_eq!(parse_cpus(""), None);
    }
}
