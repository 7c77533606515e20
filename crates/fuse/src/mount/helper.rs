//! Unprivileged mounts: fusermount3 opens the device, mounts, and sends the descriptor back through the socket whose
//! number is in its environment (`_FUSE_COMMFD`).

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::io::FdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::{MountOptions, Unmount};
use crate::error::MountError;

const PROGRAM: &str = "fusermount3";

/// Mounts; returns the device's descriptor.
pub fn mount(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    if options.block_device.is_some() {
        return Err(MountError::Helper(
            "only root can mount a block device as fuseblk".to_owned(),
        ));
    }
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| MountError::Helper(e.to_string()))?;
    // The helper inherits its end. Another child that is started at this moment would, too, and would only keep a
    // useless descriptor.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())
        .map_err(|e| MountError::Helper(e.to_string()))?;
    let output = run(Command::new(PROGRAM)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .args(["-o", &fusermount_options(options)])
        .arg("--")
        .arg(mountpoint))?;
    drop(theirs);
    succeeded(&output)?;
    receive(&ours).map_err(|e| MountError::Helper(format!("sent no descriptor: {e}")))
}

/// Unmounts a mount of the same user.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    match how {
        Unmount::IfIdle => {}
        Unmount::Detach => {
            command.arg("-z");
        }
        Unmount::Abort => {
            return Err(MountError::Helper(format!(
                "{PROGRAM} cannot abort a connection; only root can (umount --force)"
            )));
        }
    }
    let output = run(command.arg("--").arg(mountpoint))?;
    if !output.status.success() && stderr_text(&output).contains("busy") {
        return Err(MountError::Busy(mountpoint.to_owned()));
    }
    succeeded(&output)
}

/// The options of fusermount3, with commas in values escaped.
fn fusermount_options(options: &MountOptions) -> String {
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = options.for_any_user();
    list.push(format!("fsname={}", escape(&options.source)));
    list.push(format!("subtype={}", escape(&options.subtype)));
    let flags = options.flags.list().into_iter();
    list.extend(
        flags
            .filter(|(on, ..)| *on)
            .map(|(.., word)| word.to_owned()),
    );
    list.join(",")
}

fn run(command: &mut Command) -> Result<Output, MountError> {
    // In a process group of its own: an interrupt from the terminal must not reach the helper.
    command
        .stdin(Stdio::null())
        .process_group(0)
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => MountError::NoHelper,
            _ => MountError::Helper(error.to_string()),
        })
}

fn stderr_text(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.trim();
    text.strip_prefix("fusermount3: ")
        .unwrap_or(text)
        .to_owned()
}

fn succeeded(output: &Output) -> Result<(), MountError> {
    if output.status.success() {
        return Ok(());
    }
    let text = stderr_text(output);
    Err(MountError::Helper(if text.is_empty() {
        output.status.to_string()
    } else {
        text
    }))
}

/// Receives the descriptor that comes with one byte.
fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
