//! Why a volume cannot be made, and checks that every mkfs begins with.

use steadfs_block::{IoError, Queue};
use thiserror::Error;

use crate::{DiskError, Structure};

/// Why a volume cannot be made. Nothing was written except with [`FormatError::Io`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError<S: Structure> {
    /// An option has an invalid value, alone or together with others.
    #[error("{option}: {why}")]
    Option {
        /// The option, in words or as the format's own mkfs calls it.
        option: String,
        /// What is wrong, and which values are valid.
        why: String,
    },
    /// A feature or option of the format's own mkfs that is not supported here.
    #[error("{0} is not supported here; {mkfs} has it", mkfs = S::MKFS)]
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
    Wrong(#[from] DiskError<S>),
}

impl<S: Structure> FormatError<S> {
    /// An error for an option with an invalid value.
    pub fn option(option: impl Into<String>, why: impl Into<String>) -> Self {
        Self::Option {
            option: option.into(),
            why: why.into(),
        }
    }
}

/// Checks that a volume of `size` bytes can be written to the device.
///
/// # Errors
/// The device is read-only or too small.
pub fn check_device<S: Structure>(queue: &Queue, size: u64) -> Result<(), FormatError<S>> {
    let device = queue.geometry();
    if device.read_only {
        let what = "the device is read-only".to_owned();
        return Err(FormatError::Device(what));
    }
    if size > device.size {
        let bytes = device.size;
        let what = format!("a volume of {size} bytes does not fit the device of {bytes}");
        return Err(FormatError::Device(what));
    }
    Ok(())
}
