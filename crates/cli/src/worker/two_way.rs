//! A socket whose writer never waits for a reader that waits to write.
//!
//! **Problem.** The client sends calls before it has received the replies to earlier ones, and a reply has an error for
//! each extended attribute that the volume refused. If neither end receives while it sends, both wait without end once what is
//! on its way fills the socket both ways. **Rule.** While the other end takes nothing, this one receives what it sends, and
//! keeps it for the next reads.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// Most bytes that are kept. The other end may be under an attacker's control.
const EARLY_MAX: usize = 64 << 20;
/// Bytes of one receiving.
const PIECE: usize = 64 << 10;

/// One end of a stream.
pub struct TwoWay {
    stream: UnixStream,
    /// What was received while something was sent, and the place of the first byte that was not read.
    early: (Vec<u8>, usize),
}

impl TwoWay {
    pub fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            early: (Vec::new(), 0),
        }
    }

    /// Waits until something can be sent or received, and receives what has come.
    fn receive_or_wait(&mut self) -> io::Result<()> {
        let mut polled = [PollFd::new(&self.stream, PollFlags::IN | PollFlags::OUT)];
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        if !polled[0].revents().contains(PollFlags::IN) {
            return Ok(());
        }
        let (early, _) = &mut self.early;
        let before = early.len();
        if before > EARLY_MAX {
            let why = "the other end sends without being asked";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        early.resize(before + PIECE, 0);
        let got = self.stream.read(&mut early[before..]);
        early.truncate(before + got.as_ref().map_or(0, |got| *got));
        match got? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }
}

impl Read for TwoWay {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (early, read) = &mut self.early;
        let left = &early[*read..];
        if left.is_empty() {
            return self.stream.read(buf);
        }
        let n = left.len().min(buf.len());
        buf[..n].copy_from_slice(&left[..n]);
        *read += n;
        if *read == early.len() {
            self.early = (Vec::new(), 0);
        }
        Ok(n)
    }
}

impl Write for TwoWay {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        loop {
            match send(&self.stream, buf, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => self.receive_or_wait()?,
                sent => return Ok(sent?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than the socket takes in either direction.
    const LEN: usize = 4 << 20;

    #[test]
    fn both_ends_send_before_they_receive() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let other = steadfs_rt::spawn("other-end", move || {
            let mut got = vec![0; LEN];
            theirs.write_all(&vec![7; LEN]).unwrap();
            theirs.read_exact(&mut got).unwrap();
            got
        });
        let mut ours = TwoWay::new(ours);
        ours.write_all(&vec![5; LEN]).unwrap();
        let mut got = vec![0; LEN];
        ours.read_exact(&mut got).unwrap();
        assert!(got == vec![7; LEN]);
        assert!(other.join() == vec![5; LEN]);
        assert_eq!(ours.read(&mut got).unwrap(), 0, "the other end is gone");
    }

    #[test]
    fn an_end_that_sends_without_end_is_left() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let other = steadfs_rt::spawn("other-end", move || {
            while theirs.write_all(&vec![7; 1 << 20]).is_ok() {}
        });
        let mut ours = TwoWay::new(ours);
        let error = ours.write_all(&vec![5; LEN]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        drop(ours);
        other.join();
    }
}
