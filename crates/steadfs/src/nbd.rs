//! Devices on NBD servers: wherever an image is named, an NBD URI names an export.

#[cfg(feature = "nbd")]
mod client;
#[cfg(not(feature = "nbd"))]
#[path = "nbd/without_client.rs"]
mod client;

use std::path::Path;
use std::sync::Arc;

use steadfs_block::{Device, FileDevice, OpenError, OpenOptions};

pub use client::is_uri;
pub(crate) use client::{NbdDevice, open};

/// Sector size of an export without a stated one.
const SMALLEST_SECTOR: u32 = 512;

/// Opens an image, a block device or an export. Returns its sector size, too.
pub(crate) fn open_any(path: &Path, how: OpenOptions) -> Result<(Arc<dyn Device>, u32), OpenError> {
    if is_uri(path) {
        let device = open(path, &how)?;
        let sector = device.geometry().logical_block.max(SMALLEST_SECTOR);
        return Ok((Arc::new(device), sector));
    }
    let device = FileDevice::open(path, how)?;
    let sector = device.sector_size();
    Ok((Arc::new(device), sector))
}

/// The size in bytes of the export of an NBD URI, if its server can be asked.
pub fn size_on_server(path: &Path) -> Option<u64> {
    let reading = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = open(path, &reading).ok()?;
    Some(device.geometry().size)
}
