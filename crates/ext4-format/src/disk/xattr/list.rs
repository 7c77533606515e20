//! Extended attributes that are changed: read from an area, edited, and written back whole.

use std::cmp::Ordering;

use steadfs_base::DevBlock;

use super::*;

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
            // Linux changes inline content (`system.data`) without its hash.
            OwnedValue::Here(_) if self.index == INDEX_SYSTEM => 0,
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

    /// Number of attributes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds the attributes of another list, which have other names.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
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
        self.put(index, name, OwnedValue::Here(value.to_vec()))
    }

    /// Sets an attribute; returns the value it had.
    pub fn put(&mut self, index: u8, name: &[u8], value: OwnedValue) -> Option<OwnedValue> {
        assert!(name.len() <= XATTR_NAME_MAX, "attribute name too long");
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

    /// Removes up to `most` attributes whose values are inodes; returns them.
    #[must_use]
    pub fn take_values(&mut self, most: usize) -> Self {
        let is_value = |attr: &mut OwnedAttr| matches!(attr.value, OwnedValue::Inode { .. });
        Self(self.0.extract_if(.., is_value).take(most).collect())
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

    /// Whether the values leave a part of a block to entries: an eighth, at most 1 KiB. With `ea_inode` Linux stores
    /// a value elsewhere rather than filling the block with it.
    pub fn leaves_room_for_entries(&self, geo: &Geometry) -> bool {
        let block = geo.block_size.bytes();
        let values: usize = self.0.iter().map(|attr| attr.value.room()).sum();
        values + (block / 8).min(1024) <= block
    }

    /// Inodes that are values, each as often as it is one.
    pub fn value_inodes(&self) -> impl Iterator<Item = Ino> {
        self.0.iter().filter_map(|attr| match attr.value {
            OwnedValue::Inode { ino, .. } => Some(ino),
            OwnedValue::Here(_) => None,
        })
    }

    /// The area for an inode with `room` bytes after its fields
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
                        // An area is a block at most, and values are before its end.
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
