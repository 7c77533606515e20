//! Open descriptors and exec(2).

/// Sets close-on-exec on all open descriptors but standard input, output and error: programs that this process starts
/// do not inherit what its own caller left open. Nothing is closed now. Does nothing before Linux 5.11.
#[cfg_attr(
    target_os = "linux",
    expect(unsafe_code, reason = "a system call that no safe wrapper offers")
)]
pub fn close_descriptors_on_exec() {
    #[cfg(target_os = "linux")]
    {
        // After standard input, output and error.
        const FIRST: libc::c_uint = 3;
        const LAST: libc::c_uint = libc::c_uint::MAX;
        let flags = libc::CLOSE_RANGE_CLOEXEC;
        // SAFETY: with this flag the call closes nothing before an exec(2), and it accesses no memory of this process.
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, LAST, flags) };
    }
}
