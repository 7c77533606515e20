//! The broker's end of the socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use super::codec::{Reply, Request};
use super::{receive, send};
use crate::error::MountError;
use crate::host::{Answer, new_close_result};
use crate::mount::{KernelMount, MountHandle, MountOptions, Mounter};
use crate::owner::cgroup::Hierarchy;
use crate::sys;

/// What a mount depends on that only the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// The volume cannot be written, or shall not be.
    pub read_only: bool,
    /// Of a block device that is to be mounted as `fuseblk`: the volume's block size in bytes.
    pub block_size: Option<u32>,
}

/// Opens the volume's device for writing for a server that has it open for reading, with or without a claim by O_EXCL.
/// Returns at most two descriptors, or why it cannot be done.
pub type Reopen = Box<dyn Fn(bool) -> Result<Vec<OwnedFd>, String> + Send>;

/// Longest reason that is sent, in characters.
const REASON_CHARS_MAX: usize = 2000;

/// Makes a mount for a server, and answers its questions.
pub struct Broker {
    socket: OwnedFd,
    kernel: KernelMount,
    hierarchy: Option<Hierarchy>,
    reopen: Reopen,
}

impl Broker {
    /// Serves the process at the other end of `socket`, which may have a mount on the directory `mountpoint`.
    ///
    /// # Errors
    /// [`MountError::Mountpoint`].
    pub fn new(socket: OwnedFd, mountpoint: &Path, reopen: Reopen) -> Result<Self, MountError> {
        Ok(Self {
            socket,
            kernel: KernelMount::new(mountpoint)?,
            hierarchy: Hierarchy::find(),
            reopen,
        })
    }

    /// Serves until the server has ended. `options` says how to mount; `usable` is called once the mount is, and must not
    /// wait for the server. Returns why the last attempt to mount failed.
    pub fn run(
        &self,
        options: impl Fn(VolumeFacts) -> MountOptions,
        mut usable: impl FnMut(MountHandle),
    ) -> Option<MountError> {
        let mut failure = None;
        let mut mounted = None;
        let mut close_result = None;
        loop {
            let request = match receive(&self.socket) {
                Ok(Some((text, _))) => Request::decode(&text),
                Ok(None) => return failure,
                Err(error) => {
                    tracing::error!(%error, "a message of the server cannot be received");
                    return failure;
                }
            };
            let mut sent = Vec::new();
            let reply = match request {
                Some(Request::Question(question)) => {
                    Reply::Answer(question.answer(self.hierarchy.as_ref()))
                }
                Some(Request::Device) => {
                    sent.extend(sys::open_device());
                    done(!sent.is_empty())
                }
                Some(Request::CloseResult) => keep(&mut close_result, &mut sent),
                Some(Request::Mount(facts)) if mounted.is_none() => {
                    let how = options(facts);
                    match self.kernel.mount(&how) {
                        Ok(made) => {
                            sent.push(made);
                            mounted = Some(how);
                        }
                        Err(error) => failure = Some(error),
                    }
                    done(!sent.is_empty())
                }
                Some(Request::Detach) => {
                    self.kernel.detach();
                    mounted = None;
                    Reply::Done
                }
                Some(Request::Usable) => {
                    failure = None;
                    if let (Some(how), Some(handle)) = (&mounted, self.kernel.handle()) {
                        self.kernel.is_usable(how);
                        usable(handle);
                    }
                    Reply::Done
                }
                Some(Request::Reopen { claim }) => match (self.reopen)(claim) {
                    Ok(fds) => {
                        sent = fds;
                        Reply::Done
                    }
                    Err(why) => Reply::Refused(why.chars().take(REASON_CHARS_MAX).collect()),
                },
                // No server of this program sends that.
                Some(Request::Mount(_)) | None => Reply::Failed,
            };
            let fds: Vec<BorrowedFd<'_>> = sent.iter().map(AsFd::as_fd).collect();
            if let Err(error) = send(&self.socket, &reply.encode(), &fds) {
                // The next receive(2) finds the end of the socket.
                tracing::debug!(%error, "cannot reply to the server");
            }
        }
    }
}

/// Makes the file for the result of closing the volume, which is kept as long as the broker lives.
fn keep(kept: &mut Option<OwnedFd>, sent: &mut Vec<OwnedFd>) -> Reply {
    let made = new_close_result().and_then(|file| Ok((file.try_clone()?, file)));
    let Ok((theirs, ours)) = made else {
        return Reply::Failed;
    };
    let number = ours.as_raw_fd().unsigned_abs();
    sent.push(theirs);
    *kept = Some(ours);
    Reply::Answer(Answer::Word(number))
}

fn done(is_done: bool) -> Reply {
    match is_done {
        true => Reply::Done,
        false => Reply::Failed,
    }
}
