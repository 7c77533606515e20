//! The system calls without a safe wrapper.

#![allow(
    unsafe_code,
    reason = "a few system calls; each block says why it is sound"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl;

/// FUSE_DEV_IOC_CLONE: `_IOR(229, 0, uint32_t)`.
const DEV_IOC_CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);

/// Size of the argument of [`REMOUNT`], in bytes.
pub const REMOUNT_SIZE: usize = 4096;
/// Our own command for a mounted volume: `_IOWR('s', 1, char[4096])`. In: mount options, ended by a zero byte. Out: an
/// error number (0: success) in four bytes, followed by the reason or the new options, ended by a zero byte.
pub const REMOUNT: ioctl::Opcode = ioctl::opcode::read_write::<[u8; REMOUNT_SIZE]>(b's', 1);

/// The same for settings: `_IOWR('s', 2, char[4096])`. In: lines `NAME=VALUE`. Out: as for [`REMOUNT`], with all
/// settings in such lines.
pub const TUNE: ioctl::Opcode = ioctl::opcode::read_write::<[u8; REMOUNT_SIZE]>(b's', 2);

/// Makes everything durable that the server has: `_IOWR('s', 3, char[4096])`. Out: as for [`REMOUNT`]; a line with
/// device and inode of the image file, if the server serves one, and a line with pid, descriptor and inode of the memfd
/// for the result of closing.
pub const SYNC: ioctl::Opcode = ioctl::opcode::read_write::<[u8; REMOUNT_SIZE]>(b's', 3);

/// Replaces the server: `_IOWR('s', 4, char[4096])`. In: nothing, or the number from the first answer, ended by a zero
/// byte. Out: as for [`REMOUNT`], with that number, or `done`.
pub const UPGRADE: ioctl::Opcode = ioctl::opcode::read_write::<[u8; REMOUNT_SIZE]>(b's', 4);

/// Adds or removes a key of encrypted files: `_IOWR('s', 5, char[4096])`. In: what is written to the control file of the keys,
/// or nothing, ended by a zero byte; the server adds the directory's number to a policy. Out: as for [`REMOUNT`], with that file's content.
pub const KEYS: ioctl::Opcode = ioctl::opcode::read_write::<[u8; REMOUNT_SIZE]>(b's', 5);

/// Makes the open file a verity file, or measures it: `_IOWR('s', 6, char[4096])`. In: the options of the hash tree as a line
/// ([`VerityOptions::to_line`](steadfs_vfs::verity::VerityOptions::to_line)), or nothing, ended by a zero byte. Out: as for
/// [`REMOUNT`], with nothing, or with the name of the hash algorithm and the digest.
pub const VERITY: ioctl::Opcode = ioctl::opcode::read_write::<[u8; REMOUNT_SIZE]>(b's', 6);

/// The error number in the answer to these commands if the volume has stopped; the text is the cause.
pub const STOPPED: Errno = Errno::SHUTDOWN;

/// Sends a command to the server of the volume that contains `folder`: change mount options ([`REMOUNT`]) or settings
/// ([`TUNE`]), make everything durable ([`SYNC`]), replace the server ([`UPGRADE`]), change the keys ([`KEYS`]), or make `folder`, a file,
/// a verity file ([`VERITY`]).
pub fn server_ioctl<const COMMAND: ioctl::Opcode>(
    folder: impl AsFd,
    argument: &mut [u8; REMOUNT_SIZE],
) -> io::Result<()> {
    const {
        let is_ours = COMMAND == REMOUNT
            || COMMAND == TUNE
            || COMMAND == SYNC
            || COMMAND == UPGRADE
            || COMMAND == KEYS
            || COMMAND == VERITY;
        assert!(is_ours, "the size is theirs");
    };
    // SAFETY: the commands' numbers say that 4096 bytes are read and written, which is all that
    // FUSE then copies; any other file system does not know the commands.
    unsafe {
        ioctl::ioctl(
            folder,
            ioctl::Updater::<COMMAND, [u8; REMOUNT_SIZE]>::new(argument),
        )
    }?;
    Ok(())
}

/// Opens the FUSE device: a descriptor without a connection.
pub fn open_device() -> io::Result<OwnedFd> {
    let fd = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    Ok(fd)
}

/// Another descriptor of the connection behind `device`, with its own queue of requests in service.
pub fn clone_device(device: &OwnedFd) -> io::Result<OwnedFd> {
    let clone = crate::host::fuse_device()?;
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

/// ioprio_get(2) of one process; `None` if there is no such process.
pub fn ioprio_of(pid: u32) -> Option<u32> {
    const WHO_PROCESS: libc::c_int = 1;
    let pid = libc::c_int::try_from(pid).ok()?;
    // SAFETY: ioprio_get takes two integers and touches no memory of ours.
    let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, pid) };
    u32::try_from(value).ok()
}
