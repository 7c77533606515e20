//! The system calls that no safe wrapper offers.

#![allow(
    unsafe_code,
    reason = "two system calls; each block says why it is sound"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl;

/// FUSE_DEV_IOC_CLONE: `_IOR(229, 0, uint32_t)`.
const DEV_IOC_CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// Opens the FUSE device.
pub fn open_device() -> io::Result<OwnedFd> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(fd)
}

/// Another descriptor of the connection behind `device`, with a queue of requests in service of
/// its own.
pub fn clone_device(device: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = open_device()?;
    let source = u32::try_from(device.as_raw_fd()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32 through its argument, which `Setter` points at a
    // live u32 for the length of the call; it writes nothing.
    unsafe {
        ioctl::ioctl(
            clone.as_fd(),
            ioctl::Setter::<DEV_IOC_CLONE, u32>::new(source),
        )
    }?;
    Ok(clone)
}

/// ioprio_get(2) of one process; `None` when there is no such process.
pub fn ioprio_of(pid: u32) -> Option<u32> {
    const WHO_PROCESS: libc::c_int = 1;
    let pid = libc::c_int::try_from(pid).ok()?;
    // SAFETY: ioprio_get takes two integers and touches no memory of ours.
    let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, pid) };
    u32::try_from(value).ok()
}
