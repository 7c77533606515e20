//! Steps that change the shape of a tree: split, grow, drop a node, correct keys.

use steadfs_base::{Corruption, DevBlock, FileBlock};
use steadfs_vfs::{FsError, Result};

use super::Tree;
use super::path::{Level, Path, Shape, root, shared_node_error};
use crate::disk::ExtentIndex;
use crate::disk::extent::{ExtentNodeMut, MAX_DEPTH};
use crate::pins::Pins;
use crate::txn::Handle;
use crate::verified::EXTENT_NODE;

impl Tree<'_> {
    /// Changes a node and seals it, in the inode or in a block.
    fn edit<R>(
        &mut self,
        handle: &mut Handle<'_>,
        level: &Level,
        change: impl FnOnce(&mut ExtentNodeMut<'_>) -> R,
    ) -> Result<R> {
        let Some(buf) = &level.buf else {
            return Ok(change(&mut ExtentNodeMut::edit(&mut self.core.block)?));
        };
        let seed = self.core.seed(self.fs.geo(), self.ino);
        let mut bytes = handle.write(buf)?;
        let mut node = ExtentNodeMut::edit(&mut bytes)?;
        if Shape::of(&node.node()) != level.shape {
            return Err(shared_node_error());
        }
        let result = change(&mut node);
        node.seal(seed);
        Ok(result)
    }

    /// Changes the leaf of a path and seals it.
    pub(super) fn edit_leaf(
        &mut self,
        handle: &mut Handle<'_>,
        path: &Path,
        change: impl FnOnce(&mut ExtentNodeMut<'_>),
    ) -> Result<()> {
        self.edit(handle, path.leaf(), change)
    }

    /// Corrects the keys in the upper nodes after the first entry of the leaf has changed.
    pub(super) fn correct_keys(&mut self, handle: &mut Handle<'_>, path: &Path) -> Result<()> {
        let bytes = path.leaf().bytes(self.core);
        let leaf = bytes.node()?;
        if leaf.is_empty() {
            return Err(shared_node_error());
        }
        let first = leaf.first_block(0);
        drop(bytes);
        self.correct_keys_above(handle, path, path.levels.len() - 1, first)
    }

    /// The node at `depth` of the path starts at `first` now.
    fn correct_keys_above(
        &mut self,
        handle: &mut Handle<'_>,
        path: &Path,
        depth: usize,
        first: FileBlock,
    ) -> Result<()> {
        for level in path.levels[..depth].iter().rev() {
            let pos = level.pos;
            self.edit(handle, level, |node| {
                let index = ExtentIndex {
                    block: first,
                    ..node.node().index(pos)
                };
                node.set_index(pos, &index);
            })?;
            if pos > 0 {
                break;
            }
        }
        Ok(())
    }

    /// One step towards room in the full leaf: splits the lowest node on the path whose parent has room, or adds a
    /// level below the root.
    pub(super) fn make_room(
        &mut self,
        handle: &mut Handle<'_>,
        path: &Path,
        block: FileBlock,
    ) -> Result<()> {
        for depth in (1..path.levels.len()).rev() {
            if !path.levels[depth - 1].bytes(self.core).node()?.is_full() {
                return self.split(handle, path, depth, block);
            }
        }
        self.grow(handle, path)
    }

    /// Moves the upper part of the node at `depth` of the path into a new one.
    fn split(
        &mut self,
        handle: &mut Handle<'_>,
        path: &Path,
        depth: usize,
        block: FileBlock,
    ) -> Result<()> {
        let level = &path.levels[depth];
        let parent = &path.levels[depth - 1];
        // It fails before the first change.
        let from = self.split_point(level, block)?;
        let new = self.new_node(handle, path, level)?;
        let buf = self.fs.meta().get_new(new);
        let seed = self.core.seed(self.fs.geo(), self.ino);
        let first = {
            let bytes = level.bytes(self.core);
            let node = bytes.node()?;
            let mut to = handle.write(&buf)?;
            let mut half = ExtentNodeMut::init_block(self.fs.geo(), &mut to, node.depth());
            half.append(&node, from..node.len());
            half.seal(seed);
            node.first_block(from)
        };
        buf.set_verified(EXTENT_NODE);
        self.edit(handle, level, |node| {
            let len = node.node().len();
            node.remove(from..len);
        })?;
        let index = ExtentIndex {
            block: first,
            child: new,
        };
        let pos = parent.pos + 1;
        self.edit(handle, parent, |node| node.insert_index(pos, &index))
    }

    /// The first entry that a split of a full node moves, so that `block` has room. Both parts have entries.
    fn split_point(&self, level: &Level, block: FileBlock) -> Result<u16> {
        let bytes = level.bytes(self.core);
        let node = bytes.node()?;
        // Appends leave full nodes; otherwise each half gets room.
        let from = match node.position(block) == node.len() {
            true => node.len().saturating_sub(1),
            false => node.len() / 2,
        };
        match from {
            0 => Err(shared_node_error()),
            from => Ok(from),
        }
    }

    /// Moves the root's entries into a new node below it.
    fn grow(&mut self, handle: &mut Handle<'_>, path: &Path) -> Result<()> {
        let depth = root(self.core)?.depth();
        if depth >= MAX_DEPTH {
            return Err(FsError::FileTooBig);
        }
        let new = self.new_node(handle, path, &path.levels[0])?;
        let buf = self.fs.meta().get_new(new);
        let seed = self.core.seed(self.fs.geo(), self.ino);
        let first = {
            let node = root(self.core)?;
            let mut to = handle.write(&buf)?;
            let mut child = ExtentNodeMut::init_block(self.fs.geo(), &mut to, depth);
            child.append(&node, 0..node.len());
            child.seal(seed);
            node.first_block(0)
        };
        buf.set_verified(EXTENT_NODE);
        let mut root = ExtentNodeMut::edit(&mut self.core.block)?;
        let len = root.node().len();
        root.remove(0..len);
        root.set_depth(depth + 1);
        root.insert_index(
            0,
            &ExtentIndex {
                block: first,
                child: new,
            },
        );
        Ok(())
    }

    /// A block for a new node, near its sibling or the file's data.
    fn new_node(&mut self, handle: &mut Handle<'_>, path: &Path, near: &Level) -> Result<DevBlock> {
        let goal = match &near.buf {
            Some(buf) => buf.block(),
            None => self.fs.alloc.goal_for(self.fs.geo(), self.ino),
        };
        let block = self.fs.alloc.alloc_meta_block(self.fs, handle, goal)?;
        if path.has(block) {
            let what = "free by its bitmap, and in use by the map";
            return Err(Corruption::new(what)
                .in_inode(self.ino)
                .in_block(block)
                .into());
        }
        self.core.blocks += self.fs.geo().cluster_units();
        Ok(block)
    }

    /// Pins what [`Tree::remove_entry`] changes when nodes become empty.
    pub(super) fn pin_to_remove_entry(&self, pins: &mut Pins, path: &Path) -> Result<()> {
        for level in path.levels.iter().rev() {
            let Some(buf) = &level.buf else {
                return Ok(());
            };
            if level.bytes(self.core).node()?.len() > 1 {
                return Ok(());
            }
            self.fs.alloc.pin_to_free(self.fs, pins, buf.block(), 1)?;
        }
        Ok(())
    }

    /// Removes the leaf's entry at `pos`, and with a node's last entry the node.
    pub(super) fn remove_entry(
        &mut self,
        handle: &mut Handle<'_>,
        path: &Path,
        pos: u16,
    ) -> Result<()> {
        let mut pos = pos;
        for depth in (0..path.levels.len()).rev() {
            let level = &path.levels[depth];
            let len = level.bytes(self.core).node()?.len();
            match &level.buf {
                Some(buf) if len == 1 => {
                    // Its only entry: the node is freed, and its entry in the parent removed.
                    let block = buf.block();
                    handle.forget(block)?;
                    self.fs.alloc.free_blocks(self.fs, handle, block, 1)?;
                    let units = self.fs.geo().cluster_units();
                    self.core.blocks = self.core.blocks.saturating_sub(units);
                    pos = path.levels[depth - 1].pos;
                }
                None if len == 1 => {
                    super::init_root(self.core);
                    return Ok(());
                }
                _ => {
                    let first = self.edit(handle, level, |node| {
                        node.remove(pos..pos + 1);
                        node.node().first_block(0)
                    })?;
                    if pos == 0 {
                        self.correct_keys_above(handle, path, depth, first)?;
                    }
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
