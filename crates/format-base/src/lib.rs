//! What the crates of the on-disk formats share: errors of structures and their positions ([`error`]), reports of
//! the checkers ([`check`]), errors of mkfs ([`format`](mod@format)), inode numbers of 32 bits ([`ids`]), and what
//! the features of a volume allow ([`MountMode`]), the folded names of case-insensitive directories ([`casefold`]), and quota files ([`quota`]).
//!
//! A format names its structures by a type that implements [`Structure`]; the errors are generic over it.

#![forbid(unsafe_code)]

pub mod casefold;
pub mod check;
pub mod error;
pub mod format;
pub mod ids;
pub mod quota;

use std::borrow::Cow;

use steadfs_block::IoError;
use steadfs_vfs::FsError;

pub use error::{CorruptKind, DiskError, Place, Structure};

/// A device's failure as the caller of a file-system call sees it.
pub fn io_error(error: IoError) -> FsError {
    FsError::Io(error.to_string())
}

/// How a volume can be mounted, by its features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountMode {
    /// Read-write.
    ReadWrite,
    /// Read-only.
    ReadOnly {
        /// Names of the features that prevent writing.
        because: Vec<Cow<'static, str>>,
    },
    /// Not at all.
    Refused {
        /// Names of the features that are not supported.
        features: Vec<Cow<'static, str>>,
    },
}

impl MountMode {
    /// The mode of a volume with `refused` features that are not supported, and others that can only be read.
    pub fn of(refused: Vec<Cow<'static, str>>, because: Vec<Cow<'static, str>>) -> Self {
        if !refused.is_empty() {
            Self::Refused { features: refused }
        } else if !because.is_empty() {
            Self::ReadOnly { because }
        } else {
            Self::ReadWrite
        }
    }

    /// The features that are not supported, if the volume is refused.
    pub fn refused(self) -> Vec<Cow<'static, str>> {
        match self {
            Self::Refused { features } => features,
            Self::ReadOnly { .. } | Self::ReadWrite => Vec::new(),
        }
    }
}
