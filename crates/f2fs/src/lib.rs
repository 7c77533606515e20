//! The f2fs engine: mounting a volume and serving file-system calls on it. The on-disk format is in
//! `steadfs-f2fs-format`.

#![forbid(unsafe_code)]

mod acl;
mod atomic;
mod attr;
mod checkpoint;
mod clock;
mod compress;
mod control;
mod corruption;
mod cp_lock;
mod data;
mod dentry;
mod discard;
mod encryption;
mod error_log;
mod freeing;
mod fs;
mod gc;
mod hand_over;
mod inline;
mod inode;
mod ioctl;
mod lifecycle;
mod mount;
mod namei;
mod nat;
mod node;
mod ops;
mod options;
mod orphan;
mod pins;
mod quota;
mod recovery;
mod remount;
mod segment;
mod since_cp;
mod space;
mod status;
mod verity;
mod victim;
mod xattr;

pub use fs::F2fs;
pub use mount::MountReport;
pub use options::{Atime, MountOptions, OWN as OWN_OPTIONS, OnError, TABLE as OPTION_TABLE};
pub use steadfs_cache::CacheSizes;
pub use steadfs_f2fs_format::{check, disk, format, inspect, read_superblock, resize};

#[cfg(test)]
#[path = "tests/world.rs"]
mod test_world;
#[cfg(test)]
mod tests;
