//! Invalidation messages to the kernel: what it caches of an inode is no longer valid.
//!
//! **Attributes.** The kernel does not fetch them again after a call that it does not expect to change them.
//!
//! **Pages.** Before a direct write the kernel drops the pages of the range; a buffered read or write may bring one
//! back before the direct write is served. After a synchronous direct write the kernel drops them once more. After an
//! asynchronous one (io_uring, Linux AIO) it does not, and would return the old bytes for as long as the page stays
//! cached. So the server sends NOTIFY_INVAL_INODE. To drop a page that is being read, the kernel waits for that read,
//! which needs one of our service threads. So a thread of its own sends the message, and the service thread of the
//! write waits at most [`DROP_WAIT_MAX`] for it. A server that hands over settles its messages first: the kernel could wait
//! for a read that no thread takes any more, and what is not sent would be lost.
//!
//! A message costs as much as the write. It is sent only if the page cache may hold pages of the file: always after a
//! buffered read of the inode, and for [`RECENT_WRITE_SECONDS`] after a buffered write (a copy), by which time every
//! direct write that the kernel has begun before it is served. If both kinds of write are mixed, messages are always
//! sent.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use steadfs_rt::{Condvar, Instant, Mutex, Rank};
use zerocopy::IntoBytes;

use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, NOTIFY_RESEND, OutHeader};

/// Longest time that a write waits until the kernel has dropped the pages: 1000 times what it takes if none of them is
/// being read.
const DROP_WAIT_MAX: Duration = Duration::from_millis(20);
/// The same for a call that takes content back: its caller must read the file's own content afterwards, and no page that such a
/// call keeps is being read.
const CONTENT_WAIT_MAX: Duration = Duration::from_secs(10);
/// The sender thread exits when it has had nothing to send for this long.
const THREAD_IDLE_MAX: Duration = Duration::from_secs(5);
/// Size of an inode filter in words: 4 KiB.
const FILTER_WORDS: usize = 512;
/// Number of buffered-write times that are kept: 16 KiB.
const WRITE_TIMES: usize = 4096;
/// After this many seconds, no request that the kernel had begun before a buffered write is still on its way.
const RECENT_WRITE_SECONDS: u32 = 60;

/// A set of inodes with one bit for several of them: it contains all that were added, and perhaps others. A needless
/// message does no harm.
struct Filter([AtomicU64; FILTER_WORDS]);

impl Filter {
    fn new() -> Self {
        Self([const { AtomicU64::new(0) }; FILTER_WORDS])
    }

    fn add_all(&self) {
        for word in &self.0 {
            word.store(u64::MAX, Ordering::SeqCst);
        }
    }

    fn add(&self, node: u64) {
        let (word, bit) = self.place(node);
        // Usually the bit is set: a load keeps the cache line shared.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn has(&self, node: u64) -> bool {
        let (word, bit) = self.place(node);
        word.load(Ordering::SeqCst) & bit != 0
    }

    fn place(&self, node: u64) -> (&AtomicU64, u64) {
        let n = usize::try_from(node % (FILTER_WORDS as u64 * 64)).unwrap_or_default();
        (&self.0[n / 64], 1 << (n % 64))
    }
}

/// Has the kernel send all requests again that were read and have no reply.
pub(crate) fn resend(device: &OwnedFd) -> Result<(), Errno> {
    let message = OutHeader {
        len: size_of::<OutHeader>() as u32,
        error: NOTIFY_RESEND,
        unique: 0,
    };
    rustix::io::write(device, message.as_bytes()).map(drop)
}

/// Sends invalidations through the device that the mount was made with, whichever transport carries the requests.
pub(crate) struct Notifier {
    device: Arc<OwnedFd>,
    begun: Instant,
    /// Inodes that were read through the page cache, or written both ways.
    cached: Filter,
    /// Inodes with direct writes.
    direct: Filter,
    /// When an inode was last written through the page cache: the second since `begun`, starting with 1. Inodes may
    /// share a slot.
    written: [AtomicU32; WRITE_TIMES],
    queue: Mutex<NotifyQueue>,
    /// Signalled when a range is added.
    not_empty: Condvar,
    /// Signalled when a message has been sent.
    sent: Condvar,
}

#[derive(Default)]
struct NotifyQueue {
    /// Inodes and the byte ranges to be invalidated.
    pending: VecDeque<(u64, Range<u64>)>,
    /// Ranges added so far.
    added: u64,
    /// Ranges invalidated so far.
    sent_count: u64,
    /// The sender thread is running.
    has_thread: bool,
}

impl Notifier {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        Self {
            device,
            begun: steadfs_rt::now(),
            cached: Filter::new(),
            direct: Filter::new(),
            written: [const { AtomicU32::new(0) }; WRITE_TIMES],
            queue: Mutex::new(Rank::Leaf, NotifyQueue::default()),
            not_empty: Condvar::new(),
            sent: Condvar::new(),
        }
    }

    /// The notifier of a server that continues a mount: any page may be cached.
    pub(crate) fn succeeding(device: Arc<OwnedFd>) -> Self {
        let this = Self::new(device);
        this.cached.add_all();
        this
    }

    /// Invalidates the attributes of an inode. Its pages stay, so this waits for no request in service.
    pub(crate) fn attributes_changed(&self, node: u64) {
        self.send(node, -1, 0);
    }

    /// Bytes of the inode are about to be read into the page cache.
    pub(crate) fn is_cached(&self, node: u64) {
        self.cached.add(node);
    }

    /// Bytes of the inode are about to be written from the page cache.
    pub(crate) fn is_written(&self, node: u64) {
        let (time, now) = (self.time(node), self.second());
        if time.load(Ordering::SeqCst) != now {
            time.store(now, Ordering::SeqCst);
        }
        // Whichever of the two runs later sees the other.
        if self.direct.has(node) {
            self.cached.add(node);
        }
    }

    /// Bytes of the inode are about to be written directly.
    pub(crate) fn bypasses_cache(&self, node: u64) {
        self.direct.add(node);
    }

    /// Invalidates pages after a direct write. Called after the write: a buffered read that began before it is recorded
    /// by now, one that begins later returns the new bytes.
    pub(crate) fn pages_changed(self: &Arc<Self>, node: u64, bytes: Range<u64>) {
        if self.cached.has(node) || self.was_written(node) {
            self.drop_pages(node, bytes, DROP_WAIT_MAX);
        }
    }

    /// Invalidates the attributes and all pages of an inode, which writes dirty ones first; returns whether that was done in
    /// time.
    pub(crate) fn content_dropped(self: &Arc<Self>, node: u64) -> bool {
        self.drop_pages(node, 0..i64::MAX as u64, CONTENT_WAIT_MAX)
    }

    /// Invalidates the attributes and the cached listing of a directory. No request has to be served for that.
    pub(crate) fn listing_dropped(&self, node: u64) {
        self.send(node, 0, 0);
    }

    fn drop_pages(self: &Arc<Self>, node: u64, bytes: Range<u64>, wait_max: Duration) -> bool {
        let mut queue = self.queue.lock();
        queue.pending.push_back((node, bytes));
        queue.added += 1;
        let mine = queue.added;
        if !queue.has_thread {
            queue.has_thread = true;
            let this = Arc::clone(self);
            if let Err(error) = steadfs_rt::try_spawn("fuse-notify", move || this.run()) {
                // The next write tries again, and its thread sends this range, too.
                queue.has_thread = false;
                tracing::warn!(node, %error, "cannot create fuse-notify: stale pages stay until the next direct write");
                return false;
            }
        }
        self.not_empty.notify_one();
        while queue.sent_count < mine {
            if self.sent.wait_for(&mut queue, wait_max) {
                tracing::debug!(
                    node,
                    ?wait_max,
                    "the kernel has not dropped the pages in time"
                );
                return false;
            }
        }
        true
    }

    /// Waits until every message is sent that was to be sent; returns whether that is so in time. No other is added.
    pub(crate) fn settle(&self, wait_max: Duration) -> bool {
        let until = steadfs_rt::now() + wait_max;
        let mut queue = self.queue.lock();
        while queue.sent_count < queue.added {
            let left = until.since(steadfs_rt::now());
            if left.is_zero() || self.sent.wait_for(&mut queue, left) {
                return queue.sent_count == queue.added;
            }
        }
        true
    }

    fn was_written(&self, node: u64) -> bool {
        let time = self.time(node).load(Ordering::SeqCst);
        time != 0 && self.second().saturating_sub(time) <= RECENT_WRITE_SECONDS
    }

    fn time(&self, node: u64) -> &AtomicU32 {
        &self.written[usize::try_from(node % WRITE_TIMES as u64).unwrap_or_default()]
    }

    /// Seconds since the mount, starting with 1.
    fn second(&self) -> u32 {
        u32::try_from(self.begun.elapsed().as_secs() + 1).unwrap_or(u32::MAX)
    }

    fn run(&self) {
        let mut queue = self.queue.lock();
        loop {
            let Some((node, bytes)) = queue.pending.pop_front() else {
                if self.not_empty.wait_for(&mut queue, THREAD_IDLE_MAX) && queue.pending.is_empty()
                {
                    queue.has_thread = false;
                    return;
                }
                continue;
            };
            drop(queue);
            // File offsets are below 2^63.
            self.send(
                node,
                bytes.start as i64,
                bytes.end.saturating_sub(bytes.start) as i64,
            );
            queue = self.queue.lock();
            queue.sent_count += 1;
            self.sent.notify_all();
        }
    }

    /// Sends one message: invalidates the attributes, and `len` bytes of pages from `off` on unless `off` is negative.
    fn send(&self, node: u64, off: i64, len: i64) {
        let body = InvalInodeOut {
            ino: node,
            off,
            len,
        };
        let head = OutHeader {
            len: (size_of::<OutHeader>() + size_of::<InvalInodeOut>()) as u32,
            error: NOTIFY_INVAL_INODE,
            // The kernel uses no request number 0.
            unique: 0,
        };
        let pieces = [IoSlice::new(head.as_bytes()), IoSlice::new(body.as_bytes())];
        match rustix::io::writev(&self.device, &pieces) {
            // The kernel has no such inode (any more), or no such mount.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => {
                tracing::warn!(node, %error, "cannot invalidate an inode; the kernel may return stale data")
            }
        }
    }
}

#[cfg(test)]
mod tests;
