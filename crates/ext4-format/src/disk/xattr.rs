//! Extended attributes: a list of entries that grows from the front of an area and values that grow
//! from its end. The area is what an inode has left after its fields (4 bytes of magic first), or a
//! block of its own with a header, which several inodes with equal attributes may share.
//!
//! Names are stored as the number of a known prefix and the rest. A large value may be an inode of
//! its own (`ea_inode`).
//!
//! [`InodeAttrs`] and [`BlockAttrs`] are for reading. An [`AttrList`] is read from an area, edited, and written back
//! whole.

use steadfs_base::DevBlock;
use steadfs_base::limits::XATTR_NAME_MAX;

use super::num::{get16, get32, idx, low8, low16, low32, put16, put32, sign_extend, wide};
use super::{ChecksumSeed, DiskError, Geometry, Ino, Result, Structure};

mod list;

pub use list::{AttrList, OwnedAttr, OwnedValue};

/// `h_magic` of both areas.
pub const MAGIC: u32 = 0xEA02_0000;
/// Most inodes that share a block (`EXT4_XATTR_REFCOUNT_MAX`).
pub const REFCOUNT_MAX: u32 = 1024;
/// Bytes before the entries of an in-inode area.
pub const INODE_HEADER: usize = 4;
/// Bytes before the entries of a block.
pub const BLOCK_HEADER: usize = 32;

const ENTRY_SIZE: usize = 16;
const CHECKSUM_AT: usize = 0x10;

/// Prefix numbers of names (`EXT4_XATTR_INDEX_*`) and the prefixes. The three names without a
/// rest are whole names.
const PREFIXES: [(u8, &[u8]); 9] = [
    (1, b"user."),
    (2, b"system.posix_acl_access"),
    (3, b"system.posix_acl_default"),
    (4, b"trusted."),
    (5, b"lustre."),
    (6, b"security."),
    (8, b"system.richacl"),
    (7, b"system."),
    (10, b"gnu."),
];

/// Prefix number of `system.posix_acl_access`.
pub const INDEX_ACL_ACCESS: u8 = 2;
/// Prefix number of `system.posix_acl_default`.
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// Prefix number of `system.`.
pub const INDEX_SYSTEM: u8 = 7;
/// Prefix number of the encryption context, which is never shown.
pub const INDEX_ENCRYPTION: u8 = 9;

const fn is_whole_name(index: u8) -> bool {
    matches!(index, 2 | 3 | 8)
}

/// Splits a full name into the number of its prefix and the rest; `None` for a name of no known
/// namespace, or one without anything after its prefix.
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    PREFIXES.iter().find_map(|&(index, prefix)| {
        let rest = full.strip_prefix(prefix)?;
        (rest.is_empty() == is_whole_name(index)).then_some((index, rest))
    })
}

/// The full name; `None` where the prefix number is unknown or its attributes are not shown.
pub fn full_name(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix) = PREFIXES.iter().find(|(known, _)| *known == index)?;
    Some([*prefix, rest].concat())
}

/// Whether a byte area starts with the magic of attributes.
pub fn has_magic(area: &[u8]) -> bool {
    area.len() >= INODE_HEADER && get32(area, 0) == MAGIC
}

/// A value: in the area, or in an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// In the area.
    Here(&'a [u8]),
    /// The content of an inode.
    Inode {
        /// The inode.
        ino: Ino,
        /// Bytes of the value.
        size: u32,
    },
}

/// A validated attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Number of the name's prefix.
    pub index: u8,
    /// Rest of the name.
    pub name: &'a [u8],
    /// The value.
    pub value: Value<'a>,
    /// Stored hash of name and value; old kernels store 0 in inodes.
    pub hash: u32,
}

impl Attr<'_> {
    /// Whether the stored hash is right: for signed or unsigned `char`, or 0 in an inode.
    /// Not checked for values that are inodes.
    pub fn has_valid_hash(&self, in_inode: bool) -> bool {
        let Value::Here(value) = self.value else {
            return true;
        };
        (in_inode && self.hash == 0)
            || self.hash == entry_hash(self.name, value)
            || self.hash == entry_hash_signed(self.name, value)
    }

    /// Whether the stored hash is that of a value in an inode which has this hash
    /// ([`ea_inode::stored_hash`](super::ea_inode::stored_hash)).
    pub fn fits_value_hash(&self, hash: u32) -> bool {
        let bytes = hash.to_le_bytes();
        self.hash == entry_hash(self.name, &bytes)
            || self.hash == entry_hash_signed(self.name, &bytes)
    }
}

/// The attributes of an area, validated as a whole.
#[derive(Clone, Copy, Debug)]
struct Area<'a> {
    what: Structure,
    /// Value offsets are relative to its start.
    base: &'a [u8],
    /// Offset in `base` at which entries start.
    first: usize,
}

impl<'a> Area<'a> {
    fn bad(&self, index: u32, rule: &'static str) -> DiskError {
        DiskError::entry(self.what, index, rule)
    }

    /// Where the entry at `at` ends, or `None` at the terminator.
    fn entry_end(&self, at: usize, index: u32) -> Result<Option<usize>> {
        if at + 4 > self.base.len() {
            return Err(self.bad(index, "is beyond the end"));
        }
        if get32(self.base, at) == 0 {
            return Ok(None);
        }
        let end = at + entry_size(self.base[at].into());
        // The next entry, or the terminator, must fit too.
        if end + 4 > self.base.len() {
            return Err(self.bad(index, "goes beyond the end"));
        }
        Ok(Some(end))
    }

    fn validate(&self) -> Result<()> {
        let mut at = self.first;
        let mut count = 0;
        while let Some(end) = self.entry_end(at, count)? {
            at = end;
            count += 1;
        }
        let entries_end = at + 4;
        at = self.first;
        for index in 0..count {
            self.check_value(at, index, entries_end)?;
            at += entry_size(self.base[at].into());
        }
        Ok(())
    }

    fn check_value(&self, at: usize, index: u32, entries_end: usize) -> Result<()> {
        let offset = usize::from(get16(self.base, at + 2));
        let inode = get32(self.base, at + 4);
        let size = get32(self.base, at + 8);
        let name = at + ENTRY_SIZE;
        if self.base[name..name + usize::from(self.base[at])].contains(&0) {
            return Err(self.bad(index, "has a zero byte in its name"));
        }
        if size > i32::MAX.unsigned_abs() {
            return Err(self.bad(index, "has an impossible size"));
        }
        if inode != 0 || size == 0 {
            return Ok(());
        }
        let end = self.base.len();
        if offset < entries_end || offset > end || idx(size) > end - offset {
            return Err(self.bad(index, "has its value outside the room for values"));
        }
        Ok(())
    }

    fn attr(&self, at: usize) -> Attr<'a> {
        let name_at = at + ENTRY_SIZE;
        let offset = usize::from(get16(self.base, at + 2));
        let size = get32(self.base, at + 8);
        let value = match (Ino(get32(self.base, at + 4)).some(), size) {
            (Some(ino), size) => Value::Inode { ino, size },
            (None, 0) => Value::Here(&[]),
            (None, size) => Value::Here(&self.base[offset..offset + idx(size)]),
        };
        Attr {
            index: self.base[at + 1],
            name: &self.base[name_at..name_at + usize::from(self.base[at])],
            value,
            hash: get32(self.base, at + 12),
        }
    }

    /// Whether two values overlap.
    fn has_overlap(&self) -> bool {
        let mut ranges = Vec::new();
        let mut at = self.first;
        while get32(self.base, at) != 0 {
            let size = idx(get32(self.base, at + 8));
            if get32(self.base, at + 4) == 0 && size > 0 {
                let offset = usize::from(get16(self.base, at + 2));
                ranges.push(offset..offset + value_size(size));
            }
            at += entry_size(self.base[at].into());
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.windows(2).any(|pair| pair[0].end > pair[1].start)
    }

    fn attrs(self) -> impl Iterator<Item = Attr<'a>> + use<'a> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            // Validated before: the terminator is there.
            if get32(self.base, at) == 0 {
                return None;
            }
            let attr = self.attr(at);
            at += entry_size(attr.name.len());
            Some(attr)
        })
    }
}

const fn entry_size(name_len: usize) -> usize {
    (ENTRY_SIZE + name_len + 3) & !3
}

const fn value_size(len: usize) -> usize {
    (len + 3) & !3
}

/// The attributes in an inode ([`Inode::xattr_area`](super::Inode::xattr_area)).
#[derive(Clone, Copy, Debug)]
pub struct InodeAttrs<'a>(Option<Area<'a>>);

impl<'a> InodeAttrs<'a> {
    /// Validates the area; an empty one has no attributes.
    pub fn parse(area: &'a [u8]) -> Result<Self> {
        if area.is_empty() {
            return Ok(Self(None));
        }
        if !has_magic(area) {
            return Err(DiskError::magic(Structure::InodeXattr, 0));
        }
        // Value offsets count from the first entry.
        let area = Area {
            what: Structure::InodeXattr,
            base: &area[INODE_HEADER..],
            first: 0,
        };
        area.validate()?;
        Ok(Self(Some(area)))
    }

    /// Whether values overlap, which is invalid.
    pub fn has_overlap(&self) -> bool {
        self.0.is_some_and(|area| area.has_overlap())
    }

    /// All attributes.
    pub fn iter(&self) -> impl Iterator<Item = Attr<'a>> + use<'a> {
        self.0.into_iter().flat_map(Area::attrs)
    }

    /// One attribute.
    pub fn get(&self, index: u8, name: &[u8]) -> Option<Attr<'a>> {
        self.iter()
            .find(|attr| attr.index == index && attr.name == name)
    }
}

/// The attributes in a block.
#[derive(Clone, Copy, Debug)]
pub struct BlockAttrs<'a> {
    /// Inodes that use the block.
    pub refcount: u32,
    /// Hash of all entries, for finding equal blocks; 0 if it was not computed.
    pub hash: u32,
    area: Area<'a>,
}

impl<'a> BlockAttrs<'a> {
    /// Verifies and validates a block read from `at`.
    pub fn parse(geo: &Geometry, at: DevBlock, block: &'a [u8]) -> Result<Self> {
        Self::parse_parts(geo, at, block).map_err(|e| e.in_block(at))
    }

    fn parse_parts(geo: &Geometry, at: DevBlock, block: &'a [u8]) -> Result<Self> {
        assert_eq!(block.len(), geo.block_size.bytes());
        const WHAT: Structure = Structure::XattrBlock;
        if !has_magic(block) {
            return Err(DiskError::magic(WHAT, get32(block, 0)));
        }
        let (refcount, blocks) = (get32(block, 4), get32(block, 8));
        if blocks != 1 {
            return Err(DiskError::field(WHAT, "h_blocks", blocks, "not 1"));
        }
        block_checksum(geo.seed, at, block).compare(WHAT, get32(block, CHECKSUM_AT), u32::MAX)?;
        if refcount == 0 {
            return Err(DiskError::field(
                WHAT,
                "h_refcount",
                refcount,
                "not a count of users",
            ));
        }
        let area = Area {
            what: WHAT,
            base: block,
            first: BLOCK_HEADER,
        };
        area.validate()?;
        Ok(Self {
            refcount,
            hash: get32(block, 12),
            area,
        })
    }

    /// All attributes, sorted.
    pub fn iter(&self) -> impl Iterator<Item = Attr<'a>> + use<'a> {
        self.area.attrs()
    }

    /// One attribute.
    pub fn get(&self, index: u8, name: &[u8]) -> Option<Attr<'a>> {
        self.iter()
            .find(|attr| attr.index == index && attr.name == name)
    }

    /// Whether values overlap, which is invalid.
    pub fn has_overlap(&self) -> bool {
        self.area.has_overlap()
    }

    /// Whether `h_hash` is what the entries' hashes make, or 0: e2fsprogs does not compute it.
    pub fn has_valid_hash(&self) -> bool {
        self.hash == 0 || self.hash == block_hash(self.iter().map(|attr| attr.hash))
    }
}

/// Changes the count of inodes that use a validated block, and seals it.
pub fn set_refcount(geo: &Geometry, at: DevBlock, block: &mut [u8], refcount: u32) {
    put32(block, 4, refcount);
    seal_block(geo.seed, at, block);
}

fn block_checksum(seed: ChecksumSeed, at: DevBlock, block: &[u8]) -> ChecksumSeed {
    seed.over(&at.0.to_le_bytes())
        .over(&block[..CHECKSUM_AT])
        .over(&[0; 4])
        .over(&block[CHECKSUM_AT + 4..])
}

fn seal_block(seed: ChecksumSeed, at: DevBlock, block: &mut [u8]) {
    if let Some(sum) = block_checksum(seed, at, block).value() {
        put32(block, CHECKSUM_AT, sum);
    }
}

/// `e_hash` of an attribute, name bytes taken as unsigned (as every machine does since Linux 6.2).
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    hash_with(name, value, u32::from)
}

/// `e_hash` as older kernels compute it where `char` is signed.
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    hash_with(name, value, sign_extend)
}

fn hash_with(name: &[u8], value: &[u8], widen: impl Fn(u8) -> u32) -> u32 {
    let hash = name
        .iter()
        .fold(0u32, |hash, &byte| hash.rotate_left(5) ^ widen(byte));
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// `h_hash` of a block whose entries have these hashes.
fn block_hash(hashes: impl Iterator<Item = u32>) -> u32 {
    let mut sum = 0u32;
    for hash in hashes {
        if hash == 0 {
            return 0;
        }
        sum = sum.rotate_left(16) ^ hash;
    }
    sum
}

#[cfg(test)]
mod tests;
