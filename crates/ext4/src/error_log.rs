//! What went wrong since the mount, for `.steadfs/errors` and the log.

use std::fmt::Write as _;

use steadfs_base::Corruption;
use steadfs_block::IoError;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::Findings;

/// Errors since the mount.
pub(crate) struct ErrorLog {
    /// The last failure to write data.
    data_error: Mutex<Option<String>>,
    /// The corruption found.
    corruption: Findings,
    /// Directories whose index is full, so that they accept no further names.
    full_directories: Findings,
}

impl ErrorLog {
    pub(crate) fn new() -> Self {
        Self {
            data_error: Mutex::new(Rank::Leaf, None),
            corruption: Findings::new(),
            full_directories: Findings::new(),
        }
    }

    /// Records a failure to write data.
    pub(crate) fn record_data_error(&self, error: &IoError) {
        *self.data_error.lock() = Some(error.to_string());
    }

    /// Records corruption, which is logged the first time: a program that retries would fill the log.
    pub(crate) fn record_corruption(&self, corruption: &Corruption) {
        if self.corruption.record(&corruption.to_string()) {
            tracing::error!(%corruption, "the volume is corrupt");
        }
    }

    /// Records a directory that accepts no further names; it is logged the first time.
    pub(crate) fn record_full_directory(&self, what: &str) {
        if self.full_directories.record(what) {
            tracing::warn!("{what}");
        }
    }

    /// A line for data that could not be written, while `unwritten` bytes are not.
    pub(crate) fn data_line(&self, unwritten: u64) -> String {
        let mut line = String::new();
        if let Some(error) = self.data_error.lock().as_ref().filter(|_| unwritten > 0) {
            let written = writeln!(
                line,
                "{unwritten} bytes are not written yet; the last error: {error}"
            );
            written.expect("text takes all");
        }
        line
    }

    /// Lines for corruption and full directories.
    pub(crate) fn finding_lines(&self) -> String {
        self.corruption.show("corruption") + &self.full_directories.show("full")
    }
}
