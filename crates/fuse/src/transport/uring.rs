//! The fast transport: FUSE over io_uring (Linux 6.14).
//!
//! The kernel has a queue of requests for each CPU and puts a request on the queue of the CPU its
//! caller runs on; a thread of ours that is pinned there serves it, so that no request crosses to
//! another CPU. Taking the next request and replying to the last one is a single system call.
//!
//! A queue's entries (buffers that hold one request) each belong to a thread with a ring of its
//! own: a thread that waits inside the volume keeps its entry and nothing else. The kernel gives a
//! request to the entry that became free last, so as few threads as possible are warm. All entries
//! are there from the start: a request that finds none free stays in the kernel until another of its
//! queue is replied to, even if an entry is registered meanwhile (seen on 6.18).
//!
//! FORGET and INTERRUPT, and everything if registering fails, still come through `/dev/fuse`.
//!
//! Problem of memory: the kernel writes into an entry's buffers as long as it holds the entry. Rule:
//! buffers are reached through the raw pointers that the kernel was given, only between a completion
//! and the next submission; they are freed only when the kernel has given the entry back with an
//! error, and leaked otherwise.

#![allow(
    unsafe_code,
    reason = "the ring shares memory with the kernel; each block says why it is sound"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use steadfs_rt::{Condvar, Mutex, Rank, check_threads};
use steadfs_vfs::Segment;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::MountError;
use crate::reply::Answer;
use crate::reply::ReplyBuf;
use crate::request::RawRequest;
use crate::transport::courtesy::Courtesy;
use crate::transport::{Crew, Home};
use crate::wire::{self, InHeader, OutHeader, ReadIn, UringCmdReq, UringReqHeader};

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Payload bytes beyond which an entry counts as large: it then holds memory worth giving back.
const SMALL: usize = 64 << 10;
/// Entries of all queues that keep the memory of a large request.
const KEEP_LARGE: usize = 16;

/// Threads for each of the kernel's queues.
pub struct UringPool {
    crew: Arc<Crew>,
    courtesy: Arc<Courtesy>,
    device: Arc<OwnedFd>,
    /// Entries that hold the memory of a large request now.
    large: AtomicUsize,
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
    while let Err(error) = check_threads(each * queues + SPARE) {
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
            courtesy: Courtesy::new(),
            device,
            large: AtomicUsize::new(0),
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
            let watched = steadfs_rt::try_spawn("fuse-watch", move || pool.courtesy.watch());
            return watched
                .map(drop)
                .map_err(|error| MountError::Uring(error.to_string()));
        }
        // Unmounted before it was usable: no reason to try another way.
        let gone = [Errno::NOTCONN, Errno::CONNABORTED].map(|e| Some(e.raw_os_error()));
        match start.failure.take() {
            Some(error) if gone.contains(&error.raw_os_error()) => Err(MountError::Ended),
            Some(error) => Err(MountError::Uring(error.to_string())),
            None => Err(MountError::Uring(String::new())),
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
    fn work(&self, queue: u16) {
        let mut home = Home::at(usize::from(queue));
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
        if let Err(error) = self.serve_queue(queue, &mut ring, &mut entry, home.as_mut()) {
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
        &self,
        queue: u16,
        ring: &mut Ring,
        entry: &mut Entry,
        mut home: Option<&mut Home>,
    ) -> std::io::Result<()> {
        let mut out = ReplyBuf::default();
        let mut place = self.courtesy.join();
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
                place.works_long();
            }
            if let Some(home) = &mut home {
                home.roam(fetches_much);
            }
            entry.serve(&self.crew, &mut out);
            self.bound_memory(entry);
            place.replies();
            entry.submit_commit(ring, &self.device, queue)?;
        }
    }

    /// Lets only [`KEEP_LARGE`] entries hold the memory that large requests touched; the others give
    /// it back as soon as a reply leaves it unused.
    fn bound_memory(&self, entry: &mut Entry) {
        if entry.touched > SMALL && !entry.large {
            entry.large = true;
            self.large.fetch_add(1, Ordering::Relaxed);
        }
        if entry.large && entry.used <= SMALL && self.large.load(Ordering::Relaxed) > KEEP_LARGE {
            entry.release_large();
            self.large.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// One request's buffers, known to the kernel.
struct Entry {
    header: NonNull<UringReqHeader>,
    /// A mapping of its own.
    payload: NonNull<[u8]>,
    /// The two above, as the kernel reads them when the entry is registered.
    iov: Box<[libc::iovec; 2]>,
    /// The kernel holds the entry.
    held: bool,
    /// A request came with the registration and is not served yet.
    arrived: bool,
    /// Payload bytes of the last reply.
    used: usize,
    /// Payload bytes that may have memory behind them.
    touched: usize,
    /// Counted among the large ones.
    large: bool,
}

impl Entry {
    fn new(payload: usize) -> std::io::Result<Self> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice; unmapped in `drop`.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                payload,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let payload = NonNull::slice_from_raw_parts(
            NonNull::new(mapping.cast()).ok_or(Errno::NOMEM)?,
            payload,
        );
        let header = NonNull::from(Box::leak(Box::new(UringReqHeader::new_zeroed())));
        let iov = Box::new([
            libc::iovec {
                iov_base: header.as_ptr().cast(),
                iov_len: size_of::<UringReqHeader>(),
            },
            libc::iovec {
                iov_base: payload.as_ptr().cast(),
                iov_len: payload.len(),
            },
        ]);
        Ok(Self {
            header,
            payload,
            iov,
            held: false,
            arrived: false,
            used: 0,
            touched: 0,
            large: false,
        })
    }

    /// Gives back the memory behind the payload's end, which the last reply does not use.
    fn release_large(&mut self) {
        assert!(!self.held && self.used <= SMALL, "the payload is in use");
        let rest = &mut self.payload_mut()[SMALL..];
        // SAFETY: whole pages (the mapping and SMALL are page-aligned) of a private mapping that
        // only this entry uses; they read as zeros afterwards, and nobody relies on their content.
        let advised = unsafe {
            rustix::mm::madvise(rest.as_mut_ptr().cast(), rest.len(), Advice::LinuxDontNeed)
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "a payload keeps its memory");
        }
        self.touched = SMALL;
        self.large = false;
    }

    /// The header buffer; only while the kernel does not hold the entry.
    fn header(&self) -> &UringReqHeader {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: the pointer is from `Box::leak`, freed only in `drop`; the kernel writes there
        // only while `held`.
        unsafe { self.header.as_ref() }
    }

    fn header_mut(&mut self) -> &mut UringReqHeader {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { self.header.as_mut() }
    }

    fn payload(&self) -> &[u8] {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: as for the header.
        unsafe { self.payload.as_ref() }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: as for the header.
        unsafe { self.payload.as_mut() }
    }

    fn in_header(&self) -> InHeader {
        match InHeader::read_from_prefix(&self.header().in_out) {
            Ok((header, _)) => header,
            Err(_) => unreachable!("128 bytes hold a head of 40"),
        }
    }

    /// Whether the request came with so much that copying it takes longer than its caller's move to
    /// another CPU would.
    fn carries_much(&self) -> bool {
        self.header().ent.payload_sz as usize > SMALL
    }

    /// Whether the reply may be so long. Its caller is at work meanwhile: it finds memory for what its own
    /// read-ahead asks for next, and hands out what it has.
    fn fetches_much(&self) -> bool {
        let header = self.header();
        self.in_header().opcode == wire::opcode::READ
            && ReadIn::read_from_prefix(&header.op_in)
                .is_ok_and(|(arg, _)| arg.size as usize > SMALL)
    }

    fn submit_register(
        &mut self,
        ring: &mut Ring,
        device: &OwnedFd,
        qid: u16,
    ) -> std::io::Result<()> {
        let command = UringCmdReq {
            qid,
            ..UringCmdReq::default()
        };
        let mut sqe = build(device, wire::URING_CMD_REGISTER, &command);
        let (addr, len) = (self.iov.as_ptr() as u64, self.iov.len() as u32);
        const { assert!(size_of::<squeue::Entry128>() == 128) };
        // SAFETY: `Entry128` is the kernel's submission entry (`repr(C)`, 128 bytes), whose bytes 16
        // to 24 are the address and 24 to 28 the length; the crate offers no other way to set the
        // latter. Any value is valid there.
        let bytes = unsafe { &mut *std::ptr::from_mut(&mut sqe).cast::<[u8; 128]>() };
        bytes[16..24].copy_from_slice(&addr.to_ne_bytes());
        bytes[24..28].copy_from_slice(&len.to_ne_bytes());
        self.push(ring, sqe)
    }

    fn submit_commit(
        &mut self,
        ring: &mut Ring,
        device: &OwnedFd,
        qid: u16,
    ) -> std::io::Result<()> {
        let command = UringCmdReq {
            commit_id: self.header().ent.commit_id,
            qid,
            ..UringCmdReq::default()
        };
        let sqe = build(device, wire::URING_CMD_COMMIT_AND_FETCH, &command);
        self.push(ring, sqe)
    }

    /// Queues the submission; [`Entry::wait`] hands it over.
    fn push(&mut self, ring: &mut Ring, sqe: squeue::Entry128) -> std::io::Result<()> {
        self.held = true;
        // SAFETY: the buffers behind the entry stay allocated as long as the kernel may use them
        // (see `drop`), and the descriptor is the pool's, which outlives the ring.
        unsafe { ring.submission().push(&sqe) }
            .map_err(|_| std::io::Error::other("the submission queue is full"))
    }

    /// Hands over what was queued and waits for the entry to come back: with a request, or with the
    /// error that ended it.
    fn wait(&mut self, ring: &mut Ring) -> std::io::Result<Result<(), Errno>> {
        if std::mem::take(&mut self.arrived) {
            return Ok(Ok(()));
        }
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(result) = self.take(ring) {
                return Ok(result);
            }
        }
    }

    /// The entry, if it has come back.
    fn take(&mut self, ring: &mut Ring) -> Option<Result<(), Errno>> {
        let completion = ring.completion().next()?;
        self.held = false;
        Some(match completion.result() {
            0.. => Ok(()),
            negative => Err(Errno::from_raw_os_error(-negative)),
        })
    }

    /// Serves the request in the buffers and puts the reply there.
    fn serve(&mut self, crew: &Crew, out: &mut ReplyBuf) {
        let header = self.header();
        let (in_header, facts) = (self.in_header(), header.ent);
        let payload_len = (facts.payload_sz as usize).min(self.payload().len());
        let raw = RawRequest {
            header: in_header,
            op: &header.op_in,
            payload: &self.payload()[..payload_len],
        };
        let mut error = match crew.session.serve(raw, out) {
            Answer::Done | Answer::Silent => 0,
            Answer::Error(errno) => {
                out.clear();
                -errno.raw_os_error()
            }
        };
        let len = out.len();
        if len > self.payload().len() {
            tracing::error!(len, "a reply is larger than the request allows");
            out.clear();
            error = -Errno::IO.raw_os_error();
        }
        copy_reply(out, self.payload_mut());
        self.used = out.len();
        self.touched = self.touched.max(payload_len).max(self.used);
        // Replies are at most as long as the payload, which is at most 1 MiB.
        let payload_sz = out.len() as u32;
        let head = OutHeader {
            len: size_of::<OutHeader>() as u32 + payload_sz,
            error,
            unique: in_header.unique,
        };
        let header = self.header_mut();
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
        header.ent.payload_sz = payload_sz;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.held {
            // The kernel may still write here: leak.
            return;
        }
        // SAFETY: the first is from `Box::leak`, the second from `mmap_anonymous` in `new`; the
        // kernel has given the entry back with an error and will not use them again.
        let unmapped = unsafe {
            drop(Box::from_raw(self.header.as_ptr()));
            rustix::mm::munmap(self.payload.as_ptr().cast(), self.payload.len())
        };
        debug_assert!(unmapped.is_ok(), "the mapping was ours");
    }
}

fn build(device: &OwnedFd, operation: u32, command: &UringCmdReq) -> squeue::Entry128 {
    let mut bytes = [0; 80];
    bytes[..size_of::<UringCmdReq>()].copy_from_slice(command.as_bytes());
    opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), operation)
        .cmd(bytes)
        .build()
}

/// Puts a reply's pieces one after the other.
fn copy_reply(out: &ReplyBuf, payload: &mut [u8]) {
    let (head, mut rest) = payload.split_at_mut(out.bytes.len());
    head.copy_from_slice(&out.bytes);
    for segment in out.data.segments() {
        let part;
        match segment {
            Segment::Bytes(owner, range) => {
                (part, rest) = rest.split_at_mut(range.len());
                part.copy_from_slice(&(**owner).as_ref()[range.clone()]);
            }
            Segment::Zeros(len) => {
                (part, rest) = rest.split_at_mut(*len);
                part.fill(0);
            }
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
