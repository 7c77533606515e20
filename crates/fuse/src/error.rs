//! Why a mount or unmount failed, with the way out where there is one.

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
        /// What the system said.
        cause: String,
    },
    /// The kernel refused the mount.
    #[error("cannot mount on {path}: {cause}", path = .path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// fusermount3, which mounts for users without privileges, is not installed.
    #[error("fusermount3 is not installed; install it (package fuse3) or mount as root")]
    NoHelper,
    /// fusermount3 refused.
    #[error("fusermount3: {0}")]
    Helper(String),
    /// The kernel speaks a protocol that is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.34 (Linux 5.14) or newer is needed")]
    OldKernel {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The kernel lacks an ability this program relies on.
    #[error("the kernel's FUSE lacks abilities that are needed (INIT flags {missing:#x})")]
    MissingFeature {
        /// Their bits in INIT's flags.
        missing: u64,
    },
    /// The connection ended before it began.
    #[error("the kernel ended the connection before the mount was usable")]
    ConnectionEnded,
    /// The system lets this process start no thread that could serve.
    #[error("{0}")]
    Threads(FsError),
    /// FUSE-over-io_uring was demanded and cannot be had.
    #[error("fuse_transport=uring: {0}")]
    Uring(String),
    /// The volume cannot be unmounted because somebody uses it.
    #[error("{path} is busy: a process has a file open or its working directory there", path = .0.display())]
    Busy(PathBuf),
    /// Something else is mounted over the mount. Whoever acted on the path would act on that.
    #[error(
        "{path}: the volume's mount lies below another, {over}; unmount that first",
        path = .path.display()
    )]
    Covered {
        /// The mount point.
        path: PathBuf,
        /// What lies over it.
        over: String,
    },
    /// The mount is not there any more, or is not seen from here.
    #[error("{path}: not mounted any more", path = .0.display())]
    NotMounted(PathBuf),
    /// It cannot be told what lies at the mount point.
    #[error("{path}: {cause}", path = .path.display())]
    Unreachable {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
    /// Options could not be changed.
    #[error("{path}: {cause}", path = .path.display())]
    Remount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The volume cannot become read-only because somebody writes.
    #[error(
        "{path} is busy: a file is open for writing, or one without a name is still open",
        path = .0.display()
    )]
    InUse(PathBuf),
    /// Unmounting failed otherwise.
    #[error("cannot unmount {path}: {cause}", path = .path.display())]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// What the system said.
        cause: String,
    },
}
