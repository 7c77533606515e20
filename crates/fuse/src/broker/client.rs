//! The server's end of the socket.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use steadfs_rt::{Mutex, Rank, now, sleep};

use super::codec::{Reply, Request};
use super::server::VolumeFacts;
use super::{ends_within, receive, send};
use crate::error::MountError;
use crate::host::{self, Answer, Host, Question};
use crate::mount::{MountOptions, Mounter};

/// How long a request waits until the broker knows that the mount is usable.
const USABLE_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time between two attempts.
const USABLE_POLL: Duration = Duration::from_millis(5);

/// A server's connection to its broker.
pub struct BrokerClient {
    /// Locked from a request to its reply.
    socket: Mutex<OwnedFd>,
}

/// What a predecessor has left.
pub struct TakenOver {
    /// The connection.
    pub device: OwnedFd,
    /// The file with its [`Legacy`](crate::Legacy).
    pub legacy: OwnedFd,
    /// Whether the kernel's mount claims the block device.
    pub claimed: bool,
    /// The file with its [`Record`](crate::Record), if its calls were recorded.
    pub record: Option<OwnedFd>,
}

impl TakenOver {
    /// Whether there is anything to continue: the mount, or what was acknowledged and may not be written.
    #[must_use]
    pub fn is_worth_continuing(&self) -> bool {
        self.record.is_some() || self.is_connected()
    }

    /// Whether the mount exists.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !ends_within(&self.device, Duration::ZERO)
    }
}

impl BrokerClient {
    /// Connects this process: from now on its questions go to the broker. Call it once, before anything is mounted.
    pub fn connect(socket: OwnedFd) -> Arc<Self> {
        let client = Arc::new(Self::new(socket));
        host::set_host(Arc::clone(&client) as Arc<dyn Host>);
        // A limit of the process may allow it, too; then the broker is not asked.
        let ask = |tid, request| host::is(Question::Thread(tid, request));
        steadfs_rt::cpu::help_threads_by(Box::new(ask));
        client
    }

    /// A connection that is not the process's host.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket: Mutex::new(Rank::Host, socket),
        }
    }

    fn request(&self, request: &Request) -> io::Result<(Reply, Vec<OwnedFd>)> {
        let socket = self.socket.lock();
        send(&socket, &request.encode(), &[])?;
        let (text, fds) = receive(&socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let reply = Reply::decode(&text).ok_or(io::ErrorKind::InvalidData)?;
        Ok((reply, fds))
    }

    /// Has the volume's device opened for writing ([`Reopen`](super::Reopen)).
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn reopen(&self, claim: bool) -> Result<Vec<OwnedFd>, String> {
        match self.request(&Request::Reopen { claim }) {
            Ok((Reply::Done, fds)) => Ok(fds),
            Ok((Reply::Refused(why), _)) => Err(why),
            Ok(_) => Err("the broker did not open the device".to_owned()),
            Err(error) => Err(format!("the broker: {error}")),
        }
    }

    /// Reports which files this server has opened ([`VolumeFiles`](super::VolumeFiles)).
    ///
    /// # Errors
    /// Why it is not to use them.
    pub fn confirm_files(&self, ids: &str) -> Result<(), String> {
        match self.request(&Request::Files(ids.to_owned())) {
            Ok((Reply::Done, _)) => Ok(()),
            Ok((Reply::Refused(why), _)) => Err(why),
            Ok(_) => Err("the broker knows no files".to_owned()),
            Err(error) => Err(format!("the broker: {error}")),
        }
    }

    /// Of a successor: what its predecessor has left.
    ///
    /// # Errors
    /// [`MountError::Broker`].
    pub fn take_over(&self) -> Result<TakenOver, MountError> {
        let refused = || MountError::Broker("it has nothing to take over".to_owned());
        match self.request(&Request::TakeOver) {
            Ok((Reply::Answer(Answer::Is(claimed)), fds)) => {
                let mut fds = fds.into_iter();
                let (device, legacy) = fds.next().zip(fds.next()).ok_or_else(refused)?;
                Ok(TakenOver {
                    device,
                    legacy,
                    claimed,
                    record: fds.next(),
                })
            }
            Ok(_) => Err(refused()),
            Err(error) => Err(MountError::Broker(error.to_string())),
        }
    }

    /// Reports that the mount is usable.
    pub fn report_usable(&self) {
        if let Err(error) = self.act(&Request::Usable) {
            tracing::error!(%error, "cannot report that the mount is usable");
        }
    }

    /// Asks for something that succeeds or fails.
    fn act(&self, request: &Request) -> Result<Option<OwnedFd>, MountError> {
        match self.request(request) {
            Ok((Reply::Done, fds)) => Ok(fds.into_iter().next()),
            Ok(_) => Err(MountError::Broker("it could not mount".to_owned())),
            Err(error) => Err(MountError::Broker(error.to_string())),
        }
    }
}

impl Host for BrokerClient {
    fn ask(&self, question: Question) -> Answer {
        match self.request(&Request::Question(question)) {
            Ok((Reply::Answer(answer), _)) => answer,
            // Without a broker the server is about to end.
            _ => Answer::Unknown,
        }
    }

    fn fuse_device(&self) -> io::Result<OwnedFd> {
        match self.request(&Request::Device)? {
            (Reply::Done, fds) => fds.into_iter().next().ok_or(io::ErrorKind::NotFound.into()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn close_result(&self) -> io::Result<(OwnedFd, i32, i32)> {
        let broker = rustix::process::getppid().ok_or(io::ErrorKind::NotFound)?;
        let (reply, fds) = self.request(&Request::CloseResult)?;
        let descriptor = match reply {
            Reply::Answer(Answer::Word(number)) => i32::try_from(number).ok(),
            _ => None,
        };
        let file = fds.into_iter().next().zip(descriptor);
        let (file, descriptor) = file.ok_or(io::ErrorKind::NotFound)?;
        Ok((file, broker.as_raw_nonzero().get(), descriptor))
    }

    fn set_standby(&self, text: &str) {
        let ask = |text: &str| match self.request(&Request::Standby(text.to_owned())) {
            Ok((Reply::Done, _)) => Ok(()),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) => Err(error),
        };
        if let Err(error) = ask(text) {
            let left = ask("");
            tracing::debug!(%error, left = left.is_ok(), "no successor could continue this mount");
        }
    }

    fn record_file(&self) -> io::Result<OwnedFd> {
        match self.request(&Request::Record)? {
            (Reply::Done, fds) => fds.into_iter().next().ok_or(io::ErrorKind::NotFound.into()),
            _ => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    fn upgrade(&self) -> Result<u32, String> {
        let until = now() + USABLE_WAIT_MAX;
        loop {
            return match self.request(&Request::Upgrade) {
                Ok((Reply::Answer(Answer::Word(server)), _)) => Ok(server),
                Ok((Reply::Refused(why), _)) => Err(why),
                // Calls arrive before the broker knows that the mount is usable.
                Ok((Reply::Failed, _)) if !until.since(now()).is_zero() => {
                    sleep(USABLE_POLL);
                    continue;
                }
                Ok(_) => Err("the broker starts no other server".to_owned()),
                Err(error) => Err(format!("the broker: {error}")),
            };
        }
    }

    fn has_successor(&self, server: u32) -> Result<bool, String> {
        match self.request(&Request::Progress(server)) {
            Ok((Reply::Answer(Answer::Is(has)), _)) => Ok(has),
            Ok((Reply::Refused(why), _)) => Err(why),
            Ok(_) => Err("the broker starts no other server".to_owned()),
            Err(error) => Err(format!("the broker: {error}")),
        }
    }
}

impl Mounter for BrokerClient {
    fn mount(&self, options: &MountOptions) -> Result<OwnedFd, MountError> {
        let facts = VolumeFacts {
            read_only: options.flags.read_only,
            block_size: options.block_device.as_ref().map(|block| block.block_size),
        };
        let device = self.act(&Request::Mount(facts))?;
        device.ok_or_else(|| MountError::Broker("it sent no descriptor".to_owned()))
    }

    fn spare(&self) -> Result<Vec<File>, MountError> {
        // The broker unmounts, and has its own.
        Ok(Vec::new())
    }

    fn detach(&self) -> bool {
        if let Err(error) = self.act(&Request::Detach) {
            tracing::error!(%error, "cannot detach a mount that failed");
        }
        true
    }

    fn is_usable(&self, _: &MountOptions) {
        self.report_usable();
    }
}
