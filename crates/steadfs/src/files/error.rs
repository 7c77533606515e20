//! Errors with the path that they are about.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use steadfs_vfs::FsError;
use steadfs_vfs::names::printable;
use thiserror::Error;

/// An error of a file on a volume. It is inside of the [`io::Error`] that calls by path return.
#[derive(Clone, Debug, Error)]
#[error("{}: {source}", printable(path.as_os_str().as_bytes()))]
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

/// A path of bytes.
pub(super) fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}
