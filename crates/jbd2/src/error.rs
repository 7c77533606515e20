//! Errors of the journal.

use steadfs_block::IoError;
use steadfs_jbd2_format::FormatError;
use thiserror::Error;

/// Why the journal failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed a request of the journal.
    #[error("journal: {0}")]
    Io(#[from] IoError),
    /// The journal was aborted; the first cause.
    #[error("journal aborted: {0}")]
    Aborted(String),
    /// The journal's content failed verification; where.
    #[error("journal is corrupt: {0}")]
    Corrupt(String),
    /// The journal has a feature that is not supported; its name.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The log holds transactions: call [`recover`](crate::recover()) first.
    #[error("journal needs recovery")]
    NeedsRecovery,
    /// Blocks are to be logged as one transaction, for which the log is too small.
    #[error(
        "the changes are {blocks} blocks of metadata and of existing files, and one transaction of this journal has room for {room}"
    )]
    TooLarge {
        /// Blocks to be logged.
        blocks: u64,
        /// Most blocks of one transaction.
        room: u64,
    },
    /// The journal was opened for reading only.
    #[error("journal is read-only")]
    ReadOnly,
    /// The file system is frozen.
    #[error("the file system is frozen")]
    Frozen,
    /// A handle requested more credits than a whole transaction may have.
    #[error("{requested} journal credits requested; the limit of a handle is {limit}")]
    TooManyCredits {
        /// Credits requested.
        requested: u32,
        /// The largest number a handle can have.
        limit: u32,
    },
    /// A handle has spent its credits and the transaction or the log has no space for another one.
    #[error("a handle has no journal credits left")]
    CreditsUsedUp,
}

impl From<FormatError> for JournalError {
    fn from(error: FormatError) -> Self {
        match error {
            FormatError::Corrupt(what) => Self::Corrupt(what),
            FormatError::Unsupported(what) => Self::Unsupported(what),
        }
    }
}
