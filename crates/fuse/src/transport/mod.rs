//! How requests arrive and replies leave.
//!
//! Both ways have one shape: service threads, each of which takes a request, serves it to its end
//! and replies itself, so that no request is handed from thread to thread (a wake-up costs more
//! than most requests). There are more threads than CPUs, so that a request that waits long (fsync)
//! does not keep others from being served, and more than there are slots for requests ([`admission`](crate::admission)).

pub mod dev;
pub mod uring;

use std::sync::Arc;

use rustix::fs::OFlags;
use steadfs_rt::{Condvar, Mutex, Rank};

use crate::error::MountError;
use crate::session::Session;
use crate::wire::{self, WriteIn};

/// What is left of a queued write that is cut to save memory. Pages of databases are smaller, and are written whole.
pub(crate) const SHORT_WRITE: usize = 64 << 10;

/// Cuts a write to its first [`SHORT_WRITE`] bytes, if its caller can take a short count; how many bytes go. Of a direct
/// write or pages of a mapping the kernel takes a short count for something else.
pub(crate) fn cut_write(write: &mut WriteIn) -> usize {
    let direct = write.flags & OFlags::DIRECT.bits() != 0;
    let cut = (write.size as usize).saturating_sub(SHORT_WRITE);
    if direct || write.write_flags & (wire::WRITE_CACHE | wire::AROUND_CACHE) != 0 || cut == 0 {
        return 0;
    }
    write.size = SHORT_WRITE as u32;
    cut
}

/// All service threads of a mount.
pub struct Crew {
    /// The session they serve.
    pub session: Arc<Session>,
    /// How many there are.
    members: Mutex<usize>,
    gone: Condvar,
}

impl Crew {
    /// A crew without members.
    pub fn new(session: Arc<Session>) -> Arc<Self> {
        Arc::new(Self {
            session,
            members: Mutex::new(Rank::Leaf, 0),
            gone: Condvar::new(),
        })
    }

    /// Starts a service thread.
    ///
    /// # Errors
    /// If the host refuses another thread.
    pub fn start(
        self: &Arc<Self>,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<()> {
        *self.members.lock() += 1;
        let member = Member(self.clone());
        steadfs_rt::try_spawn(name, move || {
            let _member = member;
            work();
        })
        .map(drop)
    }

    /// Waits until all service threads are gone: the kernel has ended the connection.
    pub fn wait(&self) {
        let mut members = self.members.lock();
        while *members > 0 {
            self.gone.wait(&mut members);
        }
    }
}

/// Counts a thread as long as it lives, or fails to start.
struct Member(Arc<Crew>);

impl Drop for Member {
    fn drop(&mut self) {
        let mut members = self.0.members.lock();
        *members -= 1;
        if *members == 0 {
            self.0.gone.notify_all();
            drop(members);
            self.0.session.give_up(MountError::ConnectionEnded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_whose_caller_takes_a_short_count_is_cut() {
        let write = |size, flags: OFlags, write_flags| WriteIn {
            size,
            flags: flags.bits(),
            write_flags,
            ..WriteIn::default()
        };
        let plain = OFlags::empty();
        let mut long = write(1 << 20, plain, 0);
        assert_eq!(cut_write(&mut long), (1 << 20) - SHORT_WRITE);
        assert_eq!(long.size as usize, SHORT_WRITE);
        for mut whole in [
            long,
            write(1 << 20, OFlags::DIRECT, 0),
            write(1 << 20, plain, wire::WRITE_CACHE),
            write(1 << 20, plain, wire::AROUND_CACHE),
            write(8192, plain, 0),
        ] {
            let size = whole.size;
            assert_eq!((cut_write(&mut whole), whole.size), (0, size));
        }
    }
}
