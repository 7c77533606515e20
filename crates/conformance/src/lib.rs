//! Volumes of every kind for the tests below `tests/`, which use nothing but the trait
//! [`FileSystem`](steadfs_vfs::FileSystem).
//!
//! [`KINDS`] is the table of kinds: a format with its features, and the mount options that change how files are stored.
//! A [`World`] is a mounted volume of one kind, on a device that can fail; foreign programs (e2fsck, fsck.f2fs) and our
//! checkers judge it when it is unmounted. Where a format differs by its nature, the [`Kind`] has the value to expect.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod device;
mod judge;
mod kinds;
mod verity;
mod world;

pub use device::TestDevice;
pub use judge::judge;
pub use kinds::{ALL_FEATURES, KINDS, Kind, kind};
pub use verity::{Place, Sealed, fsverity, location, verity_world};
pub use world::{Setup, World};
