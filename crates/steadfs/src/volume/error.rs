//! Errors of a volume as a whole.

use std::io;
use std::path::PathBuf;

use steadfs_block::OpenError;
#[cfg(feature = "mount")]
use steadfs_fuse::MountError;
use steadfs_vfs::FsError;
use thiserror::Error;

use crate::image::Found;

/// Why a volume could not be opened, mounted or closed.
#[derive(Debug, Error)]
pub enum Error {
    /// The device could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// The device holds no volume.
    #[error("{}: {found}", path.display())]
    NoVolume {
        /// The device.
        path: PathBuf,
        /// The content of the device.
        found: Found,
    },
    /// The device has no such partition.
    #[error("{}: {why}", path.display())]
    NoPartition {
        /// The device.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The volume was not checked; it may be corrupt or not.
    #[error("{}: not checked: {why}", path.display())]
    Unchecked {
        /// The device.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The volume could not be opened, or an operation failed.
    #[error("{}: {error}", path.display())]
    Volume {
        /// The device.
        path: PathBuf,
        /// Why.
        error: FsError,
    },
    /// The mount failed.
    #[cfg(feature = "mount")]
    #[error("{0}")]
    Mount(#[from] MountError),
}

impl Error {
    /// The error of the file system, if it is one.
    pub fn fs_error(&self) -> Option<&FsError> {
        match self {
            Self::Volume { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Volume { error, .. } => error.io_kind(),
            Error::NoVolume { .. } | Error::Unchecked { .. } => io::ErrorKind::InvalidData,
            Error::NoPartition { .. } => io::ErrorKind::NotFound,
            Error::Open(error) => error.io_kind(),
            #[cfg(feature = "mount")]
            Error::Mount(_) => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
