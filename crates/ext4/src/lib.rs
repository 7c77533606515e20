//! ext2, ext3 and ext4 on their real on-disk format.

pub mod disk;
mod options;

pub use options::{Atime, DataMode, MountOptions, OnError, TABLE as OPTION_TABLE};
