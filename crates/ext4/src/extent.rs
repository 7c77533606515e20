//! Extent trees of inodes: find, insert, remove, change between written and unwritten.
//!
//! Every step changes one node, or one node with its parent, and leaves a valid tree: a full node
//! is split first and then the path from the root is walked again. So each function is a loop of small steps, at any
//! depth.

mod change;
mod path;

use std::ops::Range;

use steadfs_base::{Corruption, FileBlock, IoTag};
use steadfs_vfs::{FsError, Result};

use crate::disk::extent::{ExtentNode, ExtentNodeMut, FILE_END, ROOT_ENTRIES};
use crate::disk::{self, Extent, Ino};
use crate::fs::Ext4;
use crate::pins::Pins;
use crate::place::{BlockPlace, FreeStep, HoleCount, Mapped, Unmapped};
use crate::txn::Handle;
use path::Path;

/// Blocks that inserting an extent into a tree of `depth` levels changes at worst: at each level
/// the node, its new half, and bitmap and descriptor of the latter; one level may be added.
pub const fn insert_credits(depth: u16) -> u32 {
    (depth as u32 + 2) * 4 + 2
}

/// Blocks that removing an extent from a tree of `depth` levels changes at worst: a cut in its middle inserts an entry,
/// the freed blocks may be in two groups, and the inode is stored afterwards.
pub const fn remove_credits(depth: u16) -> u32 {
    insert_credits(depth) + 16
}

/// An inode's extent tree during one operation.
pub struct Tree<'a> {
    fs: &'a Ext4,
    ino: Ino,
    core: &'a mut disk::Inode,
}

/// The mapping at `block` and its length.
pub fn lookup(
    fs: &Ext4,
    ino: Ino,
    core: &disk::Inode,
    block: FileBlock,
    tag: IoTag,
) -> Result<Mapped> {
    let path = Path::find(fs, ino, core, block, tag)?;
    let leaf = path.leaf();
    let bytes = leaf.bytes(core);
    Ok(mapped_in(&bytes.node()?, &leaf.blocks, block))
}

/// The mapping of `block` by a leaf for `blocks`.
fn mapped_in(leaf: &ExtentNode<'_>, blocks: &Range<FileBlock>, block: FileBlock) -> Mapped {
    if let Some((_, extent)) = leaf.find(block) {
        let start = extent.device_block(block);
        let place = if extent.unwritten {
            BlockPlace::Unwritten(start)
        } else {
            BlockPlace::Written(start)
        };
        return Mapped {
            place,
            len: extent.end().0 - block.0,
        };
    }
    let pos = leaf.position(block);
    let end = if pos < leaf.len() {
        leaf.first_block(pos)
    } else {
        blocks.end
    };
    Mapped {
        place: BlockPlace::Hole,
        len: end.0 - block.0,
    }
}

/// The block after the last extent; 0 if there is none.
pub fn end(fs: &Ext4, ino: Ino, core: &disk::Inode, tag: IoTag) -> Result<FileBlock> {
    let path = Path::find(fs, ino, core, FileBlock(FILE_END.0 - 1), tag)?;
    let bytes = path.leaf().bytes(core);
    let last = bytes.node()?.extents().last();
    Ok(last.map_or(FileBlock(0), |extent| extent.end()))
}

/// Counts holes among the first of `blocks` (at least one, sorted): those that one leaf covers.
pub fn holes(
    fs: &Ext4,
    ino: Ino,
    core: &disk::Inode,
    blocks: &[FileBlock],
    tag: IoTag,
) -> Result<HoleCount> {
    let mut counted = HoleCount::default();
    let path = Path::find(fs, ino, core, blocks[0], tag)?;
    let leaf = path.leaf();
    let bytes = leaf.bytes(core);
    let node = bytes.node()?;
    while let Some(&block) = blocks.get(counted.of)
        && block < leaf.blocks.end
    {
        let mapped = mapped_in(&node, &leaf.blocks, block);
        counted.add(&blocks[counted.of..], mapped);
    }
    Ok(counted)
}

/// An empty tree for a new inode.
pub fn init_root(core: &mut disk::Inode) {
    ExtentNodeMut::init_root(&mut core.block);
}

impl<'a> Tree<'a> {
    /// The tree of an inode whose `core` the caller holds for writing.
    pub fn new(fs: &'a Ext4, ino: Ino, core: &'a mut disk::Inode) -> Self {
        Self { fs, ino, core }
    }

    /// Levels below the root.
    pub fn depth(&self) -> Result<u16> {
        Ok(path::root(self.core)?.depth())
    }

    /// Maps a run that is a hole now. [`insert_credits`].
    pub fn insert(&mut self, handle: &mut Handle<'_>, extent: &Extent) -> Result<()> {
        loop {
            let path = self.path_to(extent.block)?;
            if handle.step(|handle| self.insert_in_leaf(handle, &path, extent))? {
                return Ok(());
            }
            handle.step(|handle| self.make_room(handle, &path, extent.block))?;
        }
    }

    /// Splits nodes until the leaf of `block` has room for `more` entries. Called before the change that needs them: if
    /// no block is free for a new node, the map is unchanged.
    fn reserve(
        &mut self,
        handle: &mut Handle<'_>,
        block: FileBlock,
        more: impl Fn(&ExtentNode<'_>) -> u16,
    ) -> Result<Path> {
        let before = handle.savepoint();
        loop {
            let path = self.path_to(block)?;
            let fits = {
                let bytes = path.leaf().bytes(self.core);
                let node = bytes.node()?;
                node.len() + more(&node) <= node.capacity()
            };
            if fits {
                return Ok(path);
            }
            handle.step(|handle| self.make_room(handle, &path, block))?;
            // The mapping is unchanged, with more nodes.
            handle.consistent_since(before);
        }
    }

    /// The extent that covers `block`.
    pub fn extent_at(&self, block: FileBlock) -> Result<Option<Extent>> {
        let path = self.path_to(block)?;
        let bytes = path.leaf().bytes(self.core);
        Ok(bytes.node()?.find(block).map(|(_, extent)| extent))
    }

    fn path_to(&self, block: FileBlock) -> Result<Path> {
        Path::find(self.fs, self.ino, self.core, block, IoTag::default())
    }

    /// Inserts the extent into the leaf or merges it with an adjacent one; false if the leaf is full.
    fn insert_in_leaf(
        &mut self,
        handle: &mut Handle<'_>,
        path: &Path,
        extent: &Extent,
    ) -> Result<bool> {
        let (pos, left, right, full) = {
            let bytes = path.leaf().bytes(self.core);
            let node = bytes.node()?;
            let pos = node.position(extent.block);
            let left = pos.checked_sub(1).map(|i| node.extent(i));
            let right = (pos < node.len()).then(|| node.extent(pos));
            (pos, left, right, node.is_full())
        };
        if left.is_some_and(|l| l.end() > extent.block)
            || right.is_some_and(|r| extent.end() > r.block)
        {
            let at = extent.block;
            return Err(Corruption::new("mapped twice")
                .in_inode(self.ino)
                .at_file_block(at)
                .into());
        }
        let mut merged = *extent;
        let joins_left = left.filter(|l| l.can_merge(&merged));
        if let Some(l) = joins_left {
            merged = Extent {
                len: l.len + merged.len,
                ..l
            };
        }
        let joins_right = right.filter(|r| merged.can_merge(r));
        if let Some(r) = joins_right {
            merged.len += r.len;
        }
        if joins_left.is_none() && joins_right.is_none() && full {
            return Ok(false);
        }
        self.edit_leaf(handle, path, |node| {
            match (joins_left.is_some(), joins_right.is_some()) {
                (false, false) => node.insert_extent(pos, &merged),
                (true, false) => node.set_extent(pos - 1, &merged),
                (false, true) => node.set_extent(pos, &merged),
                (true, true) => {
                    node.set_extent(pos - 1, &merged);
                    node.remove(pos..pos + 1);
                }
            }
        })?;
        if pos == 0 {
            self.correct_keys(handle, path)?;
        }
        Ok(true)
    }

    /// Unmaps a range from its end on, step by step, and calls `free` for each, until the range is done or the
    /// transaction is full; returns the end of what is left (`range.start`: done).
    pub fn remove(
        &mut self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        step: FreeStep,
        free: &mut dyn FnMut(&Ext4, &mut Handle<'_>, Unmapped) -> Result<()>,
    ) -> Result<FileBlock> {
        let mut end = range.end;
        while end > range.start {
            if !handle.extend(remove_credits(self.depth()?) + step.credits) {
                return Ok(end);
            }
            let path = self.path_to(FileBlock(end.0 - 1))?;
            let Some((pos, extent)) = self.last_before(&path, end)? else {
                break;
            };
            if extent.end() <= range.start {
                break;
            }
            let last = extent.end().min(end);
            let first = FileBlock(last.0.saturating_sub(step.blocks));
            let cut = extent.block.max(range.start).max(first)..last;
            let (start, len) = (extent.device_block(cut.start), cut.end.0 - cut.start.0);
            let unmapped = Unmapped {
                blocks: (start, len),
                clusters: self.fs.own_clusters(self.ino, self.core, &cut, start)?,
            };
            let mut pins = Pins::default();
            self.fs.alloc.pin_to_free(self.fs, &mut pins, start, len)?;
            if extent.block == cut.start && extent.end() == cut.end {
                self.pin_to_remove_entry(&mut pins, &path)?;
            }
            handle.step(|handle| {
                self.cut(handle, path, pos, &extent, &cut)?;
                free(self.fs, handle, unmapped)
            })?;
            end = cut.start;
        }
        Ok(range.start)
    }

    /// The last extent of the leaf that starts before `end`.
    fn last_before(&self, path: &Path, end: FileBlock) -> Result<Option<(u16, Extent)>> {
        let bytes = path.leaf().bytes(self.core);
        let node = bytes.node()?;
        let pos = node.position(FileBlock(end.0 - 1)).checked_sub(1);
        Ok(pos.map(|i| (i, node.extent(i))))
    }

    /// Takes `cut` out of an extent.
    fn cut(
        &mut self,
        handle: &mut Handle<'_>,
        path: Path,
        pos: u16,
        extent: &Extent,
        cut: &Range<FileBlock>,
    ) -> Result<()> {
        let head = part(extent, extent.block..cut.start);
        let tail = part(extent, cut.end..extent.end());
        match (head, tail) {
            (None, None) => self.remove_entry(handle, &path, pos),
            (Some(head), None) => self.edit_leaf(handle, &path, |n| n.set_extent(pos, &head)),
            (None, Some(tail)) => {
                self.edit_leaf(handle, &path, |n| n.set_extent(pos, &tail))?;
                if pos == 0 {
                    self.correct_keys(handle, &path)
                } else {
                    Ok(())
                }
            }
            (Some(head), Some(tail)) => {
                let path = self.reserve(handle, extent.block, |_| 1)?;
                let pos = self.entry_of(&path, extent.block)?;
                self.edit_leaf(handle, &path, |n| n.set_extent(pos, &head))?;
                self.insert(handle, &tail)
            }
        }
    }

    /// Makes every mapped block of the range written (`unwritten` false) or unwritten. Stops when the
    /// transaction is full; returns where it stopped (`range.end`: done).
    pub fn convert(
        &mut self,
        handle: &mut Handle<'_>,
        range: Range<FileBlock>,
        unwritten: bool,
    ) -> Result<FileBlock> {
        let mut at = range.start;
        while at < range.end {
            // Up to three pieces replace one, each an insertion at worst.
            if !handle.extend(3 * insert_credits(self.depth()?)) {
                return Ok(at);
            }
            let mapped = lookup(self.fs, self.ino, self.core, at, IoTag::default())?;
            let len = mapped.len.min(range.end.0 - at.0);
            let differs = match mapped.place {
                BlockPlace::Hole => false,
                BlockPlace::Written(_) => unwritten,
                BlockPlace::Unwritten(_) => !unwritten,
            };
            if differs {
                let len = len.min(Extent::max_len(unwritten).into());
                handle.step(|handle| self.convert_piece(handle, at..at.plus(len), unwritten))?;
                at = at.plus(len);
            } else {
                at = at.plus(len);
            }
        }
        Ok(range.end)
    }

    /// The entry of the leaf whose extent begins at `block`.
    fn entry_of(&self, path: &Path, block: FileBlock) -> Result<u16> {
        let bytes = path.leaf().bytes(self.core);
        match bytes.node()?.find(block) {
            Some((pos, found)) if found.block == block => Ok(pos),
            _ => Err(self.lost(block)),
        }
    }

    fn lost(&self, block: FileBlock) -> FsError {
        Corruption::new("is no longer mapped")
            .in_inode(self.ino)
            .at_file_block(block)
            .into()
    }

    /// Converts a piece within one extent. If no block is free for a new node, nothing is converted.
    fn convert_piece(
        &mut self,
        handle: &mut Handle<'_>,
        piece: Range<FileBlock>,
        unwritten: bool,
    ) -> Result<()> {
        let extent = self.extent_at(piece.start)?;
        let extent = extent.ok_or_else(|| self.lost(piece.start))?;
        let head = part(&extent, extent.block..piece.start);
        let tail = part(&extent, piece.end..extent.end());
        let middle = part(&extent, piece).map(|m| Extent { unwritten, ..m });
        let middle = middle.expect("a piece has a length");
        let path = self.reserve(handle, extent.block, |node| {
            let pos = node.position(extent.block);
            let left = pos.checked_sub(2).map(|i| node.extent(i));
            let right = (pos < node.len()).then(|| node.extent(pos));
            let joins_left = head.is_none() && left.is_some_and(|l| l.can_merge(&middle));
            let joins_right = tail.is_none() && right.is_some_and(|r| middle.can_merge(&r));
            let more = u16::from(head.is_some()) + u16::from(tail.is_some());
            more.saturating_sub(u16::from(joins_left) + u16::from(joins_right))
        })?;
        let pos = self.entry_of(&path, extent.block)?;
        match head {
            Some(head) => {
                self.edit_leaf(handle, &path, |n| n.set_extent(pos, &head))?;
                if let Some(tail) = tail {
                    self.insert(handle, &tail)?;
                }
                self.insert(handle, &middle)
            }
            None => {
                // In place, so that the leaf is never empty; then merged with its neighbours.
                self.edit_leaf(handle, &path, |n| {
                    n.set_extent(pos, &middle);
                    merge_around(n, pos);
                })?;
                tail.map_or(Ok(()), |tail| self.insert(handle, &tail))
            }
        }
    }
}

/// The part of an extent that covers `blocks`, unless empty.
fn part(extent: &Extent, blocks: Range<FileBlock>) -> Option<Extent> {
    (blocks.start < blocks.end).then(|| Extent {
        block: blocks.start,
        len: (blocks.end.0 - blocks.start.0) as u32,
        start: extent.device_block(blocks.start),
        unwritten: extent.unwritten,
    })
}

/// Merges the extent at `pos` with the ones before and after if they continue each other.
fn merge_around(node: &mut ExtentNodeMut<'_>, mut pos: u16) {
    if pos > 0 {
        let (left, this) = (node.node().extent(pos - 1), node.node().extent(pos));
        if left.can_merge(&this) {
            node.set_extent(
                pos - 1,
                &Extent {
                    len: left.len + this.len,
                    ..left
                },
            );
            node.remove(pos..pos + 1);
            pos -= 1;
        }
    }
    if pos + 1 < node.node().len() {
        let (this, right) = (node.node().extent(pos), node.node().extent(pos + 1));
        if this.can_merge(&right) {
            node.set_extent(
                pos,
                &Extent {
                    len: this.len + right.len,
                    ..this
                },
            );
            node.remove(pos + 1..pos + 2);
        }
    }
}

const _: () = assert!(
    ROOT_ENTRIES == 4,
    "the depth of trees in the tests is computed with it"
);
