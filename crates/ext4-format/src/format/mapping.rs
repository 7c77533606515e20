//! Blocks for the files of a new volume, and their block maps.

use std::ops::Range;

use steadfs_base::{DevBlock, FileBlock};
use steadfs_vfs::InodeFlags;

use super::FormatError;
use super::build::{Build, full};
use crate::disk::extent::{self, ExtentNodeMut, ROOT_ENTRIES};
use crate::disk::features::Incompat;
use crate::disk::inode::I_BLOCK_SIZE;
use crate::disk::num::{idx, low16, low32, put32};
use crate::disk::{Extent, ExtentIndex, Ino, indirect};

/// A file's blocks and their map.
pub(super) struct Mapped {
    /// Content of `i_block`.
    pub root: [u8; I_BLOCK_SIZE],
    /// Flags that state the form of the map.
    pub flags: InodeFlags,
    /// The file's blocks in order, as runs.
    pub runs: Vec<Range<u64>>,
    /// Blocks of the map itself.
    pub map_blocks: u64,
}

/// Allocates free blocks in order of number, from a goal on, and marks them run by run.
struct Row {
    run: Range<u64>,
    next: u64,
}

impl Row {
    fn from(goal: u64) -> Self {
        Self {
            run: goal..goal,
            next: goal,
        }
    }

    fn next(&mut self, build: &mut Build) -> Result<u64, FormatError> {
        if self.next == self.run.end {
            self.end(build);
            let start = build.space.near(self.next).ok_or_else(full)?;
            self.run = start..build.space.free_end(start, u64::MAX);
            self.next = start;
        }
        let block = self.next;
        self.next += 1;
        Ok(block)
    }

    /// Marks the allocated blocks of the current run.
    fn end(&mut self, build: &mut Build) {
        if self.run.start < self.next {
            build.mark_used(self.run.start..self.next);
            self.run.start = self.next;
        }
    }
}

/// Adds a block after the last.
fn push(runs: &mut Vec<Range<u64>>, block: u64) {
    match runs.last_mut() {
        Some(run) if run.end == block => run.end += 1,
        _ => runs.push(block..block + 1),
    }
}

impl Build {
    pub(super) fn has_extents(&self) -> bool {
        self.geo.has_incompat(Incompat::EXTENTS)
    }

    /// Maps blocks that fit the inode.
    pub(super) fn map_direct(&self, blocks: &[u64]) -> Mapped {
        let mut runs = Vec::new();
        for &block in blocks {
            push(&mut runs, block);
        }
        let mut root = [0; I_BLOCK_SIZE];
        let flags = if self.has_extents() {
            let extents = extents_of(&runs);
            fill_root(&mut root, &extents);
            InodeFlags::EXTENTS
        } else {
            for (&block, at) in blocks.iter().zip(0..) {
                put32(&mut root, at * 4, low32(block));
            }
            InodeFlags::default()
        };
        Mapped {
            root,
            flags,
            runs,
            map_blocks: 0,
        }
    }

    /// Allocates `count` blocks in long runs from `goal` on and maps them by extents.
    pub(super) fn alloc_extents(
        &mut self,
        ino: Ino,
        goal: u64,
        count: u64,
    ) -> Result<Mapped, FormatError> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut leaf = None;
        let (mut left, mut goal) = (count, goal);
        while left > 0 {
            let start = self.space.near(goal).ok_or_else(full)?;
            let most = left.min(extent::MAX_LEN.into());
            let end = self.space.free_end(start, most);
            self.mark_used(start..end);
            runs.push(start..end);
            left -= end - start;
            goal = end;
            if runs.len() == usize::from(ROOT_ENTRIES) + 1 {
                // The inode is full: its entries move to a leaf block, if possible before the first run.
                leaf = Some(self.alloc(runs[0].start - 1)?);
            }
        }
        let extents = extents_of(&runs);
        self.map_extents(ino, &extents, leaf, runs)
    }

    /// Allocates `count` blocks from the volume's start on and maps them by extents.
    pub(super) fn alloc_extents_in_row(
        &mut self,
        ino: Ino,
        count: u64,
    ) -> Result<Mapped, FormatError> {
        let mut runs = Vec::new();
        let mut row = Row::from(0);
        for _ in 0..count {
            push(&mut runs, row.next(self)?);
        }
        row.end(self);
        let extents = extents_of(&runs);
        self.map_extents(ino, &extents, None, runs)
    }

    /// Builds the tree of `extents`; `leaf` is a block for its first leaf.
    fn map_extents(
        &mut self,
        ino: Ino,
        extents: &[Extent],
        mut leaf: Option<u64>,
        runs: Vec<Range<u64>>,
    ) -> Result<Mapped, FormatError> {
        let mut mapped = Mapped {
            root: [0; I_BLOCK_SIZE],
            flags: InodeFlags::EXTENTS,
            runs,
            map_blocks: 0,
        };
        if extents.len() <= usize::from(ROOT_ENTRIES) {
            fill_root(&mut mapped.root, extents);
            return Ok(mapped);
        }
        let geo = self.geo.clone();
        let seed = geo.seed.of_inode(ino, 0);
        let per_node = usize::from(extent::block_entries(&geo));
        let mut level = Vec::new();
        for part in extents.chunks(per_node) {
            let at = match leaf.take() {
                Some(at) => at,
                None => self.alloc(part[0].start.0)?,
            };
            let mut block = self.zero_block();
            let mut node = ExtentNodeMut::init_block(&geo, block.make_mut(), 0);
            for (extent, i) in part.iter().zip(0..) {
                node.insert_extent(i, extent);
            }
            node.seal(seed);
            self.content.insert(DevBlock(at), block);
            level.push(ExtentIndex {
                block: part[0].block,
                child: DevBlock(at),
            });
            mapped.map_blocks += 1;
        }
        let mut depth = 1;
        while level.len() > usize::from(ROOT_ENTRIES) {
            let mut above = Vec::new();
            for part in level.chunks(per_node) {
                let at = self.alloc(part[0].child.0)?;
                let mut block = self.zero_block();
                let mut node = ExtentNodeMut::init_block(&geo, block.make_mut(), depth);
                for (index, i) in part.iter().zip(0..) {
                    node.insert_index(i, index);
                }
                node.seal(seed);
                self.content.insert(DevBlock(at), block);
                above.push(ExtentIndex {
                    block: part[0].block,
                    child: DevBlock(at),
                });
                mapped.map_blocks += 1;
            }
            level = above;
            depth += 1;
        }
        let mut root = ExtentNodeMut::init_root(&mut mapped.root);
        root.set_depth(depth);
        for (index, i) in level.iter().zip(0..) {
            root.insert_index(i, index);
        }
        Ok(mapped)
    }

    /// Allocates `count` blocks and the blocks of their map in one sequence, from `goal` on: each map block before the
    /// blocks that it maps.
    pub(super) fn alloc_mapped(&mut self, goal: u64, count: u64) -> Result<Mapped, FormatError> {
        let per_block = indirect::per_block(&self.geo);
        let mut row = Row::from(goal);
        let mut mapped = Mapped {
            root: [0; I_BLOCK_SIZE],
            flags: InodeFlags::default(),
            runs: Vec::new(),
            map_blocks: 0,
        };
        // The map block in use at each level, the last one lowest.
        let mut open: [u64; 3] = [0; 3];
        for file_block in 0..count {
            let path = indirect::Path::to(FileBlock(file_block), per_block).ok_or_else(full)?;
            let indices = path.indices();
            for level in 0..path.depth() {
                // A map block is new when everything below it is.
                if indices[level + 1..].iter().any(|&index| index != 0) {
                    continue;
                }
                let at = row.next(self)?;
                let block = self.zero_block();
                self.content.insert(DevBlock(at), block);
                mapped.map_blocks += 1;
                self.name_block(&mut mapped.root, &open[..level], indices[level], at);
                open[level] = at;
            }
            let at = row.next(self)?;
            let last = indices[path.depth()];
            self.name_block(&mut mapped.root, &open[..path.depth()], last, at);
            push(&mut mapped.runs, at);
        }
        row.end(self);
        Ok(mapped)
    }

    /// Writes the number of block `at` into the lowest of the `open` map blocks, or into the inode.
    fn name_block(&mut self, root: &mut [u8], open: &[u64], index: u32, at: u64) {
        let words = match open.last() {
            None => root,
            Some(&map) => {
                let block = self.content.get_mut(&DevBlock(map));
                block.expect("an open map block is kept").make_mut()
            }
        };
        put32(words, idx(index) * 4, low32(at));
    }
}

/// The runs as extents of a file, in order, none longer than an extent can be.
fn extents_of(runs: &[Range<u64>]) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut block = FileBlock(0);
    for run in runs {
        let mut start = run.start;
        while start < run.end {
            let len = (run.end - start).min(extent::MAX_LEN.into());
            extents.push(Extent {
                block,
                len: low32(len),
                start: DevBlock(start),
                unwritten: false,
            });
            block = block.plus(len);
            start += len;
        }
    }
    extents
}

fn fill_root(root: &mut [u8; I_BLOCK_SIZE], extents: &[Extent]) {
    let mut node = ExtentNodeMut::init_root(root);
    for (i, extent) in extents.iter().enumerate() {
        node.insert_extent(low16(low32(i as u64)), extent);
    }
}
