//! Devices stacked over other devices.
//!
//! **Problem.** A volume may be a part of what a device holds: a partition, or the content of a container format.
//!
//! **Rule.** A device here changes what a request means and passes it on; it has no thread and never waits. What it parses
//! to know that is not trusted: a process parses it only after it has given up its rights.

#![forbid(unsafe_code)]

mod bytes;
mod joined;
mod map;
mod mapped;
mod overlay;
mod sparse;
mod split;
mod staged;
mod stoppable;
mod super_image;

pub use bytes::DeviceBytes;
pub use joined::{JOINED_UNIT, JoinedDevice};
pub use map::{Map, MapError, Source};
pub use mapped::MappedDevice;
pub use overlay::{BaseId, Head, Layout, OverlayDevice, check_head, identity};
pub use sparse::{SparseImage, is_sparse};
pub use staged::{StagedDevice, StagedOrder};
pub use stoppable::{Stop, StoppableDevice};
pub use super_image::{Logical, is_super, logical_partitions};

#[cfg(test)]
mod tests;
