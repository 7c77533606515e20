//! The on-disk structures of f2fs: one file per structure, named as in the kernel.
//!
//! Everything here is pure: no I/O, no lock, no clock.
//!
//! **Usage.** [`Superblock::parse`] turns 1024 bytes and more into a validated superblock. Its [`Layout`] holds
//! every fact that does not change while the volume is mounted (the areas, counts, features, checksum seed), and
//! other functions here take it as a parameter. There are two kinds of structures:
//!
//! - *values* ([`Checkpoint`], [`NatEntry`], [`SitEntry`], [`Inode`], …): decoded and validated once, changed as
//!   plain fields, written back with `encode`/`encode_into`, which sets the checksum if the structure has its own;
//! - *blocks* ([`node`], [`dentry`], [`xattr`]): functions and views on a block's bytes. Inodes get their checksum
//!   from [`inode::seal`] when their address is known, because the checksum covers the footer.
//!
//! There are two bit orders: the version bitmaps of NAT and SIT and the valid map of a segment start at the
//! *highest* bit of each byte, directory bitmaps and `nat_bits` at the *lowest* (see [`bits`]).
//!
//! Sources: the kernel's Documentation/filesystems/f2fs.rst and the public declarations of the structures
//! (`f2fs_fs.h`), whose field names the docs use.
//!
//! Content of a volume never causes a panic here. Functions that take a whole block assert that the *caller* passed
//! [`BLOCK_SIZE`] bytes.
#![warn(clippy::as_conversions)]

pub mod bits;
pub mod checkpoint;
pub mod checksum;
pub mod dentry;
mod error;
pub mod features;
pub mod hash;
mod ids;
pub mod inode;
pub mod journal;
mod layout;
pub mod nat;
pub mod node;
pub(crate) mod num;
pub mod orphan;
mod raw;
pub mod sit;
pub mod summary;
pub mod superblock;
pub mod xattr;

pub use checkpoint::Checkpoint;
pub use error::{CorruptKind, DiskError, Result, Structure};
pub use features::{Features, MountMode, mount_mode};
pub use ids::{BlockAddr, Nid, SegNo};
pub use inode::Inode;
pub use layout::{Layout, LogType};
pub use nat::NatEntry;
pub use sit::SitEntry;
pub use steadfs_format_base::{casefold, quota};
pub use superblock::Superblock;

/// Bytes per block; the only size on volumes of kernels with 4 KiB pages (`F2FS_BLKSIZE`).
pub const BLOCK_SIZE: usize = 4096;
/// Blocks per segment (`1 << log_blocks_per_seg`; the format allows no other value).
pub const SEGMENT_BLOCKS: u32 = 512;
