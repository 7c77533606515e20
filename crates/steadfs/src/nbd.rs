//! Devices on NBD servers: wherever an image is named, an NBD URI names an export.

use std::path::Path;
use std::sync::Arc;

use steadfs_block::{Device, Engine, FileDevice, OpenError, OpenOptions};
use steadfs_nbd::{NbdDevice, NbdError, NbdOptions};

pub use steadfs_nbd::is_uri;

/// Sector size of an export without a stated one.
const SMALLEST_SECTOR: u32 = 512;

/// Opens the export of an NBD URI. No thread is started, and nothing of its content is interpreted.
pub(crate) fn open(path: &Path, how: &OpenOptions) -> Result<NbdDevice, OpenError> {
    if how.engine == Engine::Uring {
        return Err(OpenError::NoUring {
            path: path.to_owned(),
            reason: "an NBD server is reached by a socket".to_owned(),
        });
    }
    let options = NbdOptions {
        read_only: how.read_only,
        offset: how.offset,
        sizelimit: how.sizelimit,
    };
    NbdDevice::open_idle(path, &options).map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: NbdError) -> OpenError {
    OpenError::Io {
        path: path.to_owned(),
        what: "cannot be opened",
        cause: error.into_io(),
    }
}

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
