//! A thread between a connection's socket and TLS.
//!
//! **Problem.** A connection is used by several tasks at a time: each sends by itself, and one receives. The state of TLS is
//! one, and a task that sends must not wait for one that receives.
//!
//! **Rule.** The connection has one end of a socketpair(2), and works as without TLS. The tunnel's thread moves bytes
//! between the other end and the server. It takes from neither side while the other one has bytes to take, so that its
//! memory is bounded by one buffer of each direction.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustls::ClientConnection;

use crate::NbdError;
use crate::tls::{Socket, failed, would_wait};

/// Bytes that are moved at a time, in each direction.
const BUFFER_BYTES: usize = 64 << 10;

/// A tunnel whose thread is to be started.
pub struct Tunnel {
    tls: ClientConnection,
    server: OwnedFd,
    /// The other end of the connection's socket.
    local: OwnedFd,
    /// An eventfd(2): written to at the end.
    end: Arc<OwnedFd>,
    /// What came from the server and was not taken yet.
    received: Vec<u8>,
    /// The first of those bytes.
    taken: usize,
    buffer: Vec<u8>,
}

/// Ends a tunnel.
#[derive(Clone)]
pub struct TunnelEnd(Arc<OwnedFd>);

impl TunnelEnd {
    /// The tunnel sends what it has, as far as the server takes it at once, and ends.
    pub fn call(&self) {
        // A full counter wakes it, too.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Why a tunnel ended.
enum Why {
    /// One side has ended, or the tunnel was called.
    Ended,
    Failed(NbdError),
}

impl From<io::Error> for Why {
    fn from(error: io::Error) -> Self {
        Self::Failed(NbdError::Lost(error))
    }
}

impl From<Errno> for Why {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl Tunnel {
    /// A tunnel after the handshake. Returns the connection's socket, too.
    pub fn new(mut tls: ClientConnection, server: OwnedFd) -> Result<(Self, OwnedFd), Errno> {
        // `buffer` is the limit.
        tls.set_buffer_limit(None);
        let (local, socket) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let end = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let tunnel = Self {
            tls,
            server,
            local,
            end: Arc::new(end),
            received: Vec::new(),
            taken: 0,
            buffer: vec![0; BUFFER_BYTES],
        };
        Ok((tunnel, socket))
    }

    pub fn end(&self) -> TunnelEnd {
        TunnelEnd(Arc::clone(&self.end))
    }

    /// Moves bytes until one side ends or the tunnel is called.
    pub fn run(mut self) {
        let why = loop {
            if let Err(why) = self.step() {
                break why;
            }
        };
        if let Why::Failed(error) = why {
            tracing::error!("{error}");
        }
        self.finish();
    }

    /// Sends what the connection has sent, as far as the server takes it at once.
    pub fn finish(mut self) {
        // The connection is over, whatever the server got.
        let _ = self.collect();
        self.tls.send_close_notify();
        let _ = self.send();
    }

    /// Waits for one of the sides and serves it.
    fn step(&mut self) -> Result<(), Why> {
        let mut server = PollFlags::empty();
        let mut local = PollFlags::empty();
        match self.tls.wants_write() {
            true => server |= PollFlags::OUT,
            false => local |= PollFlags::IN,
        }
        match self.taken < self.received.len() {
            true => local |= PollFlags::OUT,
            false => server |= PollFlags::IN,
        }
        // A side without events is left out: that it has ended would be reported again and again.
        let sides = [(&self.server, server), (&self.local, local)];
        let sides = sides.into_iter().filter(|(_, events)| !events.is_empty());
        let mut fds = vec![PollFd::new(&self.end, PollFlags::IN)];
        fds.extend(sides.map(|(fd, events)| PollFd::new(fd, events)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if fds[0].revents().contains(PollFlags::IN) {
            return Err(Why::Ended);
        }
        if server.contains(PollFlags::OUT) {
            self.send()?;
        }
        if local.contains(PollFlags::OUT) {
            self.deliver()?;
        }
        if server.contains(PollFlags::IN) {
            self.receive()?;
        }
        if local.contains(PollFlags::IN) {
            self.collect()?;
            self.send()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Why> {
        while self.tls.wants_write() {
            if would_wait(self.tls.write_tls(&mut Socket(&self.server)))?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Why> {
        self.received.clear();
        self.taken = 0;
        let mut has_ended = false;
        while self.received.len() < BUFFER_BYTES {
            match would_wait(self.tls.read_tls(&mut Socket(&self.server)))? {
                None => break,
                Some(0) => {
                    has_ended = true;
                    break;
                }
                Some(_) => {}
            }
            let state = self.tls.process_new_packets();
            let plain = state
                .map_err(|error| Why::Failed(failed(error)))?
                .plaintext_bytes_to_read();
            let at = self.received.len();
            self.received.resize(at + plain, 0);
            let read = self.tls.reader().read_exact(&mut self.received[at..]);
            read.map_err(Why::from)?;
        }
        self.deliver()?;
        match has_ended && self.taken == self.received.len() {
            true => Err(Why::Ended),
            false => Ok(()),
        }
    }

    fn deliver(&mut self) -> Result<(), Why> {
        while self.taken < self.received.len() {
            match would_wait(Socket(&self.local).write(&self.received[self.taken..]))? {
                Some(taken) => self.taken += taken,
                None => break,
            }
        }
        Ok(())
    }

    fn collect(&mut self) -> Result<(), Why> {
        match would_wait(Socket(&self.local).read(&mut self.buffer))? {
            None => Ok(()),
            Some(0) => Err(Why::Ended),
            Some(read) => Ok(self.tls.writer().write_all(&self.buffer[..read])?),
        }
    }
}
