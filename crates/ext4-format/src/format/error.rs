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
        /// The option, as mke2fs calls it.
        option: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A feature or option of mke2fs that is not implemented.
    #[error("{0} is not supported here; mke2fs has it")]
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
    /// The computed numbers contradict the format: a bug.
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
