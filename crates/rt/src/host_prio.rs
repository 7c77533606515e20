//! The host's own order of I/O.

use steadfs_base::IoPrio;

use crate::sim::world;

/// Lets the host know with which I/O priority a service thread works, ioprio_set(2): its own scheduler, where it
/// has one that looks at that (BFQ, in parts mq-deadline), then orders what the thread submits itself among the
/// I/O of other programs. Belongs to one thread. In simulation there is no host.
#[derive(Debug, Default)]
pub struct HostPrio(Option<IoPrio>);

impl HostPrio {
    /// Whether the thread works with this priority already.
    pub fn is(&self, prio: IoPrio) -> bool {
        self.0 == Some(prio)
    }

    /// The calling thread works with this priority from now on; whether the host was told something. What it
    /// refuses (real-time without CAP_SYS_NICE) is not asked for again.
    pub fn follow(&mut self, prio: IoPrio) -> bool {
        if self.0.replace(prio) == Some(prio) || world::simulated() {
            return false;
        }
        set(prio)
    }
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a system call that no wrapper offers")]
fn set(prio: IoPrio) -> bool {
    use steadfs_base::PrioClass;
    const WHO_PROCESS: libc::c_int = 1;
    const SELF: libc::c_int = 0;
    let class: libc::c_int = match prio.class {
        PrioClass::RealTime => 1,
        PrioClass::BestEffort => 2,
        PrioClass::Idle => 3,
    };
    let value = class << 13 | libc::c_int::from(prio.level.min(7));
    // SAFETY: ioprio_set takes three integers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, SELF, value) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn set(_: IoPrio) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_told_once() {
        let told = crate::spawn("prio", || {
            let mut prio = HostPrio::default();
            [5, 5, 7].map(|level| prio.follow(IoPrio::best_effort(level)))
        });
        let expected = cfg!(target_os = "linux");
        assert_eq!(told.join(), [expected, false, expected]);
        let simulated = crate::sim::run(crate::sim::Config::new(1), || {
            HostPrio::default().follow(IoPrio::best_effort(5))
        });
        assert!(!simulated.value);
    }
}
