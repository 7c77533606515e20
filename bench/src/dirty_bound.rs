//! The kernel's limit of dirty data for one device.

use std::fs;
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::Result;

/// A lower dirty limit for a device; the default is restored when dropped.
pub struct DirtyBound {
    knobs: PathBuf,
}

impl DirtyBound {
    /// At most `bytes` for `device`; `None` if the kernel does not support that (before Linux 6.2).
    pub fn set(device: &Path, bytes: u64) -> Result<Option<Self>> {
        let number = fs::metadata(device)?.st_rdev();
        let knobs = format!("/sys/class/bdi/{}:{}", major(number), minor(number));
        let knobs = PathBuf::from(knobs);
        if !knobs.join("max_bytes").exists() {
            eprintln!(
                "this kernel bounds no device's unwritten data: its stream is not written back"
            );
            return Ok(None);
        }
        let bound = Self { knobs };
        bound.write("strict_limit", "1")?;
        bound.write("max_bytes", &bytes.to_string())?;
        Ok(Some(bound))
    }

    fn write(&self, knob: &str, value: &str) -> Result<()> {
        Ok(fs::write(self.knobs.join(knob), value)?)
    }
}

impl Drop for DirtyBound {
    fn drop(&mut self) {
        // The device may be gone.
        let _ = self.write("max_ratio", "100");
        let _ = self.write("strict_limit", "0");
    }
}
