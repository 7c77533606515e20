//! The classic transport: requests are read from `/dev/fuse`, replies are written to it.
//!
//! Each thread has a descriptor of its own (FUSE_DEV_IOC_CLONE), so that threads do not share a queue of requests in
//! service. The broker keeps those descriptors, too: with the last one the kernel would fail the requests in service.
//! So a thread that exits leaves its descriptor to a later one. File data goes from the cache's blocks to the kernel with one writev.
//!
//! A request that finds no slot ([`Admission`](crate::admission::Admission)) is queued with its message, and the thread
//! reads the next one. Problem: a message holds up to 1 MiB. Rule: above [`QUEUED_BYTES_MAX`] of queued messages, a
//! buffered write is cut to its first [`SHORT_WRITE_BYTES`]; its caller continues after the short count.
//!
//! Where a thread is refused, the pool has as many slots as it has threads for ([`REFUSED_PAUSE`], [`STARTED_PAUSE`]).
//! Requests of rings have threads of their own, whatever happens here.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use steadfs_rt::{Mutex, Rank, now};
use steadfs_vfs::Segment;
use zerocopy::{FromBytes, IntoBytes};

use crate::admission::{Admission, Queued, Slot, Verdict, Waiter};
use crate::reply::Answer;
use crate::reply::ReplyBuf;
use crate::request::RawRequest;
use crate::sys;
use crate::transport::{MountThreads, SHORT_WRITE_BYTES, cut_write};
use crate::wire::{self, InHeader, OutHeader, WriteIn};

/// Read buffer beside the data of the largest WRITE: the kernel requires space for the headers; one page is enough.
const HEADER_BYTES: usize = 4096;
/// Pieces in one writev (Linux's UIO_MAXIOV is 1024).
const IOVECS_MAX: usize = 1000;
/// Bytes of queued messages above which writes are cut.
const QUEUED_BYTES_MAX: usize = 32 << 20;
/// How long after a refused thread the pool tries to create another, which gives it another slot.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
/// How long after a thread that was created then, until there are threads for all slots.
const STARTED_PAUSE: Duration = Duration::from_millis(10);
static ZEROS: [u8; 65536] = [0; 65536];

/// Threads that read the device.
pub struct DevPool {
    mount_threads: Arc<MountThreads>,
    device: Arc<OwnedFd>,
    /// Descriptors of threads that have exited.
    spare_devices: Mutex<Vec<Arc<OwnedFd>>>,
    threads: PoolThreads,
    /// Threads at the start. One exits after a request if more than these and two are idle.
    readers: usize,
    /// Bytes of queued messages.
    queued_bytes: AtomicUsize,
}

/// Counts the threads of a pool.
struct PoolThreads {
    existing: AtomicUsize,
    /// Those that wait for a request.
    idle: AtomicUsize,
    /// Largest number.
    max: usize,
    /// When another attempt is due after a thread was refused, in nanoseconds; 0: none was.
    retry_at: AtomicU64,
}

impl PoolThreads {
    fn new(max: usize) -> Self {
        Self {
            existing: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            max,
            retry_at: AtomicU64::new(0),
        }
    }

    /// Counts and starts another thread if fewer than `max` exist. If it is refused, the others continue. `follows`: whether
    /// this pool has the requests that need a slot.
    fn grow(
        &self,
        admission: &Admission,
        follows: bool,
        start: impl FnOnce() -> std::io::Result<()>,
    ) {
        let more = |n| (n < self.max).then_some(n + 1);
        let order = Ordering::Relaxed;
        if self.existing.fetch_update(order, order, more).is_err() {
            return;
        }
        self.idle.fetch_add(1, order);
        let started = start().inspect_err(|error| {
            tracing::debug!(%error, "cannot create another service thread");
            self.idle.fetch_sub(1, order);
            self.existing.fetch_sub(1, order);
        });
        if started.is_ok() && !self.was_refused() {
            return;
        }
        let threads = match follows {
            true => self.existing.load(order),
            false => usize::MAX,
        };
        let retry_at = match (admission.follow_threads(threads), started) {
            (true, _) => 0,
            (false, Ok(())) => (now() + STARTED_PAUSE).0,
            (false, Err(_)) => (now() + REFUSED_PAUSE).0,
        };
        self.retry_at.store(retry_at, order);
        // Another thread may have been refused meanwhile.
        if retry_at == 0 && !admission.has_all_slots() {
            self.retry_at.store((now() + REFUSED_PAUSE).0, order);
        }
    }

    /// All requests that need a slot come through rings from now on.
    fn leave_slots_to_rings(&self, admission: &Admission) {
        self.retry_at.store(0, Ordering::Relaxed);
        admission.follow_threads(usize::MAX);
    }

    /// Whether a thread was refused, and the pool has not yet as many as all slots need.
    fn was_refused(&self) -> bool {
        self.retry_at.load(Ordering::Relaxed) > 0
    }

    /// Counts a thread as busy. Returns whether the pool has to grow.
    fn begin(&self) -> bool {
        let was_last = self.idle.fetch_sub(1, Ordering::Relaxed) == 1;
        was_last || self.was_refused() && now().0 >= self.retry_at.load(Ordering::Relaxed)
    }

    /// Counts a thread as idle. Returns whether it is one too many: more than `readers` and two are.
    fn end(&self, readers: usize) -> bool {
        self.idle.fetch_add(1, Ordering::Relaxed) >= readers + 2 && !self.was_refused()
    }
}

impl DevPool {
    /// Starts `threads` readers of `device`, or as many as can be created. While all are busy, the pool grows to
    /// `threads_max`, which exceeds the number of slots.
    ///
    /// # Errors
    /// If not even one thread can be created.
    pub fn start(
        mount_threads: &Arc<MountThreads>,
        device: Arc<OwnedFd>,
        threads: usize,
        threads_max: usize,
    ) -> std::io::Result<Arc<Self>> {
        assert!(
            0 < threads && threads <= threads_max,
            "a pool has between 1 and threads_max threads"
        );
        let pool = Arc::new(Self {
            mount_threads: mount_threads.clone(),
            device,
            spare_devices: Mutex::new(Rank::Leaf, Vec::new()),
            threads: PoolThreads::new(threads_max),
            readers: threads,
            queued_bytes: AtomicUsize::new(0),
        });
        pool.start_readers()?;
        Ok(pool)
    }

    /// Starts the readers of a pool that has none.
    ///
    /// # Errors
    /// If not even one thread can be created.
    pub fn start_readers(self: &Arc<Self>) -> std::io::Result<()> {
        self.threads.existing.store(1, Ordering::Relaxed);
        self.threads.idle.store(1, Ordering::Relaxed);
        self.add()?;
        for _ in 1..self.readers {
            self.grow();
        }
        Ok(())
    }

    /// All requests that need a slot come through rings from now on: a thread that was refused costs them none.
    pub fn leave_slots_to_rings(self: &Arc<Self>) {
        let session = &self.mount_threads.session;
        self.threads.leave_slots_to_rings(&session.admission);
        self.serve_waiting();
    }

    /// Starts a reader that is already counted as existing and idle.
    fn add(self: &Arc<Self>) -> std::io::Result<()> {
        let pool = self.clone();
        self.mount_threads.start("fuse-dev", move || pool.run())
    }

    /// Starts another reader if the pool has not all that it may have.
    fn grow(self: &Arc<Self>) {
        let session = &self.mount_threads.session;
        self.threads
            .grow(&session.admission, !session.uses_uring(), || self.add());
    }

    /// Serves queued requests if there are slots for them: there may be more slots than before.
    fn serve_waiting(self: &Arc<Self>) {
        let admission = &self.mount_threads.session.admission;
        while let Some(waiting) = admission.next_waiting() {
            if self.threads.begin() {
                self.grow();
            }
            admission.serve(waiting);
            self.threads.end(self.readers);
        }
    }

    /// The loop of a reader.
    fn run(self: &Arc<Self>) {
        let device = self.take_device();
        let size = self.mount_threads.session.volume.config.max_request as usize + HEADER_BYTES;
        let mut message = vec![0; size];
        let mut out = self.mount_threads.session.reply_buf();
        let reader = self.mount_threads.register_reader();
        self.serve_waiting();
        while !self.mount_threads.are_parked() {
            let taken = reader.wait(|| rustix::io::read(&*device, &mut message[..]));
            let len = match taken {
                // Interrupted, or the kernel withdrew the request.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                // Unmounted, or the connection was aborted.
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => {
                    self.mount_threads.session.admission.close();
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "cannot read /dev/fuse");
                    break;
                }
                Ok(len) => len,
            };
            let slot = match self.admit(&device, &mut message, len) {
                Some(slot) => slot,
                None => continue,
            };
            // Any request may wait: even FORGET, when it frees a large file.
            if self.threads.begin() {
                self.grow();
            }
            self.serve_message(&device, &message[..len], &mut out);
            if let Some(slot) = slot {
                self.mount_threads.session.admission.leave(slot);
            }
            if self.threads.end(self.readers) {
                break;
            }
        }
        self.threads.idle.fetch_sub(1, Ordering::Relaxed);
        self.threads.existing.fetch_sub(1, Ordering::Relaxed);
        if !Arc::ptr_eq(&device, &self.device) {
            self.spare_devices.lock().push(device);
        }
    }

    /// A descriptor for a reader.
    fn take_device(&self) -> Arc<OwnedFd> {
        if let Some(spare) = self.spare_devices.lock().pop() {
            return spare;
        }
        match sys::clone_device(&self.device) {
            Ok(own) => Arc::new(own),
            // Without a descriptor of its own (the device file may be out of reach by now), the reader shares the first
            // one.
            Err(_) => self.device.clone(),
        }
    }

    /// Returns a slot for a message, `Some(None)` if it needs none, `None` if it was queued.
    fn admit(
        self: &Arc<Self>,
        device: &Arc<OwnedFd>,
        message: &mut Vec<u8>,
        len: usize,
    ) -> Option<Option<Slot>> {
        let session = &self.mount_threads.session;
        let Ok(raw) = RawRequest::from_message(&message[..len]) else {
            return Some(None);
        };
        let header = raw.header;
        let class = match session.class(&raw) {
            // All other requests come through io_uring; FORGET must not occupy their slots.
            Some(_) if wire::is_forget(header.opcode) && session.uses_uring() => return Some(None),
            Some(class) => class,
            None => return Some(None),
        };
        let queued = || {
            let (pool, device) = (Arc::clone(self), Arc::clone(device));
            let message = pool.copy_for_queue(message, len);
            let serve = move |verdict| pool.serve_queued(&device, &message, verdict);
            Queued::of(&header, Waiter::Message(Box::new(serve)))
        };
        let slot = session.admission.enter(class, header.uid, queued);
        if slot.is_none() {
            session.was_queued(header.unique);
        }
        slot.map(Some)
    }

    /// Copies a message that is to be queued. A large one takes the buffer itself.
    fn copy_for_queue(&self, message: &mut Vec<u8>, len: usize) -> Vec<u8> {
        let mut len = len;
        if self.queued_bytes.load(Ordering::Relaxed) + len > QUEUED_BYTES_MAX {
            len = cut_message(&mut message[..len]);
        }
        let own = if len > 2 * SHORT_WRITE_BYTES {
            let fresh = vec![0; message.len()];
            let mut own = std::mem::replace(message, fresh);
            own.truncate(len);
            own
        } else {
            message[..len].to_vec()
        };
        self.queued_bytes.fetch_add(len, Ordering::Relaxed);
        own
    }

    /// Serves a message that was queued.
    fn serve_queued(&self, device: &OwnedFd, message: &[u8], verdict: Verdict) {
        self.queued_bytes
            .fetch_sub(message.len(), Ordering::Relaxed);
        // Allocated anew: this is rare and cheap beside the wait.
        let mut out = self.mount_threads.session.reply_buf();
        match verdict {
            Verdict::Admitted { interrupted, .. } => {
                if interrupted && let Ok(raw) = RawRequest::from_message(message) {
                    out.served.interrupt(raw.header.unique);
                }
                self.serve_message(device, message, &mut out);
            }
            Verdict::Interrupted => {
                if let Ok(raw) = RawRequest::from_message(message)
                    && !wire::is_forget(raw.header.opcode)
                {
                    reply(device, raw.header.unique, Errno::INTR.raw_os_error(), &out);
                }
            }
        }
    }

    fn serve_message(&self, device: &OwnedFd, message: &[u8], out: &mut ReplyBuf) {
        match RawRequest::from_message(message) {
            Ok(raw) => self.serve(device, raw, out),
            Err(error) => tracing::error!(%error, "malformed request"),
        }
    }

    fn serve(&self, device: &OwnedFd, raw: RawRequest<'_>, out: &mut ReplyBuf) {
        let unique = raw.header.unique;
        let error = match self.mount_threads.session.serve(raw, out) {
            Answer::Silent => return,
            Answer::Done => 0,
            Answer::Error(errno) => {
                out.clear();
                errno.raw_os_error()
            }
        };
        reply(device, unique, error, out);
        out.ticket = None;
    }
}

/// Replies with an error number (0: none).
fn reply(device: &OwnedFd, unique: u64, error: i32, out: &ReplyBuf) {
    match send(device, unique, -error, out) {
        // The caller no longer waits for the reply.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(error) => tracing::error!(%error, "cannot write a reply to /dev/fuse"),
    }
}

/// Cuts a message to [`SHORT_WRITE_BYTES`] of data if it is a write that may be cut; returns its length.
fn cut_message(message: &mut [u8]) -> usize {
    let len = message.len();
    let Ok((header, body)) = InHeader::mut_from_prefix(message) else {
        return len;
    };
    if header.opcode != wire::opcode::WRITE || header.total_extlen != 0 {
        return len;
    }
    let Ok((write, _)) = WriteIn::mut_from_prefix(body) else {
        return len;
    };
    let left = len.saturating_sub(cut_write(write));
    // The message was not longer than its header states.
    header.len = left as u32;
    left
}

/// Writes one reply with a single writev, as the device requires.
fn send(device: &OwnedFd, unique: u64, error: i32, out: &ReplyBuf) -> Result<(), Errno> {
    let len = size_of::<OutHeader>() + out.len();
    let header = OutHeader {
        len: u32::try_from(len).map_err(|_| Errno::INVAL)?,
        error,
        unique,
    };
    if out.data.is_empty() {
        let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(&out.bytes)];
        return rustix::io::writev(device, &pieces).map(drop);
    }
    let segments = out.data.segments();
    let zeros: usize = segments
        .iter()
        .map(|s| match s {
            Segment::Bytes(..) => 0,
            Segment::Zeros(len) => len / ZEROS.len(),
        })
        .sum();
    if segments.len() + zeros > IOVECS_MAX {
        let data = out.data.to_vec();
        let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(&data)];
        return rustix::io::writev(device, &pieces).map(drop);
    }
    let mut pieces = Vec::with_capacity(2 + segments.len() + zeros);
    pieces.push(IoSlice::new(header.as_bytes()));
    pieces.push(IoSlice::new(&out.bytes));
    for segment in segments {
        match segment {
            Segment::Bytes(owner, range) => {
                pieces.push(IoSlice::new(&(**owner).as_ref()[range.clone()]));
            }
            Segment::Zeros(len) => {
                let mut left = *len;
                while left > 0 {
                    let part = left.min(ZEROS.len());
                    pieces.push(IoSlice::new(&ZEROS[..part]));
                    left -= part;
                }
            }
        }
    }
    rustix::io::writev(device, &pieces).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::{Class, max_in_service};

    /// Requests of one user that get a slot.
    fn admitted(admission: &Admission) -> usize {
        let header = InHeader::default();
        let queued = || Queued::of(&header, Waiter::Message(Box::new(|_| {})));
        let enter = || admission.enter(Class::Io, 1, queued);
        let slots: Vec<_> = std::iter::from_fn(enter).collect();
        admission.close();
        slots.len()
    }

    fn refused() -> std::io::Result<()> {
        Err(std::io::ErrorKind::WouldBlock.into())
    }

    #[test]
    fn slots_follow_the_threads_until_there_are_enough_for_all() {
        let (max, admission) = (max_in_service(128) + 1, Admission::new(128, |_| false));
        let threads = PoolThreads::new(max);
        threads.grow(&admission, true, || Ok(()));
        assert!(threads.begin(), "the last one is busy");
        threads.idle.fetch_add(9, Ordering::Relaxed);
        assert!(!threads.begin());
        threads.grow(&admission, true, refused);
        assert_eq!(admission.io_slots(), 1);
        assert!(!threads.begin(), "too early for another attempt");
        threads.retry_at.store(1, Ordering::Relaxed);
        assert!(threads.begin(), "another attempt is due");
        for _ in 1..12 {
            threads.grow(&admission, true, || Ok(()));
        }
        let few = admission.io_slots();
        assert!((2..6).contains(&few), "{few} slots, 12 threads");
        assert!(!threads.end(2), "a thread that was hard to get stays");
        threads.grow(&admission, true, refused);
        assert_eq!(admission.io_slots(), few);
        for _ in 12..max {
            threads.grow(&admission, true, || Ok(()));
        }
        assert_eq!((admission.io_slots(), threads.was_refused()), (64, false));
        assert!(threads.end(2));
        threads.existing.store(max - 1, Ordering::Relaxed);
        threads.grow(&admission, true, refused);
        assert!(admission.io_slots() > 60);
        threads.grow(&admission, true, || Ok(()));
        assert_eq!(admitted(&admission), 64);
    }

    #[test]
    fn requests_of_rings_have_all_slots_whichever_threads_are_refused() {
        let (threads, admission) = (PoolThreads::new(200), Admission::new(128, |_| false));
        threads.grow(&admission, true, || Ok(()));
        // INIT is read before it is known that requests will come through rings.
        threads.grow(&admission, true, refused);
        assert!(threads.was_refused() && admission.io_slots() == 1);
        threads.leave_slots_to_rings(&admission);
        assert_eq!((admission.io_slots(), threads.was_refused()), (64, false));
        threads.grow(&admission, false, refused);
        assert_eq!((admission.io_slots(), threads.was_refused()), (64, false));
    }
}
