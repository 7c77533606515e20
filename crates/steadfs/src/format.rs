//! Making volumes.

use std::path::Path;
use std::sync::Arc;

use steadfs_block::{Engine, FileDevice, OpenOptions, Queue, QueueOptions};
use steadfs_ext4::format::{FormatOptions, FormatReport};
use steadfs_vfs::FsError;

use crate::volume::Error;

/// Unit that a device's size is rounded down to when no size is given, as mke2fs does.
const UNIT: u64 = 4096;

/// Makes a volume on an image file or block device; what is there is lost. `size`: bytes, for an image
/// that is to be made, lengthened, or not to be filled; else the whole of it.
pub fn format(
    path: &Path,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    let open = OpenOptions {
        create: size,
        engine: Engine::Auto,
        ..OpenOptions::default()
    };
    let device = Arc::new(FileDevice::open(path, open)?);
    let queue = Queue::new(device, QueueOptions::default());
    let size = size.unwrap_or(queue.geometry().size / UNIT * UNIT);
    steadfs_ext4::format::format(&queue, size, options).map_err(|error| Error::Volume {
        path: path.to_owned(),
        error: FsError::BadOption(error.to_string()),
    })
}
