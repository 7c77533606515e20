//! Other machines that use the same device: ext4's multiple-mount protection.

use std::path::Path;
use std::sync::Arc;

use steadfs_ext4::{Protection, check_unused, read_superblock};

use crate::volume::Error;
use crate::{Options, VolumeDevice};

/// How multiple-mount protection is treated, with the last part of the device's path as its name.
pub(crate) fn protection_of(path: &Path, options: &Options) -> Protection {
    let named = path
        .file_name()
        .map(|name| name.as_encoded_bytes().to_vec());
    let asked = options.ext4.protection.clone();
    Protection {
        device: asked.device.or(named),
        ..asked
    }
}

impl VolumeDevice {
    /// Makes sure that no other node uses the volume, before it is replaced as a whole. One without multiple-mount protection
    /// is taken for unused, as is a device without a volume. Waits for 11 s or more if the volume was not unmounted.
    ///
    /// # Errors
    /// Another node uses it.
    pub fn check_nodes(&self) -> Result<(), Error> {
        let queue = Arc::new(self.queue()?);
        match read_superblock(&queue) {
            Ok(sb) => check_unused(&queue, &sb).map_err(|error| self.failed(error)),
            Err(_) => Ok(()),
        }
    }
}
