//! ext2, ext3, ext4 and f2fs volumes without a driver: make, open, read, write, check and mount them.
//!
//! ```
//! # fn main() -> std::io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let image = dir.path().join("disk.img");
//! use steadfs::{Format, Volume};
//!
//! Format::ext4().size(64 << 20).make(&image)?;
//!
//! let volume = Volume::open(&image)?;
//! volume.create_dir("/home")?;
//! volume.write("/home/greeting", "hello\n")?;
//! volume.close()?; // writes everything, and says if it could not
//!
//! assert!(Volume::options().check(&image)?.is_clean());
//!
//! let read_only = Volume::options().read_only(true).open(&image)?;
//! assert_eq!(read_only.read("/home/greeting")?, b"hello\n");
//! # Ok(())
//! # }
//! ```
//!
//! [`Format`] makes a volume, [`Volume::options`] opens, probes, inspects or checks one with options, and
//! `Volume::mounting` mounts it. [`Volume`] has the calls by path, [`File`] is `Read + Write + Seek + Send`. Below them are the calls by inode number
//! ([`Volume::fs`], [`FileSystem`]); [`tools`] has what the commands do. Errors are [`std::io::Error`]s with a
//! [`VolumeIoError`] inside, or [`Error`] for the volume as a whole, which becomes one.
//!
//! # Features
//!
//! | feature | default | what it adds |
//! |---|---|---|
//! | `mount` | yes | mounting and serving through FUSE (`mount`, `serve`), and remounts |
//! | `io-uring` | yes | several requests of a task in one system call, to the device and from the kernel's FUSE |
//! | `nbd` | yes | volumes on NBD servers (`nbd://HOST/EXPORT`), with TLS |
//! | `sim` | no | reproducible volumes ([`Fill::origin`]), which are filled in a simulation |
//!
//! Without any of them the library makes, opens, reads, writes, checks and copies volumes in files, on block devices and on
//! devices of the caller's. What needs an absent feature is refused with its name: `-o io_engine=uring`, an NBD URI, an
//! [`Origin`].
//!
//! # Hosts
//!
//! Linux is what the library is made and tested for. Without features it also compiles for macOS, FreeBSD and Windows, where
//! nothing has been run: an image file is read, written and locked by the standard library there; block devices are refused,
//! and what copies between a volume and the host (`Volume::copy_in`, `tools::copy_out`, `fill`, archives) is left out.
//!
//! # A device of one's own
//!
//! A volume can be on anything that is a [`Device`], for instance on byte ranges that a server sends:
//!
//! ```
//! use std::io;
//! use std::ops::Range;
//! use std::path::Path;
//! use std::sync::Arc;
//! use steadfs::{Bio, CacheSizes, Device, Done, Geometry, IoError, Op, Options, Volume};
//!
//! struct Remote<F> {
//!     geometry: Geometry,
//!     /// Reads these bytes.
//!     get: F,
//! }
//!
//! impl<F: Fn(Range<u64>) -> io::Result<Vec<u8>>> Remote<F> {
//!     fn read_into(&self, bio: &mut Bio) -> Result<(), IoError> {
//!         self.geometry.check(bio)?; // in range, whole sectors, no write to a read-only device
//!         if bio.op == Op::Read {
//!             let bytes = (self.get)(bio.offset..bio.end());
//!             let bytes = bytes.map_err(|error| IoError::of(bio, error.to_string()))?;
//!             let mut rest = &bytes[..];
//!             for buf in &mut bio.bufs {
//!                 let (now, later) = rest.split_at(buf.len());
//!                 buf.make_mut().copy_from_slice(now);
//!                 rest = later;
//!             }
//!         }
//!         Ok(())
//!     }
//! }
//!
//! impl<F: Fn(Range<u64>) -> io::Result<Vec<u8>> + Send + Sync> Device for Remote<F> {
//!     fn geometry(&self) -> &Geometry {
//!         &self.geometry
//!     }
//!
//!     fn start(&self, mut bio: Bio, done: Done) {
//!         let result = self.read_into(&mut bio);
//!         done(bio, result);
//!     }
//! }
//!
//! # fn main() -> io::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("disk.img");
//! # steadfs::format(&path, Some(16 << 20), &steadfs::FormatOptions::default())?;
//! # let volume = Volume::open(&path)?;
//! # volume.write("/file", "far away")?;
//! # volume.close()?;
//! # let image = std::fs::read(&path)?;
//! let geometry = Geometry {
//!     size: image.len() as u64,
//!     logical_block: 512,
//!     read_only: true,
//!     discard_granularity: None,
//!     discard_zeroes: false,
//!     fua: false,
//!     max_transfer: 1 << 20,
//! };
//! let get = move |range: Range<u64>| Ok(image[range.start as usize..range.end as usize].to_vec());
//! let device = Arc::new(Remote { geometry, get });
//! let (name, options) = (Path::new("remote"), Options::parse("ro")?);
//! let volume = Volume::on(device, name, CacheSizes::of(8 << 20), &options)?;
//! assert_eq!(volume.read_to_string("/file")?, "far away");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        reason = "copies between volumes and the host are made on Linux only"
    )
)]

#[cfg(all(
    not(target_os = "linux"),
    any(feature = "mount", feature = "io-uring", feature = "nbd")
))]
compile_error!("outside Linux steadfs has no features: default-features = false");

mod check;
mod claim;
mod files;
#[cfg(target_os = "linux")]
mod fill;
#[cfg(target_os = "linux")]
mod fit;
mod format;
pub mod image;
mod inspect;
mod io;
mod io_options;
mod layers;
mod making;
mod memory;
#[cfg(feature = "mount")]
mod mount;
mod nbd;
mod nodes;
mod opening;
mod options;
mod os_names;
#[cfg(target_os = "linux")]
mod owners;
mod probe;
mod resize;
mod staged;
#[cfg(target_os = "linux")]
mod tar;
pub mod tools;
mod volume;

pub use check::{Checked, check};
pub use claim::ImageClaim;
pub use files::{DirEntry, File, Metadata, OpenFile, ReadDir, VolumeIoError, Walk, WalkEntry};
#[cfg(all(feature = "sim", target_os = "linux"))]
pub use fill::ReproducibleDevice;
#[cfg(target_os = "linux")]
pub use fill::{Fill, FillError, FillSource, Filled, Origin, fill, fill_open};
#[cfg(target_os = "linux")]
pub use fit::{FREE_PERCENT_MAX, Fit, FitFree, FitKind, FitPass, FitPlan};
pub use format::{
    dry_run, format, format_f2fs, format_f2fs_until, format_f2fs_within, format_journal,
    format_until, format_within,
};
pub use inspect::{Inspection, Marks, inspect};
pub use io::{Caller, Io};
pub use io_options::IoOptions;
pub use making::{Format, Formatted};
#[cfg(feature = "mount")]
pub use mount::{Mounting, mount, mount_by, mount_options, prepare_rings, serve, serve_on};
pub use nbd::{is_uri, size_on_server};
pub use opening::OpenVolume;
pub use options::{FuseTransport, IoEngine, MIN_CACHE_SIZE, MountFlags, Options, Overlay, SECTOR};
#[cfg(target_os = "linux")]
pub use owners::OwnerRules;
pub use probe::{Kind, probe};
pub use resize::ResizeDevice;
pub use staged::StagedVolume;
pub use steadfs_base::{InodeNo, Timestamp};
pub use steadfs_block::{
    Bio, Buf, Device, DeviceModel, Done, Geometry, IoError, MemDevice, Op, OpenError, Policy,
    QueueSettings,
};
pub use steadfs_cache::CacheSizes;
pub use steadfs_ext4::MountOptions;
pub use steadfs_ext4::format::{
    FormatError, FormatOptions, FormatReport, JournalReport, NamedJournal, makes_journal,
};
pub use steadfs_f2fs::format::{
    FormatError as F2fsFormatError, FormatOptions as F2fsFormatOptions,
    FormatReport as F2fsFormatReport,
};
pub use steadfs_f2fs::resize::{ResizeOptions, ResizeReport};
pub use steadfs_fscrypt::{
    KEYS_FILE, KeyName, KeySharing, Mode as CipherMode, POLICY_COMMAND, Policy as KeyPolicy,
    PolicyOptions, VolumeKey,
};
#[cfg(feature = "mount")]
pub use steadfs_fuse::{
    Broker, BrokerClient, CloseResult, CloseResultFd, Commands, Ended, FileId, HandOverError,
    Inheritance, KernelMount, Legacy, MountEntry, MountError, MountHandle, Mounted, Mounter,
    NamedFile, PendingCloseResult, Record, Reopen, Served, Service, ServiceClient, ServiceError,
    SyncError, Synced, TakenOver, Unmount, broker_sockets, is_server_gone, serve_commands,
    uring_hint,
};
pub use steadfs_stack::Stop;
pub use steadfs_vfs::verity::VerityOptions;
pub use steadfs_vfs::{
    Attr, Cx, FallocMode, FileKind, FileSystem, FsError, InodeFlags, Seek, SetAttr, SetTime, StatFs,
};
#[cfg(target_os = "linux")]
pub use tar::{TarError, TarTree};
pub use volume::{Error, OpenReport, Volume, VolumeDevice};
#[cfg(feature = "mount")]
pub use volume::{ServedFiles, reopen_for_writing};

/// What crates.io shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadMe;
