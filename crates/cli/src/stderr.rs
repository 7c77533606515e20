//! Standard error.
//!
//! **Problem.** It may be a file on a full disk, a terminal that has been hung up, a pipe without a reader or one whose
//! reader has stopped. The macros of the standard library panic if it cannot be written, and a panic ends the process:
//! a warning would end a mount. **Rule.** A message that cannot be written is lost. A command waits for its reader. A
//! process that serves a mount waits at most [`PATIENCE`], and not at all while its reader has not read since it last
//! did: its threads have locks that callers of the mount wait for. clippy refuses the macros in this crate.

use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Maximum wait of a process that serves for a slow reader.
pub const PATIENCE: Duration = Duration::from_millis(200);
/// A pipe that is ready takes this number of bytes without blocking (PIPE_BUF is larger).
const PIECE_BYTES: usize = 512;

/// The last message was lost because the reader did not read.
static STALLED: AtomicBool = AtomicBool::new(false);

/// Writes a line.
pub fn say(text: impl Display) {
    write(&format!("{text}\n"));
}

/// Writes text.
pub fn write(text: &str) {
    let limit = match (crate::log::served(), STALLED.load(Ordering::Relaxed)) {
        (None, _) => None,
        (Some(_), false) => Some(PATIENCE),
        (Some(_), true) => Some(Duration::ZERO),
    };
    // Lines of several threads are not mixed.
    let out = std::io::stderr().lock();
    let is_read = write_to(rustix::stdio::stderr(), text, limit);
    drop(out);
    STALLED.store(!is_read, Ordering::Relaxed);
}

/// Writes as much of the text as can be written, and waits at most `limit` for a reader that does not read. Takes no
/// lock. Returns whether that was not too long.
pub fn write_to(out: BorrowedFd<'_>, text: &str, limit: Option<Duration>) -> bool {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut left = text.as_bytes();
    while !left.is_empty() {
        match poll(&mut [PollFd::new(&out, PollFlags::OUT)], limit.as_ref()) {
            Ok(0) => return false,
            Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => return true,
        }
        match rustix::io::write(out, &left[..left.len().min(PIECE_BYTES)]) {
            Ok(written) => left = &left[written..],
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_cannot_be_written_is_lost() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        assert!(write_to(full.as_fd(), "text", None));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert!(write_to(writer.as_fd(), "text", None));
    }

    #[test]
    fn a_reader_that_has_stopped_is_waited_for_no_longer_than_the_limit() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let long = "x".repeat(1 << 20);
        assert!(!write_to(writer.as_fd(), &long, Some(Duration::ZERO)));
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert!(long.starts_with(&text) && text.len() >= PIECE_BYTES);
    }

    #[test]
    fn a_slow_reader_gets_everything_that_a_command_writes() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let long = "x".repeat(1 << 20);
        let read = steadfs_rt::try_spawn("reader", move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        assert!(write_to(writer.as_fd(), &long, None));
        drop(writer);
        assert!(read.unwrap().join() == long);
    }
}
