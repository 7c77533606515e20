//! Giving a volume that is not mounted another size.
//!
//! An image file is extended before; one that the volume filled is cut off behind a smaller volume afterwards.
//! What is refused leaves the file as long as it was.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use steadfs_f2fs::resize::{self as f2fs, ResizeError, ResizeOptions, ResizeReport};
use steadfs_vfs::FsError;

use crate::check::QueueSource;
use crate::nbd::is_uri;
use crate::probe::{Kind, failed, kind_on};
use crate::{Error, Options, VolumeDevice};

/// A volume that is to have another size. Nothing of it is interpreted yet, so that a process can give up its rights first.
pub struct ResizeDevice {
    device: VolumeDevice,
    options: ResizeOptions,
    file: Option<ImageFile>,
}

/// An image file with a volume from its first byte on.
struct ImageFile {
    file: File,
    /// Its length before.
    len: u64,
}

impl ImageFile {
    /// `None`: it is no file, or the volume is a part of it.
    fn open(path: &Path, options: &Options) -> Option<Self> {
        let is_part =
            options.offset > 0 || options.size_limit.is_some() || options.overlay.is_some();
        if is_part || options.read_only() || is_uri(path) {
            return None;
        }
        let file = File::options().write(true).open(path).ok()?;
        let found = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self {
            file,
            len: found.len(),
        })
    }

    fn set_len(&self, path: &Path, len: u64) -> Result<(), Error> {
        self.file.set_len(len).map_err(|error| {
            let why = format!("cannot be given {len} bytes: {error}");
            failed(path, FsError::Io(why))
        })
    }
}

impl ResizeDevice {
    /// Opens and claims the device, and extends an image file that is shorter than the new size.
    ///
    /// # Errors
    /// Another program uses it; it cannot be opened for writing, or extended.
    pub fn open(path: &Path, options: &Options, resize: ResizeOptions) -> Result<Self, Error> {
        let mut device = VolumeDevice::open(path, options)?;
        // Its length is known once no other program changes it.
        let file = ImageFile::open(path, options);
        if let (Some(file), Some(size)) = (&file, resize.size)
            && size > file.len
        {
            file.set_len(path, size)?;
            // A device keeps the size that it was opened with.
            drop(device);
            device = VolumeDevice::open(path, options).inspect_err(|_| {
                let _ = file.set_len(path, file.len);
            })?;
        }
        Ok(Self {
            device,
            options: resize,
            file,
        })
    }

    /// Gives the volume its size; `on_read` is called with the number of bytes of each read of the check before. On success
    /// the result is durable.
    ///
    /// # Errors
    /// It has the old size and is as it was, unless the error says that the resize is not finished.
    pub fn resize(&self, on_read: &mut dyn FnMut(u64)) -> Result<ResizeReport, Error> {
        let path = self.device.path();
        let mut undone = true;
        let done = self.run(on_read, &mut undone);
        let Some(file) = &self.file else {
            return done;
        };
        match &done {
            Ok(report) => {
                let block = steadfs_f2fs::disk::BLOCK_SIZE as u64;
                // What lies behind the old volume is not the volume's.
                let filled = report.old_blocks == Some(file.len / block);
                let end = report.blocks * block;
                if filled && report.blocks < file.len / block {
                    file.set_len(path, end)?;
                }
            }
            Err(_) if undone && self.options.size > Some(file.len) => {
                file.set_len(path, file.len)?;
            }
            // An unfinished resize needs all of the device.
            Err(_) => {}
        }
        done
    }

    /// `undone` is set to whether the volume is as it was, if this fails.
    fn run(&self, on_read: &mut dyn FnMut(u64), undone: &mut bool) -> Result<ResizeReport, Error> {
        let path = self.device.path();
        let queue = Arc::new(self.device.queue()?);
        let kind = kind_on(&queue, self.device.options());
        let kind = kind.map_err(|error| self.device.failed(error))?;
        if kind != Kind::F2fs {
            let why = format!(
                "is an {} volume: resize2fs changes its size, steadfs resize that of f2fs volumes",
                kind.name()
            );
            return Err(failed(path, FsError::BadOption(why)));
        }
        let fits = self.device.options().fits(kind);
        fits.map_err(|error| failed(path, error))?;
        let source = QueueSource::new(Arc::clone(&queue), on_read);
        f2fs::resize(&queue, &source, self.options).map_err(|error| {
            *undone = error.is_undone();
            let error = match error {
                ResizeError::Refused(why) => FsError::BadOption(why),
                ResizeError::Volume(error) => error,
                error @ (ResizeError::Io(_)
                | ResizeError::Unfinished(_)
                | ResizeError::Unusable(_)) => FsError::Io(error.to_string()),
            };
            failed(path, error)
        })
    }
}
