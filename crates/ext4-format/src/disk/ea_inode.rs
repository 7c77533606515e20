//! Attribute inodes (`ea_inode`): an inode whose content is the value of an extended attribute. Entries of any number
//! of files may refer to one such inode if their values are equal.
//!
//! An attribute inode has no times. Its `i_atime` is the hash of the value, the CRC-32C from the volume's seed; the
//! number of entries that refer to it has its upper half in `i_ctime` and its lower half in `i_version`.
//!
//! Lustre's older form has neither hash nor count. There one file owns the value, and number and generation of that
//! file are the inode's `i_mtime` and `i_generation`.

use steadfs_base::Timestamp;
use steadfs_base::checksum::crc32c;
use steadfs_base::limits::XATTR_SIZE_MAX;
use steadfs_vfs::FileKind;

use super::inode::{EA_INODE, INLINE_DATA};
use super::num::{as_signed, high32, join32, low32, low32_signed, wide};
use super::{Geometry, Ino, Inode};

/// The hash of a value.
pub fn hash(geo: &Geometry, value: &[u8]) -> u32 {
    crc32c(geo.value_seed, value)
}

/// The stored hash of an attribute inode's value.
pub fn stored_hash(inode: &Inode) -> u32 {
    low32_signed(inode.atime.secs)
}

/// Stores the hash of the value.
pub fn set_hash(inode: &mut Inode, hash: u32) {
    inode.atime = whole_seconds(hash);
}

/// The stored number of entries that refer to an attribute inode.
pub fn references(inode: &Inode) -> u64 {
    join32(low32_signed(inode.ctime.secs), low32(inode.version))
}

/// Stores the number of entries that refer to the inode.
pub fn set_references(inode: &mut Inode, count: u64) {
    inode.ctime = whole_seconds(high32(count));
    inode.version = low32(count).into();
}

/// A time whose stored seconds are `word`, in inodes of any size.
fn whole_seconds(word: u32) -> Timestamp {
    Timestamp {
        secs: as_signed(word).into(),
        nanos: 0,
    }
}

/// Whether the inode is in Lustre's form, owned by the inode `owner` of this generation. Only asked where an entry's
/// hash is not that of the inode's stored hash.
pub fn is_lustre(inode: &Inode, owner: Ino, generation: u32) -> bool {
    low32_signed(inode.mtime.secs) == owner.0 && inode.generation == generation
}

/// Why an inode cannot be the value of an attribute that has `size` bytes by its entry; `None` if it can.
pub fn why_no_value(inode: &Inode, size: u32) -> Option<&'static str> {
    if !inode.has(EA_INODE) {
        Some("is not an attribute inode")
    } else if inode.kind() != Some(FileKind::Regular) || inode.has(INLINE_DATA) {
        Some("is not mapped as a file")
    } else if inode.may_have_attrs() {
        Some("has attributes itself")
    } else if inode.links == 0 {
        Some("is not in use")
    } else if size == 0 || inode.size != u64::from(size) || inode.size > wide(XATTR_SIZE_MAX) {
        Some("has another size")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_kept_in_two_halves() {
        let mut inode = Inode::default();
        for count in [1, u64::from(u32::MAX), 1 << 32, (0x8000_0001 << 32) | 7] {
            set_references(&mut inode, count);
            assert_eq!(references(&inode), count);
        }
        assert_eq!(inode.version, 7);
        for hash in [0, 1, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            set_hash(&mut inode, hash);
            assert_eq!(stored_hash(&inode), hash);
        }
    }
}
