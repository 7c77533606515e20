//! ext2, ext3 and ext4 on their real on-disk format.
#![allow(dead_code, reason = "the namespace half of the room lands next")]

pub mod disk;

mod acl;
mod attr;
mod credits;
mod data;
mod dir;
mod extent;
mod fs;
mod indirect;
mod inode;
mod journal_inode;
mod map;
mod mballoc;
mod mount;
mod namei;
mod options;
mod orphan;
mod txn;
mod verified;
mod xattr;

pub use fs::Ext4;
pub use mount::{CacheSizes, MountReport, read_superblock};
pub use options::{Atime, DataMode, MountOptions, OnError, TABLE as OPTION_TABLE};

#[cfg(test)]
mod test_world;
