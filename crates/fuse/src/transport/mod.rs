//! How requests arrive and replies leave.
//!
//! Both ways have one shape: service threads, each of which takes a request, serves it to its end
//! and replies itself, so that no request is handed from thread to thread (a wake-up costs more
//! than most requests). There are more threads than CPUs, so that a request that waits long (fsync)
//! does not keep others from being served, and more than there are slots for requests ([`admission`](crate::admission)).

mod courtesy;
pub mod dev;
pub mod uring;

use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
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

/// Where a service thread runs: on the CPU of those it serves, unless there is so much to copy that a way
/// to another CPU is worth it.
pub struct Home {
    cpu: CpuSet,
    anywhere: CpuSet,
    roams: bool,
}

impl Home {
    /// Keeps this thread on one CPU; `None` where that is refused (a restricted CPU set): it runs anywhere.
    pub fn at(cpu: usize) -> Option<Self> {
        if cpu >= CpuSet::MAX_CPU {
            return None;
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        let anywhere = sched_getaffinity(None);
        let home = anywhere.and_then(|anywhere| {
            sched_setaffinity(None, &set)?;
            Ok(Self {
                cpu: set,
                anywhere,
                roams: false,
            })
        });
        home.inspect_err(|error| tracing::debug!(cpu, %error, "service thread is not pinned"))
            .ok()
    }

    /// Lets the thread run anywhere, or keeps it where it belongs. It goes when it is woken next; it comes
    /// back at once.
    pub fn roam(&mut self, roam: bool) {
        if self.roams == roam {
            return;
        }
        let set = if roam { &self.anywhere } else { &self.cpu };
        match sched_setaffinity(None, set) {
            Ok(()) => self.roams = roam,
            Err(error) => tracing::debug!(%error, "service thread stays where it may run"),
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

    #[test]
    fn a_thread_roams_and_comes_home() {
        let thread = steadfs_rt::spawn("probe", || {
            let allowed = || sched_getaffinity(None).expect("a living thread has a set");
            let before = allowed();
            let cpu = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu));
            let cpu = cpu.expect("it runs somewhere");
            let mut home = Home::at(cpu).expect("a CPU it may run on");
            for _ in 0..2 {
                assert_eq!(allowed().count(), 1);
                assert!(allowed().is_set(cpu));
                home.roam(true);
                assert_eq!(allowed(), before);
                home.roam(false);
            }
            assert!(Home::at(CpuSet::MAX_CPU).is_none());
        });
        thread.join();
    }
}
