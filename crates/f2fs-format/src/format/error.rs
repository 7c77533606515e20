//! Errors of mkfs.

use steadfs_block::IoError;
use thiserror::Error;

use crate::disk::DiskError;

/// Why a volume cannot be made. Only with [`FormatError::Io`] has anything been written.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// An option has an invalid value, alone or together with others.
    #[error("{option}: {why}")]
    Option {
        /// The option in words.
        option: String,
        /// What is wrong, and which values are valid.
        why: String,
    },
    /// A feature of mkfs.f2fs that is not supported here.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The device cannot hold such a volume.
    #[error("the device is too small: {0}")]
    TooSmall(String),
    /// The device cannot be used.
    #[error("{0}")]
    Device(String),
    /// Reading or writing the device failed. Its old content may be lost.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The chosen numbers contradict the format: a bug in this program.
    #[error("the new volume fails validation (a bug): {0}")]
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
