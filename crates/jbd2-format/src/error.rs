//! Errors of the journal format.

use thiserror::Error;

/// Why the structures of a journal are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The content failed verification; where.
    #[error("journal is corrupt: {0}")]
    Corrupt(String),
    /// The journal has a feature that is not supported; its name.
    #[error("not supported: {0}")]
    Unsupported(String),
}
