//! The on-disk structures of ext2, ext3 and ext4: one object per file, named as the kernel names it.
//!
//! Everything here is pure: bytes in, values out, and back. No I/O, no lock, no clock.
//!
//! **How to use it.** [`Superblock::parse`] turns 1024 raw bytes into a validated superblock; its
//! [`Geometry`] holds every fact that does not change while the volume is mounted (sizes, counts,
//! features, checksum seed) and is the parameter of all other functions here. Structures have two forms:
//!
//! - *values* ([`GroupDesc`], [`Inode`], [`Extent`], …): decoded from a slot of bytes, validated
//!   once, changed as plain fields, and written back with `encode_into`, which computes the checksum;
//! - *blocks* ([`extent::ExtentNode`], [`dir_entry`], [`htree`], [`xattr`]): views over a block's
//!   bytes, validated when created; their mutable counterparts edit in place and have a `seal`.
//!
//! Verify after read, seal before write: nothing else in the crate computes a checksum. Where a
//! volume has no metadata checksums its [`ChecksumSeed`] is empty and both steps do nothing.
//!
//! Every fact about the format is from the kernel's "ext4 Data Structures and Algorithms"
//! (Documentation/filesystems/ext4); fields keep the names used there in their docs.
//!
//! No content of a volume makes this code panic. Functions that take a whole block as a slice assert that the *caller*
//! passed a slice of the right length.
#![warn(clippy::as_conversions)]

pub mod bitmap;
mod checksum;
mod clusters;
mod copies;
pub mod dir_entry;
pub mod ea_inode;
mod error;
pub mod extent;
pub mod external_journal;
pub mod features;
mod geometry;
pub mod group_desc;
pub mod hash;
pub mod htree;
mod ids;
pub mod indirect;
pub mod inode;
mod layout;
pub mod mmp;
pub mod num;
pub mod orphan_file;
mod raw_superblock;
pub mod superblock;
#[cfg(any(test, feature = "test-support"))]
pub mod test_images;
pub mod time;
pub mod xattr;

pub use checksum::ChecksumSeed;
pub use copies::{DESC_COPIES_MAX, desc_from_copies, has_super};
pub use error::{CorruptKind, DiskError, Result, Structure};
pub use extent::{Extent, ExtentIndex};
pub use features::{Compat, Features, Incompat, MountMode, RoCompat};
pub use geometry::{Geometry, GroupOverhead, MIN_DESC_SIZE};
pub use group_desc::GroupDesc;
pub use ids::{GroupNo, Ino};
pub use inode::Inode;
pub use mmp::Mmp;
pub use steadfs_format_base::{casefold, quota};
pub use superblock::Superblock;
