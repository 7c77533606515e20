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

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

pub use client::BrokerClient;
pub use commands::{Commands, serve_commands};
pub use server::{Broker, Ended, Reopen, VolumeFacts};

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

/// Most descriptors of a message.
const DESCRIPTORS_MAX: usize = 2;

/// Sends one message with its descriptors.
fn send(socket: &OwnedFd, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        assert!(fits, "a message has few descriptors");
    }
    loop {
        // Without NOSIGNAL the end of the other process would end this one.
        let sent = rustix::net::sendmsg(
            socket.as_fd(),
            &[IoSlice::new(text.as_bytes())],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop).map_err(io::Error::from),
        }
    }
}

/// Receives one message; `None` at the end of the socket.
fn receive(socket: &OwnedFd) -> io::Result<Option<(String, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut into = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            // The other process has ended with a message unread.
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?,
        }
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(io::Error::other("a message is too long"));
    }
    bytes.truncate(received.bytes);
    let text = String::from_utf8(bytes).map_err(|_| io::Error::other("a message is no text"))?;
    Ok(Some((text, fds)))
}

#[cfg(test)]
mod tests;
