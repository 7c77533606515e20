//! A volume on an image file or block device, opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{
    Device, Engine, FileDevice, ModelDevice, OpenError, OpenOptions, Queue, QueueOptions,
};
use steadfs_ext4::{CacheSizes, Ext4};
use steadfs_f2fs::F2fs;
use steadfs_fuse::{BlockDevice, FileId};
use steadfs_vfs::{FileSystem, FsError};
use thiserror::Error;

use crate::memory::default_cache_size;
use crate::{Io, IoEngine, Options};

/// Why a volume could not be opened, mounted or closed.
#[derive(Debug, Error)]
pub enum Error {
    /// The device could not be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// What is on the device is not a volume we know.
    #[error("{}: {what}", path.display())]
    Unknown {
        /// The device.
        path: PathBuf,
        /// What was found.
        what: String,
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

/// The kind of file system on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No journal, no extents.
    Ext2,
    /// A journal, no extents.
    Ext3,
    /// Any feature that came later.
    Ext4,
    /// The flash-friendly file system.
    F2fs,
}

impl Kind {
    /// The name that mount(8) knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::F2fs => "f2fs",
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

/// What kind of file system is on an image file or block device.
pub fn probe(path: &Path, options: &Options) -> Result<Kind, Error> {
    let mut options = options.clone();
    options.set_read_only(true);
    let device = Arc::new(open_device(path, &options)?);
    let queue = Queue::new(device, QueueOptions::default());
    kind_on(&queue).map_err(|error| failed(path, error))
}

/// Offset of the ext family's superblock and of f2fs's first one from the volume's first byte.
const SUPERBLOCK: usize = 1024;
/// Offset of f2fs's second one.
const SECOND: usize = 4096 + SUPERBLOCK;

/// Bytes of the smallest volume there is: without them there is no superblock.
const SMALLEST: u64 = 2048;

/// What kind of file system is on a device, by its magic numbers: the ext family's before f2fs's,
/// whose second superblock the making of another volume may leave.
pub(crate) fn kind_on(queue: &Queue) -> Result<Kind, FsError> {
    use steadfs_f2fs::disk::Superblock as F2fsSuperblock;
    let size = queue.geometry().size;
    if size < SMALLEST {
        let why = format!("no ext2, ext3, ext4 or f2fs volume: {size} bytes are too few for one");
        return Err(FsError::BadOption(why));
    }
    // The ext family's own words for a device that cannot be read.
    let ext = steadfs_ext4::read_superblock(queue);
    if size >= 8192 && matches!(&ext, Err(FsError::Corrupt(why)) if why.contains("magic")) {
        let blocks = queue
            .read(0, 8192, IoTag::default())
            .map_err(|error| FsError::Io(error.to_string()))?;
        let f2fs = [SUPERBLOCK, SECOND]
            .iter()
            .any(|&at| F2fsSuperblock::has_magic(&blocks[at..]));
        if f2fs {
            return Ok(Kind::F2fs);
        }
    }
    Ok(kind_of(&ext?))
}

/// The same, of a volume that `sizelimit=` does not cut off.
pub(crate) fn kind_within(queue: &Queue, options: &Options) -> Result<Kind, FsError> {
    let kind = kind_on(queue)?;
    let Some(limit) = options.size_limit else {
        return Ok(kind);
    };
    let size = match kind {
        Kind::F2fs => {
            let superblock = steadfs_f2fs::read_superblock(queue)?;
            let block_size = steadfs_f2fs::disk::BLOCK_SIZE as u64;
            superblock.layout().block_count.checked_mul(block_size)
        }
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => {
            let superblock = steadfs_ext4::read_superblock(queue)?;
            let geo = superblock.geometry();
            geo.blocks_count.checked_mul(geo.block_size.bytes_u64())
        }
    };
    match size {
        Some(size) if size > limit => Err(FsError::BadOption(format!(
            "option sizelimit={limit}: the volume has {size} bytes"
        ))),
        _ => Ok(kind),
    }
}

/// The error of a volume that is none, or that refused.
pub(crate) fn failed(path: &Path, error: FsError) -> Error {
    let path = path.to_owned();
    match error {
        FsError::Corrupt(why) if why.contains("magic") => Error::Unknown {
            path,
            what: "no ext2, ext3, ext4 or f2fs volume (wrong magic number); is it a partitioned \
                   disk? Then say where the volume begins with -o offset=BYTES"
                .to_owned(),
        },
        error => Error::Volume { path, error },
    }
}

fn kind_of(sb: &steadfs_ext4::disk::Superblock) -> Kind {
    use steadfs_ext4::disk::features::{Compat, Incompat, RoCompat};
    let features = sb.features();
    let ext3_incompat = Incompat::FILETYPE
        .union(Incompat::NEEDS_RECOVERY)
        .union(Incompat::META_BG);
    let ext3_ro = RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE);
    let later = features.incompat.without(ext3_incompat).0 != 0
        || features.ro_compat.without(ext3_ro).0 != 0;
    if later {
        Kind::Ext4
    } else if features.compat.contains(Compat::HAS_JOURNAL) {
        Kind::Ext3
    } else {
        Kind::Ext2
    }
}

type Opened = (Kind, Arc<dyn FileSystem>, OpenReport, u32, Arc<Queue>);

/// Opens whatever volume is on a device.
fn open_on(
    device: Arc<dyn Device>,
    sizes: CacheSizes,
    options: &Options,
) -> Result<Opened, FsError> {
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
            block_size: self.block_size.max(device.sector()),
        })
    }

    /// The image file that the volume is in, if it is in one.
    pub(crate) fn image(&self) -> Option<FileId> {
        let (device, inode) = self.device.as_ref()?.image()?;
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
