//! f2fs on its real on-disk format.

pub mod disk;
pub mod format;
pub mod inspect;

mod checkpoint;
mod compress;
mod control;
mod data;
mod dentry;
mod fs;
mod inline;
mod inode;
mod mount;
mod nat;
mod node;
mod ops;
mod options;
mod recovery;
mod superblock;
mod xattr;

pub use fs::F2fs;
pub use mount::MountReport;
pub use options::{Atime, MountOptions, OnError, TABLE as OPTION_TABLE};
pub use steadfs_cache::CacheSizes;
pub use superblock::read_superblock;

#[cfg(test)]
mod tests;
