//! A negotiated connection: what is to be sent, and the thread that receives.
//!
//! **Problem.** [`Device::start`](steadfs_block::Device::start) must not wait for the server, and each wake-up of a thread
//! costs more than a small request.
//!
//! **Rule.** The task that starts a request sends it, as far as the socket takes it without waiting. What is left is sent by
//! the connection's thread, which otherwise only receives. That thread never waits for a lock that a sender holds while it
//! waits, so replies are always read.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use steadfs_block::Buf;
use steadfs_rt::{Mutex, Rank};

use crate::table::Issued;
use crate::wire::{self, Kind, REQUEST_LEN};

/// Most pieces of memory of one system call.
const PIECES_MAX: usize = 256;

/// A connection.
pub struct Connection {
    socket: OwnedFd,
    /// An eventfd(2) that wakes the thread.
    wake: OwnedFd,
    unsent: Mutex<Unsent>,
}

#[derive(Default)]
struct Unsent {
    messages: VecDeque<Message>,
    /// Nothing is sent any more.
    is_closed: bool,
}

/// A request, or the rest of one.
struct Message {
    header: [u8; REQUEST_LEN],
    data: Vec<(Buf, Range<usize>)>,
    sent: usize,
}

impl Message {
    /// What is left, in at most [`PIECES_MAX`] pieces.
    fn rest(&self) -> Vec<IoSlice<'_>> {
        let header = std::iter::once(&self.header[..]);
        let data = self.data.iter().map(|(buf, range)| &buf[range.clone()]);
        let mut skip = self.sent;
        let mut rest = Vec::new();
        for part in header.chain(data) {
            let skipped = skip.min(part.len());
            skip -= skipped;
            if skipped < part.len() {
                rest.push(IoSlice::new(&part[skipped..]));
            }
            if rest.len() == PIECES_MAX {
                break;
            }
        }
        rest
    }

    fn len(&self) -> usize {
        self.data
            .iter()
            .fold(REQUEST_LEN, |len, (_, range)| len + range.len())
    }
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Result<Self, Errno> {
        Ok(Self {
            socket,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            unsent: Mutex::new(Rank::DeviceInner, Unsent::default()),
        })
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Sends a request, or queues it for the thread.
    pub fn send(&self, issued: Issued) {
        let Issued {
            kind,
            flags,
            cookie,
            offset,
            len,
            data,
            ..
        } = issued;
        let message = Message {
            header: wire::request(kind, flags, cookie, offset, len),
            data,
            sent: 0,
        };
        let mut unsent = self.unsent.lock();
        if unsent.is_closed {
            // Its sender finds it failed.
            return;
        }
        unsent.messages.push_back(message);
        if unsent.messages.len() > 1 {
            return;
        }
        self.flush(&mut unsent);
        if !unsent.messages.is_empty() || unsent.is_closed {
            drop(unsent);
            self.call();
        }
    }

    /// Sends what the socket takes. After an error nothing is sent any more, and the thread finds the socket ended.
    fn flush(&self, unsent: &mut Unsent) {
        while let Some(message) = unsent.messages.front_mut() {
            match rustix::io::writev(&self.socket, &message.rest()) {
                Ok(sent) => {
                    message.sent += sent;
                    if message.sent == message.len() {
                        unsent.messages.pop_front();
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    unsent.is_closed = true;
                    unsent.messages.clear();
                }
            }
        }
    }

    /// Wakes the thread.
    pub fn call(&self) {
        // The counter is full: it is awake.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Waits until there is something to receive or the thread is called, and sends meanwhile.
    pub fn wait(&self) -> Result<(), Errno> {
        loop {
            let has_unsent = !self.unsent.lock().messages.is_empty();
            let events = match has_unsent {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            let mut fds = [
                PollFd::new(&self.socket, events),
                PollFd::new(&self.wake, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno),
            }
            let (found, called) = (fds[0].revents(), fds[1].revents());
            if found.contains(PollFlags::OUT) {
                self.flush(&mut self.unsent.lock());
            }
            if called.contains(PollFlags::IN) {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.wake, &mut count);
                return Ok(());
            }
            if found.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                return Ok(());
            }
        }
    }

    /// Nothing is sent any more.
    pub fn close(&self) {
        let mut unsent = self.unsent.lock();
        unsent.is_closed = true;
        unsent.messages.clear();
    }

    /// Whether sending has failed.
    pub fn is_closed(&self) -> bool {
        self.unsent.lock().is_closed
    }

    /// Ends the connection as the protocol wants it, if the socket takes it at once.
    pub fn disconnect(&self) {
        let bytes = wire::request(Kind::Disconnect, 0, 0, 0, 0);
        let unsent = self.unsent.lock();
        if !unsent.is_closed && unsent.messages.is_empty() {
            let _ = rustix::io::write(&self.socket, &bytes);
        }
    }
}
