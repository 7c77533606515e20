//! The broker's end of the socket.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use super::codec::{Reply, Request};
use super::{receive, send};
use crate::error::MountError;
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

/// Makes a mount for a server, and answers its questions.
pub struct Broker {
    socket: OwnedFd,
    kernel: KernelMount,
    hierarchy: Option<Hierarchy>,
}

impl Broker {
    /// Serves the process at the other end of `socket`, which may have a mount on the directory `mountpoint`.
    ///
    /// # Errors
    /// [`MountError::Mountpoint`].
    pub fn new(socket: OwnedFd, mountpoint: &Path) -> Result<Self, MountError> {
        Ok(Self {
            socket,
            kernel: KernelMount::new(mountpoint)?,
            hierarchy: Hierarchy::find(),
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
        loop {
            let request = match receive(&self.socket) {
                Ok(Some((text, _))) => Request::decode(&text),
                Ok(None) => return failure,
                Err(error) => {
                    tracing::error!(%error, "a message of the server cannot be received");
                    return failure;
                }
            };
            let mut device = None;
            let reply = match request {
                Some(Request::Question(question)) => {
                    Reply::Answer(question.answer(self.hierarchy.as_ref()))
                }
                Some(Request::Device) => {
                    device = sys::open_device().ok();
                    done(device.is_some())
                }
                Some(Request::Mount(facts)) if mounted.is_none() => {
                    let how = options(facts);
                    match self.kernel.mount(&how) {
                        Ok(made) => (device, mounted) = (Some(made), Some(how)),
                        Err(error) => failure = Some(error),
                    }
                    done(device.is_some())
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
                // No server of this program sends that.
                Some(Request::Mount(_)) | None => Reply::Failed,
            };
            if let Err(error) = send(
                &self.socket,
                &reply.encode(),
                device.as_ref().map(AsFd::as_fd),
            ) {
                // The next receive(2) finds the end of the socket.
                tracing::debug!(%error, "cannot reply to the server");
            }
        }
    }
}

fn done(is_done: bool) -> Reply {
    match is_done {
        true => Reply::Done,
        false => Reply::Failed,
    }
}
