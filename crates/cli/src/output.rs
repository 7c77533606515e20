//! Standard output.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::fs::FileType;
use signal_hook::consts::SIGPIPE;
use steadfs::tools::{ToolError, WRITABLE_BYTES, is_writable, printable};

use crate::failure::Failure;
use crate::stop::Stop;

/// Writes to standard output. If the reader has closed the pipe, the command ends like any other in a pipeline:
/// silently, by SIGPIPE.
pub fn print(work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    match work(&mut out).and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            // The rest of the buffer is dropped.
            drop(out.into_parts());
            Err(Failure::by_signal(SIGPIPE, ""))
        }
        Err(error) => Err(Failure::plain(format!("standard output: {error}"))),
    }
}

/// As [`print`], for work that takes signals: one ends the output also while the reader does not read.
pub fn print_until(
    stop: Option<&Stop>,
    work: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<(), Failure> {
    let Some(stop) = stop else {
        return print(work);
    };
    let found = rustix::fs::fstat(io::stdout());
    let is_file = found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode).is_file());
    let piece_max = if is_file { usize::MAX } else { WRITABLE_BYTES };
    let printed = print(|out| {
        work(&mut Until {
            out,
            stop,
            piece_max,
        })
    });
    match stop.is_asked() {
        true => Err(stop.failure("")),
        false => printed,
    }
}

/// Standard output, in pieces for which a pipe has room.
struct Until<'o> {
    out: &'o mut dyn Write,
    stop: &'o Stop,
    piece_max: usize,
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            if self.stop.is_asked() {
                return Err(io::Error::other("stopped"));
            }
            if is_writable(io::stdout().as_fd())? {
                let piece = &bytes[..bytes.len().min(self.piece_max)];
                let written = self.out.write(piece)?;
                self.out.flush()?;
                return Ok(written);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Fails if what was written cannot be stored, which some file systems report only when a descriptor is closed: another one of
/// the same file is. `code` is the exit code then.
pub fn check_stored(code: u8) -> Result<(), Failure> {
    match io::stdout().as_fd().try_clone_to_owned() {
        Ok(another) => steadfs_rt::close(another)
            .map_err(|error| Failure::new(code, format!("standard output: {error}"))),
        // It is not open.
        Err(_) => Ok(()),
    }
}

/// As [`print`], for work on a volume whose results are not kept in memory. It reports an error of the output as
/// [`ToolError::Host`]; `fail` makes a failure of all others.
pub fn stream<T>(
    work: impl FnOnce(&mut dyn Write) -> Result<T, ToolError>,
    fail: impl FnOnce(ToolError) -> Failure,
) -> Result<T, Failure> {
    let mut done = Err(ToolError::Stopped);
    print(|out| match work(out) {
        Err(ToolError::Host { source, .. }) => Err(source),
        result => {
            done = result;
            Ok(())
        }
    })?;
    done.map_err(fail)
}

/// Whether names are escaped: on a terminal. Elsewhere they are bytes, for other programs.
pub fn escapes() -> bool {
    io::stdout().is_terminal()
}

/// A name as it is written to standard output.
pub fn shown(name: &[u8], escape: bool) -> Vec<u8> {
    match escape {
        true => printable(name).into_bytes(),
        false => name.to_vec(),
    }
}
