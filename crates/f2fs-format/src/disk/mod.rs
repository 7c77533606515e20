//! The on-disk structures of f2fs: one object per file, named as the kernel names it.
//!
//! Everything here is pure: bytes in, values out, and back. No I/O, no lock, no clock.
//!
//! **How to use it.** [`Superblock::parse`] turns 1024 bytes and more into a validated superblock; its
//! [`Layout`] holds every fact that does not change while the volume is mounted (where each area
//! lies, counts, features, checksum seed) and is what other functions here take. Structures come in
//! two shapes:
//!
//! - *values* ([`Checkpoint`], [`NatEntry`], [`SitEntry`], [`Inode`], …): decoded and validated once,
//!   changed as plain fields, written back with `encode`/`encode_into`, which seals where the
//!   structure itself has the checksum;
//! - *blocks* ([`node`], [`dentry`], [`xattr`]): functions and views over a block's bytes; nodes are
//!   sealed with [`inode::seal`] when they get their place, as the checksum covers the footer.
//!
//! Bits lie in two orders: the version bitmaps of NAT and SIT and a segment's map of valid blocks
//! have the first bit at the *top* of each byte, directory bitmaps and `nat_bits` at the *bottom*
//! (see [`bits`]).
//!
//! Facts about the format are from the kernel's Documentation/filesystems/f2fs.rst and the
//! structures' public declarations (`f2fs_fs.h`); fields keep the names used there in their docs.
//!
//! No content of a volume makes anything here panic. Functions that take a whole block assert that
//! the *caller* passed [`BLOCK_SIZE`] bytes.
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
pub use error::{CorruptKind, DiskError, DiskLocation, Result, Structure};
pub use features::{Features, MountMode, mount_mode};
pub use ids::{BlockAddr, Nid, SegNo};
pub use inode::Inode;
pub use layout::{Layout, LogType};
pub use nat::NatEntry;
pub use sit::SitEntry;
pub use superblock::Superblock;

/// Bytes in a block; the only size that exists on volumes with 4 KiB pages (`F2FS_BLKSIZE`).
pub const BLOCK_SIZE: usize = 4096;
/// Blocks in a segment (`1 << log_blocks_per_seg`; the format allows no other number).
pub const SEGMENT_BLOCKS: u32 = 512;
