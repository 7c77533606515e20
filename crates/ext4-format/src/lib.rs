//! ext2, ext3 and ext4 on disk: structures, checker, mkfs and inspection.
//!
//! Nothing here needs an open volume: no cache, no journal that runs, no task. The crate `steadfs-ext4` mounts
//! volumes with the structures of [`disk`].

#![forbid(unsafe_code)]

pub mod check;
pub mod disk;
pub mod external_journal;
pub mod format;
pub mod inspect;
pub mod journal_inode;
pub mod mmp;
pub mod superblock;

mod error;

pub use error::{io_error, journal_format_error};
