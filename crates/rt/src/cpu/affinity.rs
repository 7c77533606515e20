//! The CPUs of this process, and threads that are pinned to one of them.

#[cfg(target_os = "linux")]
use std::io;

#[cfg(target_os = "linux")]
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPUs that this process can use at a time: its CPU set, or fewer if a cgroup's quota (`cpu.max`) limits it.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// CPUs on which the calling thread may run (its CPU set; quotas do not count).
#[cfg(target_os = "linux")]
pub fn allowed_cpus() -> usize {
    sched_getaffinity(None).map_or(1, |set| set.count() as usize)
}

/// CPUs on which the calling thread may run: other systems say what the process can use.
#[cfg(not(target_os = "linux"))]
pub fn allowed_cpus() -> usize {
    processors()
}

/// Whether a cgroup's quota limits this process to less time than its CPU set has.
pub fn has_cpu_quota() -> bool {
    processors() < allowed_cpus()
}

/// The CPU set of a thread: one CPU, or all that were allowed before it was pinned. Belongs to that thread.
#[cfg(target_os = "linux")]
pub struct PinnedThread {
    cpu: CpuSet,
    allowed: CpuSet,
    pinned: bool,
}

#[cfg(target_os = "linux")]
impl PinnedThread {
    /// Pins the calling thread to `cpu`.
    ///
    /// # Errors
    /// The host refuses this CPU: it does not exist, or is not in the thread's CPU set. The thread is not pinned.
    pub fn pin(cpu: usize) -> io::Result<Self> {
        if cpu >= CpuSet::MAX_CPU {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        let allowed = sched_getaffinity(None)?;
        sched_setaffinity(None, &set)?;
        Ok(Self {
            cpu: set,
            allowed,
            pinned: true,
        })
    }

    /// Pins the thread to its CPU, or restores the CPU set that it had before [`PinnedThread::pin`]. To its own CPU it
    /// moves at once; to another CPU when it is woken next.
    ///
    /// # Errors
    /// The host refuses it; the CPU set stays as it is.
    pub fn set_pinned(&mut self, pinned: bool) -> io::Result<()> {
        if self.pinned == pinned {
            return Ok(());
        }
        let set = if pinned { &self.cpu } else { &self.allowed };
        sched_setaffinity(None, set)?;
        self.pinned = pinned;
        Ok(())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_released_and_pinned_again() {
        let thread = crate::spawn("probe", || {
            let allowed = || sched_getaffinity(None).expect("a living thread has a set");
            let before = allowed();
            let cpu = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu));
            let cpu = cpu.expect("the thread may run on some CPU");
            let mut thread = PinnedThread::pin(cpu).expect("the CPU is in the thread's set");
            for _ in 0..2 {
                assert_eq!(allowed().count(), 1);
                assert!(allowed().is_set(cpu));
                thread.set_pinned(false).expect("these CPUs were allowed");
                assert_eq!(allowed(), before);
                thread.set_pinned(true).expect("this CPU was allowed");
            }
            assert!(PinnedThread::pin(CpuSet::MAX_CPU).is_err());
        });
        thread.join();
    }
}
