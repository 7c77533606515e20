//! A non-blocking connection: system calls, and waits with a time limit.

use std::io::{self, Read, Write};
use std::net::ToSocketAddrs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustls::ClientConnection;
use steadfs_rt::{Instant, now};

use crate::tls::{Socket, Tls, failed, would_wait};
use crate::tunnel::Tunnel;
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
    tls: Option<ClientConnection>,
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
            tls: None,
        })
    }

    /// From now on everything is encrypted.
    pub fn start_tls(&mut self, tls: &Tls) -> Result<(), NbdError> {
        self.tls = Some(tls.start()?);
        while self.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
            self.send_tls()?;
            self.receive_tls()?;
        }
        self.send_tls()
    }

    /// Sends all bytes.
    pub fn send(&mut self, mut bytes: &[u8]) -> Result<(), NbdError> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(bytes).map_err(NbdError::Lost)?;
            return self.send_tls();
        }
        while !bytes.is_empty() {
            let sent = would_wait(Socket(&self.fd).write(bytes)).map_err(NbdError::Lost)?;
            match sent {
                Some(sent) => bytes = &bytes[sent..],
                None => self.wait(PollFlags::OUT)?,
            }
        }
        Ok(())
    }

    /// Fills the buffer.
    pub fn receive(&mut self, buf: &mut [u8]) -> Result<(), NbdError> {
        let mut filled = 0;
        while filled < buf.len() {
            let rest = &mut buf[filled..];
            let read = match &mut self.tls {
                Some(tls) => tls.reader().read(rest),
                None => Socket(&self.fd).read(rest),
            };
            match would_wait(read).map_err(NbdError::Lost)? {
                Some(0) => return Err(ended()),
                Some(read) => filled += read,
                None if self.tls.is_some() => self.receive_tls()?,
                None => self.wait(PollFlags::IN)?,
            }
        }
        Ok(())
    }

    /// Sends what TLS has to send.
    fn send_tls(&mut self) -> Result<(), NbdError> {
        while let Some(tls) = self.tls.as_mut().filter(|tls| tls.wants_write()) {
            match would_wait(tls.write_tls(&mut Socket(&self.fd))) {
                Ok(Some(_)) => {}
                Ok(None) => self.wait(PollFlags::OUT)?,
                Err(error) => return Err(last_words(tls, &self.fd, error)),
            }
        }
        Ok(())
    }

    /// Waits for something that TLS has to receive.
    fn receive_tls(&mut self) -> Result<(), NbdError> {
        while let Some(tls) = &mut self.tls {
            let read = tls.read_tls(&mut Socket(&self.fd));
            match would_wait(read).map_err(NbdError::Lost)? {
                None => self.wait(PollFlags::IN)?,
                Some(0) => return Err(ended()),
                Some(_) => {
                    let processed = tls.process_new_packets().map_err(failed);
                    // The server is to be sent why, too.
                    let sent = self.send_tls();
                    return processed.and(sent);
                }
            }
        }
        Ok(())
    }

    /// `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], NbdError> {
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

    /// The socket, whose negotiation has ended, and the tunnel behind it.
    pub fn into_socket(self) -> Result<(OwnedFd, Option<Tunnel>), NbdError> {
        let Some(tls) = self.tls else {
            return Ok((self.fd, None));
        };
        let made = Tunnel::new(tls, self.fd);
        let (tunnel, socket) = made.map_err(|errno| NbdError::Lost(errno.into()))?;
        Ok((socket, Some(tunnel)))
    }
}

/// Why a server has ended the connection, which may be in what it sent before.
fn last_words(tls: &mut ClientConnection, fd: &OwnedFd, error: io::Error) -> NbdError {
    while let Ok(1..) = tls.read_tls(&mut Socket(fd)) {
        if let Err(error) = tls.process_new_packets() {
            return failed(error);
        }
    }
    NbdError::Lost(error)
}

fn ended() -> NbdError {
    NbdError::Lost(io::ErrorKind::UnexpectedEof.into())
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
