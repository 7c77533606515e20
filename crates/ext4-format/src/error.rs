//! Failures of the device and of the journal's structures, as a file-system call reports them.

use steadfs_jbd2_format::FormatError;
use steadfs_vfs::FsError;

pub use steadfs_format_base::io_error;

/// A journal that is refused by its structures, as the caller of a file-system call sees it.
pub fn journal_format_error(error: FormatError) -> FsError {
    match error {
        FormatError::Unsupported(what) => FsError::BadOption(format!("not supported: {what}")),
        corrupt @ FormatError::Corrupt(_) => FsError::Stopped(corrupt.to_string()),
    }
}
