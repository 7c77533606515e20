//! The broker: the process that does for a contained server what needs a path or a right.
//!
//! **Problem.** The server parses a volume that may be hostile, so it must not have rights over the host. But a mount
//! has to be made, and some answers depend on the caller's process. **Rule.** Two processes: the *server* has
//! descriptors only; the *broker* makes and ends the mount, and answers [`Question`]s, over one socket. The broker never
//! reads a byte of the volume. It takes every message for one of an attacker: the set of messages is closed, none names
//! a path outside the cgroup hierarchy, and the mount is made where and how the command line says. Of files the server gets
//! the one that the command line names, opened for writing if a mount that was read-only is to be written
//! ([`Reopen`]).
//!
//! A message is one datagram of text (SOCK_SEQPACKET), a word and its arguments; the server sends a request and waits for
//! its reply. The end of the socket is the end of the server.

mod client;
mod codec;
mod commands;
mod server;
mod succession;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::retry_on_intr;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::datagram;

pub use client::{BrokerClient, TakenOver};
pub use commands::{Commands, HandOverError, serve_commands};
pub use server::{Broker, Ended, Reopen, VolumeFacts, VolumeFiles};

/// The longest message in bytes: a cgroup's path is at most 4095.
const MESSAGE_BYTES_MAX: usize = 8192;

/// A connection between a broker and its server.
///
/// # Errors
/// The host has no descriptors left.
pub fn broker_sockets() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Sends one message with its descriptors.
fn send(socket: &OwnedFd, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    datagram::send(socket, text.as_bytes(), fds)
}

/// Receives one message; `None` at the end of the socket.
fn receive(socket: &OwnedFd) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let Some((bytes, fds)) = datagram::receive(socket, MESSAGE_BYTES_MAX)? else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("a message is no text"))?;
    Ok(Some((text, fds)))
}

/// Waits until a connection has ended; `false` if it has not after `time`, or if poll(2) fails for lack of memory.
fn ends_within(device: &OwnedFd, time: Duration) -> bool {
    // Not for requests: only errors are reported then.
    let mut polled = [PollFd::new(device, PollFlags::empty())];
    let time = Timespec::try_from(time).ok();
    let found = retry_on_intr(|| rustix::event::poll(&mut polled, time.as_ref()));
    found.is_ok() && polled[0].revents().contains(PollFlags::ERR)
}

#[cfg(test)]
mod tests;
