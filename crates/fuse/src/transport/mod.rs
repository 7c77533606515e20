//! How requests arrive and replies leave.
//!
//! Both ways have one shape: service threads, each of which takes a request, serves it to its end
//! and replies itself, so that no request is handed from thread to thread (a wake-up costs more
//! than most requests). There are more threads than CPUs, so that a request that waits long (fsync)
//! does not keep others from being served.

mod courtesy;
pub mod dev;
pub mod uring;

use std::sync::Arc;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use steadfs_rt::{Condvar, Mutex, Rank};

use crate::error::MountError;
use crate::session::Session;

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
            self.0.session.give_up(MountError::Ended);
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
