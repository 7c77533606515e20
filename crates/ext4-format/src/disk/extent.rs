//! Extent trees: the map of a file from runs of file blocks to runs of device blocks.
//!
//! A node has a 12-byte header and entries of 12 bytes: extents in leaves (depth 0), children above.
//! The root is in the inode's `i_block` (room for four); other nodes fill a block and end with a
//! checksum after the room for entries.
//!
//! [`ExtentNode::parse_root`] and [`ExtentNode::parse_block`] validate everything in a node once,
//! when it is read; [`ExtentNode::view`] is the cheap view of bytes that were validated before.

use std::ops::Range;

use steadfs_base::{DevBlock, FileBlock};

use super::num::{get16, get32, join32, low16, low32, mid16, put16, put32, wide};
use super::{ChecksumSeed, DiskError, Geometry, Result, Structure};

/// `eh_magic`.
pub const MAGIC: u16 = 0xF30A;
/// Greatest depth of a tree (`EXT4_MAX_EXTENT_DEPTH`); the root's depth is at most this.
pub const MAX_DEPTH: u16 = 5;
/// Longest written extent, in blocks. A stored length above it marks an unwritten one.
pub const MAX_LEN: u32 = 32768;
/// Longest unwritten extent, in blocks.
pub const MAX_UNWRITTEN_LEN: u32 = 32767;
/// Bytes of an entry.
pub const ENTRY_SIZE: usize = 12;
/// Entries in an inode's `i_block`.
pub const ROOT_ENTRIES: u16 = 4;
/// File blocks are below this: the limit of the root's range.
pub const FILE_END: FileBlock = FileBlock(1 << 32);

const HEADER_SIZE: usize = 12;
/// Entries of a node block that may be left unused for a tail, as e2fsprogs has it.
const SPARE_ENTRIES_MAX: u16 = 2;
const LEN_MARK: u16 = 0x8000;

/// A run of file blocks on a run of device blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First file block.
    pub block: FileBlock,
    /// Number of blocks, 1 to [`MAX_LEN`] ([`MAX_UNWRITTEN_LEN`] when unwritten).
    pub len: u32,
    /// First device block.
    pub start: DevBlock,
    /// Allocated, but reads as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// The file block after the last.
    pub fn end(&self) -> FileBlock {
        self.block.plus(self.len.into())
    }

    /// Whether `block` is mapped by it.
    pub fn contains(&self, block: FileBlock) -> bool {
        block >= self.block && block < self.end()
    }

    /// The device block of `block`, which it contains.
    pub fn device_block(&self, block: FileBlock) -> DevBlock {
        assert!(self.contains(block), "block outside the extent");
        self.start.plus(block.0 - self.block.0)
    }

    /// The longest an extent of this kind can be.
    pub const fn max_len(unwritten: bool) -> u32 {
        if unwritten {
            MAX_UNWRITTEN_LEN
        } else {
            MAX_LEN
        }
    }

    /// Whether `next` continues this extent on the device and in the file, is of the same kind, and
    /// both together are not too long for one.
    pub fn can_merge(&self, next: &Self) -> bool {
        self.unwritten == next.unwritten
            && self.end() == next.block
            && self.start.plus(self.len.into()) == next.start
            && self.len + next.len <= Self::max_len(self.unwritten)
    }

    /// An entry of a leaf as it is stored, in 12 bytes; its length may be 0.
    pub fn decode(bytes: &[u8]) -> Self {
        let raw = get16(bytes, 4);
        let (len, unwritten) = if raw > LEN_MARK {
            (raw - LEN_MARK, true)
        } else {
            (raw, false)
        };
        Self {
            block: FileBlock(get32(bytes, 0).into()),
            len: len.into(),
            start: DevBlock(join32(get16(bytes, 6).into(), get32(bytes, 8))),
            unwritten,
        }
    }

    /// The extent as a tree has it (`ext4_extent`).
    pub fn to_bytes(&self) -> [u8; ENTRY_SIZE] {
        let mut bytes = [0; ENTRY_SIZE];
        self.encode(&mut bytes);
        bytes
    }

    fn encode(&self, bytes: &mut [u8]) {
        assert!(
            self.len > 0 && self.len <= Self::max_len(self.unwritten),
            "extent of a length that cannot be stored"
        );
        assert!(self.end() <= FILE_END && self.start.0 < 1 << 48);
        let mark = if self.unwritten { LEN_MARK } else { 0 };
        put32(bytes, 0, low32(self.block.0));
        // A written extent of 32768 blocks is stored as the mark alone.
        put16(bytes, 4, low16(self.len) | mark);
        put16(bytes, 6, mid16(self.start.0));
        put32(bytes, 8, low32(self.start.0));
    }
}

/// An entry of an upper node: all file blocks from `block` on (up to the next entry) are in `child`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentIndex {
    /// First file block below the child.
    pub block: FileBlock,
    /// The block that holds the child.
    pub child: DevBlock,
}

impl ExtentIndex {
    fn decode(bytes: &[u8]) -> Self {
        Self {
            block: FileBlock(get32(bytes, 0).into()),
            child: DevBlock(join32(get16(bytes, 8).into(), get32(bytes, 4))),
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        assert!(self.block < FILE_END && self.child.0 < 1 << 48);
        put32(bytes, 0, low32(self.block.0));
        put32(bytes, 4, low32(self.child.0));
        put16(bytes, 8, mid16(self.child.0));
        put16(bytes, 10, 0);
    }
}

/// What a node must match according to its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expect {
    /// Levels below the node.
    pub depth: u16,
    /// File blocks that can be in it; the first entry starts exactly at the range's start.
    pub blocks: Range<FileBlock>,
}

/// Entries that fit a node block.
pub fn block_entries(geo: &Geometry) -> u16 {
    low16(low32(wide(
        (geo.block_size.bytes() - HEADER_SIZE) / ENTRY_SIZE,
    )))
}

/// A node of an extent tree.
#[derive(Clone, Copy, Debug)]
pub struct ExtentNode<'a> {
    bytes: &'a [u8],
    entries: u16,
    max: u16,
    depth: u16,
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::ExtentNode, field, value, rule)
}

fn bad_entry(index: u16, rule: &'static str) -> DiskError {
    DiskError::entry(Structure::ExtentNode, index.into(), rule)
}

impl<'a> ExtentNode<'a> {
    /// Validates the root in an inode's `i_block`. The inode's checksum covers it.
    pub fn parse_root(geo: &Geometry, i_block: &'a [u8]) -> Result<Self> {
        let node = Self::view(i_block)?;
        if node.max > ROOT_ENTRIES {
            return Err(bad("eh_max", node.max, "more than fit the inode"));
        }
        node.check_entries(geo, None)?;
        Ok(node)
    }

    /// Verifies and validates a node that was read from a block. `seed` is its inode's.
    pub fn parse_block(
        geo: &Geometry,
        seed: ChecksumSeed,
        bytes: &'a [u8],
        expect: &Expect,
    ) -> Result<Self> {
        assert_eq!(bytes.len(), geo.block_size.bytes());
        // The header first: the checksum's offset depends on it.
        let node = Self::view(bytes)?;
        node.verify_checksum(seed)?;
        if node.depth != expect.depth {
            return Err(bad(
                "eh_depth",
                node.depth,
                "not one less than the parent's",
            ));
        }
        if node.entries == 0 {
            return Err(bad("eh_entries", 0u16, "in a node that is not the root"));
        }
        if node.max + SPARE_ENTRIES_MAX < block_entries(geo) {
            return Err(bad("eh_max", node.max, "much less than fit a block"));
        }
        node.check_entries(geo, Some(&expect.blocks))?;
        Ok(node)
    }

    /// The view of a node whose bytes were validated when they were read: checks only that accesses stay within the
    /// slice.
    pub fn view(bytes: &'a [u8]) -> Result<Self> {
        let magic = get16(bytes, 0);
        if magic != MAGIC {
            return Err(DiskError::magic(Structure::ExtentNode, magic.into()));
        }
        let node = Self {
            bytes,
            entries: get16(bytes, 2),
            max: get16(bytes, 4),
            depth: get16(bytes, 6),
        };
        if node.max == 0 || usize::from(node.max) > (bytes.len() - HEADER_SIZE) / ENTRY_SIZE {
            return Err(bad("eh_max", node.max, "zero or more than fit"));
        }
        if node.entries > node.max {
            return Err(bad("eh_entries", node.entries, "more than eh_max"));
        }
        if node.depth > MAX_DEPTH {
            return Err(bad("eh_depth", node.depth, "above 5"));
        }
        if node.entries == 0 && node.depth > 0 {
            return Err(bad("eh_entries", 0u16, "in an upper node"));
        }
        Ok(node)
    }

    fn check_entries(&self, geo: &Geometry, range: Option<&Range<FileBlock>>) -> Result<()> {
        let end = range.map_or(FILE_END, |range| range.end);
        // The earliest block at which the next entry may start.
        let mut next = FileBlock(0);
        for i in 0..self.entries {
            let block = self.first_block(i);
            if i == 0 && range.is_some_and(|range| range.start != block) {
                return Err(bad_entry(i, "does not start where its parent says"));
            }
            if block < next {
                return Err(bad_entry(i, "is out of order or overlaps"));
            }
            next = if self.depth == 0 {
                let extent = self.extent(i);
                if extent.len == 0 {
                    return Err(bad_entry(i, "is empty"));
                }
                if !geo.is_data_range(extent.start, extent.len.into()) {
                    return Err(bad_entry(i, "maps blocks outside the volume"));
                }
                extent.end()
            } else {
                if !geo.is_data_range(self.index(i).child, 1) {
                    return Err(bad_entry(i, "has its child outside the volume"));
                }
                block.plus(1)
            };
            if next > end {
                return Err(bad_entry(i, "goes beyond its parent's range"));
            }
        }
        Ok(())
    }

    /// Verifies the checksum after the space for entries. Not for roots.
    pub fn verify_checksum(&self, seed: ChecksumSeed) -> Result<()> {
        let at = tail_at(self.max);
        if !seed.enabled() {
            return Ok(());
        }
        if at + 4 > self.bytes.len() {
            return Err(bad("eh_max", self.max, "leaves no room for the checksum"));
        }
        seed.over(&self.bytes[..at])
            .compare(Structure::ExtentNode, get32(self.bytes, at), u32::MAX)
    }

    /// Levels below this node; 0 is a leaf.
    pub const fn depth(&self) -> u16 {
        self.depth
    }

    /// Number of entries.
    pub const fn len(&self) -> u16 {
        self.entries
    }

    /// Whether there is no entry (possible in a root only).
    pub const fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Number of entries there is room for.
    pub const fn capacity(&self) -> u16 {
        self.max
    }

    /// Whether another entry fits.
    pub const fn is_full(&self) -> bool {
        self.entries >= self.max
    }

    fn entry(&self, i: u16) -> &'a [u8] {
        assert!(i < self.entries, "extent entry beyond the last");
        let at = entry_at(i);
        &self.bytes[at..at + ENTRY_SIZE]
    }

    /// First file block of entry `i`, in leaves and above.
    pub fn first_block(&self, i: u16) -> FileBlock {
        FileBlock(get32(self.entry(i), 0).into())
    }

    /// Entry `i` of a leaf.
    pub fn extent(&self, i: u16) -> Extent {
        debug_assert_eq!(self.depth, 0);
        Extent::decode(self.entry(i))
    }

    /// Entry `i` of an upper node.
    pub fn index(&self, i: u16) -> ExtentIndex {
        debug_assert_ne!(self.depth, 0);
        ExtentIndex::decode(self.entry(i))
    }

    /// How many entries start at or before `block`: the position after the entry that may hold it,
    /// and where an entry that starts at `block` (and is not there) belongs.
    pub fn position(&self, block: FileBlock) -> u16 {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.first_block(middle) <= block {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The entry of an upper node whose child may hold `block`. Blocks before the first entry are
    /// in no child; insertions there go to the first one.
    pub fn child_for(&self, block: FileBlock) -> (u16, ExtentIndex) {
        let i = self.position(block).saturating_sub(1);
        (i, self.index(i))
    }

    /// The extent that contains `block`, with its position.
    pub fn find(&self, block: FileBlock) -> Option<(u16, Extent)> {
        let i = self.position(block).checked_sub(1)?;
        let extent = self.extent(i);
        extent.contains(block).then_some((i, extent))
    }

    /// All extents of a leaf.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let node = *self;
        (0..node.entries).map(move |i| node.extent(i))
    }

    /// All entries of an upper node.
    pub fn indexes(&self) -> impl Iterator<Item = ExtentIndex> + use<'a> {
        let node = *self;
        (0..node.entries).map(move |i| node.index(i))
    }

    /// What the child of entry `i` must be, given this node's own range.
    pub fn expect_child(&self, i: u16, own: &Range<FileBlock>) -> Expect {
        let end = if i + 1 < self.entries {
            self.first_block(i + 1)
        } else {
            own.end
        };
        Expect {
            depth: self.depth - 1,
            blocks: self.first_block(i)..end,
        }
    }
}

fn entry_at(i: u16) -> usize {
    HEADER_SIZE + usize::from(i) * ENTRY_SIZE
}

fn tail_at(max: u16) -> usize {
    entry_at(max)
}

/// Changes a node in place. Nothing is sealed until [`ExtentNodeMut::seal`].
#[derive(Debug)]
pub struct ExtentNodeMut<'a> {
    bytes: &'a mut [u8],
}

impl<'a> ExtentNodeMut<'a> {
    /// Makes an empty root of depth 0 in an inode's `i_block`.
    pub fn init_root(i_block: &'a mut [u8]) -> Self {
        Self::init(i_block, 0, ROOT_ENTRIES)
    }

    /// Makes an empty node in a block.
    pub fn init_block(geo: &Geometry, bytes: &'a mut [u8], depth: u16) -> Self {
        assert_eq!(bytes.len(), geo.block_size.bytes());
        Self::init(bytes, depth, block_entries(geo))
    }

    fn init(bytes: &'a mut [u8], depth: u16, max: u16) -> Self {
        assert!(depth <= MAX_DEPTH);
        bytes.fill(0);
        put16(bytes, 0, MAGIC);
        put16(bytes, 4, max);
        put16(bytes, 6, depth);
        Self { bytes }
    }

    /// Edits a node whose bytes were validated when they were read.
    pub fn edit(bytes: &'a mut [u8]) -> Result<Self> {
        ExtentNode::view(bytes)?;
        Ok(Self { bytes })
    }

    /// The node as it is now.
    pub fn node(&self) -> ExtentNode<'_> {
        ExtentNode {
            bytes: self.bytes,
            entries: get16(self.bytes, 2),
            max: get16(self.bytes, 4),
            depth: get16(self.bytes, 6),
        }
    }

    /// Changes the depth: when the root grows or shrinks by a level.
    pub fn set_depth(&mut self, depth: u16) {
        assert!(depth <= MAX_DEPTH);
        put16(self.bytes, 6, depth);
    }

    /// Replaces entry `i` of a leaf.
    pub fn set_extent(&mut self, i: u16, extent: &Extent) {
        assert!(i < self.node().len() && self.node().depth() == 0);
        let at = entry_at(i);
        extent.encode(&mut self.bytes[at..at + ENTRY_SIZE]);
    }

    /// Replaces entry `i` of an upper node.
    pub fn set_index(&mut self, i: u16, index: &ExtentIndex) {
        assert!(i < self.node().len() && self.node().depth() > 0);
        let at = entry_at(i);
        index.encode(&mut self.bytes[at..at + ENTRY_SIZE]);
    }

    /// Inserts an extent at position `i` of a leaf that is not full.
    pub fn insert_extent(&mut self, i: u16, extent: &Extent) {
        self.make_room(i);
        self.set_extent(i, extent);
    }

    /// Inserts a child at position `i` of an upper node that is not full.
    pub fn insert_index(&mut self, i: u16, index: &ExtentIndex) {
        self.make_room(i);
        self.set_index(i, index);
    }

    fn make_room(&mut self, i: u16) {
        let len = self.node().len();
        assert!(i <= len && !self.node().is_full(), "no room for an entry");
        self.bytes
            .copy_within(entry_at(i)..entry_at(len), entry_at(i + 1));
        put16(self.bytes, 2, len + 1);
    }

    /// Removes the entries in `range`.
    pub fn remove(&mut self, range: Range<u16>) {
        let len = self.node().len();
        assert!(range.start <= range.end && range.end <= len);
        self.bytes
            .copy_within(entry_at(range.end)..entry_at(len), entry_at(range.start));
        let left = len - (range.end - range.start);
        self.bytes[entry_at(left)..entry_at(len)].fill(0);
        put16(self.bytes, 2, left);
    }

    /// Appends the entries `range` of `from`, a node of the same depth.
    pub fn append(&mut self, from: &ExtentNode<'_>, range: Range<u16>) {
        let (len, max) = (self.node().len(), self.node().capacity());
        let count = range.end - range.start;
        assert!(range.end <= from.len() && count <= max - len);
        self.bytes[entry_at(len)..entry_at(len + count)]
            .copy_from_slice(&from.bytes[entry_at(range.start)..entry_at(range.end)]);
        put16(self.bytes, 2, len + count);
    }

    /// Writes the checksum of a node in a block. Not for roots, which the inode's checksum covers.
    pub fn seal(&mut self, seed: ChecksumSeed) {
        let at = tail_at(self.node().capacity());
        if let Some(sum) = seed.over(&self.bytes[..at]).value() {
            put32(self.bytes, at, sum);
        }
    }
}

#[cfg(test)]
mod tests;
