//! Why dirty data was not written.

use std::fmt;

use steadfs_base::Corruption;
use steadfs_block::IoError;
use steadfs_vfs::FsError;

/// Why a dirty block could not be written, or not be mapped after it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The device failed the write.
    Device(IoError),
    /// No block is free for it.
    NoSpace,
    /// The file's block map, or what else mapping the block needs, failed verification.
    Corrupt(Box<Corruption>),
    /// Another error of the file system: the volume stopped, or reading metadata failed.
    FileSystem(FsError),
}

impl From<IoError> for WriteError {
    fn from(error: IoError) -> Self {
        Self::Device(error)
    }
}

impl From<FsError> for WriteError {
    fn from(error: FsError) -> Self {
        match error {
            FsError::NoSpace => Self::NoSpace,
            FsError::Corrupt(corruption) => Self::Corrupt(corruption),
            other => Self::FileSystem(other),
        }
    }
}

impl From<WriteError> for FsError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Device(error) => Self::Io(error.to_string()),
            WriteError::NoSpace => Self::NoSpace,
            WriteError::Corrupt(corruption) => Self::Corrupt(corruption),
            WriteError::FileSystem(error) => error,
        }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            other => FsError::from(other.clone()).fmt(f),
        }
    }
}

impl std::error::Error for WriteError {}
