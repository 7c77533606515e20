//! Live controls as files: what a volume shows below `.steadfs`.

use crate::{FsError, Result};

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

    /// The files that are settings: what is written to them stays, and can be set for several at once.
    fn tunables(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Checks `value` for the setting at `path`; what is returned sets it, and does not fail.
    ///
    /// # Errors
    /// [`FsError::BadOption`] says what is wrong; nothing has changed.
    fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
        let _ = value;
        Err(FsError::BadOption(format!("{path} is no setting")))
    }
}

/// Sets what was checked before.
pub type Setter<'a> = Box<dyn FnOnce() + 'a>;

/// What serves a volume besides the volume itself: options and control files of its own.
pub trait ControlLayer: Send + Sync {
    /// Takes its own items out of an option list for the running volume, and checks them.
    ///
    /// # Errors
    /// [`FsError::BadOption`](crate::FsError::BadOption); nothing has changed.
    fn prepare(&self, list: &str) -> Result<PreparedOptions>;
    /// Its options as they are, a list; empty where nothing differs from the defaults.
    fn options(&self) -> String;
    /// Its control files, which come before the volume's of the same names.
    fn control(&self) -> &dyn Control;
}

/// A checked change of options.
pub struct PreparedOptions {
    /// What is left for the volume.
    pub rest: String,
    /// Does it; called when the volume has taken the rest.
    pub apply: Box<dyn FnOnce() + Send>,
}
