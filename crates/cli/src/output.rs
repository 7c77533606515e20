//! Standard output.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use signal_hook::consts::SIGPIPE;
use steadfs::tools::{StreamWriter, ToolError, printable};

use crate::failure::Failure;
use crate::stop::Stop;

/// Writes to standard output. If the reader has closed the pipe, the command ends like any other in a pipeline:
/// silently, by SIGPIPE.
pub fn print(work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let done = work(&mut out).and_then(|()| out.flush());
    done.map_err(|error| {
        // The rest of the buffer is dropped.
        drop(out.into_parts());
        failure(error)
    })
}

fn failure(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::by_signal(SIGPIPE, ""),
        _ => Failure::plain(format!("standard output: {error}")),
    }
}

/// Why reports of work that goes on could not be printed. A closed pipe is no reason: the work is done all the same.
#[derive(Default)]
pub struct Unwritten(Option<Failure>);

impl Unwritten {
    /// Keeps the first failure.
    pub fn add(&mut self, printed: Result<(), Failure>) {
        let failed = printed.err().filter(|failure| !failure.is_signal());
        self.0 = self.0.take().or(failed);
    }

    /// The first failure.
    pub fn take(&mut self) -> Option<Failure> {
        self.0.take()
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
    let out = Until::on(io::stdout().as_fd(), stop);
    let done = out.and_then(|mut out| work(&mut out));
    match stop.is_asked() {
        true => Err(stop.failure("")),
        false => done.map_err(failure),
    }
}

/// A file whose writes a signal ends, also while a reader does not read.
pub struct Until<'s> {
    out: StreamWriter,
    stop: &'s Stop,
}

impl<'s> Until<'s> {
    /// On another descriptor of an open file.
    pub fn on(file: BorrowedFd<'_>, stop: &'s Stop) -> io::Result<Self> {
        let out = StreamWriter::on(file)?;
        Ok(Self { out, stop })
    }

    /// Creates the file at a path, or empties it.
    pub fn create(path: &Path, stop: &'s Stop) -> io::Result<Self> {
        let out = StreamWriter::create(path, || stop.is_asked())?;
        let out = out.ok_or_else(stopped)?;
        Ok(Self { out, stop })
    }

    /// The descriptor, to be closed.
    pub fn into_file(self) -> File {
        self.out.into_file()
    }
}

fn stopped() -> io::Error {
    io::Error::other("stopped")
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes, || self.stop.is_asked())?;
        written.ok_or_else(stopped)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
