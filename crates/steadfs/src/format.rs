//! Making volumes.

use std::path::Path;
use std::sync::Arc;

use steadfs_block::{Device, Engine, FileDevice, OpenError, OpenOptions, Queue, QueueOptions};
use steadfs_ext4::format::{FormatOptions, FormatReport};
use steadfs_f2fs::format as f2fs;
use steadfs_vfs::FsError;

use crate::volume::Error;

/// Unit that a device's size is rounded down to when no size is given, as mke2fs does.
const UNIT: u64 = 4096;
/// Bytes in a sector of an image file.
const SMALLEST_SECTOR: u32 = 512;

/// Makes a volume on an image file or block device; what is there is lost, from [`FormatOptions::offset`] on.
/// `size`: bytes, for an image that is to be made, lengthened, or not to be filled; else the whole of it.
pub fn format(
    path: &Path,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    on(path, options.offset, size, |queue, size, sector| {
        let options = FormatOptions {
            sector_size: options.sector_size.or(Some(sector)),
            ..options.clone()
        };
        steadfs_ext4::format::format(queue, size, &options).map_err(|error| error.to_string())
    })
}

/// What [`format()`] would make; nothing is changed. A file that is not there, or shorter than `size`, counts as made
/// for it.
pub fn dry_run(
    path: &Path,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    let (whole, sector) = match FileDevice::open(path, looking(options.offset)) {
        Ok(device) => (device.geometry().size / UNIT * UNIT, device.sector_size()),
        Err(_) if size.is_some() && !path.exists() => (0, SMALLEST_SECTOR),
        Err(error) => return Err(error.into()),
    };
    let made = steadfs_ext4::format::dry_run(size.unwrap_or(whole), sector, options);
    made.map_err(|error| Error::Volume {
        path: path.to_owned(),
        error: FsError::BadOption(error.to_string()),
    })
}

/// How a device is opened that is only looked at.
fn looking(offset: u64) -> OpenOptions {
    OpenOptions {
        read_only: true,
        offset,
        engine: Engine::Threads,
        ..OpenOptions::default()
    }
}

/// Makes an f2fs volume; `path` and `size` as in [`format()`].
pub fn format_f2fs(
    path: &Path,
    size: Option<u64>,
    options: &f2fs::FormatOptions,
) -> Result<f2fs::FormatReport, Error> {
    on(path, 0, size, |queue, size, sector| {
        let options = f2fs::FormatOptions {
            sector_size: options.sector_size.or(Some(sector)),
            ..options.clone()
        };
        f2fs::format(queue, size, &options).map_err(|error| error.to_string())
    })
}

/// Lets `make` work on the device, whose size and sectors it is told. A file that was not there before stays only with a volume in it.
fn on<T>(
    path: &Path,
    offset: u64,
    size: Option<u64>,
    make: impl FnOnce(&Queue, u64, u32) -> Result<T, String>,
) -> Result<T, Error> {
    let is_new = !path.exists();
    let length = size.map(|size| size.saturating_add(offset));
    let opened = open(path, offset, size).inspect_err(|error| {
        // Made, and it could not become so long, or is too short to be a device.
        let own = !matches!(error, Error::Open(OpenError::Busy { .. }));
        let is_ours = |len| len == 0 || Some(len) == length;
        if is_new && own && std::fs::metadata(path).is_ok_and(|file| is_ours(file.len())) {
            let _ = std::fs::remove_file(path);
        }
    });
    let (queue, size, sector) = opened?;
    make(&queue, size, sector).map_err(|why| {
        if is_new {
            // What is left is empty and in nobody's way.
            let _ = std::fs::remove_file(path);
        }
        Error::Volume {
            path: path.to_owned(),
            error: FsError::BadOption(why),
        }
    })
}

fn open(path: &Path, offset: u64, size: Option<u64>) -> Result<(Queue, u64, u32), Error> {
    let open = OpenOptions {
        offset,
        // What cannot be is too large for every file, and the system says so.
        create: size.map(|size| size.saturating_add(offset)),
        engine: Engine::Auto,
        ..OpenOptions::default()
    };
    let device = Arc::new(FileDevice::open(path, open)?);
    let sector = device.sector_size();
    let queue = Queue::new(device, QueueOptions::default());
    let size = size.unwrap_or(queue.geometry().size / UNIT * UNIT);
    Ok((queue, size, sector))
}
