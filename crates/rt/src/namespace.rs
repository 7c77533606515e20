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
