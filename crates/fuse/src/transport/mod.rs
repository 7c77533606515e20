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

/// Keeps this thread on one CPU; where that is refused (a restricted CPU set) it runs anywhere.
pub fn pin_to(cpu: usize) {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return;
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %error, "service thread is not pinned");
    }
}
