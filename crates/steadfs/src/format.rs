//! Making volumes.

use std::path::Path;
use std::sync::Arc;

use steadfs_block::{Engine, OpenError, OpenOptions, Queue, QueueOptions};
use steadfs_ext4::format::{
    FormatOptions, FormatReport, JournalReport, NamedJournal, take_journal, unused_journal,
};
use steadfs_f2fs::format as f2fs;
use steadfs_stack::{JoinedDevice, Stop, StoppableDevice};
use steadfs_vfs::FsError;

use crate::image::Window;
use crate::nbd::{is_uri, open_any};
use crate::probe::failed;
use crate::volume::Error;

/// Without a given size, a device's size is rounded down to a multiple of this, as mke2fs does.
const SIZE_UNIT: u64 = 4096;
/// Sector size of an image file in bytes.
const SMALLEST_SECTOR: u32 = 512;

/// Makes a volume on an image file or block device. Its content from [`FormatOptions::offset`] on is lost. `size` in
/// bytes, for an image that is created or extended, or for a volume smaller than the device; `None`: the whole device.
pub fn format(
    path: impl AsRef<Path>,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    format_within(path.as_ref(), None, size, options)
}

/// As [`format()`], in a part of a disk instead of from an offset on: nothing outside it is touched.
pub fn format_within(
    path: &Path,
    part: Option<Window>,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    format_until(path, (part, size), options, None)
}

/// As [`format_within()`], until `stop` returns true. What is there then is no volume.
pub fn format_until(
    path: &Path,
    (part, size): (Option<Window>, Option<u64>),
    options: &FormatOptions,
    stop: Option<&Stop>,
) -> Result<FormatReport, Error> {
    let offset = options.offset;
    if part.is_some() && offset > 0 {
        let why = "an offset: a partition has its place already".to_owned();
        return Err(failed(path, FsError::BadOption(why)));
    }
    on(path, (offset, part), (size, stop), |queue, size, sector| {
        let journal = options.journal_device.as_deref().map(NamedDevice::open);
        let journal = journal.transpose()?;
        let options = FormatOptions {
            sector_size: options.sector_size.or(Some(sector)),
            device_name: path.as_os_str().as_encoded_bytes().to_vec(),
            external_journal: journal.as_ref().map(|journal| journal.named),
            ..options.clone()
        };
        let made = steadfs_ext4::format::format(queue, size, &options);
        let made = made.map_err(|error| error.to_string())?;
        if let Some(NamedDevice { queue, .. }) = &journal {
            take_journal(queue, made.uuid).map_err(|error| error.to_string())?;
        }
        Ok(made)
    })
}

/// Makes an external journal on an image file or block device: what [`FormatOptions::features`] with `journal_dev` is;
/// `path` and `size` as in [`format()`].
pub fn format_journal(
    path: &Path,
    part: Option<Window>,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<JournalReport, Error> {
    let place = (options.offset, part);
    on(path, place, (size, None), |queue, size, sector| {
        let options = FormatOptions {
            sector_size: options.sector_size.or(Some(sector)),
            ..options.clone()
        };
        let made = steadfs_ext4::format::format_journal(queue, size, &options);
        made.map_err(|error| error.to_string())
    })
}

/// The number of a block device, as the kernel stores it in 32 bits (`new_encode_dev`); 0: it is none.
#[cfg(target_os = "linux")]
fn device_number(path: &Path) -> u32 {
    use rustix::fs::{major, minor};
    let device = rustix::fs::stat(path).map_or(0, |stat| stat.st_rdev);
    major(device) << 8 | minor(device) & 0xFF | (minor(device) & !0xFF) << 12
}

#[cfg(not(target_os = "linux"))]
fn device_number(_: &Path) -> u32 {
    0
}

/// The device of an external journal that a new volume is to have.
struct NamedDevice {
    queue: Queue,
    named: NamedJournal,
}

impl NamedDevice {
    fn open(path: &Path) -> Result<Self, String> {
        let open = OpenOptions {
            engine: Engine::Threads,
            ..OpenOptions::default()
        };
        let (device, _) = open_any(path, open).map_err(|error| error.to_string())?;
        let queue = Queue::new(device, QueueOptions::default());
        let found = unused_journal(&queue).map_err(|error| error.to_string())?;
        Ok(Self {
            queue,
            named: NamedJournal {
                uuid: found.uuid,
                device: device_number(path),
                block_size: 1 << found.block_size.bits(),
            },
        })
    }
}

/// Reports what [`format()`] would make, and changes nothing. A file that is missing or shorter than `size` is treated as
/// if it had that size.
pub fn dry_run(
    path: &Path,
    size: Option<u64>,
    options: &FormatOptions,
) -> Result<FormatReport, Error> {
    let (whole, sector) = match open_any(path, read_only(options.offset)) {
        Ok((device, sector)) => (device.geometry().size / SIZE_UNIT * SIZE_UNIT, sector),
        Err(_) if size.is_some() && !path.exists() && !is_uri(path) => (0, SMALLEST_SECTOR),
        Err(error) => return Err(error.into()),
    };
    let made = steadfs_ext4::format::dry_run(size.unwrap_or(whole), sector, options);
    made.map_err(|error| Error::Volume {
        path: path.to_owned(),
        error: FsError::BadOption(error.to_string()),
    })
}

/// Open options for a device that is only inspected.
fn read_only(offset: u64) -> OpenOptions {
    OpenOptions {
        read_only: true,
        offset,
        engine: Engine::Threads,
        ..OpenOptions::default()
    }
}

/// Makes an f2fs volume; `path` and `size` as in [`format()`].
pub fn format_f2fs(
    path: impl AsRef<Path>,
    size: Option<u64>,
    options: &f2fs::FormatOptions,
) -> Result<f2fs::FormatReport, Error> {
    format_f2fs_within(path.as_ref(), None, size, options)
}

/// As [`format_f2fs()`], in a part of a disk.
pub fn format_f2fs_within(
    path: &Path,
    part: Option<Window>,
    size: Option<u64>,
    options: &f2fs::FormatOptions,
) -> Result<f2fs::FormatReport, Error> {
    format_f2fs_until(path, (part, size), options, None)
}

/// As [`format_f2fs_within()`], until `stop` returns true. What is there then is no volume.
pub fn format_f2fs_until(
    path: &Path,
    (part, size): (Option<Window>, Option<u64>),
    options: &f2fs::FormatOptions,
    stop: Option<&Stop>,
) -> Result<f2fs::FormatReport, Error> {
    on(path, (0, part), (size, stop), |queue, size, sector| {
        let options = f2fs::FormatOptions {
            sector_size: options.sector_size.or(Some(sector)),
            ..options.clone()
        };
        let made = match options.other_devices.is_empty() {
            true => f2fs::format(queue, size, &options),
            false => {
                let (queue, size, devices) = join_to_format(path, queue, size, &options)?;
                let options = f2fs::FormatOptions { devices, ..options };
                f2fs::format(&queue, size, &options)
            }
        };
        made.map_err(|error| error.to_string())
    })
}

/// The devices of a new volume on several, joined, and their size.
fn join_to_format(
    path: &Path,
    first: &Queue,
    size: u64,
    options: &f2fs::FormatOptions,
) -> Result<(Queue, u64, Vec<f2fs::DevicePart>), String> {
    let named = |path: &Path, bytes| {
        let path = std::path::absolute(path).map_err(|error| error.to_string())?;
        let path = path
            .to_str()
            .ok_or("-c: a path is not in UTF-8")?
            .to_owned();
        Ok::<_, String>(f2fs::DevicePart { path, bytes })
    };
    let mut devices = vec![Arc::clone(first.device())];
    let mut parts = vec![named(path, size)?];
    for other in &options.other_devices {
        let open = OpenOptions {
            engine: Engine::Auto,
            ..OpenOptions::default()
        };
        let (device, _) = open_any(other, open).map_err(|error| error.to_string())?;
        parts.push(named(other, device.geometry().size)?);
        devices.push(device);
    }
    let used: Vec<u64> = parts.iter().map(f2fs::DevicePart::used).collect();
    let size = used.iter().sum();
    let joined = JoinedDevice::of_several(devices.into_iter().zip(used).collect());
    let joined = joined.map_err(|(number, why)| format!("{} {why}", parts[number].path))?;
    let queue = Queue::new(Arc::new(joined), QueueOptions::default());
    Ok((queue, size, parts))
}

/// Calls `make` with the device's queue, size and sector size. A file that did not exist before is removed on an error.
fn on<T>(
    path: &Path,
    (offset, part): (u64, Option<Window>),
    (size, stop): (Option<u64>, Option<&Stop>),
    make: impl FnOnce(&Queue, u64, u32) -> Result<T, String>,
) -> Result<T, Error> {
    let is_new = !is_uri(path) && !path.exists();
    let length = size.map(|size| size.saturating_add(offset));
    let opened = open(path, (offset, part), size, stop).inspect_err(|error| {
        // The file was created, but could not be extended to `size`, or is too short to be a device.
        let own = !matches!(error, Error::Open(OpenError::Busy { .. }));
        let is_ours = |len| len == 0 || Some(len) == length;
        if is_new && own && std::fs::metadata(path).is_ok_and(|file| is_ours(file.len())) {
            let _ = std::fs::remove_file(path);
        }
    });
    let (queue, size, sector) = opened?;
    make(&queue, size, sector).map_err(|why| {
        if is_new {
            // The file was created here and holds no volume.
            let _ = std::fs::remove_file(path);
        }
        Error::Volume {
            path: path.to_owned(),
            error: FsError::BadOption(why),
        }
    })
}

fn open(
    path: &Path,
    (offset, part): (u64, Option<Window>),
    size: Option<u64>,
    stop: Option<&Stop>,
) -> Result<(Queue, u64, u32), Error> {
    let open = OpenOptions {
        offset: part.map_or(offset, |part| part.start),
        sizelimit: part.map(|part| part.bytes),
        // A size that overflows is too large for any file; the system call fails with the reason.
        create: size
            .filter(|_| part.is_none())
            .map(|size| size.saturating_add(offset)),
        engine: Engine::Auto,
        ..OpenOptions::default()
    };
    let (device, sector) = open_any(path, open)?;
    let device = match stop {
        Some(stop) => Arc::new(StoppableDevice::new(device, Arc::clone(stop))),
        None => device,
    };
    let queue = Queue::new(device, QueueOptions::default());
    let whole = queue.geometry().size;
    let size = size.unwrap_or(whole / SIZE_UNIT * SIZE_UNIT);
    let what = match part {
        Some(_) => Some("partition"),
        None => is_uri(path).then_some("export"),
    };
    if let Some(what) = what.filter(|_| size > whole) {
        let why = format!("the {what} has {whole} bytes, {size} do not fit");
        return Err(Error::Volume {
            path: path.to_owned(),
            error: FsError::BadOption(why),
        });
    }
    Ok((queue, size, sector))
}
