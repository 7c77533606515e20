//! The one device control call without a safe wrapper.
#![expect(unsafe_code, reason = "BLKDISCARD has no safe wrapper")]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};

/// Linux <linux/fs.h>: `BLKDISCARD` is `_IO(0x12, 119)` and takes `uint64_t range[2]`.
const BLKDISCARD: u32 = opcode::none(0x12, 119);

/// Discards `len` bytes at `at` of a block device.
pub(super) fn discard(fd: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD reads two 64-bit words, offset and length, and writes no memory.
    unsafe { ioctl(fd, Setter::<BLKDISCARD, [u64; 2]>::new([at, len])) }
}
