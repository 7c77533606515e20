//! The library: probe, open, format, check, fill and mount volumes.

#![forbid(unsafe_code)]

mod check;
mod fill;
mod fit;
mod format;
pub mod image;
mod inspect;
mod io;
mod io_options;
mod layers;
mod memory;
mod mount;
mod nbd;
mod nodes;
mod options;
mod owners;
mod probe;
mod staged;
mod tar;
pub mod tools;
mod volume;

pub use check::{Checked, check};
pub use fill::{Fill, FillError, FillSource, Filled, Origin, ReproducibleDevice, fill, fill_open};
pub use fit::{FREE_PERCENT_MAX, Fit, FitFree, FitKind, FitPass, FitPlan};
pub use format::{check_unused, dry_run, format, format_f2fs, format_f2fs_within, format_within};
pub use inspect::{Inspection, inspect};
pub use io::{Caller, Io};
pub use io_options::IoOptions;
pub use mount::{mount, mount_options, prepare_rings, serve, serve_on};
pub use nbd::{is_uri, size_on_server};
pub use options::{FuseTransport, IoEngine, MIN_CACHE_SIZE, MountFlags, Options, Overlay, SECTOR};
pub use owners::OwnerRules;
pub use probe::{Kind, probe};
pub use staged::StagedVolume;
pub use steadfs_block::{DeviceModel, OpenError, Policy, QueueSettings};
pub use steadfs_ext4::MountOptions;
pub use steadfs_ext4::format::{FormatError, FormatOptions, FormatReport};
pub use steadfs_f2fs::format::{
    FormatError as F2fsFormatError, FormatOptions as F2fsFormatOptions,
    FormatReport as F2fsFormatReport,
};
pub use steadfs_fuse::{
    Broker, BrokerClient, CloseResult, CloseResultFd, Commands, Ended, FileId, Inheritance,
    KernelMount, Legacy, MountEntry, MountError, MountHandle, Mounted, Mounter, PendingCloseResult,
    Record, Reopen, Served, Service, ServiceClient, ServiceError, SyncError, Synced, Unmount,
    broker_sockets, serve_commands, uring_hint,
};
pub use tar::{TarError, TarTree};
pub use volume::{Error, OpenReport, Volume, VolumeDevice, reopen_for_writing};
