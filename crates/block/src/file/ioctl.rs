//! The device control and lock calls without a safe wrapper.
#![expect(
    unsafe_code,
    reason = "BLKDISCARD, LOOP_GET_STATUS64 and F_OFD_SETLK have no safe wrapper"
)]

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// Linux <linux/fs.h>: `BLKDISCARD` is `_IO(0x12, 119)` and takes `uint64_t range[2]`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
/// Linux <linux/loop.h>: `LOOP_GET_STATUS64` fills a `struct loop_info64`, which begins with device and inode number
/// of the file that the loop device shows.
const LOOP_GET_STATUS64: Opcode = 0x4C05;
/// Words of 64 bits in that struct: 232 bytes.
const LOOP_INFO_WORDS: usize = 29;

/// Discards `len` bytes at `at` of a block device.
pub(super) fn discard(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two 64-bit words, offset and length, and writes no memory.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([at, len])) }
}

/// Device and inode number of the file that a loop device shows.
pub(super) fn shown_file(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    // SAFETY: LOOP_GET_STATUS64 reads nothing and writes one `struct loop_info64`, which is as long as the array, and
    // whatever it writes is good for that.
    let info = unsafe {
        ioctl(
            fd,
            Getter::<LOOP_GET_STATUS64, [u64; LOOP_INFO_WORDS]>::new(),
        )
    }?;
    Ok((info[0], info[1]))
}

/// The byte that is locked: behind every image, and none of those that other programs lock.
const LOCK_BYTE_OFFSET: i64 = 1 << 62;

/// Locks of an open file description (fcntl(2), F_OFD_SETLK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ByteLock {
    Read,
    Write,
    None,
}

/// Takes or gives back the lock on our byte, without waiting.
pub(super) fn lock_byte(fd: BorrowedFd<'_>, lock: ByteLock) -> Result<(), Errno> {
    let kind = match lock {
        ByteLock::Read => libc::F_RDLCK,
        ByteLock::Write => libc::F_WRLCK,
        ByteLock::None => libc::F_UNLCK,
    };
    // SAFETY: any bytes are a valid `struct flock`, which only holds numbers.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    (range.l_start, range.l_len) = (LOCK_BYTE_OFFSET, 1);
    // SAFETY: F_OFD_SETLK reads one `struct flock` and writes no memory.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) };
    match result {
        0.. => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
