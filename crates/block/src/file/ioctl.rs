//! The device control calls without a safe wrapper.
#![expect(
    unsafe_code,
    reason = "BLKDISCARD and LOOP_GET_STATUS64 have no safe wrapper"
)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// Linux <linux/fs.h>: `BLKDISCARD` is `_IO(0x12, 119)` and takes `uint64_t range[2]`.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);
/// Linux <linux/loop.h>: `LOOP_GET_STATUS64` fills a `struct loop_info64`, which begins with device and inode number
/// of the file that the loop device shows.
const LOOP_GET_STATUS64: Opcode = 0x4C05;
/// Words of 64 bits in that struct: 232 bytes.
const LOOP_INFO: usize = 29;

/// Discards `len` bytes at `at` of a block device.
pub(super) fn discard(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two 64-bit words, offset and length, and writes no memory.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([at, len])) }
}

/// Device and inode number of the file that a loop device shows.
pub(super) fn shown_file(fd: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    // SAFETY: LOOP_GET_STATUS64 reads nothing and writes one `struct loop_info64`, which is as long as the array, and
    // whatever it writes is good for that.
    let info = unsafe { ioctl(fd, Getter::<LOOP_GET_STATUS64, [u64; LOOP_INFO]>::new()) }?;
    Ok((info[0], info[1]))
}
