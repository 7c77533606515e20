//! How requests arrive and replies leave.
//!
//! Rule: a service thread takes a request, serves it to its end and replies itself, on both transports. No request is
//! passed from thread to thread, because a wake-up costs more than most requests. There are more threads than CPUs, so
//! that a request that waits long (fsync) does not delay others, and more threads than slots for requests
//! ([`admission`](crate::admission)).

pub mod dev;
#[cfg(feature = "io-uring")]
pub mod uring;
#[cfg(not(feature = "io-uring"))]
#[path = "without_uring.rs"]
pub mod uring;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::OFlags;
use steadfs_rt::{Condvar, Interruptible, Mutex, Rank};

use crate::error::MountError;
use crate::session::Session;
use crate::wire::{self, WriteIn};

/// Bytes that remain of a queued write that is cut to save memory. Database pages are smaller, so they are never cut.
pub(crate) const SHORT_WRITE_BYTES: usize = 64 << 10;

/// How often readers are interrupted until all have exited.
const PARK_POLL: Duration = Duration::from_millis(1);

/// Cuts a write to its first [`SHORT_WRITE_BYTES`] if its caller can take a short count; returns the number of bytes
/// cut. For a direct write, and for pages of a shared mapping, the kernel does not treat a short count as one.
pub(crate) fn cut_write(write: &mut WriteIn) -> usize {
    let direct = write.flags & OFlags::DIRECT.bits() != 0;
    let cut = (write.size as usize).saturating_sub(SHORT_WRITE_BYTES);
    if direct || write.write_flags & (wire::WRITE_CACHE | wire::BYPASS_CACHE) != 0 || cut == 0 {
        return 0;
    }
    write.size = SHORT_WRITE_BYTES as u32;
    cut
}

/// All service threads of a mount.
pub struct MountThreads {
    /// The session whose requests they serve.
    pub session: Arc<Session>,
    /// Number of service threads.
    count: Mutex<usize>,
    /// Service threads take no further request, for a successor to take them.
    parked: AtomicBool,
    all_exited: Condvar,
    /// Threads that read the device.
    readers: Mutex<Vec<Arc<Interruptible>>>,
}

impl MountThreads {
    /// Without threads yet.
    pub fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            session,
            count: Mutex::new(Rank::Leaf, 0),
            parked: AtomicBool::new(false),
            all_exited: Condvar::new(),
            readers: Mutex::new(Rank::Leaf, Vec::new()),
        })
    }

    /// Starts a service thread.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub fn start(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        *self.count.lock() += 1;
        let running = RunningThread(self.clone());
        steadfs_rt::try_spawn(name, move || {
            let _running = running;
            work();
        })
        .map(drop)
    }

    /// Waits until all service threads have exited: the kernel has ended the connection, or a successor serves it.
    pub fn wait(&self) {
        let mut count = self.count.lock();
        while *count > 0 || self.are_parked() {
            self.all_exited.wait(&mut count);
        }
    }

    /// Whether service threads take no further request.
    pub(crate) fn are_parked(&self) -> bool {
        self.parked.load(Ordering::Acquire)
    }

    /// The calling thread, which will read the device.
    pub(crate) fn register_reader(&self) -> Arc<Interruptible> {
        let reader = Arc::new(Interruptible::current());
        let mut readers = self.readers.lock();
        // The only other reference of a thread that has exited is ours.
        readers.retain(|one| Arc::strong_count(one) > 1);
        readers.push(Arc::clone(&reader));
        reader
    }

    /// Ends the service threads of the classic transport, once they have answered every request that they have taken.
    /// Others wait in the kernel.
    pub(crate) fn park(&self) {
        self.parked.store(true, Ordering::Release);
        loop {
            for reader in &*self.readers.lock() {
                // One that has exited meanwhile is not there to be interrupted.
                let _ = reader.interrupt();
            }
            let mut count = self.count.lock();
            if *count == 0 {
                return;
            }
            self.all_exited.wait_for(&mut count, PARK_POLL);
        }
    }

    /// Ends [`MountThreads::park`] with the threads that `start` starts.
    pub(crate) fn unpark<T>(self: &Arc<Self>, start: impl FnOnce() -> T) -> T {
        // Counted as a thread until there are others: [`MountThreads::wait`] goes on.
        *self.count.lock() += 1;
        let _running = RunningThread(self.clone());
        self.parked.store(false, Ordering::Release);
        start()
    }
}

/// Counts a thread from before it is created until it exits or cannot be created.
struct RunningThread(Arc<MountThreads>);

impl Drop for RunningThread {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.all_exited.notify_all();
            drop(count);
            self.0.session.give_up(MountError::ConnectionEnded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_may_be_short_are_cut() {
        let write = |size, flags: OFlags, write_flags| WriteIn {
            size,
            flags: flags.bits(),
            write_flags,
            ..WriteIn::default()
        };
        let plain = OFlags::empty();
        let mut long = write(1 << 20, plain, 0);
        assert_eq!(cut_write(&mut long), (1 << 20) - SHORT_WRITE_BYTES);
        assert_eq!(long.size as usize, SHORT_WRITE_BYTES);
        for mut whole in [
            long,
            write(1 << 20, OFlags::DIRECT, 0),
            write(1 << 20, plain, wire::WRITE_CACHE),
            write(1 << 20, plain, wire::BYPASS_CACHE),
            write(8192, plain, 0),
        ] {
            let size = whole.size;
            assert_eq!((cut_write(&mut whole), whole.size), (0, size));
        }
    }
}
