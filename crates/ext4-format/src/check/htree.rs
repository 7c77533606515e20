//! The hash index of a directory: which leaf may hold which hashes.

use super::tables::{Comparison, Dir};
use super::{Checker, Issue};
use crate::disk::hash::{HashKind, HashParams};
use crate::disk::htree::{self, DxNode};
use crate::disk::num::get32;
use crate::disk::{DiskError, Structure};

/// Role of a directory block in the index.
#[derive(Clone, Copy, Default)]
pub(super) enum IndexRole {
    /// Not named by the index.
    #[default]
    Not,
    /// The root or a node.
    Node,
    /// A leaf.
    Leaf(Hashes),
}

/// The hashes that may be in a leaf: the lowest, and where the next leaf starts. Where the next one
/// only continues the last hash (its lowest bit is set), that hash may be in both.
#[derive(Clone, Copy)]
pub(super) struct Hashes {
    low: u32,
    next: Option<u32>,
}

impl Hashes {
    const ALL: Self = Self { low: 0, next: None };

    pub(super) fn contains(self, hash: u32) -> bool {
        hash >= self.low & !1
            && self.next.is_none_or(|next| {
                if next & 1 == 0 {
                    hash < next
                } else {
                    hash < next | 1
                }
            })
    }

    /// Whether a child that starts at `hash` can be below a node with this range.
    fn may_start(self, hash: u32) -> bool {
        hash >= self.low && self.next.is_none_or(|next| hash <= next)
    }
}

/// The index of the directory being checked.
#[derive(Default)]
pub(super) struct Index {
    /// One for each block of the directory; empty if there is no usable index.
    pub(super) blocks: Vec<IndexRole>,
    /// How its names are hashed; `None` if unknown.
    pub(super) hash: Option<HashParams>,
}

impl Checker<'_> {
    /// Reads the whole index of a directory without holes; `index` is empty if it is unusable.
    pub(super) fn load_index(&mut self, dir: &Dir, index: &mut Index) {
        index.blocks.clear();
        index.blocks.resize(dir.blocks as usize, IndexRole::Not);
        index.hash = None;
        let mut root = std::mem::take(&mut self.levels[0]);
        if !self.read_dir_block(dir, 0, &mut root) {
            index.blocks.clear();
        } else if let Err(error) = self.load_root(dir, &root, index) {
            self.issue(Issue::Htree(error.in_inode(dir.ino)));
            index.blocks.clear();
        } else {
            self.check_unnamed(dir, index);
        }
        self.levels[0] = root;
    }

    fn load_root(&mut self, dir: &Dir, block: &[u8], index: &mut Index) -> Result<(), DiskError> {
        let info = htree::root_info(&self.geo, block)?;
        let reserved = get32(block, htree::INFO_AT);
        if reserved != 0 {
            let (field, rule) = ("reserved_zero", "not zero");
            return Err(DiskError::field(
                Structure::HtreeNode,
                field,
                reserved,
                rule,
            ));
        }
        let is_keyed = info.hash == HashKind::SipHash;
        if is_keyed != (dir.comparison == Comparison::Encrypted) {
            let rule = match is_keyed {
                true => "keyed, but the names are not encrypted and case-insensitive",
                false => "not keyed, but the names are encrypted and case-insensitive",
            };
            let version = info.hash.to_disk();
            let (field, at) = ("hash_version", Structure::HtreeNode);
            return Err(DiskError::field(at, field, version, rule));
        }
        let root = DxNode::parse_root(&self.layout_of(dir), dir.seed, block)?;
        index.blocks[0] = IndexRole::Node;
        if dir.comparison != Comparison::Unknown {
            index.hash = Some(self.geo.hash.with_kind(info.hash));
        }
        self.load_children(dir, &root, info.indirect_levels, Hashes::ALL, index);
        Ok(())
    }

    /// Records the children of a node that has `levels` levels of nodes below it.
    fn load_children(
        &mut self,
        dir: &Dir,
        node: &DxNode<'_>,
        levels: u8,
        own: Hashes,
        index: &mut Index,
    ) {
        for i in 0..node.len() {
            let child = node.entry(i);
            let low = if i == 0 { own.low } else { child.hash };
            let next = if i + 1 < node.len() {
                Some(node.entry(i + 1).hash)
            } else {
                own.next
            };
            if !own.may_start(low) {
                let rule = "is outside its parent's range";
                let error = DiskError::entry(Structure::HtreeNode, i.into(), rule);
                self.issue(Issue::Htree(error.in_inode(dir.ino)));
            }
            let hashes = Hashes { low, next };
            match index.blocks.get_mut(child.block as usize) {
                None => {
                    let (dir, block) = (dir.ino, child.block);
                    self.issue(Issue::HtreeChild { dir, block });
                }
                Some(named @ IndexRole::Not) => {
                    *named = if levels == 0 {
                        IndexRole::Leaf(hashes)
                    } else {
                        IndexRole::Node
                    };
                    if levels > 0 {
                        self.load_node(dir, child.block, levels, hashes, index);
                    }
                }
                Some(_) => {
                    let (dir, block) = (dir.ino, child.block);
                    self.issue(Issue::HtreeBlockTwice { dir, block });
                }
            }
        }
    }

    fn load_node(&mut self, dir: &Dir, block: u32, levels: u8, own: Hashes, index: &mut Index) {
        let level = usize::from(levels);
        let mut buf = std::mem::take(&mut self.levels[level]);
        if self.read_dir_block(dir, block.into(), &mut buf) {
            match DxNode::parse_node(&self.layout_of(dir), dir.seed, &buf) {
                Ok(node) => self.load_children(dir, &node, levels - 1, own, index),
                Err(error) => self.issue(Issue::Htree(error.in_inode(dir.ino))),
            }
        }
        self.levels[level] = buf;
    }

    fn check_unnamed(&mut self, dir: &Dir, index: &Index) {
        for (block, named) in (0..).zip(&index.blocks) {
            if matches!(named, IndexRole::Not) {
                self.issue(Issue::HtreeBlockUnnamed {
                    dir: dir.ino,
                    block,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continued_hash_is_in_both_leaves() {
        let first = Hashes {
            low: 0,
            next: Some(101),
        };
        let second = Hashes {
            low: 101,
            next: Some(200),
        };
        assert!(first.contains(0) && first.contains(100) && !first.contains(102));
        assert!(second.contains(100) && second.contains(198) && !second.contains(200));
        assert!(Hashes::ALL.contains(u32::MAX - 1));
    }
}
