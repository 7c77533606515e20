//! ext2, ext3 and ext4: mounting, and all operations on a mounted volume. The on-disk format is the crate
//! `steadfs-ext4-format`.

#![forbid(unsafe_code)]

mod acl;
mod apply;
mod assemble;
mod attr;
mod clock;
mod clusters;
mod control;
mod corruption;
mod credits;
mod data;
mod dir;
mod encryption;
mod error_log;
mod extent;
mod fast_commit;
mod freeing;
mod fs;
mod hand_over;
mod indirect;
mod inline;
mod inode;
mod map;
mod mballoc;
mod metrics;
mod mode;
mod mount;
mod namei;
mod node_lock;
mod ops;
mod options;
mod orphan;
mod pins;
mod place;
mod quota;
mod remount;
mod replay;
mod report;
mod source;
mod super_origin;
mod tuning;
mod txn;
mod verified;
mod verity;
mod xattr;

pub use apply::{Appliable, appliable, apply};
pub use external_journal::JournalArea;
pub use fs::Ext4;
pub use node_lock::{NodeLock, Protection, ProtectionMode, check_unused};
pub use options::{Atime, DataMode, MountOptions, OnError, TABLE as OPTION_TABLE};
pub use replay::{View, replayed_view};
pub use report::MountReport;
pub use steadfs_cache::CacheSizes;
pub use steadfs_ext4_format::superblock::{
    BackupSuperblock, Chosen, SuperblockChoice, choose, find_copies, read_superblock,
};
pub use steadfs_ext4_format::{check, disk, format, inspect};

pub(crate) use steadfs_ext4_format::{external_journal, io_error, journal_inode, mmp, superblock};

#[cfg(test)]
#[path = "tests/world.rs"]
mod test_world;
#[cfg(test)]
mod tests;
