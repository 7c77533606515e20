//! The broker: the process that does for a contained server what needs a path or a right.
//!
//! **Problem.** The server parses a volume that may be hostile, so it must not have rights over the host. But a mount
//! has to be made, and some answers depend on the caller's process. **Rule.** Two processes: the *server* has
//! descriptors only; the *broker* makes and ends the mount, and answers [`Question`]s, over one socket. The broker never
//! reads a byte of the volume. It takes every message for one of an attacker: the set of messages is closed, none names
//! a path outside the cgroup hierarchy, and the mount is made where and how the command line says.
//!
//! A message is one datagram of text (SOCK_SEQPACKET), a word and its arguments; the server sends a request and waits for
//! its reply. The end of the socket is the end of the server.

mod client;
mod codec;
mod commands;
mod server;

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
pub use server::{Broker, VolumeFacts};

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

/// Sends one message, with a descriptor if there is one.
fn send(socket: &OwnedFd, text: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    if text.len() > MESSAGE_BYTES_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.as_slice();
    if fd.is_some() {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fits, "there is space for one descriptor");
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
fn receive(socket: &OwnedFd) -> io::Result<Option<(String, Option<OwnedFd>)>> {
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
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
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fd = fds.next();
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
    Ok(Some((text, fd)))
}

#[cfg(test)]
mod tests;
