//! Messages with descriptors over Unix sockets that keep their boundaries (SOCK_SEQPACKET).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors of a message: a successor gets the connection, the legacy and the file of records.
pub(crate) const DESCRIPTORS_MAX: usize = 3;

/// Sends one message with its descriptors.
///
/// # Errors
/// `InvalidInput`: more than [`DESCRIPTORS_MAX`], which the receiver might not get. Those of the socket.
pub(crate) fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = fds.len() <= DESCRIPTORS_MAX
        && (fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
    if !fits {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    loop {
        // Without NOSIGNAL the end of the other process would end this one.
        let sent = rustix::net::sendmsg(
            socket.as_fd(),
            &[IoSlice::new(bytes)],
            &mut control,
            SendFlags::NOSIGNAL,
        );
        match sent {
            Err(Errno::INTR) => {}
            sent => return sent.map(drop).map_err(io::Error::from),
        }
    }
}

/// Receives one message of at most `bytes_max` bytes; `None` at the end of the socket. Descriptors that a security module
/// has removed are an error.
pub(crate) fn receive(
    socket: &OwnedFd,
    bytes_max: usize,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; bytes_max];
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
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::Error::other(
            "descriptors of a message were lost; a security module may refuse them",
        ));
    }
    bytes.truncate(received.bytes);
    Ok(Some((bytes, fds)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::broker_sockets;

    fn inode(fd: &impl AsFd) -> u64 {
        rustix::fs::fstat(fd).unwrap().st_ino
    }

    #[test]
    fn a_message_carries_as_many_descriptors_as_are_declared_and_no_more() {
        let (ours, theirs) = broker_sockets().unwrap();
        let files: Vec<_> = (0..=DESCRIPTORS_MAX)
            .map(|_| tempfile::tempfile().unwrap())
            .collect();
        let fds: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        send(&ours, b"all", &fds[..DESCRIPTORS_MAX]).unwrap();
        let (bytes, received) = receive(&theirs, 8).unwrap().unwrap();
        let received: Vec<_> = received.iter().map(inode).collect();
        let sent: Vec<_> = fds[..DESCRIPTORS_MAX].iter().map(inode).collect();
        assert_eq!((&bytes[..], received), (&b"all"[..], sent));
        let refused = send(&ours, b"more", &fds).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        send(&ours, b"next", &[]).unwrap();
        assert_eq!(receive(&theirs, 8).unwrap().unwrap().0, b"next");
    }
}
