//! Which of this process's descriptors the programs get that it starts.

/// From now on programs that this process starts get only those descriptors that are given to them, not what its own
/// caller has left open. Nothing is closed here. Kernels before Linux 5.11 cannot do that: all stays as it was.
#[cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "a system call that no wrapper offers")
)]
pub fn close_descriptors_on_exec() {
    #[cfg(target_os = "linux")]
    {
        // Behind standard input, output and error, up to the last.
        const FIRST: libc::c_uint = 3;
        const LAST: libc::c_uint = libc::c_uint::MAX;
        let flags = libc::CLOSE_RANGE_CLOEXEC;
        // SAFETY: with this flag it closes nothing before the next program takes this process over, and it touches no
        // memory of ours.
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, LAST, flags) };
    }
}
