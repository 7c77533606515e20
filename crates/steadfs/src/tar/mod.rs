//! The tar format: ustar headers, and pax records beside them (POSIX.1-2001).
//!
//! **Problem.** A ustar header has 100 bytes for a name, 33 bits for a size and whole seconds for a time. **Rule.** What
//! does not fit, and extended attributes, go into pax records before the member, with the keys that GNU tar uses. There
//! is no crate for it here: `tar` reads names and records of any length into memory, and knows pax sparse files neither
//! for reading nor for writing.

mod acl;
pub(crate) mod header;
pub(crate) mod pax;

pub(crate) use acl::acl_to_text;

/// Bytes in a block, the unit of headers and of padding.
pub(crate) const BLOCK: usize = 512;
/// Bytes in a record, of which an archive has a whole number (GNU tar's default, `-b 20`).
pub(crate) const RECORD: usize = 20 * BLOCK;

/// Key of an extended attribute, before its name.
pub(crate) const XATTR: &str = "SCHILY.xattr.";
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
    /// pax records of the next member.
    pub const PAX: u8 = b'x';
}

/// Bytes from `len` to the next multiple of a block.
pub(crate) const fn padding(len: u64) -> usize {
    let over = (len % BLOCK as u64) as usize;
    (BLOCK - over) % BLOCK
}
