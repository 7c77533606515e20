//! Short turns on the processor.
//!
//! A task of ours works for some microseconds, and somebody waits for it: a request of a caller, a block
//! for an fsync. Where all processors are busy, the host's scheduler lets who has just become ready wait for the end
//! of somebody else's turn, some milliseconds for each request. A thread that asks for short turns goes first
//! then; it gets no more of the processor than before (Linux 6.12, `sched_runtime` in sched_setattr(2)).
//! Measured beside two busy processes on two processors, medians of five rounds in turn on one mount: 10 100 files made a
//! second and 16 100, an fsync of a rewritten block 7.9 and 0.6 ms, with the write before it 8.0 and 4.0 (the kernel's
//! ext4 8.0). On an idle machine it changes nothing.

/// The shortest turn that the kernel grants, in nanoseconds.
const TURN: u64 = 100_000;

/// The calling thread works in short turns from now on; whether the host grants that. Not to a thread whose policy
/// somebody chose. Threads that it starts inherit it.
#[cfg(target_os = "linux")]
pub(crate) fn shorten() -> bool {
    let Some(mut now) = host::attributes() else {
        return false;
    };
    if now.sched_policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    if now.sched_runtime != TURN {
        now.sched_runtime = TURN;
        host::set(&now);
    }
    host::attributes().is_some_and(|now| now.sched_runtime == TURN)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn shorten() -> bool {
    false
}

#[cfg(target_os = "linux")]
mod host {
    #![expect(unsafe_code, reason = "system calls that no wrapper offers")]

    use libc::sched_attr;

    const SELF: libc::c_int = 0;
    const NO_FLAGS: libc::c_uint = 0;

    /// What the scheduler knows of the calling thread.
    pub(super) fn attributes() -> Option<sched_attr> {
        let size = size_of::<sched_attr>() as libc::c_uint;
        let mut attributes = sched_attr {
            size,
            sched_policy: 0,
            sched_flags: 0,
            sched_nice: 0,
            sched_priority: 0,
            sched_runtime: 0,
            sched_deadline: 0,
            sched_period: 0,
        };
        let at = &raw mut attributes;
        // SAFETY: the kernel writes at most `size` bytes, which `attributes` has, and any bytes make a `sched_attr`.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, SELF, at, size, NO_FLAGS) };
        (result == 0).then_some(attributes)
    }

    /// Changes it, as far as the host allows.
    pub(super) fn set(attributes: &sched_attr) {
        let at = std::ptr::from_ref(attributes);
        // SAFETY: the kernel reads one `sched_attr`, which lives.
        unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, at, NO_FLAGS) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Whether the kernel knows of turns.
    fn known() -> bool {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let mut numbers = release.split('.').map_while(|n| n.parse::<u32>().ok());
        (numbers.next(), numbers.next()) >= (Some(6), Some(12))
    }

    #[test]
    fn tasks_work_in_short_turns() {
        let turn = crate::spawn("turns", || host::attributes().map(|now| now.sched_runtime));
        assert_eq!(turn.join() == Some(TURN), known());
    }

    #[test]
    fn nothing_else_changes() {
        let nice = crate::spawn("nice", || {
            // May always be asked for: more of it.
            let more = rustix::process::nice(3).expect("a larger nice value");
            let mut longer = host::attributes().expect("of this thread");
            longer.sched_runtime = 3_000_000;
            host::set(&longer);
            assert_eq!(shorten(), known());
            let now = host::attributes().expect("of this thread");
            (now.sched_nice - more, now.sched_policy, now.sched_flags)
        });
        assert_eq!(nice.join(), (0, libc::SCHED_OTHER as u32, 0));
    }

    #[test]
    fn who_was_given_a_policy_keeps_it() {
        let batch = crate::spawn("batch", || {
            let mut batch = host::attributes().expect("of this thread");
            batch.sched_policy = libc::SCHED_BATCH as u32;
            batch.sched_runtime = 3_000_000;
            host::set(&batch);
            let granted = shorten();
            let now = host::attributes().expect("of this thread");
            (granted, now.sched_policy, now.sched_runtime == TURN)
        });
        assert_eq!(batch.join(), (false, libc::SCHED_BATCH as u32, false));
    }
}
