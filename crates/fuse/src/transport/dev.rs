//! The classic transport: requests are read from `/dev/fuse`, replies written to it.
//!
//! Each thread has a descriptor of its own (FUSE_DEV_IOC_CLONE), so that threads share no queue of
//! requests in service. File data goes from the cache's blocks to the kernel with one writev.
//!
//! A request that finds no slot ([`Admission`](crate::admission::Admission)) is put aside with its message, and the
//! thread reads the next one. Problem of memory: a message holds up to 1 MiB. Rule: where more than [`ASIDE_BYTES_MAX`]
//! are put aside, a write through the kernel's page cache is cut to its first [`SHORT_WRITE`] bytes; its caller goes on
//! after the short count.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use steadfs_vfs::Segment;
use zerocopy::{FromBytes, IntoBytes};

use crate::admission::{Queued, Slot, Verdict, Waiter};
use crate::reply::Answer;
use crate::reply::ReplyBuf;
use crate::request::RawRequest;
use crate::sys;
use crate::transport::{Crew, SHORT_WRITE, cut_write};
use crate::wire::{self, InHeader, OutHeader, WriteIn};

/// Room beside the data of the largest WRITE: the kernel asks for the heads', a page is plenty.
const HEADS: usize = 4096;
/// Pieces in one writev (Linux's UIO_MAXIOV is 1024).
const MAX_PIECES: usize = 1000;
/// Bytes of queued messages beyond which writes are cut.
const ASIDE_BYTES_MAX: usize = 32 << 20;
static ZEROS: [u8; 65536] = [0; 65536];

/// Threads that read the device.
pub struct DevPool {
    crew: Arc<Crew>,
    device: Arc<OwnedFd>,
    /// Threads there are.
    threads: AtomicUsize,
    /// Threads that wait for a request.
    idle: AtomicUsize,
    /// More idle threads than this are not kept.
    keep: usize,
    /// Threads there may be.
    most: usize,
    /// Bytes of messages that are queued.
    aside: AtomicUsize,
}

impl DevPool {
    /// Starts `threads` readers of `device`, or as many as the host allows; the pool grows to `most`, more than there
    /// are slots, while all are busy.
    ///
    /// # Errors
    /// If the host does not allow even one.
    pub fn start(
        crew: &Arc<Crew>,
        device: Arc<OwnedFd>,
        threads: usize,
        most: usize,
    ) -> std::io::Result<()> {
        assert!(0 < threads && threads <= most, "a pool has threads");
        let pool = Arc::new(Self {
            crew: crew.clone(),
            device,
            threads: AtomicUsize::new(1),
            idle: AtomicUsize::new(1),
            keep: threads + 2,
            most,
            aside: AtomicUsize::new(0),
        });
        pool.add()?;
        for _ in 1..threads {
            pool.grow();
        }
        Ok(())
    }

    /// Starts a reader that is already counted as there and idle.
    fn add(self: &Arc<Self>) -> std::io::Result<()> {
        let pool = self.clone();
        self.crew.start("fuse-dev", move || pool.work())
    }

    /// Starts another reader if there may be one. Where the host refuses, the others go on.
    fn grow(self: &Arc<Self>) {
        let more = |n| (n < self.most).then_some(n + 1);
        if self
            .threads
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_err()
        {
            return;
        }
        self.idle.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.add() {
            tracing::debug!(%error, "no further reader");
            let threads = self.threads.fetch_sub(1, Ordering::Relaxed) - 1;
            self.idle.fetch_sub(1, Ordering::Relaxed);
            // One has to stay free to read.
            self.crew.session.admission.shrink(threads);
        }
    }

    /// A reader's life.
    fn work(self: &Arc<Self>) {
        let device = match sys::clone_device(&self.device) {
            Ok(own) => Arc::new(own),
            // Without a descriptor of its own (the device file may be out of reach by now) the
            // reader shares the first one.
            Err(_) => self.device.clone(),
        };
        let size = self.crew.session.volume.config.max_request as usize + HEADS;
        let mut message = vec![0; size];
        let mut out = self.crew.session.reply_buf();
        loop {
            let len = match rustix::io::read(&*device, &mut message[..]) {
                // Interrupted, or the request was taken back meanwhile.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                // Unmounted, or the connection was aborted.
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => {
                    self.crew.session.admission.close();
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, "reading the FUSE device");
                    break;
                }
                Ok(len) => len,
            };
            let slot = match self.admit(&device, &mut message, len) {
                Some(slot) => slot,
                None => continue,
            };
            // Any request may wait: even FORGET, when it frees a large file.
            if self.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.grow();
            }
            self.serve_message(&device, &message[..len], &mut out);
            if let Some(slot) = slot {
                self.crew.session.admission.leave(slot);
            }
            if self.idle.fetch_add(1, Ordering::Relaxed) >= self.keep {
                break;
            }
        }
        self.idle.fetch_sub(1, Ordering::Relaxed);
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// A slot for a message, if it needs one; `None`: it was put aside.
    fn admit(
        self: &Arc<Self>,
        device: &Arc<OwnedFd>,
        message: &mut Vec<u8>,
        len: usize,
    ) -> Option<Option<Slot>> {
        let session = &self.crew.session;
        let Ok(raw) = RawRequest::from_message(&message[..len]) else {
            return Some(None);
        };
        let header = raw.header;
        let class = match session.class(&raw) {
            // Through io_uring come all others, whose threads must not be kept by these.
            Some(_) if wire::is_forget(header.opcode) && session.uses_uring() => return Some(None),
            Some(class) => class,
            None => return Some(None),
        };
        let queued = || {
            let (pool, device) = (Arc::clone(self), Arc::clone(device));
            let message = pool.put_aside(message, len);
            Queued {
                unique: header.unique,
                pid: header.pid,
                waiter: Waiter::Message(Box::new(move |verdict| {
                    pool.serve_queued(&device, &message, verdict);
                })),
            }
        };
        session.admission.enter(class, header.uid, queued).map(Some)
    }

    /// A message for later. A large one takes its buffer along.
    fn put_aside(&self, message: &mut Vec<u8>, len: usize) -> Vec<u8> {
        let mut len = len;
        if self.aside.load(Ordering::Relaxed) + len > ASIDE_BYTES_MAX {
            len = cut_message(&mut message[..len]);
        }
        let own = if len > 2 * SHORT_WRITE {
            let fresh = vec![0; message.len()];
            let mut own = std::mem::replace(message, fresh);
            own.truncate(len);
            own
        } else {
            message[..len].to_vec()
        };
        self.aside.fetch_add(len, Ordering::Relaxed);
        own
    }

    /// Serves a message that was put aside.
    fn serve_queued(&self, device: &OwnedFd, message: &[u8], verdict: Verdict) {
        self.aside.fetch_sub(message.len(), Ordering::Relaxed);
        // Rare, and next to what it waited for it costs nothing.
        let mut out = self.crew.session.reply_buf();
        match verdict {
            Verdict::Admitted(_) => self.serve_message(device, message, &mut out),
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
            Err(error) => tracing::error!(%error, "unreadable request"),
        }
    }

    fn serve(&self, device: &OwnedFd, raw: RawRequest<'_>, out: &mut ReplyBuf) {
        let unique = raw.header.unique;
        let error = match self.crew.session.serve(raw, out) {
            Answer::Silent => return,
            Answer::Done => 0,
            Answer::Error(errno) => {
                out.clear();
                errno.raw_os_error()
            }
        };
        reply(device, unique, error, out);
    }
}

/// Replies with an error number (0: none).
fn reply(device: &OwnedFd, unique: u64, error: i32, out: &ReplyBuf) {
    match send(device, unique, -error, out) {
        // No caller waits for the reply any more.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(error) => tracing::error!(%error, "writing a reply to the FUSE device"),
    }
}

/// Cuts a message that is a write to its first [`SHORT_WRITE`] bytes, if it may be; its length then.
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
    // The message was no longer than its head states.
    header.len = left as u32;
    left
}

/// Writes one reply, in one piece as the device demands.
fn send(device: &OwnedFd, unique: u64, error: i32, out: &ReplyBuf) -> Result<(), Errno> {
    let len = size_of::<OutHeader>() + out.len();
    let head = OutHeader {
        len: u32::try_from(len).map_err(|_| Errno::INVAL)?,
        error,
        unique,
    };
    if out.data.is_empty() {
        let pieces = [IoSlice::new(head.as_bytes()), IoSlice::new(&out.bytes)];
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
    if segments.len() + zeros > MAX_PIECES {
        let data = out.data.to_vec();
        let pieces = [IoSlice::new(head.as_bytes()), IoSlice::new(&data)];
        return rustix::io::writev(device, &pieces).map(drop);
    }
    let mut pieces = Vec::with_capacity(2 + segments.len() + zeros);
    pieces.push(IoSlice::new(head.as_bytes()));
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
