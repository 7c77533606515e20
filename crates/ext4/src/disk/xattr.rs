//! Extended attributes: a list of entries that grows from the front of an area and values that grow
//! from its end. The area is what an inode has left behind its fields (4 bytes of magic first), or a
//! block of its own with a header, which several inodes with equal attributes may share.
//!
//! Names are stored as the number of a known prefix and the rest. A large value may be an inode of
//! its own (`ea_inode`).
//!
//! [`InodeAttrs`] and [`BlockAttrs`] read; [`AttrList`] changes: it is read from an area, edited, and
//! written back whole.

use std::cmp::Ordering;

use steadfs_base::DevBlock;
use steadfs_base::limits::XATTR_NAME_MAX;

use super::num::{get16, get32, idx, low8, low16, low32, put16, put32, sign_extend, wide};
use super::{ChecksumSeed, DiskError, Geometry, Ino, Result, Structure};

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

/// Prefix numbers of names (`EXT4_XATTR_INDEX_*`) and the prefixes. The three names without a rest
/// are whole names.
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
/// namespace, or one without anything behind its prefix.
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
    /// Whether the stored hash is right. Both signednesses of `char` are; in inodes so is 0.
    /// Values that are inodes are not looked at here.
    pub fn has_valid_hash(&self, in_inode: bool) -> bool {
        let Value::Here(value) = self.value else {
            return true;
        };
        (in_inode && self.hash == 0)
            || self.hash == entry_hash(self.name, value)
            || self.hash == entry_hash_signed(self.name, value)
    }
}

/// The attributes of an area, validated as a whole.
#[derive(Clone, Copy, Debug)]
struct Area<'a> {
    what: Structure,
    /// From where value offsets count.
    base: &'a [u8],
    /// Where in `base` entries start.
    first: usize,
}

impl<'a> Area<'a> {
    fn bad(&self, index: u32, rule: &'static str) -> DiskError {
        DiskError::entry(self.what, index, rule)
    }

    /// Where the entry at `at` ends, or `None` at the terminator.
    fn entry_end(&self, at: usize, index: u32) -> Result<Option<usize>> {
        if at + 4 > self.base.len() {
            return Err(self.bad(index, "is behind the end"));
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

    /// Whether the room that one value takes is another's too.
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

    /// Whether values share room, which they must not.
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
    /// Hash of all entries, for finding equal blocks; 0 where nobody computed it.
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
            return Err(DiskError::field(WHAT, "h_refcount", refcount, "of nobody"));
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

    /// Whether values share room, which they must not.
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

/// `e_hash` as older kernels made it where `char` is signed.
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

/// A value that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedValue {
    /// In the area.
    Here(Vec<u8>),
    /// The content of an inode, with the hash that its entry has.
    Inode {
        /// The inode.
        ino: Ino,
        /// Bytes of the value.
        size: u32,
        /// Stored hash.
        hash: u32,
    },
}

impl OwnedValue {
    fn room(&self) -> usize {
        match self {
            Self::Here(value) => value_size(value.len()),
            Self::Inode { .. } => 0,
        }
    }
}

/// An attribute that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedAttr {
    /// Number of the name's prefix.
    pub index: u8,
    /// Rest of the name.
    pub name: Vec<u8>,
    /// The value.
    pub value: OwnedValue,
}

impl OwnedAttr {
    fn hash(&self) -> u32 {
        match &self.value {
            OwnedValue::Here(value) => entry_hash(&self.name, value),
            OwnedValue::Inode { hash, .. } => *hash,
        }
    }

    /// The order of entries in a block.
    fn order(&self, other: &Self) -> Ordering {
        (self.index, self.name.len(), &self.name).cmp(&(other.index, other.name.len(), &other.name))
    }
}

/// The attributes of one area, for changing them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttrList(Vec<OwnedAttr>);

impl<'a> FromIterator<Attr<'a>> for AttrList {
    fn from_iter<I: IntoIterator<Item = Attr<'a>>>(attrs: I) -> Self {
        let own = |attr: Attr<'_>| OwnedAttr {
            index: attr.index,
            name: attr.name.to_vec(),
            value: match attr.value {
                Value::Here(value) => OwnedValue::Here(value.to_vec()),
                Value::Inode { ino, size } => OwnedValue::Inode {
                    ino,
                    size,
                    hash: attr.hash,
                },
            },
        };
        Self(attrs.into_iter().map(own).collect())
    }
}

impl AttrList {
    /// All attributes, in stored order.
    pub fn iter(&self) -> impl Iterator<Item = &OwnedAttr> {
        self.0.iter()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, index: u8, name: &[u8]) -> Option<usize> {
        self.0
            .iter()
            .position(|attr| attr.index == index && attr.name == name)
    }

    /// The value of an attribute.
    pub fn get(&self, index: u8, name: &[u8]) -> Option<&OwnedValue> {
        self.find(index, name).map(|at| &self.0[at].value)
    }

    /// Sets an attribute to a value in the area; returns the value it had.
    pub fn set(&mut self, index: u8, name: &[u8], value: &[u8]) -> Option<OwnedValue> {
        assert!(name.len() <= XATTR_NAME_MAX, "attribute name too long");
        let value = OwnedValue::Here(value.to_vec());
        if let Some(at) = self.find(index, name) {
            return Some(std::mem::replace(&mut self.0[at].value, value));
        }
        self.0.push(OwnedAttr {
            index,
            name: name.to_vec(),
            value,
        });
        None
    }

    /// Removes an attribute; returns it.
    pub fn remove(&mut self, index: u8, name: &[u8]) -> Option<OwnedAttr> {
        self.find(index, name).map(|at| self.0.remove(at))
    }

    /// Bytes of entries, terminator and values, without an area's header.
    fn room(&self) -> usize {
        let entries = |attr: &OwnedAttr| entry_size(attr.name.len()) + attr.value.room();
        4 + self.0.iter().map(entries).sum::<usize>()
    }

    /// Whether it fits an in-inode area of `room` bytes, magic included.
    pub fn fits_inode(&self, room: usize) -> bool {
        self.is_empty() || INODE_HEADER + self.room() <= room
    }

    /// Whether it fits a block.
    pub fn fits_block(&self, geo: &Geometry) -> bool {
        BLOCK_HEADER + self.room() <= geo.block_size.bytes()
    }

    /// The area for an inode with `room` bytes behind its fields
    /// ([`Inode::xattr_room`](super::Inode::xattr_room)); empty when there is no attribute.
    ///
    /// # Panics
    /// If it does not fit: ask [`AttrList::fits_inode`] first.
    pub fn to_inode_area(&self, room: usize) -> Box<[u8]> {
        assert!(self.fits_inode(room), "attributes do not fit the inode");
        if self.is_empty() {
            return Box::default();
        }
        let mut area = vec![0; room].into_boxed_slice();
        put32(&mut area, 0, MAGIC);
        self.write(&mut area[INODE_HEADER..], 0);
        area
    }

    /// Writes the block for `at`, sorted and sealed.
    ///
    /// # Panics
    /// If it does not fit: ask [`AttrList::fits_block`] first.
    pub fn write_block(&mut self, geo: &Geometry, at: DevBlock, refcount: u32, block: &mut [u8]) {
        assert_eq!(block.len(), geo.block_size.bytes());
        assert!(self.fits_block(geo), "attributes do not fit a block");
        self.0.sort_by(OwnedAttr::order);
        block.fill(0);
        put32(block, 0, MAGIC);
        put32(block, 4, refcount);
        put32(block, 8, 1);
        put32(block, 12, self.block_hash());
        self.write(block, BLOCK_HEADER);
        seal_block(geo.seed, at, block);
    }

    /// The `h_hash` that the sorted block would have: equal blocks have equal hashes.
    pub fn block_hash(&self) -> u32 {
        let mut sorted: Vec<&OwnedAttr> = self.0.iter().collect();
        sorted.sort_by(|a, b| a.order(b));
        block_hash(sorted.into_iter().map(OwnedAttr::hash))
    }

    /// Whether another list has the same attributes, in whatever order.
    pub fn same_as(&self, other: &Self) -> bool {
        self.0.len() == other.0.len() && self.0.iter().all(|attr| other.0.contains(attr))
    }

    fn write(&self, base: &mut [u8], first: usize) {
        let mut at = first;
        let mut end = base.len();
        for attr in &self.0 {
            base[at] = low8(low32(wide(attr.name.len())));
            base[at + 1] = attr.index;
            put32(base, at + 12, attr.hash());
            match &attr.value {
                OwnedValue::Here(value) => {
                    put32(base, at + 8, low32(wide(value.len())));
                    if !value.is_empty() {
                        end -= value_size(value.len());
                        // An area is a block at most, and values lie before its end.
                        put16(base, at + 2, low16(low32(wide(end))));
                        base[end..end + value.len()].copy_from_slice(value);
                    }
                }
                OwnedValue::Inode { ino, size, .. } => {
                    put32(base, at + 4, ino.0);
                    put32(base, at + 8, *size);
                }
            }
            let name_at = at + ENTRY_SIZE;
            base[name_at..name_at + attr.name.len()].copy_from_slice(&attr.name);
            at += entry_size(attr.name.len());
        }
        debug_assert!(at + 4 <= end);
    }
}

#[cfg(test)]
mod tests;
