//! A failed request.

use thiserror::Error;

use crate::{Bio, Op};

/// A device refused or failed a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{op:?} of {len} bytes at byte {offset} failed: {cause}")]
pub struct IoError {
    /// The operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The device's error.
    pub cause: String,
}

impl IoError {
    /// `bio` failed because of `cause`.
    pub fn of(bio: &Bio, cause: impl Into<String>) -> Self {
        Self {
            op: bio.op,
            offset: bio.offset,
            len: bio.len,
            cause: cause.into(),
        }
    }
}
