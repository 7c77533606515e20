//! What opening a volume reports.

use steadfs_vfs::Result;

/// Results of opening a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountReport {
    /// Journal blocks written to their home location (or, on a read-only device, kept in an overlay in memory).
    pub replayed_blocks: u64,
    /// Transactions replayed.
    pub replayed_transactions: u64,
    /// Fast commits replayed.
    pub replayed_fast_commits: u64,
    /// Orphans that were freed or truncated.
    pub orphans: u64,
    /// Why the volume is read-only although a mount for writing was requested.
    pub read_only_because: Vec<String>,
    /// Default mount options of the superblock that are ignored, with the reason.
    pub defaults_passed_over: Vec<String>,
    /// Why e2fsck should check a volume that is mounted for writing.
    pub check_because: Option<&'static str>,
    /// Corrupt or missing parts that were ignored.
    pub warnings: Vec<String>,
}

impl MountReport {
    /// Whether the journal held changes.
    pub fn has_replayed(&self) -> bool {
        self.replayed_transactions > 0 || self.replayed_fast_commits > 0
    }

    /// Turns an error into a warning if `salvage` is set.
    pub(crate) fn pass_over(&mut self, result: Result<()>, salvage: bool) -> Result<()> {
        match result {
            Err(error) if salvage => {
                self.warnings.push(error.to_string());
                Ok(())
            }
            other => other,
        }
    }
}
