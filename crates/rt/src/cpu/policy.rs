//! Scheduling policies of this process's threads, sched(7).

#![expect(unsafe_code, reason = "system calls that no safe wrapper offers")]

use std::io;
use std::sync::OnceLock;

use rustix::thread::{Pid, gettid};

use super::ioprio::set_real_time;

/// A thread's scheduling policy, as far as [`service`](super::service) distinguishes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchedPolicy {
    /// SCHED_OTHER.
    Normal,
    /// SCHED_IDLE: the thread runs when no other thread wants the CPU.
    Idle,
    /// Any other policy: an administrator has set it on purpose.
    Other,
}

/// Sets the policy of a thread; its nice value stays. The calling thread is 0 to the kernel, since a process that has
/// given up its rights may name no other thread for SCHED_IDLE.
pub(super) fn set_policy(tid: Pid, policy: SchedPolicy) -> io::Result<()> {
    let policy = match policy {
        SchedPolicy::Normal => libc::SCHED_OTHER,
        SchedPolicy::Idle => libc::SCHED_IDLE,
        SchedPolicy::Other => return Err(io::ErrorKind::InvalidInput.into()),
    };
    // The kernel's `sched_param` is the priority, which these policies do not have.
    let param: libc::c_int = 0;
    let number = libc::SYS_sched_setscheduler;
    let target = match tid == gettid() {
        true => 0,
        false => tid.as_raw_pid(),
    };
    // The system call: musl's function only fails, as POSIX means processes by it.
    // SAFETY: the call reads one integer through its pointer, which is live, and writes nothing.
    let result = unsafe { libc::syscall(number, target, policy, &raw const param) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match policy == libc::SCHED_OTHER && ask_helper(tid, ThreadRequest::LeaveIdle) {
        true => Ok(()),
        false => Err(error),
    }
}

/// What a thread needs a privilege for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRequest {
    /// To become SCHED_OTHER when it is SCHED_IDLE.
    LeaveIdle,
    /// The real-time class of I/O priorities, with this level (0 to 7).
    RealTimeIo(u8),
}

/// Does it for the thread with this number; returns whether it is done.
pub type ThreadHelper = Box<dyn Fn(i32, ThreadRequest) -> bool + Send + Sync>;

static HELPER: OnceLock<ThreadHelper> = OnceLock::new();

/// From now on `helper` does for the threads of this process what the process itself may not do.
///
/// # Panics
/// If there is a helper already.
pub fn help_threads_by(helper: ThreadHelper) {
    let is_first = HELPER.set(helper).is_ok();
    assert!(is_first, "a process has one helper");
}

/// Has the helper do what this process may not.
pub(super) fn ask_helper(tid: Pid, request: ThreadRequest) -> bool {
    HELPER
        .get()
        .is_some_and(|helper| helper(tid.as_raw_pid(), request))
}

/// For a helper: does it for a thread of another process; returns whether it is done.
pub fn help_thread(tid: i32, request: ThreadRequest) -> bool {
    let Some(thread) = Pid::from_raw(tid.max(0)) else {
        return false;
    };
    match request {
        ThreadRequest::LeaveIdle => {
            policy_of(thread).is_ok_and(|policy| policy == SchedPolicy::Idle)
                && set_policy(thread, SchedPolicy::Normal).is_ok()
        }
        ThreadRequest::RealTimeIo(level) => set_real_time(tid, level),
    }
}

/// The policy of a thread.
pub(super) fn policy_of(tid: Pid) -> io::Result<SchedPolicy> {
    // SAFETY: the call takes an integer and accesses no memory of this process.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid.as_raw_pid()) };
    match i32::try_from(policy) {
        Ok(libc::SCHED_OTHER) => Ok(SchedPolicy::Normal),
        Ok(libc::SCHED_IDLE) => Ok(SchedPolicy::Idle),
        Ok(-1) => Err(io::Error::last_os_error()),
        _ => Ok(SchedPolicy::Other),
    }
}

/// Whether a thread of this process runs or waits for a CPU.
pub(super) fn is_runnable(tid: Pid) -> bool {
    state_of(tid) == Some(b'R')
}

/// The state letter of a thread in proc(5): `R` runnable, `S` sleeping, ….
pub(super) fn state_of(tid: Pid) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/self/task/{}/stat", tid.as_raw_nonzero())).ok()?;
    // "tid (name) state ..."; the name may contain any byte.
    let end = stat.iter().rposition(|&b| b == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_the_calling_thread_is_running() {
        assert_eq!(state_of(gettid()), Some(b'R'));
    }
}
