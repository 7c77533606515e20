//! Why the journal failed.

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
    /// The journal stopped for good; the first cause.
    #[error("journal stopped: {0}")]
    Aborted(String),
    /// The journal's blocks contradict themselves; where.
    #[error("journal is damaged: {0}")]
    Corrupt(String),
    /// The journal has a form we do not work with; its name.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// The log ends in fast commits, which are not replayed here.
    #[error("its journal has fast commits to replay")]
    FastCommits,
    /// The log holds transactions: call [`recover`](crate::recover()) first.
    #[error("journal needs recovery")]
    NeedsRecovery,
    /// The journal was opened for reading only.
    #[error("journal is read-only")]
    ReadOnly,
    /// A handle requested for more than a whole transaction may hold.
    #[error("{requested} journal credits requested for, a transaction has {limit}")]
    TooManyCredits {
        /// Credits requested for.
        requested: u32,
        /// The largest number a handle can have.
        limit: u32,
    },
    /// A handle has used up its credits and the transaction has no room for more.
    #[error("a handle's journal credits are used up")]
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
