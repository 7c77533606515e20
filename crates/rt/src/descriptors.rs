//! Open descriptors and exec(2).

use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::AtFlags;
use rustix::io::FdFlags;

/// AT_STATX_DONT_SYNC of statx(2): what is known, without a request to the file system. (The crate has no name for it with
/// musl.)
pub const STATX_DONT_SYNC: AtFlags = AtFlags::from_bits_retain(0x4000);

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

/// Closes a file, and returns the error of that. Network file systems and FUSE servers may report only then that what was
/// written could not be stored; dropping the file ignores it.
///
/// # Errors
/// Those of close(2). The file is closed all the same.
#[expect(unsafe_code, reason = "safe wrappers drop the error")]
pub fn close(file: impl Into<OwnedFd>) -> std::io::Result<()> {
    let number = file.into().into_raw_fd();
    // SAFETY: the descriptor was owned by `file`, which is forgotten, so nothing else uses or closes it.
    if unsafe { libc::close(number) } == 0 {
        return Ok(());
    }
    match std::io::Error::last_os_error() {
        // Linux has closed it before it waited.
        error if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
        error => Err(error),
    }
}

/// The socket that a service manager has passed to this program by the convention of sd_listen_fds(3), if it is exactly one.
/// `None` also for a second call.
#[expect(unsafe_code, reason = "a descriptor is known by its number only")]
pub fn take_passed_socket() -> Option<OwnedFd> {
    static IS_TAKEN: AtomicBool = AtomicBool::new(false);
    /// The first descriptor after standard input, output and error.
    const PASSED: i32 = 3;
    let variable = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let is_ours = variable("LISTEN_PID") == Some(std::process::id());
    if !is_ours || variable("LISTEN_FDS") != Some(1) || IS_TAKEN.swap(true, Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the variables say that the descriptor was opened for this program, and no other part of it looks for one. It is
    // taken once.
    let passed = unsafe { OwnedFd::from_raw_fd(PASSED) };
    match rustix::io::fcntl_setfd(&passed, FdFlags::CLOEXEC) {
        Ok(()) => Some(passed),
        Err(_) => {
            // It is not open: another file may get its number.
            std::mem::forget(passed);
            None
        }
    }
}
