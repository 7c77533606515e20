//! The I/O priority that the host knows for a thread of ours, ioprio_set(2).

use steadfs_base::IoPrio;
#[cfg(target_os = "linux")]
use steadfs_base::PrioClass;

#[cfg(target_os = "linux")]
use super::policy::{ThreadRequest, ask_helper};
use crate::sim::world;

/// The I/O priority of a service thread. The host's I/O scheduler, if it has one that uses priorities (BFQ, partly
/// mq-deadline), orders the thread's own requests by it, among those of other programs. Belongs to one thread. Does
/// nothing in simulation.
#[derive(Debug, Default)]
pub struct ThreadIoPrio(Option<IoPrio>);

impl ThreadIoPrio {
    /// Whether this is the priority that was set last.
    pub fn is(&self, prio: IoPrio) -> bool {
        self.0 == Some(prio)
    }

    /// Sets the calling thread's priority if it differs from the last one; returns whether the host took it. A refused
    /// priority (real-time without CAP_SYS_NICE and without a helper) is not tried again.
    pub fn set(&mut self, prio: IoPrio) -> bool {
        if self.0.replace(prio) == Some(prio) || world::simulated() {
            return false;
        }
        ioprio_set(prio)
    }
}

/// Sets the priority of the calling thread.
#[cfg(target_os = "linux")]
fn ioprio_set(prio: IoPrio) -> bool {
    const SELF: libc::c_int = 0;
    let is_set = set_of(SELF, prio);
    if is_set || prio.class != PrioClass::RealTime {
        return is_set;
    }
    ask_helper(
        rustix::thread::gettid(),
        ThreadRequest::RealTimeIo(prio.level),
    )
}

/// Gives a thread of another process the real-time class; returns whether it has it.
#[cfg(target_os = "linux")]
pub(super) fn set_real_time(tid: i32, level: u8) -> bool {
    let prio = IoPrio {
        class: PrioClass::RealTime,
        level,
    };
    set_of(tid, prio)
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a system call that no safe wrapper offers")]
fn set_of(tid: i32, prio: IoPrio) -> bool {
    const WHO_PROCESS: libc::c_int = 1;
    let class: libc::c_int = match prio.class {
        PrioClass::RealTime => 1,
        PrioClass::BestEffort => 2,
        PrioClass::Idle => 3,
    };
    let value = class << 13 | libc::c_int::from(prio.level.min(7));
    // SAFETY: ioprio_set takes three integers and accesses no memory of this process.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, tid, value) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn ioprio_set(_: IoPrio) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_priority_is_set_once() {
        let set = crate::spawn("prio", || {
            let mut prio = ThreadIoPrio::default();
            [5, 5, 7].map(|level| prio.set(IoPrio::best_effort(level)))
        });
        let expected = cfg!(target_os = "linux");
        assert_eq!(set.join(), [expected, false, expected]);
        let simulated = crate::sim::run(crate::sim::Config::new(1), || {
            ThreadIoPrio::default().set(IoPrio::best_effort(5))
        });
        assert!(!simulated.value);
    }
}
