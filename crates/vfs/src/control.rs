//! Control files: what a volume shows below `.steadfs`.

use crate::{FsError, Metrics, Result};

/// One control file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlEntry {
    /// Path below `.steadfs`, with `/` between its parts, such as `jbd2/info`.
    pub path: &'static str,
    /// Whether the file can be written.
    pub writable: bool,
}

/// A volume's control files.
pub trait Control: Send + Sync {
    /// All files. The list is constant while the volume is mounted.
    fn entries(&self) -> Vec<ControlEntry>;
    /// The current content of the file at `path`.
    fn read(&self, path: &str) -> Result<Vec<u8>>;
    /// Applies `value` to the file at `path`, completely or, on an error, not at all.
    fn write(&self, path: &str, value: &[u8]) -> Result<()>;

    /// Adds the current values of this part of the mount to `.steadfs/metrics`.
    fn metrics(&self, metrics: &mut Metrics) {
        let _ = metrics;
    }

    /// The files that are settings: they keep the value written to them, and several can be set at once.
    fn tunables(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Checks `value` for the setting at `path`. The returned function sets it and cannot fail.
    ///
    /// # Errors
    /// [`FsError::BadOption`] with the reason; nothing has changed.
    fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
        let _ = value;
        Err(FsError::BadOption(format!("{path} is not a setting")))
    }
}

/// Sets a value that was checked before.
pub type Setter<'a> = Box<dyn FnOnce() + 'a>;

/// Options and control files above those of the volume: of its queue and of its mount.
pub trait ControlLayer: Send + Sync {
    /// Takes this layer's items out of a remount's option list, and checks them.
    ///
    /// # Errors
    /// [`FsError::BadOption`](crate::FsError::BadOption); nothing has changed.
    fn prepare(&self, list: &str) -> Result<PreparedOptions>;
    /// The layer's options that differ from the defaults, as a list.
    fn options(&self) -> String;
    /// The layer's control files. They hide files of the volume with the same paths.
    fn control(&self) -> &dyn Control;
    /// The labels of all metrics of the mount.
    fn labels(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }
}

/// A remount's options that were checked for one layer.
pub struct PreparedOptions {
    /// The items of the volume.
    pub rest: String,
    /// Applies the layer's items; called after the volume has applied its own.
    pub apply: Box<dyn FnOnce() + Send>,
}
