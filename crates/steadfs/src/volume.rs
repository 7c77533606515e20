//! A volume on an image file or block device, opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_block::{
    Device, Engine, FileDevice, ModelDevice, OpenError, OpenOptions, Queue, QueueOptions,
};
use steadfs_ext4::{CacheSizes, Ext4};
use steadfs_f2fs::F2fs;
use steadfs_fuse::{BlockDevice, FileId};
use steadfs_vfs::{FileSystem, FsError};
use thiserror::Error;

use crate::image::Found;
use crate::memory::default_cache_size;
use crate::probe::{Kind, Unopened, failed, kind_within};
use crate::{Io, IoEngine, Options};

/// Why a volume could not be opened, mounted or closed.
#[derive(Debug, Error)]
pub enum Error {
    /// The device could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// What is on the device is no volume.
    #[error("{}: {found}", path.display())]
    NoVolume {
        /// The device.
        path: PathBuf,
        /// What was found.
        found: Found,
    },
    /// The volume was not checked: that says nothing about whether it is damaged.
    #[error("{}: not checked: {why}", path.display())]
    Unchecked {
        /// The device.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The volume refused.
    #[error("{}: {error}", path.display())]
    Volume {
        /// The device.
        path: PathBuf,
        /// Why.
        error: FsError,
    },
    /// The mount failed.
    #[error("{0}")]
    Mount(#[from] steadfs_fuse::MountError),
}

impl Error {
    /// The file system's own error, if it was one.
    pub fn fs_error(&self) -> Option<&FsError> {
        match self {
            Self::Volume { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// What opening a volume found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Journal blocks written home (or, on a read-only device, laid over it in memory).
    pub replayed_blocks: u64,
    /// Transactions replayed.
    pub replayed_transactions: u64,
    /// Files of an f2fs volume that fsync wrote after the last checkpoint, taken over.
    pub recovered_files: u64,
    /// Unlinked or half-truncated inodes: finished, or (on a volume that is only read) passed over.
    pub orphans: u64,
    /// Why the volume is read-only although writing was asked for, or could not be written.
    pub read_only_because: Vec<String>,
    /// Options that the superblock asks for and does not get, with the reason.
    pub defaults_passed_over: Vec<String>,
    /// What the volume says of itself because of which it should be checked, though it can be written.
    pub check_because: Option<&'static str>,
    /// What is damaged or missing, and was passed over.
    pub warnings: Vec<String>,
}

impl From<steadfs_ext4::MountReport> for OpenReport {
    fn from(report: steadfs_ext4::MountReport) -> Self {
        Self {
            replayed_blocks: report.replayed_blocks,
            replayed_transactions: report.replayed_transactions,
            orphans: report.orphans,
            read_only_because: report.read_only_because,
            defaults_passed_over: report.defaults_passed_over,
            check_because: report.check_because,
            warnings: report.warnings,
            ..Self::default()
        }
    }
}

impl From<steadfs_f2fs::MountReport> for OpenReport {
    fn from(report: steadfs_f2fs::MountReport) -> Self {
        Self {
            recovered_files: report.recovered_files,
            orphans: report.orphans,
            read_only_because: report.read_only_because,
            warnings: report.warnings,
            ..Self::default()
        }
    }
}

/// An open volume.
pub struct Volume {
    fs: Arc<dyn FileSystem>,
    kind: Kind,
    report: OpenReport,
    path: PathBuf,
    /// Of a volume in a file or on a block device.
    device: Option<Arc<FileDevice>>,
    block_size: u32,
    io: Arc<Io>,
}

/// Opens the device that the options describe.
pub(crate) fn open_device(path: &Path, options: &Options) -> Result<FileDevice, Error> {
    let open = OpenOptions {
        read_only: options.read_only(),
        direct: !options.buffered,
        offset: options.offset,
        sizelimit: options.size_limit,
        engine: match options.io_engine {
            IoEngine::Auto => Engine::Auto,
            IoEngine::Uring => Engine::Uring,
            IoEngine::Threads => Engine::Threads,
        },
        create: None,
    };
    Ok(FileDevice::open(path, open)?)
}

type Opened = (Kind, Arc<dyn FileSystem>, OpenReport, u32, Arc<Queue>);

/// Opens whatever volume is on a device.
fn open_on(
    device: Arc<dyn Device>,
    sizes: CacheSizes,
    options: &Options,
) -> Result<Opened, Unopened> {
    let queue = Queue::new(Arc::clone(&device), QueueOptions::default());
    let kind = kind_within(&queue, options)?;
    options.fits(kind)?;
    if kind == Kind::F2fs {
        let (fs, report) = F2fs::open(device, options.f2fs.clone(), sizes)?;
        let block_size = steadfs_f2fs::disk::BLOCK_SIZE as u32;
        let queue = Arc::clone(fs.queue());
        return Ok((kind, fs, report.into(), block_size, queue));
    }
    let (fs, report) = Ext4::open(device, options.ext4.clone(), sizes)?;
    let block_size = fs.geo().block_size.bytes() as u32;
    let queue = Arc::clone(fs.queue());
    Ok((kind, fs, report.into(), block_size, queue))
}

impl Volume {
    /// Opens the volume on an image file or block device.
    pub fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        let device = Arc::new(open_device(path, options)?);
        let mut shared = Arc::clone(&device) as Arc<dyn Device>;
        if let Some(model) = options.device_model {
            let slow = ModelDevice::start(shared, model).map_err(|error| Error::Volume {
                path: path.to_owned(),
                error: FsError::no_thread(error),
            })?;
            shared = Arc::new(slow);
        }
        let sizes = CacheSizes::of(options.cache_size.unwrap_or_else(default_cache_size));
        let volume = Self::on(shared, path, sizes, options)?;
        Ok(Self {
            device: Some(device),
            ..volume
        })
    }

    /// Opens the volume on a device of the caller's, such as a modelled one. `name` stands for it in messages and in
    /// the table of mounts; of the options those about files and devices mean nothing here.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn on(
        device: Arc<dyn Device>,
        name: &Path,
        sizes: CacheSizes,
        options: &Options,
    ) -> Result<Self, Error> {
        let (kind, fs, report, block_size, queue) =
            open_on(device, sizes, options).map_err(|error| failed(name, error))?;
        Ok(Self {
            fs,
            kind,
            report,
            path: name.to_owned(),
            device: None,
            block_size,
            io: Arc::new(Io::new(queue, options.io.clone())),
        })
    }

    /// What kind of file system it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The volume's calls.
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs)
    }

    /// The order of its I/O.
    pub fn io(&self) -> &Arc<Io> {
        &self.io
    }

    /// What opening found and did.
    pub fn report(&self) -> &OpenReport {
        &self.report
    }

    /// How the device is reached, in words.
    pub fn describe_device(&self) -> String {
        let device = self.device.as_ref();
        device.map_or_else(
            || "a device of the caller's".to_owned(),
            |device| device.describe(),
        )
    }

    /// If this is a block device: lets the kernel claim it, and says what it needs for a mount.
    pub(crate) fn yield_block_device(&self) -> Option<BlockDevice> {
        let device = self.device.as_ref()?;
        if !device.is_block_device() {
            return None;
        }
        device.yield_claim();
        Some(BlockDevice {
            path: self.path.clone(),
            // The kernel takes none smaller than the device's sectors, and shows the number to nobody.
            block_size: self.block_size.max(device.sector_size()),
        })
    }

    /// The image file that the volume is in, if it is in one.
    pub(crate) fn image(&self) -> Option<FileId> {
        let (device, inode) = self.device.as_ref()?.image_id()?;
        Some(FileId { device, inode })
    }

    /// The image or device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The volume's block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Writes everything and marks the volume clean. The result says whether anything was lost.
    pub fn close(&self) -> Result<(), Error> {
        self.fs.unmount().map_err(|error| Error::Volume {
            path: self.path.clone(),
            error,
        })
    }
}
