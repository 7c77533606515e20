//! A non-blocking connection: system calls, and waits with a time limit.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use steadfs_rt::{Instant, now};

use crate::{Endpoint, NbdError};

/// Longest time for a connection and its negotiation.
pub const CONNECT_TIME: Duration = Duration::from_secs(10);
/// TCP: silence after which the kernel asks the peer, time between questions, their number.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(20), Duration::from_secs(10), 4);
/// TCP: longest time that sent bytes stay without acknowledgement, in milliseconds.
const UNACKNOWLEDGED_MS: u32 = 60_000;

/// A connection in its negotiation.
pub struct Link {
    fd: OwnedFd,
    deadline: Instant,
}

impl Link {
    /// Connects to a server.
    pub fn connect(endpoint: &Endpoint, limit: Duration) -> Result<Self, NbdError> {
        let began = now();
        let failed = |cause: io::Error| match cause.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => NbdError::Late(limit),
            _ => NbdError::Connect {
                to: endpoint.to_string(),
                cause,
            },
        };
        let fd = match endpoint {
            Endpoint::Unix(path) => {
                let connect = || -> Result<OwnedFd, Errno> {
                    let fd = stream(AddressFamily::UNIX)?;
                    // A full backlog would block.
                    sockopt::set_socket_timeout(&fd, sockopt::Timeout::Send, Some(limit))?;
                    rustix::net::connect(&fd, &SocketAddrUnix::new(path)?)?;
                    Ok(fd)
                };
                connect().map_err(|errno| failed(errno.into()))?
            }
            Endpoint::Tcp(host, port) => tcp(host, *port, (began, limit)).map_err(failed)?,
        };
        rustix::io::ioctl_fionbio(&fd, true).map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            fd,
            deadline: began + limit,
        })
    }

    /// Sends all bytes.
    pub fn send(&self, mut bytes: &[u8]) -> Result<(), NbdError> {
        while !bytes.is_empty() {
            match rustix::io::write(&self.fd, bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(NbdError::Lost(errno.into())),
            }
        }
        Ok(())
    }

    /// Fills the buffer.
    pub fn receive(&self, buf: &mut [u8]) -> Result<(), NbdError> {
        let mut filled = 0;
        while filled < buf.len() {
            match rustix::io::read(&self.fd, &mut buf[filled..]) {
                Ok(0) => return Err(NbdError::Lost(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => filled += n,
                Err(Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(NbdError::Lost(errno.into())),
            }
        }
        Ok(())
    }

    /// `N` bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], NbdError> {
        let mut bytes = [0; N];
        self.receive(&mut bytes)?;
        Ok(bytes)
    }

    fn wait(&self, events: PollFlags) -> Result<(), NbdError> {
        let left = self.deadline.since(now());
        if left.is_zero() {
            return Err(NbdError::Late(CONNECT_TIME));
        }
        let mut fds = [PollFd::new(&self.fd, events)];
        let left = Timespec::try_from(left).unwrap_or(Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        });
        match poll(&mut fds, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(NbdError::Lost(errno.into())),
        }
    }

    /// The socket, whose negotiation has ended.
    pub fn into_socket(self) -> OwnedFd {
        self.fd
    }
}

fn stream(family: AddressFamily) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

/// Connects to the first address of the host that accepts.
fn tcp(host: &str, port: u16, (began, limit): (Instant, Duration)) -> io::Result<OwnedFd> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        let left = limit.saturating_sub(began.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match std::net::TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                let fd = OwnedFd::from(stream);
                tune(fd.as_fd())?;
                return Ok(fd);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Requests are sent at once, and a dead host is noticed.
fn tune(fd: impl AsFd + Copy) -> Result<(), Errno> {
    let (idle, interval, count) = KEEPALIVE;
    sockopt::set_tcp_nodelay(fd, true)?;
    sockopt::set_socket_keepalive(fd, true)?;
    sockopt::set_tcp_keepidle(fd, idle)?;
    sockopt::set_tcp_keepintvl(fd, interval)?;
    sockopt::set_tcp_keepcnt(fd, count)?;
    sockopt::set_tcp_user_timeout(fd, UNACKNOWLEDGED_MS)
}
