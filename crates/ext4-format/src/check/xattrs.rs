//! Extended attributes: entries, hashes, and the blocks that several inodes share.

use steadfs_base::DevBlock;
use steadfs_format_base::check::Name;

use super::{Checker, Issue};
use crate::disk::xattr::{Attr, BlockAttrs, InodeAttrs, Value};
use crate::disk::{DiskError, Ino, Inode, Structure};

/// References to an attribute block.
pub(super) struct Shared {
    stored: u32,
    counted: u32,
    /// Blocks of attribute inodes, which each user of the block counts.
    value_blocks: u64,
    /// Their number, likewise.
    values: u64,
}

impl Checker<'_> {
    /// Checks an inode's attributes; returns the blocks that they add to its count.
    pub(super) fn check_xattrs(&mut self, ino: Ino, inode: &Inode) -> u64 {
        let (mut blocks, owner) = (0, (ino, inode.generation));
        match InodeAttrs::parse(&inode.xattr_area) {
            Ok(attrs) => {
                for attr in attrs.iter() {
                    blocks += self.check_attr(owner, &attr, true);
                }
                if attrs.has_overlap() {
                    self.issue(Issue::XattrOverlap { ino });
                }
            }
            Err(error) => self.issue(Issue::Xattr(error.in_inode(ino))),
        }
        let Some(block) = inode.file_acl else {
            return blocks;
        };
        if !self.has_xattrs() {
            let (field, value) = ("i_file_acl", block.0);
            self.issue(Issue::FieldNotZero { ino, field, value });
        }
        // A block outside the volume was reported with the inode's fields.
        if self.geo.is_data_range(block, 1) {
            blocks += self.check_xattr_block(owner, block);
        }
        blocks + u64::from(self.geo.blocks_per_cluster())
    }

    fn check_xattr_block(&mut self, owner: (Ino, u32), block: DevBlock) -> u64 {
        let (ino, _) = owner;
        if let Some(shared) = self.xattr_blocks.get_mut(&block.0) {
            shared.counted += 1;
            self.counted.values += shared.values;
            return shared.value_blocks;
        }
        if let Some(twice) = self.used.mark_used(&self.geo, block, 1) {
            self.issue(Issue::BlockUsedTwice {
                ino,
                block: twice.first,
                count: twice.count,
            });
            return 0;
        }
        self.report.stats.xattr_blocks += 1;
        let mut value_blocks = 0;
        let mut buf = std::mem::take(&mut self.levels[0]);
        if self.read_block(block, &mut buf) {
            match BlockAttrs::parse(&self.geo, block, &buf) {
                Ok(attrs) => value_blocks = self.check_block_attrs(owner, block, &attrs),
                Err(error) => self.issue(Issue::Xattr(error.in_inode(ino))),
            }
        }
        self.levels[0] = buf;
        value_blocks
    }

    fn check_block_attrs(
        &mut self,
        owner: (Ino, u32),
        block: DevBlock,
        attrs: &BlockAttrs<'_>,
    ) -> u64 {
        let (ino, _) = owner;
        const WHAT: Structure = Structure::XattrBlock;
        let (mut value_blocks, values) = (0, self.counted.values);
        for (i, attr) in (0..).zip(attrs.iter()) {
            value_blocks += self.check_attr(owner, &attr, false);
            if attr.index == 0 {
                let error = DiskError::entry(WHAT, i, "has no name space");
                self.issue(Issue::Xattr(error.in_inode(ino).in_block(block)));
            }
        }
        let shared = Shared {
            stored: attrs.refcount,
            counted: 1,
            value_blocks,
            values: self.counted.values - values,
        };
        self.xattr_blocks.insert(block.0, shared);
        if attrs.has_overlap() {
            self.issue(Issue::XattrOverlap { ino });
        }
        if !attrs.has_valid_hash() {
            let rule = "not that of its entries";
            let error = DiskError::field(WHAT, "h_hash", attrs.hash, rule);
            self.issue(Issue::Xattr(error.in_inode(ino).in_block(block)));
        }
        value_blocks
    }

    /// Checks an attribute; returns the blocks of a value in an inode, which its owner counts, too.
    fn check_attr(&mut self, owner: (Ino, u32), attr: &Attr<'_>, in_inode: bool) -> u64 {
        if let Value::Inode { ino, size } = attr.value {
            return self.check_value(owner, attr, (ino, size));
        }
        if !attr.has_valid_hash(in_inode) {
            let (ino, name) = (owner.0, Name::of(attr.name));
            self.issue(Issue::XattrHash { ino, name });
        }
        0
    }

    pub(super) fn check_xattr_refcounts(&mut self) {
        for (block, shared) in std::mem::take(&mut self.xattr_blocks) {
            if shared.stored != shared.counted {
                self.issue(Issue::XattrRefcount {
                    block: DevBlock(block),
                    stored: shared.stored,
                    counted: shared.counted,
                });
            }
        }
    }
}
