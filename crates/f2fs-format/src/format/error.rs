//! Why a volume cannot be made.

use steadfs_block::IoError;
use thiserror::Error;

use crate::disk::DiskError;

/// Why a volume cannot be made. Nothing was written except with [`FormatError::Io`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// An option has a value that is not possible, alone or together with others.
    #[error("{option}: {why}")]
    Option {
        /// The option in words.
        option: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// Something that mkfs.f2fs has and this program does not make.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The device cannot hold such a volume.
    #[error("the device is too small: {0}")]
    TooSmall(String),
    /// The device cannot be used.
    #[error("{0}")]
    Device(String),
    /// Reading or writing the device failed. What was on it before may be gone.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The numbers chosen contradict the format: a mistake of this program.
    #[error("the volume would be wrong: {0}")]
    Wrong(#[from] DiskError),
}

impl FormatError {
    pub(super) fn option(option: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Option {
            option: option.into(),
            why: why.into(),
        }
    }
}
