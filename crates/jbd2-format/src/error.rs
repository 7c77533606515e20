//! Why a journal is refused by its structures.

use thiserror::Error;

/// Why a journal is refused by its structures.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FormatError {
    /// The structures contradict the format; where.
    #[error("journal is damaged: {0}")]
    Corrupt(String),
    /// The journal has a form that this implementation does not replay or write; its name.
    #[error("not supported: {0}")]
    Unsupported(String),
}
