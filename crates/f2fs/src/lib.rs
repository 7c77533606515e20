//! f2fs on its real on-disk format.

pub mod check;
pub mod disk;
pub mod format;
pub mod inspect;
pub mod segment;
pub mod victim;

mod acl;
mod attr;
mod checkpoint;
mod clock;
mod compress;
mod control;
mod cp_lock;
mod damage;
mod data;
mod dentry;
mod discard;
mod freeing;
mod fs;
mod gc;
mod inline;
mod inode;
mod ioctl;
mod lifecycle;
mod mount;
mod namei;
mod names_since_cp;
mod nat;
mod node;
mod ops;
mod options;
mod orphan;
mod pins;
mod recovery;
mod remount;
mod space;
mod status;
mod superblock;
mod verity;
mod xattr;

pub use fs::F2fs;
pub use mount::MountReport;
pub use options::{Atime, MountOptions, OnError, TABLE as OPTION_TABLE};
pub use steadfs_cache::CacheSizes;
pub use superblock::read_superblock;

#[cfg(test)]
mod test_world;
#[cfg(test)]
mod tests;
