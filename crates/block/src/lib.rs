//! Devices, bios, the request queue and its statistics.
//!
//! **What completion means.** A completed write is in the device, perhaps only in its volatile
//! cache. It is durable once a FLUSH that was *started after it completed* has completed, or if it
//! carried FUA. The queue orders no writes: a caller that needs an order waits for completions.

mod bio;
mod buf;
mod delayed;
mod device;
mod error;
mod faults;
#[cfg(target_os = "linux")]
mod file;
#[cfg(not(target_os = "linux"))]
#[path = "file_elsewhere.rs"]
mod file;
mod file_at;
mod mem;
mod model;
mod open_options;
mod queue;
mod source;

pub use bio::{Bio, Op};
pub use buf::Buf;
pub use delayed::DelayedCompletions;
pub use device::{Device, Done, Geometry};
pub use error::IoError;
pub use faults::{Fault, FaultDevice};
pub use file::{ClaimedFile, FileDevice, SyncFileDevice};
#[cfg(target_os = "linux")]
pub use file::{FileId, Reopen, prepare_rings};
pub use mem::MemDevice;
pub use model::{DeviceModel, ModelDevice};
pub use open_options::{Engine, OpenError, OpenOptions};
pub use queue::{
    BoostStats, Depths, GroupStats, IoHandle, Latency, LatencyBuckets, OpStats, Plug, Policy,
    Queue, QueueOptions, QueueSettings, QueueStats, ReadAheadStats, wait_all,
};
pub use source::BlockSource;
pub use steadfs_iosched::FsyncTarget;
