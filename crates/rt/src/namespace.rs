//! Namespaces of the host.

/// Gives the calling thread a mount namespace of its own, a copy of the process's; it is gone with the thread. Mounts and
/// unmounts of either may still propagate to the other where they are shared.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
#[expect(unsafe_code, reason = "a system call that no safe wrapper offers")]
pub fn unshare_mounts() -> std::io::Result<()> {
    // SAFETY: only another flag, FILES, makes descriptors of other threads invalid in this one.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?;
    Ok(())
}

/// Gives the calling thread, and those that it starts, a network of its own without any interface.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
#[expect(unsafe_code, reason = "a system call that no safe wrapper offers")]
pub fn unshare_network() -> std::io::Result<()> {
    // SAFETY: only another flag, FILES, makes descriptors of other threads invalid in this one.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
    Ok(())
}

/// The same for a user without privileges: also gives the thread a user namespace, in which it is an unmapped user. Only for
/// a process with one thread.
///
/// # Errors
/// `EPERM` or `ENOSPC` where users may not make user namespaces, `EINVAL` with several threads.
#[expect(unsafe_code, reason = "a system call that no safe wrapper offers")]
pub fn unshare_user_and_network() -> std::io::Result<()> {
    use rustix::thread::UnshareFlags;
    // SAFETY: only another flag, FILES, makes descriptors of other threads invalid in this one.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?;
    Ok(())
}
