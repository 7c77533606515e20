//! A volume on an image file or block device, opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use steadfs_block::{Device, Engine, FileDevice, OpenError, OpenOptions, Queue, QueueOptions};
use steadfs_ext4::{CacheSizes, Ext4, MountReport};
use steadfs_fuse::BlockDevice;
use steadfs_vfs::{FileSystem, FsError};
use thiserror::Error;

use crate::{IoEngine, Options};

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
}

impl Kind {
    /// The name that mount(8) knows.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
        }
    }
}

/// An open volume.
pub struct Volume {
    fs: Arc<Ext4>,
    report: MountReport,
    path: PathBuf,
    device: Arc<FileDevice>,
    block_size: u32,
}

/// Opens the device that the options describe.
pub(crate) fn open_device(path: &Path, options: &Options) -> Result<FileDevice, Error> {
    let open = OpenOptions {
        read_only: options.ext4.read_only,
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
    options.ext4.read_only = true;
    let device = Arc::new(open_device(path, &options)?);
    let queue = Queue::new(device, QueueOptions::default());
    let sb = steadfs_ext4::read_superblock(&queue).map_err(|error| Error::Unknown {
        path: path.to_owned(),
        what: unknown(&error),
    })?;
    Ok(kind_of(&sb))
}

/// What to say of a device whose superblock cannot be read as one.
fn unknown(error: &FsError) -> String {
    match error {
        FsError::Corrupt(why) if why.contains("magic") => {
            "no ext2, ext3 or ext4 volume (wrong magic number); is it a partitioned disk? \
             Then say where the volume begins with -o offset=BYTES"
                .to_owned()
        }
        other => other.to_string(),
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

impl Volume {
    /// Opens the volume on an image file or block device.
    pub fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        let device = Arc::new(open_device(path, options)?);
        let sizes = options
            .cache_size
            .map_or_else(CacheSizes::default, CacheSizes::of);
        let shared = Arc::clone(&device) as Arc<dyn Device>;
        let opened = Ext4::open(shared, options.ext4.clone(), sizes);
        let (fs, report) = opened.map_err(|error| match error {
            FsError::Corrupt(why) if why.contains("magic") => Error::Unknown {
                path: path.to_owned(),
                what: unknown(&FsError::Corrupt(why)),
            },
            error => Error::Volume {
                path: path.to_owned(),
                error,
            },
        })?;
        let block_size = fs.geo().block_size.bytes() as u32;
        Ok(Self {
            fs,
            report,
            path: path.to_owned(),
            device,
            block_size,
        })
    }

    /// The volume's calls.
    pub fn fs(&self) -> Arc<dyn FileSystem> {
        Arc::clone(&self.fs) as Arc<dyn FileSystem>
    }

    /// What opening found and did.
    pub fn report(&self) -> &MountReport {
        &self.report
    }

    /// How the device is reached, in words.
    pub fn describe_device(&self) -> String {
        self.device.describe()
    }

    /// If this is a block device: lets the kernel claim it, and says what it needs for a mount.
    pub(crate) fn yield_block_device(&self) -> Option<BlockDevice> {
        if !self.device.is_block_device() {
            return None;
        }
        self.device.yield_claim();
        Some(BlockDevice {
            path: self.path.clone(),
            block_size: self.block_size,
        })
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
