//! steadfs as a library: probe, open, format and mount volumes.

mod options;
pub mod tools;

pub use options::{
    FuseTransport, IoEngine, IoScheduler, MIN_CACHE_SIZE, MountFlags, Options, SECTOR,
};
pub use steadfs_ext4::MountOptions;
