//! The path from an inode's root node to a leaf.

use std::ops::{Deref, Range};
use std::sync::Arc;

use steadfs_base::{Corruption, DevBlock, FileBlock, IoTag};
use steadfs_block::Buf;
use steadfs_cache::MetaBuf;
use steadfs_vfs::{FsError, Result};

use crate::disk::extent::{ExtentNode, FILE_END};
use crate::disk::{self, Ino};
use crate::fs::Ext4;
use crate::verified::EXTENT_NODE;

/// A node on the path.
pub(super) struct Level {
    /// Its shape when the path was found.
    pub(super) shape: Shape,
    /// The node's block; `None` is the root in the inode.
    pub(super) buf: Option<Arc<MetaBuf>>,
    /// Position of the entry of the next node (upper nodes).
    pub(super) pos: u16,
    /// File blocks below the node.
    pub(super) blocks: Range<FileBlock>,
}

/// Nodes from the root to a leaf.
pub(super) struct Path {
    pub(super) levels: Vec<Level>,
}

/// The header fields on which positions in a node depend. On a corrupt volume its block may belong to another
/// structure, too; then a change of that changes the node, although no other task holds the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    depth: u16,
    len: u16,
    capacity: u16,
}

impl Shape {
    pub(super) fn of(node: &ExtentNode<'_>) -> Self {
        Self {
            depth: node.depth(),
            len: node.len(),
            capacity: node.capacity(),
        }
    }
}

/// A node's bytes, in the inode or shared with the cache.
pub(super) struct Bytes<'a> {
    content: Content<'a>,
    /// Levels below the node.
    depth: u16,
}

enum Content<'a> {
    Root(&'a [u8]),
    Block(Buf),
}

impl Deref for Bytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.content {
            Content::Root(bytes) => bytes,
            Content::Block(buf) => buf,
        }
    }
}

impl Bytes<'_> {
    pub(super) fn node(&self) -> Result<ExtentNode<'_>> {
        let node = ExtentNode::view(self)?;
        match node.depth() == self.depth {
            true => Ok(node),
            false => Err(shared_node_error()),
        }
    }
}

/// The error for a node that has changed its shape meanwhile.
pub(super) fn shared_node_error() -> FsError {
    Corruption::new("a node of an extent tree belongs to another structure, too").into()
}

impl Level {
    pub(super) fn bytes<'a>(&self, core: &'a disk::Inode) -> Bytes<'a> {
        let content = match &self.buf {
            None => Content::Root(&core.block),
            Some(buf) => Content::Block(buf.data()),
        };
        let depth = self.shape.depth;
        Bytes { content, depth }
    }
}

/// The root in the inode.
pub(super) fn root(core: &disk::Inode) -> Result<ExtentNode<'_>> {
    Ok(ExtentNode::view(&core.block)?)
}

impl Path {
    /// The path to the leaf that holds `block` or would hold it.
    pub(super) fn find(
        fs: &Ext4,
        ino: Ino,
        core: &disk::Inode,
        block: FileBlock,
        tag: IoTag,
    ) -> Result<Self> {
        let geo = fs.geo();
        let seed = core.seed(geo, ino);
        let root = ExtentNode::parse_root(geo, &core.block).map_err(|e| e.in_inode(ino))?;
        let mut levels = Vec::with_capacity(usize::from(root.depth()) + 1);
        let mut level = Level {
            shape: Shape::of(&root),
            buf: None,
            pos: 0,
            blocks: FileBlock(0)..FILE_END,
        };
        loop {
            let bytes = level.bytes(core);
            let node = bytes.node()?;
            if node.depth() == 0 {
                drop(bytes);
                levels.push(level);
                return Ok(Self { levels });
            }
            let (pos, index) = node.child_for(block);
            let expect = node.expect_child(pos, &level.blocks);
            if !fs.alloc.may_own(geo, index.child, 1) {
                return Err(
                    Corruption::new("a node of its map is the volume's own metadata")
                        .in_inode(ino)
                        .in_block(index.child)
                        .into(),
                );
            }
            let buf = fs.block(index.child, tag)?;
            buf.verify_once(EXTENT_NODE, |bytes| {
                ExtentNode::parse_block(geo, seed, bytes, &expect)
                    .map(|_| ())
                    .map_err(|e| e.in_inode(ino).in_block(index.child))
            })?;
            // A node verified under another parent may not belong here; the depth limits the walk.
            let shape = Shape::of(&ExtentNode::view(&buf.data())?);
            if shape.depth != expect.depth {
                return Err(Corruption::new("an extent node has the wrong depth")
                    .in_inode(ino)
                    .in_block(index.child)
                    .into());
            }
            drop(bytes);
            level.pos = pos;
            levels.push(level);
            level = Level {
                shape,
                buf: Some(buf),
                pos: 0,
                blocks: expect.blocks,
            };
        }
    }

    /// Whether a block holds one of the nodes.
    pub(super) fn has(&self, block: DevBlock) -> bool {
        let mut bufs = self.levels.iter().filter_map(|level| level.buf.as_ref());
        bufs.any(|buf| buf.block() == block)
    }

    pub(super) fn leaf(&self) -> &Level {
        self.levels.last().expect("a path has a root")
    }
}
