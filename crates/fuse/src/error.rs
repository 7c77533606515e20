//! Why a mount or unmount failed, and what to do about it.

use std::path::PathBuf;

use steadfs_vfs::FsError;
use thiserror::Error;

/// Why a volume could not be mounted or unmounted.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse: {0} (is the fuse module loaded, and the device allowed here?)")]
    Device(String),
    /// The mount point is not a usable directory.
    #[error("mount point {path}: {cause}", path = .path.display())]
    Mountpoint {
        /// As given.
        path: PathBuf,
        /// The system's error.
        cause: String,
    },
    /// The kernel refused the mount.
    #[error("cannot mount on {path}: {cause}", path = .path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        cause: String,
    },
    /// fusermount3, which mounts for unprivileged users, is not installed.
    #[error("fusermount3 is not installed; install it (package fuse3) or mount as root")]
    NoHelper,
    /// fusermount3 failed.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// The broker, which mounts for a contained server, failed; it reports why.
    #[error("the process that mounts for the server: {0}")]
    Broker(String),
    /// The mounter of a service failed.
    #[error("{0}")]
    Service(String),
    /// The kernel's FUSE protocol is too old.
    #[error("the kernel has FUSE {major}.{minor}; 7.34 (Linux 5.14) or newer is required")]
    OldKernel {
        /// The kernel's major version.
        major: u32,
        /// The kernel's minor version.
        minor: u32,
    },
    /// The kernel's FUSE lacks a feature that is required.
    #[error("the kernel's FUSE lacks required features (INIT flags {missing:#x})")]
    MissingFeature {
        /// Bits in the flags of INIT.
        missing: u64,
    },
    /// The connection ended before INIT was complete.
    #[error("the kernel ended the connection before the mount was usable")]
    ConnectionEnded,
    /// With `takeover=on`: calls cannot be recorded outside the server.
    #[error("takeover=on: {0}")]
    Record(String),
    /// No service thread could be created.
    #[error("{0}")]
    Threads(FsError),
    /// `fuse_transport=uring` was given, and FUSE over io_uring is not available.
    #[error("fuse_transport=uring: {0}")]
    Uring(String),
    /// The volume cannot be unmounted because it is in use.
    #[error("{path} is busy: a process has a file open or its working directory there", path = .0.display())]
    Busy(PathBuf),
    /// Something else is mounted over the mount, so calls on its path would reach the other mount.
    #[error(
        "{path}: the volume's mount is covered by {over}; unmount that first",
        path = .path.display()
    )]
    Covered {
        /// The mount point.
        path: PathBuf,
        /// What covers it.
        over: String,
    },
    /// The mount does not exist any more, or is not visible from here.
    #[error("{path}: no longer mounted", path = .0.display())]
    NotMounted(PathBuf),
    /// Cannot find out what is mounted at the mount point.
    #[error("{path}: {cause}", path = .path.display())]
    Unreachable {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        cause: String,
    },
    /// Options could not be changed.
    #[error("{path}: {cause}", path = .path.display())]
    Remount {
        /// The mount point.
        path: PathBuf,
        /// The server's or the kernel's reason.
        cause: String,
    },
    /// The volume cannot become read-only because files are open for writing, or change at all because it is frozen.
    #[error(
        "{path} is busy: a file is open for writing, an unlinked file is still open, or the volume is frozen",
        path = .0.display()
    )]
    InUse(PathBuf),
    /// Unmounting failed for another reason.
    #[error("cannot unmount {path}: {cause}", path = .path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The system's error.
        cause: String,
    },
}
