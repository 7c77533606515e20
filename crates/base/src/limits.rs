//! Limits that several crates use.

/// Longest file name in bytes (POSIX `NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// Longest symbolic-link target in bytes, terminating zero excluded (Linux `PATH_MAX` - 1).
pub const SYMLINK_MAX: usize = 4095;
/// Smallest file-system block, in bytes.
pub const MIN_BLOCK_SIZE: u32 = 1024;
/// Largest file-system block, in bytes.
pub const MAX_BLOCK_SIZE: u32 = 65536;
/// Longest extended-attribute name in bytes, prefix included (Linux `XATTR_NAME_MAX`).
pub const XATTR_NAME_MAX: usize = 255;
/// Longest extended-attribute value in bytes (Linux `XATTR_SIZE_MAX`).
pub const XATTR_SIZE_MAX: usize = 65536;
