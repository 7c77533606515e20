//! The on-disk format of f2fs: everything that needs a device and no mounted volume.
//!
//! [`disk`] parses, verifies and seals structures; [`superblock`] and [`checkpoint`] read the state that a mount
//! starts from; [`check`](mod@check) is the consistency checker, [`format`](mod@format) makes volumes,
//! [`resize`](mod@resize) gives one another size, and [`inspect`](mod@inspect) describes one.

#![forbid(unsafe_code)]

pub mod check;
pub mod checkpoint;
pub mod disk;
pub mod format;
pub mod inspect;
pub mod resize;
pub mod superblock;
#[cfg(any(test, feature = "test-support"))]
#[doc(hidden)]
pub mod test_support;

pub use steadfs_format_base::io_error;
pub use superblock::read_superblock;
