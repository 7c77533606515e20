//! The classic transport: requests are read from `/dev/fuse`, replies written to it.
//!
//! Each thread has a descriptor of its own (FUSE_DEV_IOC_CLONE), so that threads share no queue of
//! requests in service. File data goes from the cache's blocks to the kernel with one writev.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use steadfs_vfs::Segment;
use zerocopy::IntoBytes;

use crate::reply::Answer;
use crate::reply::ReplyBuf;
use crate::request::RawRequest;
use crate::sys;
use crate::transport::Crew;
use crate::wire::OutHeader;

/// Room beside the data of the largest WRITE: the kernel asks for the heads', a page is plenty.
const HEADS: usize = 4096;
/// Pieces in one writev (Linux's UIO_MAXIOV is 1024).
const MAX_PIECES: usize = 1000;
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
}

impl DevPool {
    /// Starts `threads` readers of `device`, or as many as the host allows; the pool grows to `most` while all
    /// are busy.
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
            self.threads.fetch_sub(1, Ordering::Relaxed);
            self.idle.fetch_sub(1, Ordering::Relaxed);
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
        let session = &self.crew.session;
        let mut message = vec![0; (session.volume.config.max_request as usize) + HEADS];
        let mut out = ReplyBuf::default();
        loop {
            let len = match rustix::io::read(&*device, &mut message[..]) {
                // Interrupted, or the request was taken back meanwhile.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                // Unmounted, or the connection was aborted.
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => break,
                Err(error) => {
                    tracing::error!(%error, "reading the FUSE device");
                    break;
                }
                Ok(len) => len,
            };
            // Any request may wait: even FORGET, when it frees a large file.
            if self.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.grow();
            }
            match RawRequest::from_message(&message[..len]) {
                Ok(raw) => self.serve(&device, raw, &mut out),
                Err(error) => tracing::error!(%error, "unreadable request"),
            }
            if self.idle.fetch_add(1, Ordering::Relaxed) >= self.keep {
                break;
            }
        }
        self.idle.fetch_sub(1, Ordering::Relaxed);
        self.threads.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve(&self, device: &OwnedFd, raw: RawRequest<'_>, out: &mut ReplyBuf) {
        let unique = raw.header.unique;
        let error = match self.crew.session.serve(raw, out) {
            Answer::Silent => return,
            Answer::Done => 0,
            Answer::Error(errno) => {
                out.clear();
                -errno.raw_os_error()
            }
        };
        // ENOENT: nobody waits for the reply any more.
        match send(device, unique, error, out) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => tracing::error!(%error, "writing a reply to the FUSE device"),
        }
    }
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
