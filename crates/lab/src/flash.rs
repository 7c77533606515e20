//! Modelled flash devices: how long each command takes, by stated parameters.
//!
//! [`Parameters`] come from a file ([`BUILT_IN`] has four), [`Machine`] is the pure state machine that says when
//! a command ends, [`Store`] holds the content, and [`FlashDevice`] is the three as a
//! [`Device`](steadfs_block::Device). What is modelled: command overhead, a bus of so many MiB a second, pages
//! programmed and read in so many units at a time, a volatile cache that is written in the background, the cost of a
//! flush (fixed, and by what was written since the last), FUA, and the cost of opening an erase unit. What is not:
//! garbage collection inside the device, wear, heat, and power states.

mod device;
mod machine;
mod parameters;
mod store;
mod table;

pub use device::{Counters, FlashDevice, RequestEvent, Watcher};
pub use machine::{Command, Machine, Times};
pub use parameters::{BUILT_IN, Cache, Erase, Flash, Host, Interface, ParameterError, Parameters};
pub use store::Store;
