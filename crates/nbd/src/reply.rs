//! Replies of a server, checked.
//!
//! **Rule.** A reply belongs to a request that was sent on this connection and is not answered yet. The data of a read lies
//! within its range, no byte comes twice, and none is missing where the server reports success: memory that was not filled
//! is never handed on.

use std::collections::BTreeMap;
use std::io::IoSliceMut;

use rustix::io::Errno;
use steadfs_block::Buf;

use crate::connection::Connection;
use crate::error::shown;
use crate::table::Command;
use crate::wire::{self, Fields, Kind};

/// Bytes that are received at a time where no data of a read is expected.
const AHEAD: usize = 16 << 10;
/// Most bytes of an error chunk: numbers, and a text of the largest length.
const ERROR_CHUNK_MAX: u32 = 6 + 65_535 + 8;
/// Most chunks of one reply.
const CHUNKS_MAX: u32 = 1 << 16;
/// Most pieces of memory of one system call.
const PIECES_MAX: usize = 256;

/// Ranges of a read that have been received.
#[derive(Default, Debug)]
pub struct Coverage(BTreeMap<u32, u32>);

impl Coverage {
    /// Adds a range. Returns false if a byte of it was there.
    pub fn add(&mut self, start: u32, end: u32) -> bool {
        let before = self.0.range(..=start).next_back().map(|(a, b)| (*a, *b));
        let after = self.0.range(start..).next().map(|(a, b)| (*a, *b));
        if before.is_some_and(|(_, e)| e > start) || after.is_some_and(|(s, _)| s < end) {
            return false;
        }
        let mut range = (start, end);
        if let Some((from, to)) = before
            && to == start
        {
            range.0 = from;
        }
        if let Some((from, to)) = after
            && from == end
        {
            self.0.remove(&from);
            range.1 = to;
        }
        self.0.insert(range.0, range.1);
        true
    }

    /// Whether it is the whole of `len` bytes.
    pub fn is_whole(&self, len: u32) -> bool {
        self.0.get(&0) == Some(&len)
    }
}

/// Why no more replies are received.
#[derive(Debug)]
pub enum End {
    /// The device is closed.
    Closed,
    /// The connection is lost, for this reason.
    Lost(String),
}

fn broken<T>(what: impl std::fmt::Display) -> Result<T, End> {
    Err(End::Lost(format!("the server breaks the protocol: {what}")))
}

/// What a receiver asks of its device.
pub trait Requests {
    /// The request with this cookie.
    fn take(&self, cookie: u64) -> Option<Command>;
    /// More replies will follow.
    fn put_back(&self, cookie: u64, command: Command);
    /// It has been answered.
    fn end(&self, command: Command);
    /// The thread was called: whether it goes on, between replies or within one.
    fn goes_on(&self, within: bool) -> Result<(), End>;
    /// Whether reads are answered by structured replies.
    fn structured(&self) -> bool;
}

/// Receives the replies of one connection.
pub struct Receiver<'a, R> {
    connection: &'a Connection,
    requests: &'a R,
    ahead: Vec<u8>,
    /// The received bytes of `ahead` that are not used yet.
    unused: std::ops::Range<usize>,
}

impl<'a, R: Requests> Receiver<'a, R> {
    pub fn new(connection: &'a Connection, requests: &'a R) -> Self {
        Self {
            connection,
            requests,
            ahead: vec![0; AHEAD],
            unused: 0..0,
        }
    }

    /// Receives one message.
    pub fn reply(&mut self) -> Result<(), End> {
        let mut magic = [0; 4];
        self.fill(&mut magic, false)?;
        match u32::from_be_bytes(magic) {
            wire::SIMPLE_REPLY_MAGIC => self.simple(),
            wire::STRUCTURED_REPLY_MAGIC if self.requests.structured() => self.chunk(),
            other => broken(format_args!("a reply with magic {other:#x}")),
        }
    }

    fn simple(&mut self) -> Result<(), End> {
        let mut header = [0; 12];
        self.fill(&mut header, true)?;
        let mut fields = Fields(&header);
        let error = fields.u32().unwrap_or_default();
        let cookie = fields.u64().unwrap_or_default();
        let mut command = self.command(cookie)?;
        if error != 0 {
            command.error = Some(failure(error, b""));
        } else if command.kind == Kind::Read {
            if self.requests.structured() {
                self.requests.put_back(cookie, command);
                return broken("a simple reply to a read");
            }
            let (len, memory) = (command.len as usize, &mut command.memory);
            if let Err(end) = self.fill_memory(memory, 0, len) {
                self.requests.put_back(cookie, command);
                return Err(end);
            }
        }
        self.requests.end(command);
        Ok(())
    }

    fn command(&self, cookie: u64) -> Result<Command, End> {
        match self.requests.take(cookie) {
            Some(command) => Ok(command),
            None => broken(format_args!("a reply to no request (cookie {cookie:#x})")),
        }
    }

    fn chunk(&mut self) -> Result<(), End> {
        let mut header = [0; 16];
        self.fill(&mut header, true)?;
        let mut fields = Fields(&header);
        let (flags, kind) = (
            fields.u16().unwrap_or_default(),
            fields.u16().unwrap_or_default(),
        );
        let cookie = fields.u64().unwrap_or_default();
        let len = fields.u32().unwrap_or_default();
        let is_last = flags & wire::REPLY_DONE != 0;
        let mut command = self.command(cookie)?;
        let content = self.content(&mut command, (kind, len, is_last));
        let is_filled = command.kind != Kind::Read || command.coverage.is_whole(command.len);
        let content = match content {
            Ok(()) if is_last && command.error.is_none() && !is_filled => {
                broken("a read with bytes missing")
            }
            content => content,
        };
        match content {
            Ok(()) if is_last => self.requests.end(command),
            Ok(()) => self.requests.put_back(cookie, command),
            Err(end) => {
                // It fails with all others of the connection.
                self.requests.put_back(cookie, command);
                return Err(end);
            }
        }
        Ok(())
    }

    fn content(
        &mut self,
        command: &mut Command,
        (kind, len, is_last): (u16, u32, bool),
    ) -> Result<(), End> {
        command.chunks += 1;
        if command.chunks > CHUNKS_MAX {
            return broken(format_args!("a reply of more than {CHUNKS_MAX} chunks"));
        }
        let is_read = command.kind == Kind::Read;
        match kind {
            wire::CHUNK_NONE if len == 0 && is_last => Ok(()),
            wire::CHUNK_DATA if is_read && len > 8 => {
                let mut offset = [0; 8];
                self.fill(&mut offset, true)?;
                let from = covered(command, u64::from_be_bytes(offset), len - 8)?;
                self.fill_memory(&mut command.memory, from, (len - 8) as usize)
            }
            wire::CHUNK_HOLE if is_read && len == 12 => {
                let mut place = [0; 12];
                self.fill(&mut place, true)?;
                let mut fields = Fields(&place);
                let offset = fields.u64().unwrap_or_default();
                let hole = fields.u32().unwrap_or_default();
                let from = covered(command, offset, hole)?;
                for mut part in parts(&mut command.memory, from, hole as usize) {
                    part.fill(0);
                }
                Ok(())
            }
            error if error & wire::CHUNK_ERROR_BIT != 0 && (6..=ERROR_CHUNK_MAX).contains(&len) => {
                let mut bytes = vec![0; len as usize];
                self.fill(&mut bytes, true)?;
                let mut fields = Fields(&bytes);
                let error = fields.u32().unwrap_or_default();
                let text = fields.u16().unwrap_or_default();
                let Some(text) = fields.take(usize::from(text)) else {
                    return broken("a text longer than its chunk");
                };
                command.error.get_or_insert_with(|| failure(error, text));
                Ok(())
            }
            kind => broken(format_args!("a chunk of type {kind} and {len} bytes")),
        }
    }

    /// Fills `buf`; `within` a message, or at the begin of one.
    fn fill(&mut self, buf: &mut [u8], within: bool) -> Result<(), End> {
        let mut filled = 0;
        loop {
            let n = self.unused.len().min(buf.len() - filled);
            buf[filled..filled + n].copy_from_slice(&self.ahead[self.unused.start..][..n]);
            self.unused.start += n;
            filled += n;
            if filled == buf.len() {
                return Ok(());
            }
            let within = within || filled > 0;
            let ahead = &mut [IoSliceMut::new(&mut self.ahead)];
            let got = receive(self.connection, self.requests, ahead, within)?;
            self.unused = 0..got;
        }
    }

    /// Fills `len` bytes of the memory from `from` on.
    fn fill_memory(&mut self, memory: &mut [Buf], from: usize, len: usize) -> Result<(), End> {
        let mut parts = parts(memory, from, len);
        let mut parts = &mut parts[..];
        while !parts.is_empty() && !self.unused.is_empty() {
            let n = self.unused.len().min(parts[0].len());
            parts[0][..n].copy_from_slice(&self.ahead[self.unused.start..][..n]);
            self.unused.start += n;
            IoSliceMut::advance_slices(&mut parts, n);
        }
        while !parts.is_empty() {
            let most = parts.len().min(PIECES_MAX);
            let got = receive(self.connection, self.requests, &mut parts[..most], true)?;
            IoSliceMut::advance_slices(&mut parts, got);
        }
        Ok(())
    }
}

/// Receives at least one byte.
fn receive<R: Requests>(
    connection: &Connection,
    requests: &R,
    bufs: &mut [IoSliceMut<'_>],
    within: bool,
) -> Result<usize, End> {
    let lost = |errno: Errno| End::Lost(std::io::Error::from(errno).to_string());
    loop {
        match rustix::io::readv(connection.socket(), bufs) {
            Ok(0) => return Err(End::Lost("the server has closed the connection".to_owned())),
            Ok(n) => return Ok(n),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                requests.goes_on(within)?;
                connection.wait().map_err(lost)?;
                if connection.is_closed() {
                    return Err(End::Lost("the server has closed the connection".to_owned()));
                }
            }
            Err(errno) => return Err(lost(errno)),
        }
    }
}

/// Where a part of a read's range begins in its memory, if it is within the range and new.
fn covered(command: &mut Command, offset: u64, len: u32) -> Result<usize, End> {
    let from = offset.checked_sub(command.offset);
    let from = from.and_then(|from| u32::try_from(from).ok());
    let range = from.and_then(|from| Some((from, from.checked_add(len)?)));
    match range {
        Some((from, to)) if len > 0 && to <= command.len => match command.coverage.add(from, to) {
            true => Ok(from as usize),
            false => broken("data that comes twice"),
        },
        _ => broken(format_args!(
            "{len} bytes at {offset}, which were not asked for"
        )),
    }
}

/// `len` bytes of memory from `from` on, which has them.
fn parts(memory: &mut [Buf], from: usize, len: usize) -> Vec<IoSliceMut<'_>> {
    let end = from + len;
    let mut at = 0;
    let mut parts = Vec::new();
    for buf in memory {
        let next = at + buf.len();
        let (lo, hi) = (from.max(at), end.min(next));
        if lo < hi {
            parts.push(IoSliceMut::new(&mut buf.make_mut()[lo - at..hi - at]));
        }
        at = next;
    }
    parts
}

/// The server's error as a cause.
fn failure(error: u32, text: &[u8]) -> String {
    let name = wire::error_name(error);
    match text.is_empty() {
        true => format!("the server reports {name}"),
        false => format!("the server reports {name}: {}", shown(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_knows_what_is_missing_and_what_comes_twice() {
        let mut coverage = Coverage::default();
        assert!(coverage.add(10, 20) && coverage.add(0, 5) && coverage.add(30, 40));
        for (start, end) in [
            (0, 1),
            (4, 6),
            (9, 11),
            (19, 21),
            (5, 40),
            (0, 40),
            (12, 13),
        ] {
            assert!(!coverage.add(start, end), "{start} to {end}");
        }
        assert!(coverage.add(5, 10) && !coverage.is_whole(40));
        assert!(coverage.add(20, 30) && coverage.is_whole(40) && !coverage.is_whole(41));
        assert_eq!(coverage.0.len(), 1);
    }
}
