//! Live controls as files: what a volume shows below `.steadfs`.

use crate::Result;

/// One control file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlEntry {
    /// Path below `.steadfs`, with `/` between its parts, such as `jbd2/info`.
    pub path: &'static str,
    /// Whether writing it does something.
    pub writable: bool,
}

/// A volume's control files.
pub trait Control: Send + Sync {
    /// All files there are; the list is fixed for the life of the mount.
    fn entries(&self) -> Vec<ControlEntry>;
    /// The present content of the file at `path`.
    fn read(&self, path: &str) -> Result<Vec<u8>>;
    /// Applies `value`, whole, to the file at `path`; an error leaves everything as it was.
    fn write(&self, path: &str, value: &[u8]) -> Result<()>;
}
