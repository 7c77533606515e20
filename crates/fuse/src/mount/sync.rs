//! Making a mount durable from another process, with a report of what was lost.
//!
//! Problem: the kernel writes back dirty pages of shared mappings only when it syncs; it forwards a sync to the server
//! for block devices only, and discards the result of the server's own sync. Rule: both are called, syncfs(2) and the
//! server's SYNC command.

use std::fs::File;
use std::io::ErrorKind;

use rustix::io::Errno;
use thiserror::Error;

use super::MountHandle;
use super::gone::is_server_gone;
use super::remount::ioctl_server;
use super::table::proc_fd_path;
use crate::close_result::CloseResultFd;
use crate::error::MountError;
use crate::sys;

/// The result of a sync: everything that the volume has is durable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Why pages of shared mappings did not reach the volume, now or since the last sync. The kernel has dropped them.
    pub lost: Option<String>,
    /// The image file that the server has open, if it serves one.
    pub image: Option<FileId>,
    /// Where the server will record how the volume was closed.
    pub close_result: Option<CloseResultFd>,
}

impl Synced {
    /// The server's answer, one line each.
    pub(crate) fn answer(image: Option<FileId>, close_result: Option<CloseResultFd>) -> String {
        let image = image.map_or_else(String::new, FileId::show);
        let close_result = close_result.map_or_else(String::new, CloseResultFd::show);
        format!("{image}\n{close_result}")
    }

    fn parse(lost: Option<String>, answer: &str) -> Self {
        let mut lines = answer.split('\n');
        Self {
            lost,
            image: lines.next().and_then(FileId::parse),
            close_result: lines.next().and_then(CloseResultFd::parse),
        }
    }
}

/// A file, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    /// Number of its device.
    pub device: u64,
    /// Number of its inode.
    pub inode: u64,
}

/// Why a mount could not be made durable.
#[derive(Clone, Debug, Error)]
pub enum SyncError {
    /// The caller has no access to the mount: nothing was done.
    #[error("{0}")]
    Closed(String),
    /// The server accepts the command from its own user and root only: nothing was done.
    #[error("only the user that mounted it, or root, may do that")]
    NotAllowed,
    /// Something else is mounted over it: nothing was done.
    #[error("{0}")]
    Covered(MountError),
    /// The server, or the connection to it, is gone.
    #[error("its server is gone")]
    Gone,
    /// The volume has stopped; the first cause.
    #[error("volume stopped: {0}")]
    Stopped(String),
    /// Something could not be written.
    #[error("{cause}")]
    Failed {
        /// The error number of the call that failed, if a call of the server or of the kernel failed.
        errno: Option<i32>,
        /// Its text.
        cause: String,
    },
}

impl MountHandle {
    /// Makes everything on the mount durable, dirty pages in the kernel included.
    ///
    /// # Errors
    /// [`SyncError`]: not everything is durable.
    pub fn sync(&self) -> Result<Synced, SyncError> {
        let folder = self.open()?;
        let pages = rustix::fs::syncfs(&folder);
        let answer =
            ioctl_server::<{ sys::SYNC }>(&folder, "").map_err(|error| from_kernel(&error))?;
        match answer {
            Ok(answer) => {
                let lost = pages.err().map(|errno| errno.to_string());
                Ok(Synced::parse(lost, &answer))
            }
            Err(refusal) if refusal.errno == sys::STOPPED => Err(SyncError::Stopped(refusal.cause)),
            Err(refusal) => Err(SyncError::Failed {
                errno: Some(refusal.errno.raw_os_error()),
                cause: refusal.cause,
            }),
        }
    }
}

impl MountHandle {
    /// Opens a folder of the mount: `.steadfs` if the user may not read the root directory.
    fn open(&self) -> Result<File, SyncError> {
        let root = self.open_root().map_err(|error| match error {
            MountError::Covered { .. } => SyncError::Covered(error),
            error => SyncError::Failed {
                errno: None,
                cause: error.to_string(),
            },
        })?;
        let path = proc_fd_path(&root);
        let opened = File::open(&path).or_else(|error| match error.kind() {
            ErrorKind::PermissionDenied => File::open(path.join(".steadfs")),
            _ => Err(error),
        });
        opened.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => SyncError::Closed(error.to_string()),
            _ => from_kernel(&error),
        })
    }
}

fn from_kernel(error: &std::io::Error) -> SyncError {
    match Errno::from_io_error(error) {
        Some(Errno::PERM) => SyncError::NotAllowed,
        _ if is_server_gone(error) => SyncError::Gone,
        _ => SyncError::Failed {
            errno: error.raw_os_error(),
            cause: error.to_string(),
        },
    }
}

impl FileId {
    /// As the server's answer has it.
    fn show(self) -> String {
        format!("{} {}", self.device, self.inode)
    }

    fn parse(text: &str) -> Option<Self> {
        let (device, inode) = text.split_once(' ')?;
        Some(Self {
            device: device.parse().ok()?,
            inode: inode.parse().ok()?,
        })
    }
}
