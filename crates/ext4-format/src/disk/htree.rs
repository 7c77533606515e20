//! The hash index of a directory: a root in the directory's first block (after `.` and `..`), nodes
//! in other blocks (disguised as one free entry), and linear blocks as leaves.
//!
//! Entries `(hash, block)` are sorted; a leaf holds the names whose hash is at least its entry's and below the next
//! entry's. The first entry has no hash (it counts as 0): limit and count are stored there. A hash with the lowest bit
//! set continues a run of equal hashes from the previous leaf.

use std::ops::Range;

use super::dir_entry::{self, DirLayout};
use super::features::Incompat;
use super::hash::HashKind;
use super::num::{get16, get32, low16, low32, put16, put32, wide};
use super::{ChecksumSeed, DiskError, Geometry, Ino, Result, Structure};

const ENTRY_SIZE: usize = 8;
const TAIL_SIZE: usize = 8;
const INFO_SIZE: u8 = 8;
/// Where the root's information is: after the entries of `.` and `..`.
pub const INFO_AT: usize = 24;
const ROOT_ENTRIES_AT: usize = 32;
const NODE_ENTRIES_AT: usize = 8;
/// Directory blocks have 28 bits in an entry.
const BLOCK_MASK: u32 = 0x0FFF_FFFF;
/// The last block of a directory that an index can name.
pub const MAX_BLOCK: u32 = BLOCK_MASK;

/// The root's information on the whole index (`dx_root_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// How names are hashed (signedness and seed are the volume's).
    pub hash: HashKind,
    /// Levels of nodes between root and leaves: 0 to 1, with `large_dir` to 2.
    pub indirect_levels: u8,
}

/// A child: the lowest hash in it and its block in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DxEntry {
    /// Lowest hash (0 for the first child).
    pub hash: u32,
    /// Block of the directory file.
    pub block: u32,
}

/// A validated root or node.
#[derive(Clone, Copy, Debug)]
pub struct DxNode<'a> {
    block: &'a [u8],
    /// Where the entries start.
    start: usize,
    limit: u16,
    count: u16,
}

fn bad(field: &'static str, value: impl Into<u64>, rule: &'static str) -> DiskError {
    DiskError::field(Structure::HtreeNode, field, value, rule)
}

/// Entries that fit after `start`.
fn room_for(layout: &DirLayout, start: usize) -> u16 {
    let tail = if layout.has_tail { TAIL_SIZE } else { 0 };
    low16(low32(wide((layout.block_size - start - tail) / ENTRY_SIZE)))
}

/// The limit of a new node. Where names have hashes, Linux takes the fake entry of a node below the root for one with a
/// hash (`dx_node_limit`), so it has one child less, and its tail lies before that.
fn limit_for(layout: &DirLayout, start: usize) -> u16 {
    let less = layout.has_hashes && start == NODE_ENTRIES_AT;
    room_for(layout, start) - u16::from(less)
}

/// Most levels of nodes below the root on this volume.
pub fn max_levels(geo: &Geometry) -> u8 {
    if geo.has_incompat(Incompat::LARGE_DIR) {
        2
    } else {
        1
    }
}

/// Decodes and validates the root's information in a directory's first block.
pub fn root_info(geo: &Geometry, block: &[u8]) -> Result<RootInfo> {
    assert_eq!(block.len(), geo.block_size.bytes());
    let version = block[INFO_AT + 4];
    let Some(hash) = HashKind::from_disk(version) else {
        return Err(bad("hash_version", version, "unknown"));
    };
    if block[INFO_AT + 5] != INFO_SIZE {
        return Err(bad("info_length", block[INFO_AT + 5], "not 8"));
    }
    if block[INFO_AT + 7] & 1 != 0 {
        return Err(bad("unused_flags", block[INFO_AT + 7], "unknown"));
    }
    let indirect_levels = block[INFO_AT + 6];
    if indirect_levels > max_levels(geo) {
        return Err(bad("indirect_levels", indirect_levels, "too deep"));
    }
    Ok(RootInfo {
        hash,
        indirect_levels,
    })
}

/// The inodes that `.` and `..` in a root's block name.
pub fn root_dots(layout: &DirLayout, block: &[u8]) -> Result<(Ino, Ino)> {
    // The entry of `..` covers the index, up to the very end of the block.
    let mut entries = dir_entry::entries_in(layout, block, 0, layout.block_size);
    let mut next = |name: &[u8]| -> Result<Ino> {
        let entry = entries.next().transpose()?;
        entry
            .filter(|entry| entry.name == name)
            .and_then(|entry| entry.ino)
            .ok_or_else(|| DiskError::entry(Structure::DirBlock, 0, "is not . and .."))
    };
    Ok((next(b".")?, next(b"..")?))
}

impl<'a> DxNode<'a> {
    /// Verifies and validates the root. `seed` is the directory's.
    pub fn parse_root(layout: &DirLayout, seed: ChecksumSeed, block: &'a [u8]) -> Result<Self> {
        let node = Self::view(layout, block, ROOT_ENTRIES_AT)?;
        node.verify_checksum(seed)?;
        node.check_order()?;
        Ok(node)
    }

    /// Verifies and validates a node below the root. `seed` is the directory's.
    pub fn parse_node(layout: &DirLayout, seed: ChecksumSeed, block: &'a [u8]) -> Result<Self> {
        assert_eq!(block.len(), layout.block_size);
        let rec_len = layout.decode_rec_len(get16(block, 4));
        if get32(block, 0) != 0 || rec_len != layout.block_size {
            let rule = "not the whole block";
            return Err(bad("fake entry's length", wide(rec_len), rule));
        }
        let node = Self::view(layout, block, NODE_ENTRIES_AT)?;
        node.verify_checksum(seed)?;
        node.check_order()?;
        Ok(node)
    }

    /// The root of a block that [`DxNode::parse_root`] has accepted since it was read.
    pub fn verified_root(layout: &DirLayout, block: &'a [u8]) -> Result<Self> {
        Self::view(layout, block, ROOT_ENTRIES_AT)
    }

    /// The node of a block that [`DxNode::parse_node`] has accepted since it was read.
    pub fn verified_node(layout: &DirLayout, block: &'a [u8]) -> Result<Self> {
        Self::view(layout, block, NODE_ENTRIES_AT)
    }

    fn view(layout: &DirLayout, block: &'a [u8], start: usize) -> Result<Self> {
        assert_eq!(block.len(), layout.block_size);
        let limit = get16(block, start);
        let count = get16(block, start + 2);
        // Such nodes of e2fsck have room for one child more than those of Linux.
        let largest = room_for(layout, start);
        if !(limit_for(layout, start)..=largest).contains(&limit) {
            return Err(bad("limit", limit, "not what fits"));
        }
        if count == 0 || count > limit {
            return Err(bad("count", count, "zero or above the limit"));
        }
        Ok(Self {
            block,
            start,
            limit,
            count,
        })
    }

    fn check_order(&self) -> Result<()> {
        let mut last = 0;
        for i in 1..self.count {
            let hash = self.entry(i).hash;
            if hash < last {
                let rule = "is out of order";
                return Err(DiskError::entry(Structure::HtreeNode, i.into(), rule));
            }
            last = hash;
        }
        Ok(())
    }

    /// Verifies the checksum after the space for entries.
    pub fn verify_checksum(&self, seed: ChecksumSeed) -> Result<()> {
        if !seed.enabled() {
            return Ok(());
        }
        let at = self.tail_at();
        checksum(seed, self.block, self.start, self.count, at).compare(
            Structure::HtreeNode,
            get32(self.block, at + 4),
            u32::MAX,
        )
    }

    fn tail_at(&self) -> usize {
        self.start + usize::from(self.limit) * ENTRY_SIZE
    }

    /// Number of children.
    pub const fn len(&self) -> u16 {
        self.count
    }

    /// Always false: a node has a child.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Number of children there is room for.
    pub const fn capacity(&self) -> u16 {
        self.limit
    }

    /// Whether another child fits.
    pub const fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    /// Child `i`.
    pub fn entry(&self, i: u16) -> DxEntry {
        assert!(i < self.count, "index entry beyond the last");
        let at = self.start + usize::from(i) * ENTRY_SIZE;
        DxEntry {
            hash: if i == 0 { 0 } else { get32(self.block, at) },
            block: get32(self.block, at + 4) & BLOCK_MASK,
        }
    }

    /// The last child whose hash is not above `hash`, in which the search continues.
    pub fn child_for(&self, hash: u32) -> (u16, DxEntry) {
        let (mut low, mut high) = (1, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(middle).hash <= hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low - 1, self.entry(low - 1))
    }

    /// All children.
    pub fn children(&self) -> impl Iterator<Item = DxEntry> + use<'a> {
        let node = *self;
        (0..node.count).map(move |i| node.entry(i))
    }
}

/// The checksum of a node: its used entries and everything before, and the tail with zero for the
/// checksum.
fn checksum(
    seed: ChecksumSeed,
    block: &[u8],
    start: usize,
    count: u16,
    tail_at: usize,
) -> ChecksumSeed {
    if !seed.enabled() {
        // There is no tail.
        return seed;
    }
    let used = start + usize::from(count) * ENTRY_SIZE;
    seed.over(&block[..used])
        .over(&block[tail_at..tail_at + 4])
        .over(&[0; 4])
}

/// Changes a root or node in place. Nothing is sealed until [`DxNodeMut::seal`].
#[derive(Debug)]
pub struct DxNodeMut<'a> {
    block: &'a mut [u8],
    start: usize,
    limit: u16,
}

impl<'a> DxNodeMut<'a> {
    /// Makes an index root, with `first` as its only child, of a directory's first block.
    pub fn init_root(
        layout: &DirLayout,
        block: &'a mut [u8],
        (own, parent): (Ino, Ino),
        info: RootInfo,
        first: u32,
    ) -> Self {
        dir_entry::init_first(layout, block, own, parent);
        // `..` covers the whole rest of the block: to a reader without index it is empty.
        let rest = layout.block_size - dir_entry::entry_size(1);
        block[INFO_AT..].fill(0);
        put16(
            block,
            dir_entry::entry_size(1) + 4,
            layout.encode_rec_len(rest),
        );
        block[INFO_AT + 4] = info.hash.to_disk();
        block[INFO_AT + 5] = INFO_SIZE;
        block[INFO_AT + 6] = info.indirect_levels;
        Self::init(layout, block, ROOT_ENTRIES_AT, first)
    }

    /// Makes a node with `first` as its only child.
    pub fn init_node(layout: &DirLayout, block: &'a mut [u8], first: u32) -> Self {
        assert_eq!(block.len(), layout.block_size);
        block.fill(0);
        put16(block, 4, layout.encode_rec_len(layout.block_size));
        Self::init(layout, block, NODE_ENTRIES_AT, first)
    }

    fn init(layout: &DirLayout, block: &'a mut [u8], start: usize, first: u32) -> Self {
        let limit = limit_for(layout, start);
        put16(block, start, limit);
        put16(block, start + 2, 1);
        put32(block, start + 4, first & BLOCK_MASK);
        Self {
            block,
            start,
            limit,
        }
    }

    /// Edits a root that was validated when it was read.
    pub fn edit_root(layout: &DirLayout, block: &'a mut [u8]) -> Result<Self> {
        Self::edit(layout, block, ROOT_ENTRIES_AT)
    }

    /// Edits a node that was validated when it was read.
    pub fn edit_node(layout: &DirLayout, block: &'a mut [u8]) -> Result<Self> {
        Self::edit(layout, block, NODE_ENTRIES_AT)
    }

    fn edit(layout: &DirLayout, block: &'a mut [u8], start: usize) -> Result<Self> {
        let limit = DxNode::view(layout, block, start)?.limit;
        Ok(Self {
            block,
            start,
            limit,
        })
    }

    /// The node as it is now.
    pub fn node(&self) -> DxNode<'_> {
        DxNode {
            block: self.block,
            start: self.start,
            limit: self.limit,
            count: get16(self.block, self.start + 2),
        }
    }

    fn at(&self, i: u16) -> usize {
        self.start + usize::from(i) * ENTRY_SIZE
    }

    fn set_count(&mut self, count: u16) {
        assert!(count > 0 && count <= self.limit);
        put16(self.block, self.start + 2, count);
    }

    /// Changes the number of levels; only of a root.
    pub fn set_levels(&mut self, levels: u8) {
        assert_eq!(self.start, ROOT_ENTRIES_AT, "only a root has levels");
        self.block[INFO_AT + 6] = levels;
    }

    /// Inserts a child at position `i` (at least 1) of a node that is not full.
    pub fn insert(&mut self, i: u16, entry: DxEntry) {
        let count = self.node().len();
        assert!(i >= 1 && i <= count && count < self.limit, "no room");
        let (from, to) = (self.at(i), self.at(i + 1));
        self.block.copy_within(from..self.at(count), to);
        put32(self.block, from, entry.hash);
        put32(self.block, from + 4, entry.block & BLOCK_MASK);
        self.set_count(count + 1);
    }

    /// Points child `i` to another block.
    pub fn set_block(&mut self, i: u16, block: u32) {
        assert!(i < self.node().len());
        let at = self.at(i) + 4;
        put32(self.block, at, block & BLOCK_MASK);
    }

    /// Drops the children from position `count` (at least 1) on.
    pub fn truncate(&mut self, count: u16) {
        assert!(count <= self.node().len());
        self.set_count(count);
    }

    /// Replaces all children by `range` of `from`. The first loses its hash.
    pub fn copy_from(&mut self, from: &DxNode<'_>, range: Range<u16>) {
        assert!(range.start < range.end && range.end <= from.count);
        let count = range.end - range.start;
        assert!(count <= self.limit);
        self.set_block_unchecked(0, from.entry(range.start).block);
        for i in 1..count {
            let entry = from.entry(range.start + i);
            let at = self.at(i);
            put32(self.block, at, entry.hash);
            put32(self.block, at + 4, entry.block);
        }
        self.set_count(count);
    }

    fn set_block_unchecked(&mut self, i: u16, block: u32) {
        let at = self.at(i) + 4;
        put32(self.block, at, block);
    }

    /// Changes the inode that `..` of a root's block names.
    pub fn set_parent(&mut self, parent: Ino) {
        assert!(self.start == ROOT_ENTRIES_AT && parent.0 != 0);
        put32(self.block, dir_entry::entry_size(1), parent.0);
    }

    /// Writes the checksum. `seed` is the directory's.
    pub fn seal(&mut self, seed: ChecksumSeed) {
        let node = self.node();
        let at = node.tail_at();
        if let Some(sum) = checksum(seed, node.block, node.start, node.count, at).value() {
            put32(self.block, at + 4, sum);
        }
    }
}

#[cfg(test)]
mod tests;
