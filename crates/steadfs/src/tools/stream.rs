//! Writing to pipes, sockets and terminals.
//!
//! **Problem.** A write waits for a reader that does not read, and no signal ends the work in order meanwhile. **Rule.** A
//! pipe is written through an open file description of its own, whose writes do not wait: as much as the pipe has room for,
//! up to 64 KiB by default. `O_NONBLOCK` on the description of the caller would be in effect for all who share it.
//! Other streams get pieces for which poll(2) has found room. What else there is gets each piece whole: devices can need it.

use std::fs::File;
use std::io;
use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use steadfs_vfs::FileKind;

use super::host;

/// Most bytes of a write to a stream that poll(2) calls writable.
const PIECE_BYTES: usize = 4096;

/// Between two looks for a reader of a pipe.
pub(super) const WAIT_FOR_READER: Duration = Duration::from_millis(50);

/// A file that is written from its current position on.
pub struct StreamWriter {
    file: File,
    how: How,
}

/// How a write does not wait for a reader.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The description does not wait.
    Nonblocking,
    /// Pieces for which there is room.
    Pieces,
    /// It has no reader.
    Whole,
}

impl StreamWriter {
    /// On another descriptor of an open file.
    ///
    /// # Errors
    /// The process has too many descriptors.
    pub fn on(file: BorrowedFd<'_>) -> io::Result<Self> {
        let how = match host::kind_of(&rustix::fs::fstat(file)?) {
            Some(FileKind::Fifo) => match reopened(file) {
                Ok(file) => {
                    let how = How::Nonblocking;
                    return Ok(Self { file, how });
                }
                Err(_) => How::Pieces,
            },
            Some(FileKind::Socket) => How::Pieces,
            Some(FileKind::CharDevice) if file.is_terminal() => How::Pieces,
            _ => How::Whole,
        };
        let file = file.try_clone_to_owned()?.into();
        Ok(Self { file, how })
    }

    /// Creates the file at a path, or empties it. The open of a pipe waits for its reader; `None` if it was stopped meanwhile.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn create(path: &Path, mut stopped: impl FnMut() -> bool) -> io::Result<Option<Self>> {
        let is_pipe = || {
            let found = path.metadata();
            found.is_ok_and(|found| found.file_type().is_fifo())
        };
        let mut options = File::options();
        options.write(true).create(true).truncate(true);
        if is_pipe() {
            options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        }
        loop {
            match options.open(path) {
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NXIO) && is_pipe() => {
                    steadfs_rt::sleep(WAIT_FOR_READER);
                }
                opened => return opened.and_then(|file| Self::on(file.as_fd())).map(Some),
            }
            if stopped() {
                return Ok(None);
            }
        }
    }

    /// Writes as many bytes as there is room for, at least one. While there is none, `stopped` is called at least five times
    /// a second; `None` if it returned true.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn write(
        &self,
        bytes: &[u8],
        mut stopped: impl FnMut() -> bool,
    ) -> io::Result<Option<usize>> {
        let piece = match self.how {
            How::Pieces => &bytes[..bytes.len().min(PIECE_BYTES)],
            _ => bytes,
        };
        loop {
            if stopped() {
                return Ok(None);
            }
            if self.how == How::Pieces && !self.has_room()? {
                continue;
            }
            match rustix::io::write(&self.file, piece) {
                Err(Errno::AGAIN) => drop(self.has_room()?),
                Err(Errno::INTR) => {}
                // It would be repeated endlessly.
                Ok(0) if !piece.is_empty() => return Err(Errno::IO.into()),
                written => return Ok(Some(written?)),
            }
        }
    }

    fn has_room(&self) -> io::Result<bool> {
        Ok(host::is_writable(self.file.as_fd())?)
    }

    /// The descriptor, to be closed.
    pub fn into_file(self) -> File {
        self.file
    }
}

/// Another open file description of a pipe, whose writes do not wait.
fn reopened(pipe: BorrowedFd<'_>) -> rustix::io::Result<File> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from)
}
