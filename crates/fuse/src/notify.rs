//! Messages to the kernel that answer no request: what it keeps of an inode is no longer true.
//!
//! **Attributes.** After a call that is not known to change them, the kernel does not ask for them again.
//!
//! **Pages.** Before a write around its page cache the kernel drops the pages; a read or a write through the cache may
//! bring one back before the write is served. After a write that its caller waits for, the kernel drops them once
//! more; after an asynchronous one (io_uring, Linux AIO) it does not, and would show the old bytes for as long as it
//! keeps the page. So it is told, where that can be. To drop a page that is just being read the kernel waits for
//! that read, which takes one of our service threads: a thread of its own tells it, and whoever serves the write
//! waits for that thread only a moment.
//!
//! Telling costs as much as the write. Where the file has been read through the cache at all, the kernel is told from
//! then on; where it was only written so, as by whoever copied it there, this lasts a while: a write around the cache
//! that the kernel has begun before is served by then. Where both ways of writing are mixed there is no end to it.

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

use crate::wire::{InvalInodeOut, NOTIFY_INVAL_INODE, OutHeader};

/// Longest time that a write waits until the kernel has dropped pages: a thousand times what it takes while none
/// of them is being read.
const MOMENT: Duration = Duration::from_millis(20);
/// The thread that tells ends when it had nothing to tell for so long.
const IDLE: Duration = Duration::from_secs(5);
/// Words of a filter of inodes: 4 KiB.
const WORDS: usize = 512;
/// Times of writes that are kept: 16 KiB.
const TIMES: usize = 4096;
/// Seconds after which nothing is on its way to us any more that was begun before.
const WHILE: u32 = 60;

/// A set of inodes: one bit for several of them, so that it holds all that were added, and perhaps others. A needless
/// message does no harm.
struct Filter([AtomicU64; WORDS]);

impl Filter {
    fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }

    fn add(&self, node: u64) {
        let (word, bit) = self.place(node);
        // Most times the bit is there: reading it keeps the line shared.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn has(&self, node: u64) -> bool {
        let (word, bit) = self.place(node);
        word.load(Ordering::SeqCst) & bit != 0
    }

    fn place(&self, node: u64) -> (&AtomicU64, u64) {
        let n = usize::try_from(node % (WORDS as u64 * 64)).unwrap_or_default();
        (&self.0[n / 64], 1 << (n % 64))
    }
}

/// Tells the kernel, through the device that the mount was made with, whatever way requests come.
pub(crate) struct Notifier {
    device: Arc<OwnedFd>,
    begun: Instant,
    /// Inodes that were read through the page cache, or written both ways.
    cached: Filter,
    /// Inodes that were written around it.
    direct: Filter,
    /// When an inode was last written through the page cache: the second since `begun`, from 1 on. Others may share it.
    written: [AtomicU32; TIMES],
    work: Mutex<Work>,
    /// There is something to tell.
    more: Condvar,
    /// Something was told.
    told: Condvar,
}

#[derive(Default)]
struct Work {
    /// Nodes and the bytes whose pages are old.
    stale: VecDeque<(u64, Range<u64>)>,
    /// How many there have been.
    asked: u64,
    /// How many of them the kernel was told of.
    done: u64,
    /// The thread that tells is there.
    running: bool,
}

impl Notifier {
    pub(crate) fn new(device: Arc<OwnedFd>) -> Self {
        Self {
            device,
            begun: steadfs_rt::now(),
            cached: Filter::new(),
            direct: Filter::new(),
            written: [const { AtomicU32::new(0) }; TIMES],
            work: Mutex::new(Rank::Leaf, Work::default()),
            more: Condvar::new(),
            told: Condvar::new(),
        }
    }

    /// Lets the kernel ask again for the attributes of an inode. Its pages stay, so that this waits for
    /// no request that is being served.
    pub(crate) fn attributes_changed(&self, node: u64) {
        self.tell(node, -1, 0);
    }

    /// Bytes of the inode go into the page cache. Called before they are read.
    pub(crate) fn is_cached(&self, node: u64) {
        self.cached.add(node);
    }

    /// Bytes of the inode that are in the page cache are to be written. Called before they are.
    pub(crate) fn is_written(&self, node: u64) {
        let (time, now) = (self.time(node), self.second());
        if time.load(Ordering::SeqCst) != now {
            time.store(now, Ordering::SeqCst);
        }
        // Whichever of the two comes later sees the other.
        if self.direct.has(node) {
            self.cached.add(node);
        }
    }

    /// Bytes of the inode are to be written around the page cache. Called before they are.
    pub(crate) fn goes_around(&self, node: u64) {
        self.direct.add(node);
    }

    /// Bytes of the inode were written around the page cache. Called after they were written: a read that began
    /// before is known by now, one that begins later gets them.
    pub(crate) fn pages_changed(self: &Arc<Self>, node: u64, bytes: Range<u64>) {
        if !self.cached.has(node) && !self.was_written(node) {
            return;
        }
        let mut work = self.work.lock();
        work.stale.push_back((node, bytes));
        work.asked += 1;
        let mine = work.asked;
        if !work.running {
            work.running = true;
            let this = Arc::clone(self);
            if let Err(error) = steadfs_rt::try_spawn("fuse-notify", move || this.tell_all()) {
                // The next one tries again, and tells of these bytes, too.
                work.running = false;
                tracing::warn!(node, %error, "pages are not dropped yet");
                return;
            }
        }
        self.more.notify_one();
        while work.done < mine {
            if self.told.wait_for(&mut work, MOMENT) {
                tracing::debug!(node, "pages are dropped after the write's end");
                return;
            }
        }
    }

    fn was_written(&self, node: u64) -> bool {
        let time = self.time(node).load(Ordering::SeqCst);
        time != 0 && self.second().saturating_sub(time) <= WHILE
    }

    fn time(&self, node: u64) -> &AtomicU32 {
        &self.written[usize::try_from(node % TIMES as u64).unwrap_or_default()]
    }

    /// Seconds since the mount, from 1 on.
    fn second(&self) -> u32 {
        u32::try_from(self.begun.elapsed().as_secs() + 1).unwrap_or(u32::MAX)
    }

    fn tell_all(&self) {
        let mut work = self.work.lock();
        loop {
            let Some((node, bytes)) = work.stale.pop_front() else {
                if self.more.wait_for(&mut work, IDLE) && work.stale.is_empty() {
                    work.running = false;
                    return;
                }
                continue;
            };
            drop(work);
            // Offsets in files are below 2^63.
            self.tell(node, bytes.start as i64, (bytes.end - bytes.start) as i64);
            work = self.work.lock();
            work.done += 1;
            self.told.notify_all();
        }
    }

    /// One message: attributes, and from `off` on `len` bytes of pages unless that is below 0.
    fn tell(&self, node: u64, off: i64, len: i64) {
        let body = InvalInodeOut {
            ino: node,
            off,
            len,
        };
        let head = OutHeader {
            len: (size_of::<OutHeader>() + size_of::<InvalInodeOut>()) as u32,
            error: NOTIFY_INVAL_INODE,
            // No request has this number.
            unique: 0,
        };
        let pieces = [IoSlice::new(head.as_bytes()), IoSlice::new(body.as_bytes())];
        match rustix::io::writev(&self.device, &pieces) {
            // The kernel has no such inode (any more), or no such mount.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTCONN) => {}
            Err(error) => tracing::warn!(node, %error, "the kernel may show old content"),
        }
    }
}

#[cfg(test)]
mod tests;
