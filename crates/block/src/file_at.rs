//! Reading and writing a file at an offset, as each host has it.

use std::fs::File;
use std::io;

/// Fills `bytes` from byte `at`.
#[cfg(unix)]
pub(crate) fn read_exact_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(unix)]
pub(crate) fn write_all_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
pub(crate) fn read_exact_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let done = std::os::windows::fs::FileExt::seek_read(file, bytes, at)?;
        if done == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes = &mut bytes[done..];
        at += done as u64;
    }
    Ok(())
}

#[cfg(windows)]
pub(crate) fn write_all_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let done = std::os::windows::fs::FileExt::seek_write(file, bytes, at)?;
        if done == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[done..];
        at += done as u64;
    }
    Ok(())
}
