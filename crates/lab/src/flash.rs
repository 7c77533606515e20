//! Models of flash devices: the time of each command from stated parameters.
//!
//! [`Parameters`] come from a file ([`BUILT_IN`] has four), [`Machine`] is a pure state machine that computes when a
//! command ends, [`Store`] holds the content, and [`FlashDevice`] combines them as a [`Device`](steadfs_block::Device).
//! Modelled: command overhead, a bus of limited bandwidth, pages programmed and read in parallel units, a volatile
//! cache that is written in the background, the cost of a flush (fixed, and per MiB written since the last), FUA, and
//! the cost of opening an erase unit. Not modelled: garbage collection inside the device, wear, heat, and power states.

mod device;
mod machine;
mod parameters;
mod store;
mod table;

pub use device::{Counters, FlashDevice, RequestEvent, Watcher};
pub use machine::{Command, Machine, Times};
pub use parameters::{BUILT_IN, Cache, Erase, Flash, Host, Interface, ParameterError, Parameters};
pub use store::Store;
