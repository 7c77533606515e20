//! The tar format: ustar headers, and pax records beside them (POSIX.1-2001).
//!
//! **Problem.** A ustar header has 100 bytes for a name, 33 bits for a size and whole seconds for a time. **Rule.** What
//! does not fit, and extended attributes, go into pax records before the member, with the keys that GNU tar uses. There
//! is no crate for it here: `tar` reads names and records of any length into memory, and knows pax sparse files neither
//! for reading nor for writing.

mod acl;
mod extra;
pub(crate) mod header;
pub(crate) mod pax;
mod read;
mod tape;
#[cfg(test)]
mod tests;
mod tree;

pub(crate) use acl::acl_to_text;
pub use read::TarError;
pub(crate) use tree::Node;
pub use tree::TarTree;

/// Bytes in a block, the unit of headers and of padding.
pub(crate) const BLOCK: usize = 512;
/// Bytes in a record, of which an archive has a whole number (GNU tar's default, `-b 20`).
pub(crate) const RECORD: usize = 20 * BLOCK;

/// Key of an extended attribute, before its name.
pub(crate) const XATTR: &str = "SCHILY.xattr.";
/// The label that GNU tar's --selinux stores, and its attribute.
pub(crate) const LABEL: (&str, &[u8]) = ("RHT.security.selinux", b"security.selinux");
/// Keys of access control lists with the attribute that each is.
pub(crate) const ACLS: [(&str, &[u8]); 2] = [
    ("SCHILY.acl.access", b"system.posix_acl_access"),
    ("SCHILY.acl.default", b"system.posix_acl_default"),
];

/// Types of members.
pub(crate) mod kind {
    pub const REGULAR: u8 = b'0';
    pub const HARD_LINK: u8 = b'1';
    pub const SYMLINK: u8 = b'2';
    pub const CHAR_DEVICE: u8 = b'3';
    pub const BLOCK_DEVICE: u8 = b'4';
    pub const DIRECTORY: u8 = b'5';
    pub const FIFO: u8 = b'6';
    /// pax records of the next member; Solaris has another letter.
    pub const PAX: u8 = b'x';
    pub const PAX_SOLARIS: u8 = b'X';
    /// pax records of all members that follow.
    pub const GLOBAL: u8 = b'g';
    /// GNU: the next member's name, and link target.
    pub const LONG_NAME: u8 = b'L';
    pub const LONG_LINK: u8 = b'K';
    /// GNU: a directory with a list of its names, a sparse file, the rest of a file, the label of the archive.
    pub const GNU_DIRECTORY: u8 = b'D';
    pub const GNU_SPARSE: u8 = b'S';
    pub const CONTINUED: u8 = b'M';
    pub const VOLUME_LABEL: u8 = b'V';
}

/// Bytes from `len` to the next multiple of a block.
pub(crate) const fn padding(len: u64) -> usize {
    let over = (len % BLOCK as u64) as usize;
    (BLOCK - over) % BLOCK
}
