//! A mount that a mounter of libfuse's service protocol makes (fuservicemount3(8), mount.fuse3).
//!
//! **Problem.** Under a service manager the server is started without rights over the host, so another program has to open
//! the device and to mount: the mounter, which the user runs. It opens any path with any flags for the process at the other
//! end of its socket, and mounts where its command line says. The server reads a volume that may be hostile. **Rule.** Two
//! processes, as with a [`Broker`](crate::Broker): the one that was started is the broker. It has the socket of the mounter
//! ([`Service`]), asks for the device of the command line and no other file, and is the [`Mounter`] of its broker. Its child
//! reads the volume, and has descriptors and the socket of the broker ([`ServiceClient`]).
//!
//! After the last message ([`Service::end`]) the mounter has ended, so the broker gets nothing more. Nothing is known about
//! callers: the server is a host that answers no question.
//!
//! The order of the messages: the mounter greets, is answered, and sends the files with its arguments and of the FUSE
//! device. Then the broker asks for files ([`Service::open`]), and at last to mount: type, source, mount point, options,
//! the mount, the end. Each request has one reply, except the end.
//!
//! The protocol has no place for the text of an error: the mounter prints that the mount has failed, and the text goes to
//! the log of the service. Only errors of opening files are printed by the mounter.

mod client;
mod message;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::Shutdown;
use steadfs_rt::{Mutex, Rank};

use crate::datagram::{receive, send};
use crate::error::MountError;
use crate::mount::{MountOptions, Mounter};
pub use client::ServiceClient;
use message::{
    ARGUMENTS_BYTES_MAX, Command, FileReply, Hello, Invalid, MESSAGE_BYTES_MAX, parse_arguments,
    parse_reply,
};

/// The names of the files that the mounter sends unasked.
const ARGUMENTS_FILE: &str = "argv";
const DEVICE_FILE: &str = "fusedev";
const FUSE_DEVICE: &str = "/dev/fuse";
/// Readers of the FUSE device that get a descriptor of their own; more share the first one.
const DEVICES_MAX: usize = 8;

/// Why a mounter could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The connection failed.
    #[error("the mounter: {0}")]
    Connection(#[from] io::Error),
    /// A message is not as the protocol has it.
    #[error("the mounter: {0}")]
    Protocol(#[from] Invalid),
    /// The mounter has refused a request.
    #[error("the mounter refused {what}: {cause}")]
    Refused {
        /// What was requested.
        what: String,
        /// The error that it reported.
        cause: io::Error,
    },
}

/// A connection to a mounter.
pub struct Service {
    /// `None` once the mounter has ended. Locked from a request to its reply.
    socket: Mutex<Option<OwnedFd>>,
    hello: Hello,
    arguments: Vec<OsString>,
    files: Mutex<Files>,
}

/// Descriptors that are used later.
struct Files {
    /// That of the mount, until it is made.
    device: Option<OwnedFd>,
    /// More of the same file.
    devices: Vec<OwnedFd>,
    /// The mount point among the arguments.
    mountpoint: OsString,
}

impl Service {
    /// Answers the mounter at the other end of `socket`.
    ///
    /// # Errors
    /// The mounter speaks another protocol.
    pub fn accept(socket: OwnedFd) -> Result<Self, ServiceError> {
        let (greeting, _) = next(&socket)?;
        let hello = Hello::parse(&greeting)?;
        send(&socket, &Hello::reply(), &[])?;
        let arguments = file_of(next(&socket)?, ARGUMENTS_FILE.as_ref())?;
        let arguments = parse_arguments(&content(&arguments)?)?;
        let device = file_of(next(&socket)?, DEVICE_FILE.as_ref())?;
        Ok(Self {
            socket: Mutex::new(Rank::Host, Some(socket)),
            hello,
            arguments,
            files: Mutex::new(
                Rank::Leaf,
                Files {
                    device: Some(device),
                    devices: Vec::new(),
                    mountpoint: OsString::new(),
                },
            ),
        })
    }

    /// The mounter's command line: the type of the mount, then what followed the name of the program, without `-t`.
    pub fn arguments(&self) -> &[OsString] {
        &self.arguments
    }

    /// Whether root uses the mounter.
    pub fn is_roots(&self) -> bool {
        // Only root may mount block devices as such.
        self.hello.allows_fuseblk
    }

    /// Whether other users than that of the mounter may use the mount.
    pub fn allows_others(&self) -> bool {
        self.hello.allows_others
    }

    /// The mount point: one of the arguments, literally.
    pub fn mount_on(&self, mountpoint: &OsStr) {
        self.files.lock().mountpoint = mountpoint.to_owned();
    }

    /// Has a file opened with the rights of the mounter's user, who sees an error, too.
    ///
    /// # Errors
    /// [`ServiceError::Refused`] with the error of open(2).
    pub fn open(&self, path: &OsStr, flags: OFlags) -> Result<OwnedFd, ServiceError> {
        self.open_by(path, |path| Command::Open {
            path,
            flags,
            quietly: false,
        })
    }

    /// The same for a block device; with `O_EXCL` it is claimed.
    ///
    /// # Errors
    /// [`ServiceError::Refused`] with the error of open(2), or `ENOTBLK`.
    pub fn open_block_device(&self, path: &OsStr, flags: OFlags) -> Result<OwnedFd, ServiceError> {
        self.open_by(path, |path| Command::OpenBlockDevice { path, flags })
    }

    fn open_by<'a>(
        &self,
        path: &'a OsStr,
        command: impl Fn(&'a OsStr) -> Command<'a>,
    ) -> Result<OwnedFd, ServiceError> {
        let message = self.exchange(command(path))?;
        file_of(message, path)
    }

    /// Has the FUSE device opened again, for each of the first readers.
    pub fn open_devices(&self) {
        let readers = steadfs_rt::cpu::allowed_cpus().clamp(1, DEVICES_MAX);
        let quietly = |path| Command::Open {
            path,
            flags: OFlags::RDWR,
            quietly: true,
        };
        for _ in 0..readers {
            match self.open_by(FUSE_DEVICE.as_ref(), quietly) {
                Ok(device) => self.files.lock().devices.push(device),
                Err(error) => {
                    tracing::debug!(%error, "readers share a descriptor of the FUSE device");
                    return;
                }
            }
        }
    }

    /// Ends the conversation, once: `code` is the exit code of the mounter, 0 for a mount that is usable.
    pub fn end(&self, code: u8) {
        let Some(socket) = self.socket.lock().take() else {
            return;
        };
        let bye = Command::Bye { code: code.into() };
        let bye = bye.encode().expect("it has no text");
        let sent = send(&socket, &bye, &[]).and_then(|()| {
            // Another descriptor may be open: the one that was inherited.
            rustix::net::shutdown(&socket, Shutdown::Both).map_err(io::Error::from)
        });
        if let Err(error) = sent {
            tracing::debug!(%error, "the mounter has ended before");
        }
    }

    /// Sends a command; returns the reply.
    fn exchange(&self, command: Command<'_>) -> Result<Message, ServiceError> {
        let message = command.encode()?;
        let socket = self.socket.lock();
        let gone = || io::Error::other("it has ended already");
        let socket = socket.as_ref().ok_or_else(gone)?;
        send(socket, &message, &[])?;
        next(socket)
    }

    fn act(&self, what: &str, command: Command<'_>) -> Result<(), ServiceError> {
        let (message, _) = self.exchange(command)?;
        match parse_reply(&message)? {
            0 => Ok(()),
            errno => Err(refused(what, errno)),
        }
    }

    fn mount_by(&self, options: &MountOptions) -> Result<OwnedFd, ServiceError> {
        let again =
            || Invalid("a mount is made once only; fuse_transport=dev does without io_uring");
        let (device, mountpoint) = {
            let mut files = self.files.lock();
            (files.device.take(), files.mountpoint.clone())
        };
        let device = device.ok_or_else(again)?;
        let (source, _) = options.shown();
        let fuseblk = options.block_device.is_some();
        self.act("the type of mount", Command::Type { fuseblk })?;
        self.act("the source", Command::Source(source.as_os_str()))?;
        self.act("the mount point", Command::Mountpoint(&mountpoint))?;
        self.act("the options", Command::Options(&options.for_fuse()))?;
        let flags = options.flags.raw().bits() as u32;
        self.act("the mount", Command::Mount { flags })?;
        Ok(device)
    }
}

/// A message with its descriptors.
type Message = (Vec<u8>, Vec<OwnedFd>);

/// The mounter's next message.
fn next(socket: &OwnedFd) -> Result<Message, ServiceError> {
    let message = receive(socket, MESSAGE_BYTES_MAX)?;
    let ended = || io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended");
    Ok(message.ok_or_else(ended)?)
}

fn refused(what: &str, errno: u32) -> ServiceError {
    ServiceError::Refused {
        what: what.to_owned(),
        cause: io::Error::from_raw_os_error(errno.cast_signed()),
    }
}

/// The descriptor in the reply to a request for the file at `path`.
fn file_of((message, fds): Message, path: &OsStr) -> Result<OwnedFd, ServiceError> {
    let reply = FileReply::parse(&message)?;
    // A request that is not understood is answered without its path.
    if reply.errno != 0 {
        return Err(refused(&path.to_string_lossy(), reply.errno));
    }
    if reply.path != path.as_bytes() {
        return Err(Invalid("it sent another file than the requested one").into());
    }
    match <[OwnedFd; 1]>::try_from(fds) {
        Ok([file]) => Ok(file),
        Err(_) => Err(Invalid("it did not send one descriptor with a file").into()),
    }
}

/// The content of the file with the arguments, which is read once: the mounter can change it.
fn content(file: &OwnedFd) -> Result<Vec<u8>, ServiceError> {
    let mut bytes = vec![0; ARGUMENTS_BYTES_MAX + 1];
    let mut len = 0;
    while len < bytes.len() {
        match rustix::io::pread(file, &mut bytes[len..], len as u64) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    if len > ARGUMENTS_BYTES_MAX {
        return Err(Invalid("the arguments are too long").into());
    }
    bytes.truncate(len);
    Ok(bytes)
}

impl Mounter for Service {
    fn mount(&self, options: &MountOptions) -> Result<OwnedFd, MountError> {
        self.mount_by(options)
            .map_err(|error| MountError::Service(error.to_string()))
    }

    fn spare(&self) -> Result<Vec<std::fs::File>, MountError> {
        // This process cannot unmount.
        Ok(Vec::new())
    }

    fn detach(&self) -> bool {
        tracing::error!(
            "the mount failed after it was made, and a service cannot unmount it: unmount it"
        );
        false
    }

    fn is_usable(&self, _: &MountOptions) {
        self.end(0);
    }

    fn open_device(&self) -> io::Result<OwnedFd> {
        let device = self.files.lock().devices.pop();
        device.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The service manager hides the other processes from this one.
    fn sees_callers(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
