//! A mount that a mounter of libfuse's service protocol makes (fuservicemount3(8), mount.fuse3).
//!
//! **Problem.** Under a service manager the server is started without rights over the host, so another program has to open
//! the device and to mount: the mounter, which the user runs. **Rule.** The server is connected to the mounter by a socket,
//! and asks it for what it needs: the mounter opens files with the rights of its user, and mounts where its command line
//! says. After the last message ([`Service::end`]) the mounter has ended, so the server gets nothing more, and nothing
//! is known about callers: it is a [`Host`] that answers no question.
//!
//! The order of the messages: the mounter greets, is answered, and sends the files with its arguments and of the FUSE
//! device. Then the server asks for files ([`Service::open`]), and at last to mount: type, source, mount point, options,
//! the mount, the end. Each request has one reply, except the end.
//!
//! The protocol has no place for the text of an error: the mounter prints that the mount has failed, and the text goes to
//! the log of the service. Only errors of opening files are printed by the mounter.

mod message;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::Shutdown;
use steadfs_rt::{Mutex, Rank};

use crate::datagram::{receive, send};
use crate::error::MountError;
use crate::host::{self, Answer, Host, Question, new_close_result};
use crate::mount::{MountOptions, Mounter};
use crate::sys;
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
/// The owner of a mount by another user than root: the protocol does not send its number. Linux's overflow id.
const UNKNOWN_ID: u32 = 65_534;

const NO_ADMINISTRATION: &str = "the server of this mount is a service, which knows no rights of its callers: unmount, \
    and mount again with other options (steadfs mount makes mounts whose options can be changed)";
const NO_SUCCESSOR: &str =
    "the server of this mount is a service, which has no broker: unmount, and mount again";

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
    close_result: Option<OwnedFd>,
    /// The mount point among the arguments.
    mountpoint: OsString,
}

impl Service {
    /// Answers the mounter at the other end of `socket`; from now on this process has no other host. Call it once, before
    /// anything is mounted.
    ///
    /// # Errors
    /// The mounter speaks another protocol.
    pub fn accept(socket: OwnedFd) -> Result<Arc<Self>, ServiceError> {
        let service = Arc::new(Self::greet(socket)?);
        host::set_host(Arc::clone(&service) as Arc<dyn Host>);
        Ok(service)
    }

    fn greet(socket: OwnedFd) -> Result<Self, ServiceError> {
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
                    close_result: new_close_result().ok(),
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

    /// Ends the requests for files, before the volume is read: asks for more descriptors of the FUSE device, one for each of
    /// the first readers, and has no other descriptor sent from then on, where the kernel can refuse them (Linux 6.16).
    pub fn end_requests_for_files(&self) {
        self.open_devices();
        if let Some(socket) = &*self.socket.lock()
            && let Err(error) = sys::refuse_descriptors(socket)
        {
            tracing::debug!(%error, "the mounter can send descriptors as long as it lives");
        }
    }

    fn open_devices(&self) {
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

    fn owner(&self) -> (u32, u32) {
        match self.is_roots() {
            true => (0, 0),
            false => (UNKNOWN_ID, UNKNOWN_ID),
        }
    }

    fn is_usable(&self, _: &MountOptions) {
        self.end(0);
    }
}

impl Host for Service {
    fn ask(&self, _: Question) -> Answer {
        Answer::Unknown
    }

    fn fuse_device(&self) -> io::Result<OwnedFd> {
        let device = self.files.lock().devices.pop();
        device.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn close_result(&self) -> io::Result<(OwnedFd, i32, i32)> {
        let file = self.files.lock().close_result.take();
        let file = file.ok_or(io::ErrorKind::NotFound)?;
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let descriptor = file.as_fd().as_raw_fd();
        Ok((file, process, descriptor))
    }

    fn set_standby(&self, _: &str) {}

    fn record_file(&self) -> io::Result<OwnedFd> {
        Err(io::Error::other(NO_SUCCESSOR))
    }

    fn upgrade(&self) -> Result<u32, String> {
        Err(NO_SUCCESSOR.to_owned())
    }

    fn has_successor(&self, _: u32) -> Result<bool, String> {
        Err(NO_SUCCESSOR.to_owned())
    }

    fn no_administration(&self) -> Option<&'static str> {
        Some(NO_ADMINISTRATION)
    }
}

#[cfg(test)]
mod tests;
