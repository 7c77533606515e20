//! Errors with the path that they are about.

use std::io;
use std::path::{Path, PathBuf};

use steadfs_vfs::FsError;
use steadfs_vfs::names::printable;

use crate::os_names::bytes_of;
use thiserror::Error;

/// An error of a file on a volume. It is inside of the [`io::Error`] that calls by path return.
#[derive(Clone, Debug, Error)]
#[error("{}: {source}", printable(bytes_of(path)))]
pub struct VolumeIoError {
    /// The path on the volume.
    pub path: PathBuf,
    /// The reason.
    pub source: FsError,
}

/// Adds a path to an error.
pub(super) trait At<T> {
    fn at(self, path: &Path) -> io::Result<T>;
}

impl<T> At<T> for Result<T, FsError> {
    fn at(self, path: &Path) -> io::Result<T> {
        self.map_err(|source| error_at(path, source))
    }
}

/// An error with its path.
pub(super) fn error_at(path: &Path, source: FsError) -> io::Error {
    let path = path.to_owned();
    io::Error::new(source.io_kind(), VolumeIoError { path, source })
}
