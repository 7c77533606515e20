//! Devices, bios, the request queue and its statistics.
//!
//! **What completion means.** A completed write is in the device, perhaps only in its volatile
//! cache: it survives a crash for certain once a FLUSH that was *started after it completed* has
//! completed, or if it carried FUA. The queue orders nothing by itself: who needs order waits.

mod bio;
mod buf;
mod device;
mod error;
mod fates;
mod file;
mod mem;
mod model;
mod queue;
mod source;
mod timed;

pub use bio::{Bio, Op};
pub use buf::Buf;
pub use device::{Device, Done, Geometry};
pub use error::IoError;
pub use fates::{Fate, FateDevice};
pub use file::{CallerDevice, Engine, FileDevice, OpenError, OpenOptions};
pub use mem::MemDevice;
pub use model::{DeviceModel, ModelDevice};
pub use queue::{
    AheadStats, BoostStats, Classes, Depths, GroupStats, IoHandle, Latency, OpStats, Plug, Policy,
    Queue, QueueOptions, QueueSettings, Stats, wait_all,
};
pub use source::BlockSource;
pub use timed::TimedEnds;
